"""Tests of `flashsim.reference`."""
