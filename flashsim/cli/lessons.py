"""`flashsim lessons`: write the lessons, pages that play a recorded run, with an index."""

import argparse
from pathlib import Path

from flashsim.cli.outputs import open_page, print_saved
from flashsim.cli.parser import Parser, suggestion
from flashsim.support.files import write_whole

EXAMPLES = (
    "flashsim lessons --open\nflashsim lessons 3 --open\nflashsim lessons causal backward -o pages"
)

FOLDER = "flashsim-lessons"


def add_options(parser: Parser) -> None:
    from flashsim.learn.gallery import pages

    which = f"one or more of {', '.join(pages())}, or their numbers, from 1. Default: all"
    parser.add("lessons", nargs="*", metavar="NAME", help=which)
    where = f"where they go. Default: {FOLDER}"
    parser.add("--output", type=Path, default=Path(FOLDER), metavar="FOLDER", help=where)
    parser.add("--open", help="open the index, or the first lesson named, in the browser")


def run(options: argparse.Namespace) -> int:
    from flashsim.learn import gallery

    pages = gallery.pages()
    numbered = {str(number): name for number, name in enumerate(pages, 1)}
    lessons = [numbered.get(name, name) for name in options.lessons]
    for name in lessons:
        if name not in pages:
            raise ValueError(
                f"there is no lesson {name!r}{suggestion(name, pages)}; expected one of "
                f"{', '.join(pages)}"
            )
    folder: Path = options.output
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"argument -o/--output: {folder} is a file; expected a folder")
    index = folder / "index.html"
    if not lessons and index.is_file() and gallery.TITLE not in index.read_text("utf-8", "replace"):
        raise ValueError(
            f"argument -o/--output: {folder} has an index.html of its own; expected a folder for "
            "the lessons alone"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in gallery.files(lessons):
        print_saved(write_whole(folder / name, content))
    if options.open:
        first = lessons[0] if lessons else "index"
        open_page(folder / f"{first}.html")
    return 0
