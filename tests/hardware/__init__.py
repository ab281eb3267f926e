"""Tests of `flashsim.hardware`."""
