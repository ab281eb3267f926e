"""Tests of `flashsim.extensions`."""
