"""Exact counts of what serves, by formula: a file for each program, which ends in its form.

Written without the simulator, and equal to what it counts. Of a sequence, R = g·N rows of one KV
head are cut into blocks of B_r; block i has b_i rows, which see the first e_i of n keys. cover(e,
B) = min(⌈e/B⌉·B, n) keys are loaded for them, tile by tile.
"""

from collections.abc import Mapping
from functools import cache

from flashsim.serving.theory.form import ServingForm
from flashsim.support.modules import records_of


@cache
def forms() -> Mapping[tuple[str, str], ServingForm]:
    """Return the forms, by name and direction."""
    return {(form.name, form.direction): form for form in records_of(__name__, "FORM", ServingForm)}
