"""Tests of `flashsim.attention`."""
