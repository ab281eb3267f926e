"""A student's file as an algorithm, to be played beside the right one."""

from __future__ import annotations

import re
from collections.abc import Callable
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
    try:
        run = exercise.whole(_refusing(Work(path).function(name), path))
    except Wrong as wrong:
        raise _refused(path, wrong) from None
    mine = replace(
        right, run=run, title=f"{path.name}, beside {right.title}", parts=(), returns=(), saves=(), operands=()
    )
    return mine, right


def _refusing(function: Callable[..., Any], path: Path) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except Wrong as wrong:
            raise _refused(path, wrong) from None

    return call


def _refused(path: Path, wrong: Wrong) -> ValueError:
    said = " ".join(f"{wrong.seen} {wrong.hint}".split())
    return ValueError(f"{path} cannot be played yet: {said}")
