"""Tests of `flashsim.cli`."""
