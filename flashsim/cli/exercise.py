"""`flashsim exercise`: exercises in a file each, listed, started and graded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from flashsim.cli.outputs import progress
from flashsim.cli.shared import FLAG, add
from flashsim.cli.values import whole
from flashsim.support.entry import printable
from flashsim.support.files import command_line, write_whole

if TYPE_CHECKING:
    from flashsim.learn.exercises.classes import Row
    from flashsim.learn.exercises.grading import Grade

SUMMARY = (
    "Learn by writing the algorithms yourself: exercises with holes, graded step by step, with "
    "hints."
)
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


def add_options(parser: Any) -> None:
    action = {"nargs": "?", "choices": ACTIONS, "default": "list", "metavar": "|".join(ACTIONS)}
    parser.add_argument("action", **action, help="what to do. Default: list")
    what = (
        "start, notebook: the exercise's number or name; check: the file; list: the folder with "
        "your files (default: here); "
        "grade: the folder with what a class handed in"
    )
    parser.add_argument("what", nargs="?", metavar="WHAT", help=what)
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="start, notebook: where the file goes. Default: here",
    )
    add(
        parser,
        "--hint",
        nargs="?",
        const="",
        metavar="N",
        help="check: show a hint as well, the next one each time, or the Nth",
    )
    which = (
        "check, grade: the exercise's number or name, or a file of your own. Default: as a file's "
        "name says"
    )
    add(parser, "--exercise", metavar="N", help=which)
    add(parser, "--csv", metavar="FILE", help="grade: a row for each file")
    add(parser, "--gradescope", metavar="FILE", help="grade: Gradescope's results.json")
    add(
        parser,
        "--seconds",
        type=whole(),
        default=60,
        metavar="N",
        help="grade: how long a file may take. Default: 60",
    )
    add(parser, "--quiet")
    add(
        parser,
        "--overwrite",
        **FLAG,
        help="start, notebook: start again, and replace the file if it is there",
    )


def run(options: argparse.Namespace) -> int:
    """Return 0, 1 for a file that is not right yet, or 3 for one that was not graded."""
    if options.hint is not None and options.action != "check":
        raise ValueError("--hint goes with check: flashsim exercise check FILE --hint")
    if options.hint and options.what is None:  # check --hint FILE
        options.what = options.hint
        options.hint = ""
    if (options.csv or options.gradescope) and options.action != "grade":
        raise ValueError(
            "--csv and --gradescope go with grade: flashsim exercise grade FOLDER --csv FILE"
        )
    if options.exercise is not None and options.action not in ("check", "grade"):
        raise ValueError("--exercise goes with check and grade")
    starts = options.action in ("start", "notebook")
    if options.overwrite and not starts:
        raise ValueError("--overwrite goes with start")
    if options.folder is not None and not starts:
        raise ValueError(f"what is {options.folder!r}? {options.action} takes one argument")
    if options.action != "list" and options.what is None:
        which = {"check": "which file? give its name", "grade": "which folder? give its name"}
        raise ValueError(which.get(options.action, "which exercise? give its number"))
    return {"list": _list, "start": _start, "notebook": _start, "check": _check, "grade": _grade}[
        options.action
    ](options)


def _list(options: argparse.Namespace) -> int:
    from flashsim.learn.exercises import exercises
    from flashsim.learn.exercises.grading import progress as reached_in

    folder = Path(options.what or ".")
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    reached = reached_in(folder)
    width = max(len(found.title) for found in exercises().values())
    for name, found in exercises().items():
        begun = any((folder / file).exists() for file in (found.file, found.notebook))
        state = "solved" if reached[name]["solved"] else "begun" if begun else ""
        hints = (
            f"{reached[name]['hints']} of {len(found.hints)} hints"
            if reached[name]["hints"]
            else ""
        )
        print(f"{found.number:2}  {found.title:{width}}  {state:6}  {hints}".rstrip())
    solved = sum(entry["solved"] for entry in reached.values())
    print(f"\n{solved} of {len(reached)} solved")
    following = next(
        (found for name, found in exercises().items() if not reached[name]["solved"]), None
    )
    if following is not None:
        path = folder / following.file
        other = folder / following.notebook
        anew = f"{other}, in Jupyter" if other.exists() else _starting(following.number, folder)
        print(f"Next: {_checking(path) if path.exists() else anew}")
    return 0


def _start(options: argparse.Namespace) -> int:
    from flashsim.learn.exercises.grading import start

    folder = Path(options.folder or ".")
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; make it first")
    as_notebook = options.action == "notebook"
    path = start(options.what, folder, overwrite=options.overwrite, as_notebook=as_notebook)
    print(
        f"Wrote {path}. Open it in {'Jupyter' if as_notebook else 'an editor'}: it says what to do."
    )
    if not as_notebook:
        print(f"\nThen: {_checking(path)}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from flashsim.learn.exercises import exercises
    from flashsim.learn.exercises.grading import grade, keep

    path = Path(options.what)
    number = _number(options.hint)
    found = grade(path, options.exercise)
    print(f"{found.exercise.heading}: {'solved' if found.solved else 'not yet'}.\n")
    print(_paragraphs(f"Verified: {found.said}." if found.solved else found.said))
    if found.solved:
        keep(path.parent, found.exercise, solved=True)
        following = found.exercise.number + 1
        there_is = any(other.number == following for other in exercises().values())
        print(
            f"\nNext: {_starting(following, path.parent)}"
            if there_is
            else "\nThat was the last one."
        )
    elif found.hint:
        print(f"\n{_paragraphs(found.hint)}")
    if options.hint is not None:
        print(f"\n{_hint(found, path, number)}")
    elif not found.solved:
        print(f"\nMore: {_checking(path)} --hint")
        if found.exercise.whole:
            print(
                "Where it parts from the right run: "
                f"{command_line(['flashsim', 'step', str(path), '--open'])}"
            )
    return 0 if found.solved else 1


def _grade(options: argparse.Namespace) -> int:
    from flashsim.learn.exercises import exercise
    from flashsim.learn.exercises.apart import Limits
    from flashsim.learn.exercises.classes import NOT_GRADED, NOT_YET, SOLVED, grade_folder, mistakes

    folder = Path(options.what)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected the one with what was handed in")
    of = None if options.exercise is None else exercise(options.exercise)
    rows: list[Row] = []
    try:
        with progress(options) as told:
            grade_folder(folder, of, Limits(options.seconds), told, rows)
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
        print("\n".join(_paragraphs(f"{times} × {name}: {said}") for times, name, said in common))
    return 3 if number[NOT_GRADED] else 1 if number[NOT_YET] else 0


def _write_grades(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    from flashsim.learn.exercises.classes import as_csv, as_gradescope

    if options.csv:
        write_whole(options.csv, as_csv(rows))
    if options.gradescope:
        write_whole(
            options.gradescope, json.dumps(as_gradescope(rows), indent=1, ensure_ascii=False) + "\n"
        )


def _starting(number: int, folder: Path) -> str:
    return command_line(
        ["flashsim", "exercise", "start", str(number), *([str(folder)] if folder.parts else [])]
    )


def _checking(path: Path) -> str:
    return command_line(["flashsim", "exercise", "check", str(path)])


def _number(text: str | None) -> int:
    try:
        return whole()(text) if text else 0
    except ValueError as error:
        raise ValueError(f"argument --hint: {error}") from None


def _hint(found: Grade, path: Path, number: int) -> str:
    from flashsim.learn.exercises.grading import keep
    from flashsim.learn.exercises.grading import progress as reached_in

    hints = found.exercise.hints
    shown = reached_in(path.parent, found.exercise)[found.exercise.name]["hints"]
    at = number or min(shown + 1, len(hints))
    if at > len(hints):
        raise ValueError(f"argument --hint: got {at}; expected a number from 1 to {len(hints)}")
    keep(path.parent, found.exercise, hints=max(at, shown))
    return _paragraphs(f"Hint {at} of {len(hints)}: {hints[at - 1]}")


def _paragraphs(text: str) -> str:
    """Return text in lines of a terminal's width; indented lines are code, and stay."""
    return "\n".join(
        line if line.startswith("    ") else "\n".join(wrap(line, WIDTH))
        for line in printable(text).split("\n")
    )
