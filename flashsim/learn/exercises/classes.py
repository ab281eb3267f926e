"""What a class handed in, graded: each file in a process of its own, each verdict the grader's."""

import csv
import io
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashsim.learn.exercises import exercises
from flashsim.learn.exercises.apart import Apart, Limits
from flashsim.learn.exercises.record import Exercise
from flashsim.learn.exercises.work import Wrong, hint_on_return
from flashsim.support.entry import one_line
from flashsim.support.exporting import csv_cell

COLUMNS = ("file", "exercise", "verdict", "seen", "hint", "seconds")
SUFFIXES = (".ipynb", ".py")
SOLVED = "solved"
NOT_YET = "not yet"
NOT_GRADED = "not graded"


@dataclass(frozen=True)
class Row:
    """What came of one file: a verdict, what was verified or what is wrong, and the hint that
    fits it.
    """

    file: str
    exercise: str
    verdict: str
    seen: str
    hint: str = ""
    seconds: float = 0.0


def handed_in(folder: Path) -> list[Path]:
    """Return the files of Python, and notebooks, in a folder and in those within it, but for
    hidden ones.
    """
    found = (
        path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and not path.is_dir()
    )
    return [
        path
        for path in found
        if not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    ]


def asked_for(path: Path) -> Exercise | None:
    """Return the exercise that a file is handed in for, by its name alone: ada_05_inner_loop.py,
    05_ada.py.
    """
    known = exercises().values()
    whole = [found for found in known if found.file.removesuffix(".py") in path.stem]
    begun = [found for found in known if path.stem.startswith(f"{found.number:02}_")]
    return next(iter([*whole, *begun]), None)


def grade_file(path: Path, name: str, exercise: Exercise | None, limits: Limits) -> Row:
    """Grade one file, called `name`, in a process of its own; a link or a notebook is not
    graded.
    """
    if path.is_symlink():
        return Row(name, "", NOT_GRADED, "It is a link; expected a file.")
    if path.suffix == ".ipynb":
        return Row(
            name,
            "",
            NOT_GRADED,
            (
                "It is a notebook; expected the file that its first cell writes, such as "
                "*_notebook.py."
            ),
        )
    exercise = exercise or asked_for(path)
    if exercise is None:
        return Row(
            name, "", NOT_GRADED, "Its name says no exercise; expected such as 05_inner_loop.py."
        )
    begun = time.monotonic()
    try:
        with Apart(path, exercise, limits) as work:
            verdict = SOLVED
            seen = exercise.grade(work)
            hint = ""
    except Wrong as wrong:
        verdict = NOT_YET
        seen = wrong.seen
        hint = hint_on_return(path) or wrong.hint
    except Exception as error:  # the file's answers were such that the judge cannot compare them
        verdict = NOT_GRADED
        seen = f"The judge failed: {type(error).__name__}: {error}"
        hint = ""
    return Row(
        name,
        exercise.name,
        verdict,
        one_line(seen),
        one_line(hint),
        round(time.monotonic() - begun, 1),
    )


def grade_folder(
    folder: Path,
    exercise: Exercise | None,
    limits: Limits,
    told: Callable[..., None],
    rows: list[Row],
) -> None:
    """Grade what is in a folder, and put the rows into `rows` as they come. Raises ValueError
    where there is nothing.
    """
    paths = handed_in(folder)
    if not paths and exercise is not None:
        rows.append(Row("", exercise.name, NOT_YET, "No .py file was handed in."))
    elif not paths:
        raise ValueError(
            f"{folder} holds no .py file; expected what was handed in, in folders or not"
        )
    for done, path in enumerate(paths):
        name = str(path.relative_to(folder))
        told(done, len(paths), name)
        rows.append(grade_file(path, name, exercise, limits))
    told(len(paths), len(paths), "")


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([csv_cell(getattr(row, column)) for column in COLUMNS] for row in rows)
    return text.getvalue()


def as_gradescope(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what Gradescope reads from results.json: a test for each file, of 1 point."""
    tests = [
        {
            "name": f"{row.file}: {row.exercise or 'no exercise'}",
            "score": float(row.verdict == SOLVED),
            "max_score": 1.0,
            "status": "passed" if row.verdict == SOLVED else "failed",
            "output": "\n\n".join(filter(None, (row.seen, row.hint))),
        }
        for row in rows
    ]
    return {"visibility": "visible", "stdout_visibility": "hidden", "tests": tests}


def mistakes(rows: Sequence[Row]) -> list[tuple[int, str, str]]:
    """Return how often each mistake was made, in which exercise, and its hint, or what was seen:
    the most common first.
    """
    counted = Counter(
        (row.exercise, row.hint or row.seen) for row in rows if row.verdict == NOT_YET
    )
    return [(times, exercise, said) for (exercise, said), times in counted.most_common()]
