"""`flashsim example`: worked examples on the command line, each step with its numbers."""

from __future__ import annotations

import argparse
import json
from typing import Any

from flashsim.files import write_whole

SUMMARY = "Print a worked example, step by step: online softmax, online attention, tiles, and what rounding does."
EXAMPLES = (
    "flashsim example\n"
    "flashsim example online_softmax\n"
    "flashsim example prefill | less\n"
    "flashsim example online_attention --json -"
)


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("example", nargs="?", metavar="NAME", help="which. Default: list them, a line each")
    parser.add_argument("--list", action="store_true", help="list the examples, and run none")
    parser.add_argument("--json", metavar="FILE", help="write the steps as JSON (- for stdout, and nothing else)")


def run(options: argparse.Namespace) -> int:
    """Run the command and return 0. Raises ValueError for a name that is none of the examples'."""
    from flashsim import examples
    from flashsim.examples.text import paragraph

    if options.list or options.example is None:
        if options.json:
            raise ValueError("--json is for one example: give its NAME")
        width = max(map(len, examples.EXAMPLES))
        print("\n".join(f"{name:{width}}  {example.about}" for name, example in examples.EXAMPLES.items()))
        return 0
    if options.example not in examples.EXAMPLES:
        raise ValueError(f"there is no example {options.example!r}; there are {', '.join(examples.EXAMPLES)}")
    example = examples.EXAMPLES[options.example]
    steps = example.compute()
    if options.json:
        data = {
            "command": options.command_line,
            "example": options.example,
            "about": example.about,
            "where": example.where,
        }
        text = (
            json.dumps({**data, "steps": examples.as_json(steps)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        )
        if options.json == "-":
            print(text, end="")
        else:
            write_whole(options.json, text)
    if options.json != "-":
        print("\n".join(example.lines(steps)))
        print("\nThe same step in flashsim:")
        print("\n".join(paragraph(example.where, "  ")))
    return 0
