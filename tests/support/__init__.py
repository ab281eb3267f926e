"""Tests of `flashsim.support`."""
