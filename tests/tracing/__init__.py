"""Tests of `flashsim.tracing`."""
