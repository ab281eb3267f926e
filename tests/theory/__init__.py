"""Tests of `flashsim.theory`."""
