"""Tests of `flashsim.simulate`."""
