"""Tests of `flashsim.analysis`."""
