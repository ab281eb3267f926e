"""`grade`: the grade of a student's file. `algorithms_of`: the file as an algorithm, for the player.
`progress` and `keep`: what the student has solved, which is stored beside the files.
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
from flashsim.learn.exercises.submission import Mistake, Submission, hint_on_return
from flashsim.support.files import what_is_there, write_whole

PROGRESS = ".flashsim-exercises.json"


@dataclass(frozen=True)
class Grade:
    """The grade of a student's file. `message` says what was verified, or what is wrong; `hint` is
    a hint on the mistake.
    """

    exercise: Exercise
    solved: bool
    message: str
    hint: str = ""


def grade(path: Path, which: str | None = None) -> Grade:
    """Grade a student's file as that exercise, or as the one that the file names. Raises ValueError
    for a file of no exercise.
    """
    record = exercise_of(path, which)
    try:
        return Grade(record, True, record.grade(Submission(path)))
    except Mistake as mistake:
        return Grade(record, False, mistake.message, hint_on_return(path) or mistake.hint)


def exercise_of(path: Path, which: str | None = None) -> Exercise:
    """Return the exercise of a file: `which`, or by the file's name, or by its first lines. Raises
    ValueError if there is none.
    """
    if not path.is_file():
        expected = "a file of `flashsim exercise start`"
        for record in exercises().values():
            if str(path) in (str(record.number), f"{record.number:02}", record.name):
                expected = f"a file, perhaps {record.file}"
        raise ValueError(f"{path} is {what_is_there(path)}; expected {expected}")
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
    number = re.match(r"(\d+)_", path.name) or re.search(r"Exercise (\d+):", head)
    if number is not None:
        for record in exercises().values():
            if record.number == int(number[1]):
                return record
    raise ValueError(
        f"{path} does not belong to an exercise: its first line should say to which, as in "
        "Exercise 1: load a tile, or its name, as 01_load_a_tile.py"
    )


def start(which: str, folder: Path, *, overwrite: bool = False, as_notebook: bool = False) -> Path:
    """Write an exercise's file, or notebook, into a folder, and return its path. Raises ValueError
    if the file exists.
    """
    record = exercise(which)
    path = folder / (record.notebook if as_notebook else record.file)
    if path.exists() and not overwrite:
        raise ValueError(f"{path} is there already: go on with it, or begin anew with --overwrite")
    return write_whole(path, record.as_notebook() if as_notebook else record.starting_text())


def progress(folder: Path, extra: Exercise | None = None) -> dict[str, dict[str, Any]]:
    """Return a student's progress: for each exercise's name, whether it is solved, and how many
    hints were shown. `extra` is an exercise of the teacher's own.
    """
    try:
        stored = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = {}
    records = [*exercises().values()]
    if extra is not None and extra.name not in exercises():
        records.insert(0, extra)
    by_name: dict[str, dict[str, Any]] = {}
    for record in records:
        entry = stored.get(record.name) if isinstance(stored, dict) else None
        if not isinstance(entry, dict):
            entry = {}
        hints = entry.get("hints")
        if type(hints) is not int or hints < 0:
            hints = 0
        by_name[record.name] = {
            "solved": entry.get("solved") is True,
            "hints": min(hints, len(record.hints)),
        }
    return by_name


def keep(folder: Path, record: Exercise, **changes: Any) -> None:
    """Store a student's progress. If the folder cannot be written to, nothing is stored."""
    by_name = progress(folder, record)
    if changes.items() <= by_name[record.name].items():
        return
    by_name[record.name] |= changes
    with suppress(OSError):
        write_whole(folder / PROGRESS, json.dumps(by_name, indent=1) + "\n")


def algorithms_of(path: Path) -> tuple[Algorithm, Algorithm]:
    """Return a student's file as an algorithm, and the right algorithm of the same name. Raises
    ValueError if it cannot be played.
    """
    record = exercise_of(path)
    if record.as_algorithm is None:
        numbers = ", ".join(
            str(other.number) for other in exercises().values() if other.as_algorithm
        )
        raise ValueError(
            f"{path} is of exercise {record.number}, which is not a whole algorithm; {numbers} can "
            "be played"
        )
    right = FORWARD[record.algorithm]
    (name,) = re.findall(r"^def (\w+)\(hbm, sram, ", record.text, re.MULTILINE)
    with _mistakes_as_errors(path):
        function = Submission(path).function(name)

    def call(*args: Any) -> Any:
        with _mistakes_as_errors(path):
            return function(*args)

    student = replace(
        right,
        run=record.as_algorithm(call),
        title=f"{path.name}, beside {right.title}",
        parts=(),
        returns=(),
        saves=(),
        operands=(),
    )
    return student, right


@contextmanager
def _mistakes_as_errors(path: Path) -> Iterator[None]:
    """Raise ValueError instead of Mistake."""
    try:
        yield
    except Mistake as mistake:
        text = " ".join(f"{mistake.message} {mistake.hint}".split())
        raise ValueError(f"{path} cannot be played yet: {text}") from None
