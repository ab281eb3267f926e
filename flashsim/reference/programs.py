"""What programs that are no attention compute, in plain NumPy, and how far rounding may lead from it, by the programs' names.

A module of this package says so of its own in `NAIVE`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from flashsim.inputs import Array

Naive = Callable[[Mapping[str, Any], Mapping[str, int]], dict[str, tuple[Array, Array]]]
"""(operands, in float64, and options by name; block sizes) -> (what is right, how far rounding may lead), by result."""


@cache
def naive_programs() -> dict[str, Naive]:
    """Return what each program computes, by its name."""
    files = (
        import_module(f"flashsim.reference.{file.name}") for file in pkgutil.iter_modules([str(Path(__file__).parent)])
    )
    return {name: naive for file in files for name, naive in getattr(file, "NAIVE", {}).items()}
