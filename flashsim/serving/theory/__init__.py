"""Exact counts of what serves, by formula: a file for each program, which ends in its form.

Written without the simulator, and equal to what it counts. Of a sequence, R = g·N rows of one KV
head are cut into blocks of B_r; block i has b_i rows, which see the first e_i of n keys. cover(e,
B) = min(⌈e/B⌉·B, n) keys are loaded for them, tile by tile.
"""

from collections.abc import Mapping
from functools import cache

from flashsim.serving.theory.form import BatchForm
from flashsim.theory.closed_form import forms_in


@cache
def forms() -> Mapping[tuple[str, str], BatchForm]:
    """Return the forms, by name and direction."""
    known = forms_in(BatchForm.package).items()
    return {key: form for key, form in known if isinstance(form, BatchForm)}
