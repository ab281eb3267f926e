"""`flashsim gpu`: what this machine has of what the GPU kernels need."""

import argparse
from typing import Any

from flashsim.cli.outputs import finish
from flashsim.cli.parser import Parser

EXAMPLES = "flashsim gpu\nflashsim gpu info --json -"


def add_options(parser: Parser) -> None:
    what = "info: versions, the GPU, and what is missing. Default: info"
    parser.add(
        "what",
        nargs="?",
        choices=["info"],
        default="info",
        metavar="info",
        help=what,
    )
    parser.add("--json", own=True, choices=["-"], help="print JSON to stdout, and nothing else")


def run(options: argparse.Namespace) -> int:
    from flashsim.gpu.machine import info

    here = info()
    numbers = {"ready": here.ready, "found": here.found, "missing": here.missing}
    finish(options, numbers, lambda: show(here))
    return 0 if here.ready else 1


def show(here: Any) -> None:
    """Print what this machine has, and what is missing."""
    for name, what in here.found.items():
        print(f"{name:<8}{what}")
    for what in here.missing:
        print(what)
    if here.ready:
        print("Kernels run here.")
    else:
        print("Kernels cannot run here. Everything else of flashsim works without a GPU.")
