"""`flashsim example`: worked examples on the command line, each step with its numbers."""

import argparse

from flashsim.cli.outputs import finish
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FLAG

EXAMPLES = (
    "flashsim example\nflashsim example prefill | less\nflashsim example not_bit_for_bit --json -"
)


def add_options(parser: Parser) -> None:
    which = "which example. Default: list them, a line each"
    parser.add("example", nargs="?", metavar="NAME", help=which)
    parser.add("--list", **FLAG, help="list the examples, and run none")
    parser.add("--json")


def run(options: argparse.Namespace) -> int:
    from flashsim.learn import examples
    from flashsim.learn.examples.text import wrapped

    if options.list or options.example is None:
        if options.json:
            raise ValueError("--json is for one example: give its NAME")
        width = max(map(len, examples.EXAMPLES))
        print(
            "\n".join(
                f"{name:{width}}  {example.about}" for name, example in examples.EXAMPLES.items()
            )
        )
        return 0
    if options.example not in examples.EXAMPLES:
        raise ValueError(
            f"there is no example {options.example!r}; there are {', '.join(examples.EXAMPLES)}"
        )
    example = examples.EXAMPLES[options.example]
    steps = example.compute()
    about = {"example": options.example, "about": example.about, "where": example.where}
    record = {"command": options.command_line, **about, "steps": examples.as_json(steps)}
    same = ["", "The same step in flashsim:", *wrapped(example.where, "  ")]
    lines = [*example.lines(steps), *same]
    finish(options, record, lambda: print("\n".join(lines)))
    return 0
