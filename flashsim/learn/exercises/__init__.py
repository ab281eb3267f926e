"""Exercises: files with holes, and what grades them. Each file in this folder that has a NUMBER is one."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

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
    """Return the exercise of that number or name, or of a file of one's own, FILE.py, which is run. Raises ValueError."""
    if which.endswith(".py"):
        return _own(Path(which))
    for found in exercises().values():
        if which in (found.name, str(found.number), f"{found.number:02}"):
            return found
    names = ", ".join(f"{found.number} {name}" for name, found in exercises().items())
    raise ValueError(f"there is no exercise {shown(which)}; there are {names}")


def _own(path: Path) -> Exercise:
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected an exercise of your own")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return Exercise(module.NUMBER, path.stem, module.TITLE, module.TEXT, module.HINTS, module.grade)
    except AttributeError as error:
        expected = "an exercise defines NUMBER, TITLE, TEXT, HINTS and grade, as those in flashsim/learn/exercises do"
        raise ValueError(f"{path} is not an exercise: {error}; {expected}") from None
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
