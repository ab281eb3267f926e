"""`flashsim step`: record a run, and go through it step by step, in a page or in the terminal."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashsim.algorithms.own import resolve
from flashsim.cli.inputs import add_inputs, arguments, gradient, operands, taken_by
from flashsim.cli.loading import algorithm
from flashsim.cli.outputs import check_outputs, opened, saved, trace_file
from flashsim.cli.shared import DEFAULT_ALGORITHM, FLAG, add, add_algorithm, algorithm_in
from flashsim.support.files import write_whole
from flashsim.tracing.bugs import BACKWARD_BUGS, BUGS, with_bug

SUMMARY = "Record a run and write a page that plays it: line by line, forwards and backwards."
EXAMPLES = (
    "flashsim step --open\n"
    "flashsim step --algorithm flash --N 12 --d 4 --blocks 3 4 --causal\n"
    "flashsim step --algorithm mine.py:attention --vs flash_basic\n"
    "flashsim step 05_inner_loop.py --open\n"
    "flashsim step --qkv mine.npz --head 3 --blocks 32 32 -o head3.html\n"
    "flashsim step --causal --vs q_outer\n"
    "flashsim step --algorithm flash --bug no_rescale\n"
    "flashsim step --backward --algorithm flash --open\n"
    "flashsim step --backward --algorithm q_outer --vs q_outer_two_pass\n"
    "flashsim step --N 8 --d 2 --blocks 4 4 --text | less\n"
    "flashsim step --gif 20:40 -o tile.gif\n"
    "flashsim step --N 64 --d 16 -o run.json.gz"
)
BLOCKS = (3, 4)  # of an exercise's file


def add_options(parser: Any) -> None:
    also = "; or the file of an exercise, which is played beside the right run"
    add_algorithm(parser, DEFAULT_ALGORITHM, read=_algorithm_or_file, also=also)
    add(
        parser,
        "--backward",
        help="play its backward pass, for a random dO; the forward pass before it is not shown",
    )
    other = parser.add_mutually_exclusive_group()
    add(other, "--vs", help="a second algorithm, shown beside the first at the same tile")
    bugs = f"{', '.join(BUGS)}; with --backward: {', '.join(BACKWARD_BUGS)}"
    other.add_argument(
        "--bug", metavar="NAME", help=f"show the algorithm with this planted bug beside it: {bugs}"
    )
    add_inputs(parser)
    add(parser, "--text", **FLAG, help="print the steps in the terminal, and write no file")
    gif = "write steps A to B as an animated GIF, flashsim-step.gif or -o FILE.gif"
    add(parser, "--gif", metavar="A:B", type=_range, help=gif)
    add(parser, "--open")
    kinds = "FILE.html: the page; .json.gz: the trace"
    add(parser, "--output", metavar="FILE", help=f"{kinds}. Default: flashsim-step.html")


def run(options: argparse.Namespace) -> int:
    from flashsim.plots.film import film
    from flashsim.tracing.page import page_of
    from flashsim.tracing.text import lines

    mine = isinstance(options.named or options.algorithm, Path)
    if mine and (options.bug or options.direction == "backward"):
        raise ValueError(
            "an exercise's file is a forward pass with bugs of its own; leave out --bug and "
            "--backward"
        )
    second = options.vs or options.bug or (mine and not options.text and not options.gif)
    if options.text and (second or options.open or options.output):
        raise ValueError("--text prints one run; leave out --vs, --bug, --open and --output")
    if options.gif and (second or options.open or options.text):
        raise ValueError("--gif shows one run, in a file; leave out --vs, --bug, --open and --text")
    output = options.output or Path(f"flashsim-step.{'gif' if options.gif else 'html'}")
    if options.gif and output.suffix != ".gif":
        raise ValueError(f"--gif writes a GIF; expected -o FILE.gif, got {output}")
    if options.open and output.suffix != ".html":
        raise ValueError(f"--open shows a page; expected -o FILE.html, got {output}")
    if not options.text:
        check_outputs(options, output)
    if not options.text and not options.gif:
        trace_file(output, "the comparison of two" if second else "")
    trace, versus = recorded(options)
    note = ""
    steps = len(trace.steps)
    if options.text:
        print("\n".join(lines(trace)))
        return 0
    if options.gif:
        first, last = options.gif
        try:
            film(trace, first, last, output)
        except ValueError as error:
            raise ValueError(f"argument --gif: {error}") from None
        steps = last - first + 1
    elif output.suffix == ".html":
        page, note = page_of(trace, versus)
        write_whole(output, page)
    else:
        trace.save(output, versus=versus)
    saved(output, f", {steps:,} steps")
    if note:
        print(f"{note} All values: -o FILE.json.gz; fewer steps: larger --blocks.")
    if options.open:
        opened(output)
    return 0


def _algorithm_or_file(text: str) -> Any:
    return Path(text) if text.endswith(".py") else algorithm(text)


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text, re.ASCII)
    if not found:
        raise ValueError(f"{text!r} is not a range of steps; write A:B, as in 20:40")
    return int(found[1]), int(found[2])


def recorded(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the trace that was asked for, and the one beside it; None where there is none.
    Raises ValueError.
    """
    from flashsim.tracing.tracer import trace

    given = operands(options)
    direction = options.direction
    beside = [resolve(options.vs, direction)] if options.vs else []
    named = options.named or options.algorithm
    if isinstance(named, Path):
        from flashsim.learn.exercises.grading import played

        if options.M is None and options.blocks is None:
            # M is then what the student's run needs, which may be more than the right one's
            options.blocks = BLOCKS
        mine, right = played(named)
        passes = [mine] if options.text or options.gif else [mine, *(beside or [right])]
    else:
        passes = [algorithm_in(options, DEFAULT_ALGORITHM), *beside]
    planted = [with_bug(passes[0], options.bug, direction)] if options.bug else []
    asked = arguments(options, *given, passes)
    if direction == "backward":
        asked["dO"] = gradient(options, given[0], given[2])
    traces = [trace(one, *given, **taken_by(one, options, asked)) for one in (*passes, *planted)]
    said = [
        replace(made, about=replace(made.about, command=options.command_line)) for made in traces
    ]
    return said[0], said[1] if len(said) > 1 else None
