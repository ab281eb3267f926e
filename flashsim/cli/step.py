"""`flashsim step`: record a run, and go through it step by step, in a page or in the terminal."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashsim.algorithms.own import resolve
from flashsim.cli.inputs import add_inputs, arguments, arguments_for, gradient, operands
from flashsim.cli.loading import algorithm
from flashsim.cli.outputs import check_outputs, open_page, print_saved, trace_file
from flashsim.cli.parser import Parser
from flashsim.cli.shared import DEFAULT_ALGORITHM, FLAG, add_algorithm, algorithm_in
from flashsim.support.files import write_whole
from flashsim.tracing.bugs import BACKWARD_BUGS, BUGS, with_bug

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


def add_options(parser: Parser) -> None:
    also = "; or the file of an exercise, which is played beside the right run"
    add_algorithm(parser, DEFAULT_ALGORITHM, read=_algorithm_or_file, also=also)
    parser.add(
        "--backward",
        help="play its backward pass, for a random dO; the forward pass before it is not shown",
    )
    second = parser.add_mutually_exclusive_group()
    beside = "a second algorithm, shown beside the first at the same tile"
    parser.add("--vs", group=second, help=beside)
    bugs = f"{', '.join(BUGS)}; with --backward: {', '.join(BACKWARD_BUGS)}"
    planted = f"show the algorithm with this planted bug beside it: {bugs}"
    parser.add("--bug", group=second, metavar="NAME", help=planted)
    add_inputs(parser)
    parser.add("--text", **FLAG, help="print the steps in the terminal, and write no file")
    gif = "write steps A to B as an animated GIF, flashsim-step.gif or -o FILE.gif"
    parser.add("--gif", metavar="A:B", type=_range, help=gif)
    parser.add("--open")
    kinds = "FILE.html: the page; .json.gz: the trace"
    parser.add("--output", metavar="FILE", help=f"{kinds}. Default: flashsim-step.html")


def run(options: argparse.Namespace) -> int:
    from flashsim.plots.film import film
    from flashsim.tracing.page import page_of
    from flashsim.tracing.text import lines

    _check_combinations(options)
    output = _output(options)
    if not options.text:
        check_outputs(options, output)
    if not options.text and not options.gif:
        trace_file(output, "the comparison of two" if _shows_two(options) else "")
    trace, versus = recorded(options)
    if options.text:
        print("\n".join(lines(trace)))
        return 0
    note = ""
    steps = len(trace.steps)
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
    print_saved(output, f", {steps:,} steps")
    if note:
        print(f"{note} All values: -o FILE.json.gz; fewer steps: larger --blocks.")
    if options.open:
        open_page(output)
    return 0


def _exercise(options: argparse.Namespace) -> Path | None:
    """Return the file of an exercise, where it stands in the algorithm's place."""
    file = options.named or options.algorithm
    return file if isinstance(file, Path) else None


def _shows_two(options: argparse.Namespace) -> bool:
    """Return whether two runs are shown side by side."""
    beside_the_right_run = _exercise(options) is not None and not options.text and not options.gif
    return bool(options.vs or options.bug or beside_the_right_run)


def _output(options: argparse.Namespace) -> Path:
    """Return the file that is written."""
    output: Path | None = options.output
    return output or Path(f"flashsim-step.{'gif' if options.gif else 'html'}")


def _check_combinations(options: argparse.Namespace) -> None:
    """Raise ValueError for options that exclude each other."""
    two = _shows_two(options)
    if _exercise(options) is not None and (options.bug or options.direction == "backward"):
        raise ValueError(
            "an exercise's file is a forward pass with bugs of its own; leave out --bug and "
            "--backward"
        )
    if options.text and (two or options.open or options.output):
        raise ValueError("--text prints one run; leave out --vs, --bug, --open and --output")
    if options.gif and (two or options.open or options.text):
        raise ValueError("--gif shows one run, in a file; leave out --vs, --bug, --open and --text")
    output = _output(options)
    if options.gif and output.suffix != ".gif":
        raise ValueError(f"--gif writes a GIF; expected -o FILE.gif, got {output}")
    if options.open and output.suffix != ".html":
        raise ValueError(f"--open shows a page; expected -o FILE.html, got {output}")


def _algorithm_or_file(text: str) -> Any:
    return Path(text) if text.endswith(".py") else algorithm(text)


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text, re.ASCII)
    if not match:
        raise ValueError(f"{text!r} is not a range of steps; write A:B, as in 20:40")
    return int(match[1]), int(match[2])


def recorded(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the trace of the run, and that of the run beside it; None where there is none.

    Raises ValueError.
    """
    from flashsim.tracing.tracer import trace

    Q, K, V = operands(options)
    direction = options.direction
    beside = [resolve(options.vs, direction)] if options.vs else []
    exercise = _exercise(options)
    if exercise is not None:
        from flashsim.learn.exercises.grading import algorithms_of

        if options.M is None and options.blocks is None:
            # M is then what the student's run needs, which may be more than the right one's
            options = argparse.Namespace(**{**vars(options), "blocks": BLOCKS})
        student, right = algorithms_of(exercise)
        passes = [student, *(beside or [right])]
        if options.text or options.gif:
            passes = [student]
    else:
        passes = [algorithm_in(options, DEFAULT_ALGORITHM), *beside]
    planted = [with_bug(passes[0], options.bug, direction)] if options.bug else []
    call = arguments(options, Q, K, V, passes)
    if direction == "backward":
        call["dO"] = gradient(options, Q, V)
    traces = []
    for each in [*passes, *planted]:
        run = trace(each, Q, K, V, **arguments_for(each, options, call))
        about = replace(run.about, command=options.command_line)
        traces.append(replace(run, about=about))
    return traces[0], traces[1] if len(traces) > 1 else None
