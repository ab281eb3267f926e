"""A user's own function, followed line by line: what it computes with was loaded, or was put on chip.

`on_chip` tells the memory of a result; one that is only assigned, it cannot see. Python's tracing can, among the function's
variables: a real array that a statement made of what is on chip, and that is neither there itself nor a view of what is. The
function may still put it there; to compute with it is an error.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from flashsim.memory import SRAM, NotOnChip
from flashsim.source import PACKAGE, at_line

NO_NUMBERS = re.compile(r"\w+\.(?:shape|size|ndim|dtype)\b|\blen\(\w+\)|(?<=on_chip\()\w+(?=[,)])")
"""Where a statement names a tile and takes none of its numbers, or only puts it on chip."""

TURNS = 3
"""How often a statement is followed: in a later turn it may compute with what it assigned in one before."""
EVENTS = 50_000
"""Up to which of Python's calls and lines: 20 ms."""


def followed(function: Callable[..., Any], sram: SRAM) -> Callable[..., Any]:
    """Return a user's function so that it raises NotOnChip; as it is where it only counts, or a debugger follows it already."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename.startswith(PACKAGE) or not sram.hbm.arithmetic or sys.gettrace() is not None:
        return function
    statements = _statements(code.co_filename)
    suspects: dict[str, tuple[Any, int]] = {}  # name -> what it was when the line that made it had run
    turns: dict[int, int] = defaultdict(int)  # of each statement
    running: _Statement | None = None
    of_tiles, made_at, events = False, 0, count()

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal running, of_tiles
        if next(events) == EVENTS:
            sys.settrace(None)
        if event in ("call", "exception"):
            return follow if frame.f_code is code else None
        statement = statements.get(frame.f_lineno) if event == "line" else None
        if statement and turns[statement.line] == TURNS:
            statement = None
        if statement is running:
            return follow
        values = {name: value for name, value in frame.f_locals.items() if isinstance(value, np.ndarray)}
        absent = {name: value for name, value in values.items() if not sram.holds(value)}
        if running is not None:
            turns[running.line] += 1
            for name in running.targets:
                suspects.pop(name, None)
                if of_tiles and name in absent and values[name].dtype.kind == "f" and values[name].size > 1:
                    suspects[name] = values[name], running.line
        running = statement
        if statement is not None:
            of_tiles = statement.brings or any(name in values and name not in absent for name in statement.uses)
            for name in statement.uses & suspects.keys() & absent.keys():
                if absent[name] is suspects[name][0]:
                    raise refused(name, statement.line)
        return follow

    def refused(name: str, line: int) -> NotOnChip:
        nonlocal made_at
        value, made_at = suspects[name]
        return NotOnChip(
            f"{name} ({'×'.join(map(str, value.shape))}) was not put on chip, and line {line} computes with it: SRAM's peak "
            f"would be too low. Expected {name} = on_chip(…), or the expression itself in place of {name}"
        )

    def run(*arguments: Any) -> Any:
        sys.settrace(follow)
        try:
            return function(*arguments)
        except NotOnChip as error:
            if made_at:
                error.__notes__ = [at_line(code.co_filename, made_at)]
            raise
        finally:
            if sys.gettrace() is follow:  # and no debugger has begun
                sys.settrace(None)

    return run


class _Statement(NamedTuple):
    """An assignment, or a statement with on_chip: what it assigns to, takes the numbers of, if it brings anything on chip."""

    line: int
    targets: frozenset[str]
    uses: frozenset[str]
    brings: bool


@cache
def _statements(file: str) -> dict[int, _Statement]:
    found = {}
    for node in ast.walk(ast.parse("".join(linecache.getlines(file)))):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
            continue
        text = ast.unparse(node)
        if not isinstance(node, ast.Expr) or "on_chip(" in text:
            names = [each for each in ast.walk(ast.parse(NO_NUMBERS.sub("_", text))) if isinstance(each, ast.Name)]
            targets = frozenset(name.id for name in names if isinstance(name.ctx, ast.Store))
            uses = frozenset(name.id for name in names if isinstance(name.ctx, ast.Load))
            uses |= targets if isinstance(node, ast.AugAssign) else frozenset()
            brings = "load(" in text or "on_chip(" in text
            statement = _Statement(node.lineno, targets, uses, brings)
            found.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), statement))
    return found
