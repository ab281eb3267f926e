"""`flashsim debug`: stop in the debugger at a line of an algorithm, in the tile asked for.

The stop is in the algorithm's own frame. For pdb it is an ordinary conditional breakpoint, set before the run. Any other
hook of `breakpoint()` (IDEs install one in `sys.breakpointhook`, PYTHONBREAKPOINT names one) takes the frame that calls
it. So `if j == 2 and i == 3: breakpoint()` is put before that line in a copy of the algorithm, compiled under the same
file name and line numbers, as one would type it into the source.
"""

from __future__ import annotations

import argparse
import ast
import bdb
import io
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.cli import step
from flashsim.files import what_is_there
from flashsim.memory import Event, MemoryModelError
from flashsim.source import label_at

SUMMARY = "Stop in the debugger at a line of an algorithm, in the tile asked for."
EXAMPLES = (
    "flashsim debug flash_basic --line 12 --at j=2,i=3\n"
    "flashsim debug flash --line 12 --causal --n 64 --d 16 --blocks 16 16\n"
    'flashsim debug memory_efficient --line "equation 2" --at i=1,j=0\n'
    "flashsim debug flash --backward --line 13 --at j=1\n"
    "flashsim debug flash_basic --line 9 --qkv mine.npz --head 3 --blocks 32 32\n"
    "printf 'p S_ij\\np sram\\nq\\n' | flashsim debug flash_basic --line 10\n"
    "PYTHONBREAKPOINT=ipdb.set_trace flashsim debug flash_basic --line 12"
)


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument(
        "algorithm",
        choices=list(dict.fromkeys([*FORWARD, *BACKWARD])),
        metavar="NAME",
        help=f"of {', '.join(FORWARD)}; with --backward also q_outer_two_pass",
    )
    parser.add_argument(
        "--line",
        required=True,
        metavar="LABEL",
        help='the line of the paper\'s listing, as it labels the source: 12 for "# line 12"; or "equation 2", "combine". '
        "Of source lines that share a label, the first",
    )
    parser.add_argument(
        "--at",
        metavar="j=J,i=I",
        help="the turns of the loops around that line, counted from 0; of source lines that share the label, the first "
        "in such loops. Default: the first that comes",
    )
    parser.add_argument("--backward", action="store_true", help="stop in the backward pass, for a random dO")
    parser.add_argument(
        "--commands", type=Path, metavar="FILE", help="read pdb's commands from this file, and quit at its end"
    )
    step.add_inputs(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return 0, be it that the run ended or that the debugger was quit.

    Raises ValueError for a line or tile that the run has not, and for a file of commands that cannot be read.
    """
    known = BACKWARD if options.backward else FORWARD
    if options.algorithm not in known:
        which = "backward" if options.backward else "forward"
        raise ValueError(f"{options.algorithm!r} has no {which} pass of that name; {', '.join(known)} have")
    algorithm = known[options.algorithm]
    at = parse_at(options.at)
    stop = find_stop(algorithm, options.line, at)
    hook = _hook()
    if hook and options.commands:
        raise ValueError(f"--commands are for pdb; breakpoint() calls {hook} here")
    commands = _commands(options.commands) if options.commands else None
    if commands is None and sys.stdin is None:
        raise ValueError("standard input is closed; give --commands FILE")
    passes = _pass(options, algorithm)
    said = _rehearsed(passes, stop, at)
    print(f"{algorithm.title}, {stop.label}{said}. The memories: p sram, p hbm")
    sys.stdout.flush()
    try:
        if hook:
            with with_breakpoint(known, algorithm, stop, at):
                passes()
        else:
            debugger = _debugger(stop, commands)
            refused = debugger.set_break(stop.file, stop.line, cond=_condition(at))
            if refused:
                raise ValueError(f"pdb sets no breakpoint at {stop.file}:{stop.line}: {refused}")
            if debugger.runcall(passes) is None:  # it was quit
                return 0
    except bdb.BdbQuit:  # a hook's own pdb was
        return 0
    print(f"{algorithm.title} ran to its end.")
    return 0


# ---------------------------------------------------------------------------------------------------- where it stops


@dataclass(frozen=True)
class Stop:
    """A statement to stop before: its `label`, `file` and `line`, and the `loops` around it.

    Loops are (variable, line), outermost first.
    """

    label: str
    file: str
    line: int
    loops: tuple[tuple[str, int], ...]


def parse_at(text: str | None) -> dict[str, int]:
    """Return the turns that `--at j=2,i=3` asks for, by loop variable. Raises ValueError."""
    turns: dict[str, int] = {}
    for part in text.split(",") if text is not None else ():
        name, equals, index = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier() or not index.isdecimal():
            raise ValueError(f"--at is {text!r}; expected turns of loops, counted from 0, such as j=2,i=3")
        if name in turns:
            raise ValueError(f"--at is {text!r}, which gives {name} twice")
        turns[name] = int(index[:30])  # enough to be refused as too large
    return turns


def _commands(path: Path) -> IO[str]:
    """Return pdb's commands. Raises ValueError for a file that holds none."""
    if not path.is_file():
        raise ValueError(f"argument --commands: {path} is {what_is_there(path)}; expected a file of pdb's commands")
    try:
        return io.StringIO(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"argument --commands: {path} is no text in UTF-8") from None


def find_stop(algorithm: Algorithm, line: str, at: Mapping[str, int]) -> Stop:
    """Return the first statement labelled `line` that is in loops over what `at` names.

    `line` is "12" or "line 12", "equation 2" (or "2", where equations are the labels), "combine". Raises ValueError that
    says which labels there are, or which loops are around them.
    """
    found = labels(algorithm)
    asked = line.strip()
    label = next((label for label in (asked, f"line {asked}", f"equation {asked}") if label in found), None)
    name = algorithm.run.__name__
    if label is None:
        file, function = _function(algorithm)
        for number in range(function.lineno, (function.end_lineno or function.lineno) + 1):
            if label_at((file, number)) in (asked, f"line {asked}"):
                text = linecache.getline(file, number).strip()
                raise ValueError(f"nothing runs at {text!r} of {name}; {_labels(found)}")
        raise ValueError(f"--line is {line!r}, which labels nothing in {name}; {_labels(found)}")
    stops = found[label]
    for stop in stops:
        if set(at) <= {variable for variable, _ in stop.loops}:
            return stop
    deepest = max(stops, key=lambda stop: len(stop.loops))
    around = ", ".join(variable for variable, _ in deepest.loops)
    strange = next(variable for variable in at if variable not in dict(deepest.loops))
    has = f"the loops around it are over {around}" if around else "there is no loop around it"
    raise ValueError(f"--at gives {strange}={at[strange]}, but {label} of {name} is in no loop over {strange}: {has}")


def labels(algorithm: Algorithm) -> dict[str, list[Stop]]:
    """Return the statements that each label of the algorithm's source stands on."""
    file, function = _function(algorithm)
    found: dict[str, list[Stop]] = {}
    for statement, loops in _statements(function.body, ()):
        last = statement.lineno if hasattr(statement, "body") else statement.end_lineno or statement.lineno
        label = next(filter(None, (label_at((file, line)) for line in range(statement.lineno, last + 1))), None)
        if label:
            found.setdefault(label, []).append(Stop(label, file, statement.lineno, loops))
    return found


def _function(algorithm: Algorithm) -> tuple[str, ast.FunctionDef]:
    """Return the algorithm's file, and its function there, parsed."""
    file, name = algorithm.run.__code__.co_filename, algorithm.run.__name__
    tree = ast.parse("".join(linecache.getlines(file)), file)
    return file, next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)


def _statements(
    body: list[ast.stmt], loops: tuple[tuple[str, int], ...]
) -> Iterator[tuple[ast.stmt, tuple[tuple[str, int], ...]]]:
    """Yield each statement, in order, and the loops of `sram.loop` around it."""
    for statement in body:
        yield statement, loops
        inner = loops
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            call = statement.iter
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "loop":
                inner = (*loops, (statement.target.id, statement.lineno))
        for branch in ("body", "orelse"):
            yield from _statements(getattr(statement, branch, []), inner)


def _labels(found: Mapping[str, Any]) -> str:
    kinds: dict[str, list[str]] = {}
    for label in found:
        kind, _, number = label.partition(" ")
        kinds.setdefault(kind, []).append(number)
    said = ", ".join(f"{kind} {', '.join(numbers)}".strip() for kind, numbers in kinds.items())
    return f"labels to stop at: {said}"


# ----------------------------------------------------------------------------------------------------------- what runs


def _pass(options: argparse.Namespace, algorithm: Algorithm) -> Callable[..., object]:
    """Return the pass to debug, which takes observers; before a backward pass, the forward pass has been run."""
    import numpy as np

    import flashsim

    Q, K, V = step.operands(options)
    asked = step.arguments(options, Q, K, V)

    def forward(observers: Any = ()) -> object:
        return flashsim.forward(algorithm.name, Q, K, V, **asked, observers=observers)

    if not options.backward:
        return forward
    made = flashsim.forward(algorithm.forward_pass, Q, K, V, **asked)
    dO = np.random.default_rng(options.seed).standard_normal(made.O.shape, np.float32).astype(made.O.dtype)

    def backward(observers: Any = ()) -> object:
        return flashsim.backward(algorithm.name, made, dO, observers=observers)

    return backward


def _rehearsed(passes: Callable[..., object], stop: Stop, at: Mapping[str, int]) -> str:
    """Run once unwatched to see how many turns the loops around `stop` have, and say so.

    Raises ValueError for a turn that no loop has, or that is skipped. A run that breaks a rule of the memory is no reason
    not to debug it: what it was seen to do until then counts.
    """
    lines = {line: variable for variable, line in stop.loops}
    turns: dict[str, int] = {}
    reached = not lines
    innermost = stop.loops[-1][1] if stop.loops else 0

    def watch(event: Event) -> None:
        nonlocal reached
        file, line = event.site
        if file != stop.file or line not in lines:
            return
        if event.kind == "enter":
            turns[lines[line]] = event.elements
        elif event.kind == "turn" and line == innermost:
            now = dict(event.loops)
            reached = reached or all(now[variable] == index for variable, index in at.items())

    broken: MemoryModelError | None = None
    try:
        passes([watch])
    except MemoryModelError as error:
        broken = error
    for variable, index in at.items():
        if variable in turns and index >= turns[variable]:
            raise ValueError(
                f"--at gives {variable}={index}; expected 0 ≤ {variable} < {turns[variable]}, as that loop has "
                f"{turns[variable]} turns here"
            )
    if not reached:
        if broken:
            raise broken
        tile = ", ".join(f"{variable} = {index}" for variable, index in at.items())
        raise ValueError(f"{stop.label} is never run {f'at {tile}, which is skipped' if at else 'here'}")
    return "".join(
        f", {variable} = {at[variable]} of 0…{n - 1}" if variable in at else f", {variable} of 0…{n - 1}"
        for variable, n in ((variable, turns[variable]) for variable, _ in stop.loops)
    )


# ----------------------------------------------------------------------------------------------------- the debuggers


def _debugger(stop: Stop, stdin: IO[str] | None) -> Any:
    """Return pdb, which is imported here since other commands need none of it."""
    import pdb

    class Debugger(pdb.Pdb):
        """pdb that runs to the first breakpoint, and not to the first line. With `stdin`, commands come from there.

        Python comes back to the first line of a statement that goes on, and of a loop: at `stop`, it stops the first time.
        """

        def __init__(self, stop: Stop, stdin: IO[str] | None) -> None:
            super().__init__(stdin=stdin)
            if stdin is not None:
                self.use_rawinput = False
            self._stop, self._started = stop, False

        def user_line(self, frame: FrameType) -> None:
            """Go on from the first line of what is run; stop at any other that bdb stops at."""
            if self._started:
                super().user_line(frame)
            else:
                self._started = True
                self.set_continue()

        def break_here(self, frame: FrameType) -> bool:
            """Say whether there is a breakpoint at the line that the frame comes to."""
            code = frame.f_code
            if (frame.f_lineno, code.co_filename) == (self._stop.line, self._stop.file):
                starts = [start for start, _, line in code.co_lines() if line == self._stop.line]
                if frame.f_lasti != min(starts):
                    return False
            return super().break_here(frame)

    return Debugger(stop, stdin)


def _hook() -> str:
    """Return what `breakpoint()` calls in place of pdb; "" for pdb. Raises ValueError where breakpoints are off."""
    if sys.breakpointhook is not sys.__breakpointhook__:
        return f"{sys.breakpointhook.__module__}.{getattr(sys.breakpointhook, '__qualname__', 'a hook')}"
    named = os.environ.get("PYTHONBREAKPOINT", "") if not sys.flags.ignore_environment else ""
    if named == "0":
        raise ValueError("PYTHONBREAKPOINT=0 turns breakpoints off; expected it unset, or a debugger's set_trace")
    return "" if named == "pdb.set_trace" else named


def _condition(at: Mapping[str, int]) -> str | None:
    return " and ".join(f"{variable} == {index}" for variable, index in at.items()) or None


@contextmanager
def with_breakpoint(
    known: dict[str, Algorithm], algorithm: Algorithm, stop: Stop, at: Mapping[str, int]
) -> Iterator[None]:
    """Have `known` hold the algorithm with a `breakpoint()` before the statement to stop at.

    It stands on the line before, whichever that is: debuggers stop at the next line, and a line that goes on is not one.
    """
    _, function = _function(algorithm)
    call = ast.parse(f"if {_condition(at)}: breakpoint()" if at else "breakpoint()").body
    for node in ast.walk(call[0]):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno = node.end_lineno = stop.line - 1
            node.col_offset = node.end_col_offset = 0
    for node in ast.walk(function):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [s for old in body for s in ([*call, old] if old.lineno == stop.line else [old])]
    module = sys.modules[algorithm.run.__module__]
    scope = dict(vars(module))
    future = ast.parse("from __future__ import annotations").body
    tree = ast.Module([*future, function], type_ignores=[])
    exec(compile(tree, stop.file, "exec", dont_inherit=True), scope)
    known[algorithm.name] = replace(algorithm, run=scope[function.name])
    try:
        yield
    finally:
        known[algorithm.name] = algorithm
