"""`flashsim exercise`: exercises in a file each, listed, started and graded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from flashsim.cli.outputs import progress
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FLAG
from flashsim.cli.values import whole
from flashsim.support.entry import printable
from flashsim.support.files import command_line, write_whole

if TYPE_CHECKING:
    from flashsim.learn.exercises.classes import Row
    from flashsim.learn.exercises.grading import Grade
    from flashsim.learn.exercises.record import Exercise

EXAMPLES = (
    "flashsim exercise\n"
    "flashsim exercise start 1\n"
    "flashsim exercise notebook 1\n"
    "flashsim exercise check 01_load_a_tile.py\n"
    "flashsim exercise check 01_load_a_tile.py --hint\n"
    "flashsim exercise grade handed_in --csv grades.csv\n"
    "flashsim exercise grade submission --exercise 5 --gradescope results.json"
)
ACTIONS = ("list", "start", "notebook", "check", "grade")
MOST_COMMON = 5
WIDTH = 80


def add_options(parser: Parser) -> None:
    action: dict[str, Any] = {
        "nargs": "?",
        "choices": ACTIONS,
        "default": "list",
        "metavar": "|".join(ACTIONS),
    }
    parser.add("action", **action, help="what to do. Default: list")
    what = (
        "start, notebook: the exercise's number or name; check: the file; list: the folder with "
        "your files (default: here); "
        "grade: the folder with what a class handed in"
    )
    parser.add("what", nargs="?", metavar="WHAT", help=what)
    folder = "start, notebook: where the file goes. Default: here"
    parser.add("folder", nargs="?", metavar="FOLDER", help=folder)
    hint = "check: show a hint as well, the next one each time, or the Nth"
    parser.add("--hint", nargs="?", const="", metavar="N", help=hint)
    which = (
        "check, grade: the exercise's number or name, or a file of your own. Default: as a file's "
        "name says"
    )
    parser.add("--exercise", metavar="N", help=which)
    parser.add("--csv", metavar="FILE", help="grade: a row for each file")
    parser.add("--gradescope", metavar="FILE", help="grade: Gradescope's results.json")
    seconds = "grade: how long a file may take. Default: 60"
    parser.add("--seconds", type=whole(), default=60, metavar="N", help=seconds)
    parser.add("--quiet")
    overwrite = "start, notebook: start again, and replace the file if it is there"
    parser.add("--overwrite", **FLAG, help=overwrite)


def run(options: argparse.Namespace) -> int:
    """Return 0, 1 for a file that is not right yet, or 3 for one that was not graded."""
    what = options.what
    hint = options.hint
    if hint and what is None:  # check --hint FILE
        what = hint
        hint = ""
    _check_combinations(options, what)
    if options.action == "list":
        return _list(Path(what or "."))
    if options.action == "check":
        return _check(Path(what), options.exercise, hint)
    if options.action == "grade":
        return _grade(options, Path(what))
    return _start(options, what)


def _check_combinations(options: argparse.Namespace, what: str | None) -> None:
    """Raise ValueError for options and arguments that do not go with the action."""
    action = options.action
    starts = action in ("start", "notebook")
    if options.hint is not None and action != "check":
        raise ValueError("--hint goes with check: flashsim exercise check FILE --hint")
    if (options.csv or options.gradescope) and action != "grade":
        raise ValueError(
            "--csv and --gradescope go with grade: flashsim exercise grade FOLDER --csv FILE"
        )
    if options.exercise is not None and action not in ("check", "grade"):
        raise ValueError("--exercise goes with check and grade")
    if options.overwrite and not starts:
        raise ValueError("--overwrite goes with start")
    if options.folder is not None and not starts:
        raise ValueError(f"what is {options.folder!r}? {action} takes one argument")
    if action != "list" and what is None:
        which = {"check": "which file? give its name", "grade": "which folder? give its name"}
        raise ValueError(which.get(action, "which exercise? give its number"))


def _list(folder: Path) -> int:
    from flashsim.learn.exercises import exercises
    from flashsim.learn.exercises.grading import progress as reached_in

    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    record = reached_in(folder)
    unsolved = []
    width = max(len(each.title) for each in exercises().values())
    for name, each in exercises().items():
        entry = record[name]
        state = ""
        if entry["solved"]:
            state = "solved"
        elif any((folder / file).exists() for file in (each.file, each.notebook)):
            state = "begun"
        if not entry["solved"]:
            unsolved.append(each)
        hints = f"{entry['hints']} of {len(each.hints)} hints" if entry["hints"] else ""
        print(f"{each.number:2}  {each.title:{width}}  {state:6}  {hints}".rstrip())
    print(f"\n{len(record) - len(unsolved)} of {len(record)} solved")
    if unsolved:
        print(f"Next: {_next_step(unsolved[0], folder)}")
    return 0


def _next_step(exercise: Exercise, folder: Path) -> str:
    """Return the command that goes on with an exercise, or its notebook."""
    file = folder / exercise.file
    notebook = folder / exercise.notebook
    if file.exists():
        return _check_command(file)
    if notebook.exists():
        return f"{notebook}, in Jupyter"
    return _start_command(exercise.number, folder)


def _start(options: argparse.Namespace, exercise: str) -> int:
    from flashsim.learn.exercises.grading import start

    folder = Path(options.folder or ".")
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; make it first")
    as_notebook = options.action == "notebook"
    path = start(exercise, folder, overwrite=options.overwrite, as_notebook=as_notebook)
    editor = "Jupyter" if as_notebook else "an editor"
    print(f"Wrote {path}. Open it in {editor}: it says what to do.")
    if not as_notebook:
        print(f"\nThen: {_check_command(path)}")
    return 0


def _check(path: Path, exercise: str | None, hint: str | None) -> int:
    """Grade a file and print the result; `hint` is the number of a hint, "" for the next one."""
    from flashsim.learn.exercises import exercises
    from flashsim.learn.exercises.grading import grade, keep

    number = _number(hint)
    result = grade(path, exercise)
    heading = result.exercise.heading
    if result.solved:
        print(f"{heading}: solved.\n")
        print(_paragraphs(f"Verified: {result.message}."))
        keep(path.parent, result.exercise, solved=True)
        next_number = result.exercise.number + 1
        if any(other.number == next_number for other in exercises().values()):
            print(f"\nNext: {_start_command(next_number, path.parent)}")
        else:
            print("\nThat was the last one.")
    else:
        print(f"{heading}: not yet.\n")
        print(_paragraphs(result.message))
        if result.hint:
            print(f"\n{_paragraphs(result.hint)}")
    if hint is not None:
        print(f"\n{_hint(result, path, number)}")
    elif not result.solved:
        print(f"\nMore: {_check_command(path)} --hint")
        if result.exercise.as_algorithm:
            step = command_line(["flashsim", "step", str(path), "--open"])
            print(f"Where it parts from the right run: {step}")
    return 0 if result.solved else 1


def _grade(options: argparse.Namespace, folder: Path) -> int:
    from flashsim.learn.exercises import exercise
    from flashsim.learn.exercises.classes import NOT_GRADED, NOT_YET, SOLVED, grade_folder, mistakes
    from flashsim.learn.exercises.submission_process import Limits

    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected the one with what was handed in")
    only = None if options.exercise is None else exercise(options.exercise)
    rows: list[Row] = []
    try:
        with progress(options) as update:
            grade_folder(folder, only, Limits(options.seconds), update, rows)
    except KeyboardInterrupt as stop:
        _write_grades(options, rows)
        stop.add_note(f"{len(rows)} files were graded")
        raise
    _write_grades(options, rows)
    width = min(max(len(row.file) for row in rows), 40)
    for row in rows:
        print(printable(f"{row.file:{width}}  {row.verdict:10}  {row.exercise}".rstrip()))
    number = {
        verdict: sum(row.verdict == verdict for row in rows)
        for verdict in (SOLVED, NOT_YET, NOT_GRADED)
    }
    print(f"\n{', '.join(f'{count} {verdict}' for verdict, count in number.items())}")
    common = mistakes(rows)[:MOST_COMMON]
    if common:
        print("\nMost common mistakes:\n")
        for times, name, mistake in common:
            print(_paragraphs(f"{times} × {name}: {mistake}"))
    if number[NOT_GRADED]:
        return 3
    return 1 if number[NOT_YET] else 0


def _write_grades(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    from flashsim.learn.exercises.classes import as_csv, as_gradescope

    if options.csv:
        write_whole(options.csv, as_csv(rows))
    if options.gradescope:
        write_whole(
            options.gradescope, json.dumps(as_gradescope(rows), indent=1, ensure_ascii=False) + "\n"
        )


def _start_command(number: int, folder: Path) -> str:
    words = ["flashsim", "exercise", "start", str(number)]
    if folder.parts:
        words.append(str(folder))
    return command_line(words)


def _check_command(path: Path) -> str:
    return command_line(["flashsim", "exercise", "check", str(path)])


def _number(text: str | None) -> int:
    """Return the number of a hint; 0 for the next one. Raises ValueError."""
    try:
        return whole()(text) if text else 0
    except ValueError as error:
        raise ValueError(f"argument --hint: {error}") from None


def _hint(grade: Grade, path: Path, number: int) -> str:
    """Return the hint of a number, or the next one, and record in the folder that it was shown."""
    from flashsim.learn.exercises.grading import keep
    from flashsim.learn.exercises.grading import progress as reached_in

    exercise = grade.exercise
    hints = exercise.hints
    read = reached_in(path.parent, exercise)[exercise.name]["hints"]
    number = number or min(read + 1, len(hints))
    if number > len(hints):
        raise ValueError(f"argument --hint: got {number}; expected a number from 1 to {len(hints)}")
    keep(path.parent, exercise, hints=max(number, read))
    return _paragraphs(f"Hint {number} of {len(hints)}: {hints[number - 1]}")


def _paragraphs(text: str) -> str:
    """Return text in lines of a terminal's width; indented lines are code, and stay."""
    return "\n".join(
        line if line.startswith("    ") else "\n".join(wrap(line, WIDTH))
        for line in printable(text).split("\n")
    )
