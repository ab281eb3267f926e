"""Tests of `flashsim.serving`."""
