"""`flashsim gpu`: what this machine has of what the GPU kernels need."""

import argparse
from typing import Any

from flashsim.cli.outputs import finish

SUMMARY = "Say whether the GPU kernels can be compiled and run here, and what is missing."
EXAMPLES = "flashsim gpu\nflashsim gpu info --json -"


def add_options(parser: Any) -> None:
    what = "info: versions, the GPU, and what is missing. Default: info"
    parser.add_argument(
        "what", nargs="?", choices=["info"], default="info", metavar="info", help=what
    )
    parser.add_argument("--json", choices=["-"], help="print JSON to stdout, and nothing else")


def run(options: argparse.Namespace) -> int:
    from flashsim.gpu.machine import info

    known = info()
    finish(
        options,
        {"ready": known.ready, "found": known.found, "missing": known.missing},
        lambda: show(known),
    )
    return 0 if known.ready else 1


def show(known: Any) -> None:
    """Print what was found and what is missing."""
    for name, what in known.found.items():
        print(f"{name:<8}{what}")
    print(*known.missing, sep="\n", end="\n" if known.missing else "")
    end = (
        "run here."
        if known.ready
        else "cannot run here. Everything else of flashsim works without a GPU."
    )
    print(f"Kernels {end}")
