"""`flashsim playground`: write the page on which sizes are changed by sliders."""

import argparse
from pathlib import Path

from flashsim.cli.outputs import check_outputs, open_page, print_saved
from flashsim.cli.parser import Parser
from flashsim.support.files import write_whole

EXAMPLES = "flashsim playground --open\nflashsim playground -o play.html"


def add_options(parser: Parser) -> None:
    parser.add("--open")
    parser.add("--output", metavar="FILE", help="FILE.html. Default: flashsim-playground.html")


def run(options: argparse.Namespace) -> int:
    from flashsim.learn.playground import page

    output = options.output or Path("flashsim-playground.html")
    if output.suffix != ".html":
        raise ValueError(
            f"argument -o/--output: the playground is a page; expected FILE.html, got {output}"
        )
    check_outputs(options, output)
    print_saved(write_whole(output, page()))
    if options.open:
        open_page(output)
    return 0
