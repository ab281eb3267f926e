"""Tests of `flashsim.plots`."""
