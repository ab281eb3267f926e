"""Tests of `flashsim.memory`."""
