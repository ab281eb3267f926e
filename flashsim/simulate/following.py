"""A user's own function, followed line by line: what it computes with was loaded, or was put on
chip.

`on_chip` tells the memory of a result; one that is only assigned, it cannot see. Python's tracing
can, among the function's variables: a real array that a statement made of what is on chip, and that
is neither there itself nor a view of what is. The function may still put it there; to compute with
it is an error.
"""

import ast
import inspect
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import count
from types import FrameType
from typing import Any

import numpy as np

from flashsim.memory.errors import NotOnChip
from flashsim.memory.lifetimes import SKIPS_LOOKS
from flashsim.memory.source import PACKAGE, at_line, file_of
from flashsim.memory.sram import SRAM

TURNS = 3
"""How often a statement is followed: in a later turn it may compute with what it assigned in one
before.
"""
EVENTS = 50_000
"""Up to which of Python's calls and lines: 20 ms."""


def check_on_chip(function: Callable[..., Any], sram: SRAM) -> Callable[..., Any]:
    """Return a user's function so that it raises NotOnChip; as it is where it only counts, or a
    debugger follows it already.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if (
        code is None
        or file_of(code).startswith(PACKAGE)
        or not sram.hbm.arithmetic
        or _is_debugged()
    ):
        return function
    statements = _statements(file_of(code))
    # name -> what it was when the line that made it had run
    suspects: dict[str, tuple[Any, int]] = {}
    turns: dict[int, int] = defaultdict(int)  # of each statement
    running: _Statement | None = None
    of_tiles, made_at, events = False, 0, count()

    def is_on_chip(value: Any) -> bool:
        return isinstance(value, np.ndarray) and sram.holds(value)

    def is_suspect(value: Any) -> bool:
        is_of_numbers = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 1
        return is_of_numbers and not sram.holds(value)

    def enter(frame: FrameType, _event: str, _: Any) -> Any:
        if next(events) == EVENTS:
            sys.settrace(None)
        return follow if frame.f_code is code else None

    setattr(enter, SKIPS_LOOKS, True)

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal running, of_tiles, made_at
        if next(events) == EVENTS:
            sys.settrace(None)
        if event == "exception":
            return follow
        statement = statements.get(frame.f_lineno) if event == "line" else None
        if statement and turns[statement.line] == TURNS:
            statement = None
        if statement is running:
            return follow
        variables: Any = frame.f_locals
        if running is not None:
            turns[running.line] += 1
            for name in running.targets:
                suspects.pop(name, None)
                if of_tiles and is_suspect(variables.get(name)):
                    suspects[name] = variables[name], running.line
        running = statement
        if statement is not None:
            of_tiles = statement.brings or any(
                is_on_chip(variables.get(name)) for name in statement.uses
            )
            for name in statement.uses & suspects.keys():
                suspect, line = suspects[name]
                if variables.get(name) is suspect and not sram.holds(suspect):
                    made_at = line
                    raise NotOnChip(
                        f"{name} ({'×'.join(map(str, suspect.shape))}) was not put on chip, and "
                        f"line {statement.line} computes "
                        f"with it: SRAM's peak would be too low. Expected {name} = on_chip(…), or "
                        "the expression itself in "
                        f"place of {name}"
                    )
        return follow

    def run(*arguments: Any) -> Any:
        sys.settrace(enter)
        try:
            return function(*arguments)
        except NotOnChip as error:
            if made_at:
                error.__notes__ = [at_line(file_of(code), made_at)]
            raise
        finally:
            if sys.gettrace() is enter:  # and no debugger has begun
                sys.settrace(None)

    return run


def _is_debugged() -> bool:
    """Say whether a debugger follows the program: pdb by tracing; others, which may trace only
    some functions, say so.
    """
    if sys.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    # of debugpy, which VS Code starts, and of PyCharm
    pydevd = sys.modules.get("_pydevd_bundle.pydevd_constants")
    debugger = getattr(pydevd, "get_global_debugger", None)
    return debugger is not None and debugger() is not None


class _Statement(ast.NodeVisitor):
    """An assignment, or a statement that brings something on chip: what it assigns to, and takes
    the numbers of.
    """

    def __init__(self, node: ast.stmt | ast.expr) -> None:
        self.line, self.targets, self.uses, self.brings = node.lineno, set[str](), set[str](), False
        self.generic_visit(node)
        self.uses |= self.targets if isinstance(node, ast.AugAssign) else set()

    def visit_Name(self, node: ast.Name) -> None:
        (self.uses if isinstance(node.ctx, ast.Load) else self.targets).add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr not in ("shape", "size", "ndim", "dtype"):  # for which no number is read
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        self.brings |= name in ("load", "on_chip")
        for position, each in enumerate(
            ast.iter_child_nodes(node)
        ):  # the function, then what it takes
            only_named = {*map(type, ast.walk(each))} <= {ast.Name, ast.Attribute, ast.Load}
            if position != 1 or name not in ("on_chip", "len") or not only_named:
                self.visit(each)

    def visit_Lambda(self, node: ast.expr) -> None:
        inner = _Statement(node)
        self.uses |= (
            inner.uses
            - inner.targets
            - {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        )
        self.brings |= inner.brings

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_Lambda


@cache
def _statements(file: str) -> dict[int, _Statement]:
    statements = {}
    for node in ast.walk(ast.parse("".join(linecache.getlines(file)))):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
            statement = _Statement(node)
            if statement.brings or not isinstance(node, ast.Expr):
                statements.update(
                    dict.fromkeys(
                        range(node.lineno, (node.end_lineno or node.lineno) + 1), statement
                    )
                )
    return statements
