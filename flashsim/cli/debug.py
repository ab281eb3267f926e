"""`flashsim debug`: stop in the debugger at a line of an algorithm, at the tile that you name.

The stop is in the algorithm's own frame. For pdb it is an ordinary conditional breakpoint, set
before the run. Any other hook of `breakpoint()` (IDEs install one in `sys.breakpointhook`,
PYTHONBREAKPOINT names one) takes the frame that calls it. So `if j == 2 and i == 3: breakpoint()`
is put before that line in a copy of the algorithm, compiled under the same file name and line
numbers, as one would type it into the source.
"""

import argparse
import bdb
import io
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import IO

from flashsim.algorithms import Algorithm, for_sink
from flashsim.algorithms.own import forward_of
from flashsim.cli.inputs import add_inputs, arguments, gradient, operands
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FILE, add_algorithm, algorithm_in
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.sram import Event
from flashsim.simulate.shadow import trial_of
from flashsim.support.files import what_is_there
from flashsim.support.install import two_copies
from flashsim.tracing.stops import Stop, condition, find_stop, with_breakpoint

EXAMPLES = (
    "flashsim debug flash_basic --line 12 --at j=3,i=4\n"
    "flashsim debug flash --line 12 --causal --N 64 --d 16 --blocks 16 16\n"
    "flashsim debug mine.py:attention --line 14\n"
    'flashsim debug memory_efficient --line "equation 2" --at i=2,j=1\n'
    "flashsim debug flash --backward --line 13 --at j=2\n"
    "flashsim debug flash_basic --line 9 --qkv mine.npz --head 3 --blocks 32 32\n"
    "printf 'p S_ij\\np sram\\nq\\n' | flashsim debug flash_basic --line 10\n"
    "PYTHONBREAKPOINT=ipdb.set_trace flashsim debug flash_basic --line 12"
)


def add_options(parser: Parser) -> None:
    add_algorithm(parser)
    what = (
        'the line of the paper\'s listing, as it labels the source: 12 for "# line 12"; or '
        '"equation 2", "combine". '
        "If source lines share a label, the first is meant. In a file of yours without labels, a "
        "line of the file"
    )
    parser.add("--line", flags=["--line", "--stop"], required=True, metavar="LABEL", help=what)
    turns = (
        "the turns of the loops around that line, counted from 1, as in the paper and the player; "
        "if source lines share the "
        "label, the first in such loops is meant. Default: every turn"
    )
    parser.add("--at", metavar="j=J,i=I", help=turns)
    parser.add("--backward", help="stop in the backward pass, for a random dO")
    parser.add("--commands", **FILE, help="read pdb's commands from this file, and quit at its end")
    add_inputs(parser)
    parser.set_defaults(vs=None)  # one run; `inputs` reads the options of `step`, too


def run(options: argparse.Namespace) -> int:
    algorithm = algorithm_in(options)
    if options.sink is not None and algorithm.direction == "forward":
        algorithm = for_sink(algorithm)
    if warning := two_copies():
        print(f"flashsim debug: {warning}", file=sys.stderr)
    turns = {} if options.at is None else _turns(options.at)
    stop = find_stop(algorithm, options.line, turns)
    hook = _hook()
    if hook and options.commands:
        raise ValueError(f"--commands are for pdb; breakpoint() calls {hook} here")
    commands = _commands(options.commands) if options.commands else None
    if commands is None and sys.stdin is None:
        raise ValueError("standard input is closed; give --commands FILE")
    run_pass = _pass(options, algorithm)
    loops = _rehearse(algorithm, run_pass, stop, turns)
    print(f"{algorithm.title}, {stop.label}{loops}. The memories: p sram, p hbm")
    sys.stdout.flush()
    try:
        if hook:
            run_pass(with_breakpoint(algorithm, stop, turns))
        else:
            _with_pdb(stop, turns, commands, lambda: run_pass(algorithm))
    except bdb.BdbQuit:
        return 0
    print(f"{algorithm.title} ran to its end.")
    return 0


def _turns(text: str) -> dict[str, int]:
    """Return the turns of `--at j=3,i=4` by loop variable, counted from 0 as in Python."""
    turns: dict[str, int] = {}
    for part in text.split(","):
        name, equals, index = (piece.strip() for piece in part.partition("="))
        is_turn = index.isdecimal() and int(index[:30]) > 0
        if not equals or not name.isidentifier() or not is_turn:
            raise ValueError(
                f"--at is {text!r}; expected turns of loops, counted from 1, such as j=3,i=4"
            )
        if name in turns:
            raise ValueError(f"--at is {text!r}, which gives {name} twice")
        turns[name] = int(index[:30]) - 1  # enough to be refused as too large
    return turns


def _commands(path: Path) -> IO[str]:
    if not path.is_file():
        raise ValueError(
            f"argument --commands: {path} is {what_is_there(path)}; expected a file of pdb's "
            "commands"
        )
    try:
        return io.StringIO(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"argument --commands: {path} is not text in UTF-8") from None


def _pass(options: argparse.Namespace, algorithm: Algorithm) -> Callable[..., object]:
    """Return a function that runs a pass, with observers, on the command's inputs."""
    from flashsim.simulate.api import backward, forward

    Q, K, V = operands(options)
    call = arguments(options, Q, K, V, [algorithm])
    if algorithm.direction == "forward":
        return lambda run, observers=(): forward(run, Q, K, V, **call, observers=observers)
    result = forward(forward_of(algorithm), Q, K, V, **call)
    dO = gradient(options, Q, V)
    return lambda run, observers=(): backward(run, result, dO, observers=observers)


def _rehearse(
    algorithm: Algorithm,
    run_pass: Callable[..., object],
    stop: Stop,
    turns: Mapping[str, int],
) -> str:
    """Run a copy once, in which no debugger stops, and return the loops around `stop` in words, and
    how many turns each has. Raises ValueError for a turn that is not run.
    """
    lines = {line: variable for variable, line in stop.loops}
    lengths: dict[str, int] = {}
    tiles: list[dict[str, int]] = []

    def watch(event: Event) -> None:
        file, line = event.site
        if file != stop.file or line not in lines or event.kind not in ("enter", "turn"):
            return
        # a range's turns may begin after 0
        tile = dict(event.loops)
        variable = lines[line]
        length = event.elements if event.kind == "enter" else tile[variable] + 1
        lengths[variable] = max(length, lengths.get(variable, 0))
        if event.kind == "turn" and line == stop.loops[-1][1]:
            tiles.append(tile)

    failure: Exception | None = None
    try:
        run_pass(trial_of(algorithm), [watch] if lines else [])
    except Exception as error:
        if not isinstance(error, MemoryModelError) and not hasattr(error, "__notes__"):
            raise  # else it can be debugged all the same
        failure = error
    for variable, index in turns.items():
        if variable in lengths and index >= lengths[variable]:
            raise ValueError(
                f"--at gives {variable}={index + 1}; expected 1 ≤ {variable} ≤ "
                f"{lengths[variable]} here"
            )
    if lines and not any(turns.items() <= tile.items() for tile in tiles):
        if failure:
            raise failure
        where = "here"
        if turns:
            equations = [f"{variable} = {index + 1}" for variable, index in turns.items()]
            where = f"at {', '.join(equations)}, which is skipped"
        raise ValueError(f"{stop.label} is never run {where}")
    words = ""
    for variable, _ in stop.loops:
        turn = f" = {turns[variable] + 1}" if variable in turns else ""
        words += f", {variable}{turn} of 1…{lengths[variable]}"
    if turns:
        words += f" (in Python {condition(turns)})"
    return words


def _with_pdb(
    stop: Stop, turns: Mapping[str, int], commands: IO[str] | None, work: Callable[[], object]
) -> None:
    """Do the work with pdb's breakpoint at the stop. pdb reads its commands from a file, or from
    the user. Raises BdbQuit where the user quits.
    """
    import pdb  # of which other commands need none

    class Once(pdb.Pdb):
        """pdb that stops where a statement begins: Python comes back to the first line of one
        that goes on, and of a loop.
        """

        def break_here(self, frame: FrameType) -> bool:
            """Say whether there is a breakpoint at the line that the frame comes to."""
            code = frame.f_code
            starts = [
                start
                for start, _, line in code.co_lines()
                if (line, code.co_filename) == (stop.line, stop.file)
            ]
            begins = frame.f_lineno != stop.line or frame.f_lasti == min(
                starts, default=frame.f_lasti
            )
            return begins and super().break_here(frame)

    debugger = Once(stdin=commands)
    debugger.use_rawinput = commands is None
    refused = debugger.set_break(stop.file, stop.line, cond=condition(turns))
    if refused:
        raise ValueError(f"pdb sets no breakpoint at {stop.file}:{stop.line}: {refused}")
    debugger.reset()
    debugger.botframe = sys._getframe()
    debugger.set_continue()  # to the breakpoint, where `runcall` would stop at once
    sys.settrace(debugger.trace_dispatch)
    try:
        work()
    finally:
        sys.settrace(None)


def _hook() -> str:
    """Return what `breakpoint()` calls in place of pdb; "" for pdb. Raises ValueError where
    breakpoints are off.
    """
    hook = sys.breakpointhook
    if hook is not sys.__breakpointhook__:
        return f"{hook.__module__}.{getattr(hook, '__qualname__', 'a hook')}"
    variable = os.environ.get("PYTHONBREAKPOINT", "") if not sys.flags.ignore_environment else ""
    if variable == "0":
        raise ValueError(
            "PYTHONBREAKPOINT=0 turns breakpoints off; expected it unset, or a debugger's set_trace"
        )
    return "" if variable == "pdb.set_trace" else variable
