"""Tests of `flashsim.algorithms`."""
