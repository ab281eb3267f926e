"""Tests of `flashsim.gpu`."""
