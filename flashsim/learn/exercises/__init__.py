"""Exercises: files with holes, and what grades them. Each file in this folder that has a NUMBER
is one.
"""

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from flashsim.attention.arguments import shown
from flashsim.learn.exercises.record import Exercise
from flashsim.support.loading import file_of


@cache
def exercises() -> dict[str, Exercise]:
    """Return the exercises by name, in the order in which they are to be done."""
    modules = {
        file.name: import_module(f"{__name__}.{file.name}")
        for file in pkgutil.iter_modules(__path__)
    }
    found = {name: m for name, m in modules.items() if hasattr(m, "NUMBER")}
    return {
        name: _of(name, m)
        for name, m in sorted(found.items(), key=lambda item: int(item[1].NUMBER))
    }


def _of(name: str, m: Any) -> Exercise:
    """Return the exercise that a module defines. Raises AttributeError."""
    own = getattr(m, "RIGHT", ""), getattr(m, "whole", None)
    return Exercise(m.NUMBER, name, m.TITLE, m.TEXT, m.HINTS, m.grade, *own)


def exercise(which: str) -> Exercise:
    """Return the exercise of that number or name, or of a file of one's own, FILE.py, which is
    run. Raises ValueError.
    """
    if which.endswith(".py"):
        return _own(Path(which))
    for found in exercises().values():
        if which in (found.name, str(found.number), f"{found.number:02}"):
            return found
    names = ", ".join(f"{found.number} {name}" for name, found in exercises().items())
    raise ValueError(f"there is no exercise {shown(which)}; there are {names}")


def _own(path: Path) -> Exercise:
    module = file_of(path, anew=True)
    try:
        return _of(path.stem, module)
    except AttributeError as error:
        expected = (
            "an exercise defines NUMBER, TITLE, TEXT, HINTS and grade, as those in "
            "flashsim/learn/exercises do"
        )
        raise ValueError(f"{path} is not an exercise: {error}; {expected}") from None
