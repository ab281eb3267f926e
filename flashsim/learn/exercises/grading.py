"""A student's file graded, or played beside the right algorithm; and what has been reached so
far, kept beside the files.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flashsim.algorithms import FORWARD, Algorithm
from flashsim.learn.exercises import exercise, exercises
from flashsim.learn.exercises.record import Exercise
from flashsim.learn.exercises.work import Work, Wrong, hint_on_return
from flashsim.support.files import what_is_there, write_whole

PROGRESS = ".flashsim-exercises.json"


@dataclass(frozen=True)
class Grade:
    """What came of a student's file: what was verified, or what was seen that is wrong, and the
    hint that fits it.
    """

    exercise: Exercise
    solved: bool
    said: str
    hint: str = ""


def grade(path: Path, which: str | None = None) -> Grade:
    """Grade a student's file, of this exercise or of the one that it names. Raises ValueError
    for a file of no exercise.
    """
    found = exercise_of(path, which)
    try:
        return Grade(found, True, found.grade(Work(path)))
    except Wrong as wrong:
        return Grade(found, False, wrong.seen, hint_on_return(path) or wrong.hint)


def exercise_of(path: Path, which: str | None = None) -> Exercise:
    """Return the exercise of a file: the one asked for, or by its name, or by its first lines.
    Raises ValueError.
    """
    if not path.is_file():
        for found in exercises().values():
            if str(path) in (str(found.number), f"{found.number:02}", found.name):
                raise ValueError(
                    f"{path} is {what_is_there(path)}; expected a file, perhaps {found.file}"
                )
        raise ValueError(
            f"{path} is {what_is_there(path)}; expected a file of `flashsim exercise start`"
        )
    if path.suffix == ".ipynb":
        raise ValueError(f"{path} is a notebook: run its cells in Jupyter, one of which checks")
    try:
        head = path.read_text(encoding="utf-8-sig")[:400]
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not text in UTF-8; expected a file of `flashsim exercise start`"
        ) from None
    if which is not None:
        return exercise(which)
    numbered = re.match(r"(\d+)_", path.name) or re.search(r"Exercise (\d+):", head)
    known = {found.number: found for found in exercises().values()}
    if numbered is None or int(numbered[1]) not in known:
        raise ValueError(
            f"{path} does not belong to an exercise: its first line should say to which, as in "
            "Exercise 1: load a tile, "
            "or its name, as 01_load_a_tile.py"
        )
    return known[int(numbered[1])]


def start(which: str, folder: Path, *, overwrite: bool = False, as_notebook: bool = False) -> Path:
    """Write an exercise's file, or notebook, into a folder, and return its path. Raises
    ValueError for a file that is there.
    """
    found = exercise(which)
    path = folder / (found.notebook if as_notebook else found.file)
    if path.exists() and not overwrite:
        raise ValueError(f"{path} is there already: go on with it, or begin anew with --overwrite")
    return write_whole(path, found.as_notebook() if as_notebook else found.fresh())


def progress(folder: Path, own: Exercise | None = None) -> dict[str, dict[str, Any]]:
    """Return what was reached in a folder: for each exercise's name, whether it is solved, and
    the hints shown.
    """
    try:
        kept = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    reached: dict[str, dict[str, Any]] = {}
    for name, found in {**({} if own is None else {own.name: own}), **exercises()}.items():
        entry = kept.get(name) if isinstance(kept, dict) else None
        entry = entry if isinstance(entry, dict) else {}
        hints = entry.get("hints")
        shown = min(hints, len(found.hints)) if type(hints) is int and hints > 0 else 0
        reached[name] = {"solved": entry.get("solved") is True, "hints": shown}
    return reached


def keep(folder: Path, of: Exercise, **changes: Any) -> None:
    """Keep what was reached. A folder that cannot be written to keeps nothing."""
    name = of.name
    reached = progress(folder, of)
    if changes.items() <= reached[name].items():
        return
    reached[name] |= changes
    with suppress(OSError):
        write_whole(folder / PROGRESS, json.dumps(reached, indent=1) + "\n")


def played(path: Path) -> tuple[Algorithm, Algorithm]:
    """Return a student's file as an algorithm, and the right one, of the same name. ValueError
    if it cannot be played.
    """
    exercise = exercise_of(path)
    if exercise.whole is None:
        ones = ", ".join(str(one.number) for one in exercises().values() if one.whole)
        raise ValueError(
            f"{path} is of exercise {exercise.number}, which is not a whole algorithm; {ones} can "
            "be played"
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
        right,
        run=run,
        title=f"{path.name}, beside {right.title}",
        parts=(),
        returns=(),
        saves=(),
        operands=(),
    )
    return mine, right


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except Wrong as wrong:
        said = " ".join(f"{wrong.seen} {wrong.hint}".split())
        raise ValueError(f"{path} cannot be played yet: {said}") from None
