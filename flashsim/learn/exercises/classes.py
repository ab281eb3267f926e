"""Grades of a class: each file runs in a process of its own, and only the grader gives verdicts."""

import csv
import io
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashsim.learn.exercises import exercises
from flashsim.learn.exercises.record import Exercise
from flashsim.learn.exercises.submission import Mistake, hint_on_return
from flashsim.learn.exercises.submission_process import Limits, SubmissionProcess
from flashsim.support.entry import one_line
from flashsim.support.exporting import csv_cell

COLUMNS = ("file", "exercise", "verdict", "seen", "hint", "seconds")
SUFFIXES = (".ipynb", ".py")
SOLVED = "solved"
NOT_YET = "not yet"
NOT_GRADED = "not graded"


@dataclass(frozen=True)
class Row:
    """The result of one file. `seen` says what was verified, or what is wrong; `hint` is a hint on
    the mistake.
    """

    file: str
    exercise: str
    verdict: str
    seen: str
    hint: str = ""
    seconds: float = 0.0


def submitted_files(folder: Path) -> list[Path]:
    """Return the Python files and the notebooks in a folder and its subfolders, except hidden
    ones.
    """
    files = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in SUFFIXES or path.is_dir():
            continue
        parts = path.relative_to(folder).parts
        if not any(part.startswith((".", "__")) for part in parts):
            files.append(path)
    return files


def exercise_named(path: Path) -> Exercise | None:
    """Return the exercise of a file by its name alone: ada_05_inner_loop.py, 05_ada.py."""
    for record in exercises().values():
        if record.file.removesuffix(".py") in path.stem:
            return record
    for record in exercises().values():
        if path.stem.startswith(f"{record.number:02}_"):
            return record
    return None


def grade_file(path: Path, name: str, exercise: Exercise | None, limits: Limits) -> Row:
    """Grade one file, called `name`, in a process of its own. Links and notebooks are not
    graded.
    """
    if path.is_symlink():
        return Row(name, "", NOT_GRADED, "It is a link; expected a file.")
    if path.suffix == ".ipynb":
        reason = (
            "It is a notebook; expected the file that its first cell writes, such as *_notebook.py."
        )
        return Row(name, "", NOT_GRADED, reason)
    exercise = exercise or exercise_named(path)
    if exercise is None:
        reason = "Its name says no exercise; expected such as 05_inner_loop.py."
        return Row(name, "", NOT_GRADED, reason)
    start = time.monotonic()
    hint = ""
    try:
        with SubmissionProcess(path, exercise, limits) as submission:
            verdict = SOLVED
            message = exercise.grade(submission)
    except Mistake as mistake:
        verdict = NOT_YET
        message = mistake.message
        hint = hint_on_return(path) or mistake.hint
    except Exception as error:  # the grader cannot compare the file's results
        verdict = NOT_GRADED
        message = f"The judge failed: {type(error).__name__}: {error}"
    seconds = round(time.monotonic() - start, 1)
    return Row(name, exercise.name, verdict, one_line(message), one_line(hint), seconds)


def grade_folder(
    folder: Path,
    exercise: Exercise | None,
    limits: Limits,
    update: Callable[..., None],
    rows: list[Row],
) -> None:
    """Grade the files in a folder, and append a row to `rows` after each. Before each, call
    update(number of files before it, of all, its name). Raises ValueError if there are no files.
    """
    paths = submitted_files(folder)
    if not paths and exercise is not None:
        rows.append(Row("", exercise.name, NOT_YET, "No .py file was handed in."))
    elif not paths:
        raise ValueError(
            f"{folder} holds no .py file; expected what was handed in, in folders or not"
        )
    for number, path in enumerate(paths):
        name = str(path.relative_to(folder))
        update(number, len(paths), name)
        rows.append(grade_file(path, name, exercise, limits))
    update(len(paths), len(paths), "")


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([csv_cell(getattr(row, column)) for column in COLUMNS] for row in rows)
    return text.getvalue()


def as_gradescope(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the content of Gradescope's results.json: a test for each file, of 1 point."""
    tests = []
    for row in rows:
        solved = row.verdict == SOLVED
        tests.append(
            {
                "name": f"{row.file}: {row.exercise or 'no exercise'}",
                "score": float(solved),
                "max_score": 1.0,
                "status": "passed" if solved else "failed",
                "output": "\n\n".join(filter(None, (row.seen, row.hint))),
            }
        )
    return {"visibility": "visible", "stdout_visibility": "hidden", "tests": tests}


def mistakes(rows: Sequence[Row]) -> list[tuple[int, str, str]]:
    """Return each mistake with how often it was made, its exercise, and its hint or message. The
    most common is the first.
    """
    counts = Counter((row.exercise, row.hint or row.seen) for row in rows if row.verdict == NOT_YET)
    return [(count, exercise, text) for (exercise, text), count in counts.most_common()]
