"""`flashsim playground`: write the page on which sizes are changed by sliders."""

import argparse
from pathlib import Path
from typing import Any

from flashsim.cli.outputs import check_outputs, opened, saved
from flashsim.cli.shared import add
from flashsim.support.files import write_whole

SUMMARY = (
    "Write a page with sliders for lengths, d, M and blocks; it shows tiles, accesses and SRAM's "
    "use at once."
)
EXAMPLES = "flashsim playground --open\nflashsim playground -o play.html"


def add_options(parser: Any) -> None:
    add(parser, "--open")
    add(parser, "--output", metavar="FILE", help="FILE.html. Default: flashsim-playground.html")


def run(options: argparse.Namespace) -> int:
    from flashsim.learn.playground import page

    output = options.output or Path("flashsim-playground.html")
    if output.suffix != ".html":
        raise ValueError(
            f"argument -o/--output: the playground is a page; expected FILE.html, got {output}"
        )
    check_outputs(options, output)
    saved(write_whole(output, page()))
    if options.open:
        opened(output)
    return 0
