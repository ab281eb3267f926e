"""Tests of `flashsim.learn`."""
