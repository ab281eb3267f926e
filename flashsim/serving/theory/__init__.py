"""Exact counts of what serves, by formula: a file for each program, which ends in its form.

Written without the simulator, and equal to what it counts. Of a sequence, R = g·N rows of one KV head are cut into blocks of B_r;
block i has b_i rows, which see the first e_i of n keys. cover(e, B) = min(⌈e/B⌉·B, n) keys are loaded for them, tile by tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from flashsim.serving.theory.form import ServingForm


@cache
def forms() -> Mapping[tuple[str, str], ServingForm]:
    """Return the forms, by name and direction."""
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    found = [module.FORM for module in modules if hasattr(module, "FORM")]
    return {(form.name, form.direction): form for form in found}
