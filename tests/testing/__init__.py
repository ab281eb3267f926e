"""Tests of `flashsim.testing`."""
