"""What serves, a file for each program, which ends in its record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from flashsim.serving.record import ServingProgram


@cache
def programs(direction: str = "forward") -> Mapping[str, ServingProgram]:
    """Return the programs of one direction, by name."""
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    found = [module.PROGRAM for module in modules]
    return {program.name: program for program in found if program.direction == direction}
