"""Tests of `flashsim.devices`."""
