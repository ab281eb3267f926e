"""A student's file as an algorithm, to be played beside the right one."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashsim.algorithms import FORWARD, Algorithm
from flashsim.learn.exercises import exercises
from flashsim.learn.exercises.grading import exercise_of
from flashsim.learn.exercises.work import Work, Wrong


def played(path: Path) -> tuple[Algorithm, Algorithm]:
    """Return a student's file as an algorithm, and the right one, of the same name.

    Raises ValueError for a file that is not an exercise's, that is not of a whole algorithm, or that does not run yet.
    """
    exercise = exercise_of(path)
    if exercise.whole is None:
        ones = ", ".join(str(one.number) for one in exercises().values() if one.whole)
        raise ValueError(
            f"{path} is of exercise {exercise.number}, which is not a whole algorithm; {ones} can be played"
        )
    right = FORWARD[exercise.right]
    (name,) = re.findall(r"^def (\w+)\(hbm, sram, ", exercise.text, re.MULTILINE)
    with _refusing(path):
        function = Work(path).function(name)

    def call(*args: Any) -> Any:
        with _refusing(path):
            return function(*args)

    run = exercise.whole(call)
    mine = replace(
        right, run=run, title=f"{path.name}, beside {right.title}", parts=(), returns=(), saves=(), operands=()
    )
    return mine, right


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except Wrong as wrong:
        said = " ".join(f"{wrong.seen} {wrong.hint}".split())
        raise ValueError(f"{path} cannot be played yet: {said}") from None
