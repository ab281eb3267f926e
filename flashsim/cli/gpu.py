"""`flashsim gpu info`: what this machine has of what the GPU kernels need."""

from __future__ import annotations

import argparse
from typing import Any

from flashsim.cli.shared import write_json

SUMMARY = "Say whether the GPU kernels can be compiled and run here, and what is missing."
EXAMPLES = "flashsim gpu info\nflashsim gpu info --json -"


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("what", choices=["info"], help="info: versions, the GPU, and what is missing")
    parser.add_argument("--json", choices=["-"], help="print JSON to stdout, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Run the command; return 0 if kernels can run here, else 1."""
    from flashsim.gpu.machine import info

    known = info()
    if options.json:
        write_json(options.json, {"ready": known.ready, "found": known.found, "missing": known.missing})
        return 0 if known.ready else 1
    for name, what in known.found.items():
        print(f"{name:<8}{what}")
    for what in known.missing:
        print(what)
    print(
        "Kernels run here."
        if known.ready
        else "Kernels cannot run here. Everything else of flashsim works without a GPU."
    )
    return 0 if known.ready else 1
