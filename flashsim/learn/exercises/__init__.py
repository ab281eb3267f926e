"""Exercises: files with holes, and what grades them. Each file in this folder that has a NUMBER is one."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from flashsim.learn.exercises.record import Exercise
from flashsim.problem.arguments import shown


@cache
def exercises() -> dict[str, Exercise]:
    """Return the exercises by name, in the order in which they are to be done."""
    modules = {file.name: import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)}
    found = {name: m for name, m in modules.items() if hasattr(m, "NUMBER")}
    return {
        name: Exercise(
            m.NUMBER, name, m.TITLE, m.TEXT, m.HINTS, m.grade, getattr(m, "RIGHT", ""), getattr(m, "whole", None)
        )
        for name, m in sorted(found.items(), key=lambda item: int(item[1].NUMBER))
    }


def exercise(which: str) -> Exercise:
    """Return the exercise of that number or name. Raises ValueError."""
    for found in exercises().values():
        if which in (found.name, str(found.number), f"{found.number:02}"):
            return found
    names = ", ".join(f"{found.number} {name}" for name, found in exercises().items())
    raise ValueError(f"there is no exercise {shown(which)}; there are {names}")
