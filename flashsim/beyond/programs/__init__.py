"""What runs on the same memory and is not attention over Q, K, V: one program a file, which ends in its record, `PROGRAM`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from flashsim.algorithms.program import Program


@cache
def programs() -> dict[str, Program]:
    """Return all of them, by name: imported when they are asked for."""
    files = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    found = [record for file in files if isinstance(record := getattr(file, "PROGRAM", None), Program)]
    return {record.name: record for record in found}
