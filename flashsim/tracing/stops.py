"""Where a debugger can stop in an algorithm: before a statement that has a label, in a turn of the
loops around it.

In the user's own files, where nothing has a label, the file's line numbers are the labels.
"""

import ast
import inspect
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from flashsim.algorithms import Algorithm
from flashsim.memory.source import label_or_number_at
from flashsim.tracing.planting import recompiled

Loops = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Stop:
    """A statement to stop before: its label, file and line, and the loops around it, (variable,
    line), outermost first.
    """

    label: str
    file: str
    line: int
    loops: Loops


def find_stop(algorithm: Algorithm, line: str, at: Mapping[str, int]) -> Stop:
    """Return the first statement labelled `line` that is in loops over what `at` names.

    `line` is "12" or "line 12", "equation 2" (or "2", where equations are the labels), "combine".
    Raises ValueError that says which labels there are, or which loops are around them.
    """
    by_label, (file, function) = labels(algorithm), _function(algorithm)
    asked = line.strip()
    label = next(
        (label for label in (asked, f"line {asked}", f"equation {asked}") if label in by_label),
        None,
    )
    if label is None:
        for number in range(function.lineno, (function.end_lineno or function.lineno) + 1):
            if label_or_number_at((file, number)) in (asked, f"line {asked}"):
                text = linecache.getline(file, number).strip() or asked
                raise ValueError(
                    f"nothing runs at {text!r} of {function.name}; {_listed(by_label)}"
                )
        raise ValueError(
            f"--line is {line!r}, which labels nothing in {function.name}; {_listed(by_label)}"
        )
    stops = by_label[label]
    for stop in stops:
        if set(at) <= {variable for variable, _ in stop.loops}:
            return stop
    deepest = max(stops, key=lambda stop: len(stop.loops))
    around = ", ".join(variable for variable, _ in deepest.loops)
    strange = next(variable for variable in at if variable not in dict(deepest.loops))
    has = f"the loops around it are over {around}" if around else "there is no loop around it"
    where = f"{label} of {function.name} is in no loop over {strange}: {has}"
    raise ValueError(f"--at gives {strange}={at[strange] + 1}, but {where}")


def labels(algorithm: Algorithm) -> dict[str, list[Stop]]:
    """Return the statements that each label of the algorithm's source stands on. Raises
    ValueError if it has no source.
    """
    file, function = _function(algorithm)
    by_label: dict[str, list[Stop]] = {}
    for statement, loops in _statements(function.body, ()):
        last = (
            statement.lineno
            if hasattr(statement, "body")
            else statement.end_lineno or statement.lineno
        )
        for label in {
            label_or_number_at((file, line)): None for line in range(statement.lineno, last + 1)
        }:
            if label:
                by_label.setdefault(label, []).append(Stop(label, file, statement.lineno, loops))
    return by_label


def with_breakpoint(algorithm: Algorithm, stop: Stop, at: Mapping[str, int]) -> Algorithm:
    """Return a copy of the algorithm with `if …: breakpoint()` before the statement to stop at, as
    one would type it there.

    The call stands on the line before, whichever that is, and what holds it, a tuple, on the
    statement's own. So the statement's line is the next to be reached, at which debuggers stop, and
    the next instruction is on it, at which pdb stops from Python 3.13 on.
    """
    _, function = _function(algorithm)
    call = ast.parse(f"if {condition(at)}: (breakpoint(),)" if at else "(breakpoint(),)").body
    for node in ast.walk(call[0]):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno = node.end_lineno = stop.line - (not isinstance(node, ast.Tuple))
            node.col_offset = node.end_col_offset = 0
    for node in ast.walk(function):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [
                s for old in body for s in ([*call, old] if old.lineno == stop.line else [old])
            ]
    return replace(
        algorithm,
        run=recompiled(inspect.unwrap(algorithm.run), ast.Module([function], []), stop.file),
    )


def condition(at: Mapping[str, int]) -> str | None:
    """Return the turns as Python: "j == 2 and i == 3"; None for any."""
    return " and ".join(f"{variable} == {index}" for variable, index in at.items()) or None


def _function(algorithm: Algorithm) -> tuple[str, ast.FunctionDef]:
    function = inspect.unwrap(algorithm.run)
    if not inspect.isfunction(function):
        raise ValueError(
            f"{algorithm.name} is of type {type(function).__name__}; expected a function, to stop "
            "in it"
        )
    file = function.__code__.co_filename
    first = function.__code__.co_firstlineno
    for node in ast.walk(ast.parse("".join(linecache.getlines(file)), file)):
        if isinstance(node, ast.FunctionDef) and first in (
            node.lineno,
            *(d.lineno for d in node.decorator_list),
        ):
            return file, node
    raise ValueError(
        f"{Path(file).name} holds no source of {function.__name__}; expected a function written "
        "with def"
    )


def _statements(body: list[ast.stmt], loops: Loops) -> Iterator[tuple[ast.stmt, Loops]]:
    """Yield each statement that runs, in order, and the loops of `sram.loop` around it."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        yield statement, loops
        inner = loops
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            call = statement.iter
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "loop"
            ):
                inner = (*loops, (statement.target.id, statement.lineno))
        for branch in ("body", "orelse"):
            yield from _statements(getattr(statement, branch, []), inner)


def _listed(names: Mapping[str, object]) -> str:
    kinds = groupby((label.partition(" ") for label in names), key=lambda parts: parts[0])
    text = (
        f"{kind} {', '.join(number for *_, number in labels)}".strip() for kind, labels in kinds
    )
    return f"labels to stop at: {', '.join(text)}"
