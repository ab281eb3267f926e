"""Shared by all tests: Hypothesis settings."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("flashsim", deadline=None, max_examples=60, print_blob=True)
settings.load_profile("flashsim")
