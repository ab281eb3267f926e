"""Shared by all tests: Hypothesis settings."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("flashsim", deadline=None, max_examples=60, print_blob=True)
settings.register_profile(  # scripts/mutation.py's: what fails, fails every time, and need not be made small
    "mutants",
    settings.get_profile("flashsim"),
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("flashsim")
