"""Exercises: files with holes, and functions that grade them. Each module in this folder that has a
NUMBER is an exercise.
"""

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from flashsim.attention.arguments import short_repr
from flashsim.learn.exercises.record import Exercise
from flashsim.support.loading import file_of


@cache
def exercises() -> dict[str, Exercise]:
    """Return the exercises by name, in the order in which students do them."""
    records = []
    for file in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{file.name}")
        if hasattr(module, "NUMBER"):
            records.append(_exercise_of(file.name, module))
    records.sort(key=lambda exercise: exercise.number)
    return {exercise.name: exercise for exercise in records}


def _exercise_of(name: str, module: Any) -> Exercise:
    """Return the exercise that a module defines. Raises AttributeError if it defines none."""
    return Exercise(
        number=module.NUMBER,
        name=name,
        title=module.TITLE,
        text=module.TEXT,
        hints=module.HINTS,
        grade=module.grade,
        algorithm=getattr(module, "ALGORITHM", ""),
        as_algorithm=getattr(module, "as_algorithm", None),
    )


def exercise(which: str) -> Exercise:
    """Return the exercise of that number or name. `which` may also be a Python file with an
    exercise of the user's own, which is run. Raises ValueError if there is none.
    """
    if which.endswith(".py"):
        return _from_file(Path(which))
    for record in exercises().values():
        if which in (record.name, str(record.number), f"{record.number:02}"):
            return record
    names = ", ".join(f"{record.number} {name}" for name, record in exercises().items())
    raise ValueError(f"there is no exercise {short_repr(which)}; there are {names}")


def _from_file(path: Path) -> Exercise:
    module = file_of(path, anew=True)
    try:
        return _exercise_of(path.stem, module)
    except AttributeError as error:
        expected = (
            "an exercise defines NUMBER, TITLE, TEXT, HINTS and grade, as those in "
            "flashsim/learn/exercises do"
        )
        raise ValueError(f"{path} is not an exercise: {error}; {expected}") from None
