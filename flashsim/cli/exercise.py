"""`flashsim exercise`: exercises in a file each, listed, started and graded."""

from __future__ import annotations

import argparse
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from flashsim.cli.shared import FLAG, add
from flashsim.cli.values import whole
from flashsim.support.files import command_line

if TYPE_CHECKING:
    from flashsim.learn.exercises.grading import Grade

SUMMARY = "Learn by writing the algorithms yourself: exercises with holes, graded step by step, with hints."
EXAMPLES = (
    "flashsim exercise\n"
    "flashsim exercise start 1\n"
    "flashsim exercise notebook 1\n"
    "flashsim exercise check 01_load_a_tile.py\n"
    "flashsim exercise check 01_load_a_tile.py --hint"
)
ACTIONS = ("list", "start", "notebook", "check")
WIDTH = 80


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = "|".join(ACTIONS)
    parser.add_argument(
        "action", nargs="?", choices=ACTIONS, default="list", metavar=actions, help="what to do. Default: list"
    )
    what = "start, notebook: the exercise's number or name; check: the file; list: the folder with your files. Default: here"
    parser.add_argument("what", nargs="?", metavar="WHAT", help=what)
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="start, notebook: where the file goes. Default: here"
    )
    hint = "check: show a hint as well, the next one each time, or the Nth"
    add(parser, "--hint", nargs="?", const="", metavar="N", help=hint)
    add(parser, "--overwrite", **FLAG, help="start, notebook: begin anew, even if the file is there")


def run(options: argparse.Namespace) -> int:
    """Run the command; return 0, or 1 for a file that is not right yet. Raises ValueError for what makes no sense."""
    if options.hint is not None and options.action != "check":
        raise ValueError("--hint goes with check: flashsim exercise check FILE --hint")
    if options.hint and options.what is None:  # check --hint FILE
        options.what, options.hint = options.hint, ""
    starts = options.action in ("start", "notebook")
    if options.overwrite and not starts:
        raise ValueError("--overwrite goes with start")
    if options.folder is not None and not starts:
        raise ValueError(f"what is {options.folder!r}? {options.action} takes one argument")
    if options.action != "list" and options.what is None:
        raise ValueError("which exercise? give its number" if starts else "which file? give its name")
    return {"list": _list, "start": _start, "notebook": _start, "check": _check}[options.action](options)


def _list(options: argparse.Namespace) -> int:
    from flashsim.learn.exercises import exercises
    from flashsim.learn.exercises.grading import progress

    folder = Path(options.what or ".")
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    reached = progress(folder)
    width = max(len(found.title) for found in exercises().values())
    for name, found in exercises().items():
        begun = any((folder / file).exists() for file in (found.file, found.notebook))
        state = "solved" if reached[name]["solved"] else "begun" if begun else ""
        hints = f"{reached[name]['hints']} of {len(found.hints)} hints" if reached[name]["hints"] else ""
        print(f"{found.number:2}  {found.title:{width}}  {state:6}  {hints}".rstrip())
    solved = sum(entry["solved"] for entry in reached.values())
    print(f"\n{solved} of {len(reached)} solved")
    following = next((found for name, found in exercises().items() if not reached[name]["solved"]), None)
    if following is not None:
        path, other = folder / following.file, folder / following.notebook
        check = _checking(path)
        anew = f"{other}, in Jupyter" if other.exists() else f"flashsim exercise start {following.number}"
        print(f"Next: {check if path.exists() else anew}")
    return 0


def _start(options: argparse.Namespace) -> int:
    from flashsim.learn.exercises.grading import start

    folder = Path(options.folder or ".")
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; make it first")
    as_notebook = options.action == "notebook"
    path = start(options.what, folder, overwrite=options.overwrite, as_notebook=as_notebook)
    print(f"Wrote {path}. Open it in {'Jupyter' if as_notebook else 'an editor'}: it says what to do.")
    if not as_notebook:
        print(f"\nThen: {_checking(path)}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from flashsim.learn.exercises import exercises
    from flashsim.learn.exercises.grading import grade, keep

    path = Path(options.what)
    number = _number(options.hint)
    found = grade(path)
    print(f"{found.exercise.heading}: {'solved' if found.solved else 'not yet'}.\n")
    print(_paragraphs(f"Verified: {found.said}." if found.solved else found.said))
    if found.solved:
        keep(path.parent, found.exercise.name, solved=True)
        following = [other for other in exercises().values() if other.number == found.exercise.number + 1]
        print(f"\nNext: flashsim exercise start {following[0].number}" if following else "\nThat was the last one.")
    elif found.hint:
        print(f"\n{_paragraphs(found.hint)}")
    if options.hint is not None:
        print(f"\n{_hint(found, path, number)}")
    elif not found.solved:
        print(f"\nMore: {_checking(path)} --hint")
        if found.exercise.whole:
            print(f"Where it parts from the right run: {command_line(['flashsim', 'step', str(path), '--open'])}")
    return 0 if found.solved else 1


def _checking(path: Path) -> str:
    return command_line(["flashsim", "exercise", "check", str(path)])


def _number(text: str | None) -> int:
    try:
        return whole()(text) if text else 0
    except ValueError as error:
        raise ValueError(f"argument --hint: {error}") from None


def _hint(found: Grade, path: Path, number: int) -> str:
    """Return the Nth hint of the exercise, or for 0 the next. Raises ValueError for one that there is not."""
    from flashsim.learn.exercises.grading import keep, progress

    hints = found.exercise.hints
    shown = progress(path.parent)[found.exercise.name]["hints"]
    at = number or min(shown + 1, len(hints))
    if at > len(hints):
        raise ValueError(f"argument --hint: there are {len(hints)} hints, and no {at}")
    keep(path.parent, found.exercise.name, hints=max(at, shown))
    return _paragraphs(f"Hint {at} of {len(hints)}: {hints[at - 1]}")


def _paragraphs(text: str) -> str:
    """Return text in lines of a terminal's width; indented lines are code, and stay."""
    lines = text.splitlines()
    return "\n".join(line if line.startswith("    ") else "\n".join(wrap(line, WIDTH)) for line in lines)
