"""`flashsim lessons`: write the lessons, pages that play a recorded run, with an index."""

import argparse
from pathlib import Path
from typing import Any

from flashsim.cli.outputs import opened, saved
from flashsim.cli.shared import add
from flashsim.cli.values import meant
from flashsim.support.files import write_whole

SUMMARY = (
    "Write the lessons, pages that play an algorithm line by line with a text and questions, and "
    "their index."
)
EXAMPLES = (
    "flashsim lessons --open\nflashsim lessons 3 --open\nflashsim lessons causal backward -o pages"
)


def add_options(parser: Any) -> None:
    from flashsim.learn.gallery import pages

    which = f"one or more of {', '.join(pages())}, or their numbers, from 1. Default: all"
    parser.add_argument("lessons", nargs="*", metavar="NAME", help=which)
    where = "where they go. Default: %(default)s"
    add(
        parser,
        "--output",
        type=Path,
        default=Path("flashsim-lessons"),
        metavar="FOLDER",
        help=where,
    )
    add(parser, "--open", help="open the index, or the first lesson named, in the browser")


def run(options: argparse.Namespace) -> int:
    from flashsim.learn import gallery

    known = gallery.pages()
    numbered = {str(number): name for number, name in enumerate(known, 1)}
    options.lessons = [numbered.get(name, name) for name in options.lessons]
    for name in options.lessons:
        if name not in known:
            raise ValueError(
                f"there is no lesson {name!r}{meant(name, known)}; expected one of "
                f"{', '.join(known)}"
            )
    folder: Path = options.output
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"argument -o/--output: {folder} is a file; expected a folder")
    index = folder / "index.html"
    if (
        not options.lessons
        and index.is_file()
        and gallery.TITLE not in index.read_text("utf-8", "replace")
    ):
        said = f"{folder} has an index.html of its own; expected a folder for the lessons alone"
        raise ValueError(f"argument -o/--output: {said}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in gallery.files(options.lessons):
        saved(write_whole(folder / name, content))
    if options.open:
        opened(folder / f"{(options.lessons or ['index'])[0]}.html")
    return 0
