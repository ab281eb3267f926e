"""Text of an algorithm: its listing, the functions that ran, and what their lines are called."""

import ast
import linecache
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from flashsim.memory.source import Site
from flashsim.tracing.data import Span

FIRST = re.compile(r"    (Require:|\(?\d+\)? )")


def listing_of(module: str | None) -> tuple[str, ...]:
    """Return the listing in a module's docstring: its lines indented by four, from "Require:" or
    the first number on.
    """
    lines = (module or "").splitlines()
    first = next((n for n, line in enumerate(lines) if FIRST.match(line)), len(lines))
    last = next(
        (n for n in range(first, len(lines)) if not lines[n].startswith("    ")), len(lines)
    )
    joined: list[str] = []
    for line in lines[first:last]:
        if joined and not FIRST.match(line):  # a line of the listing, continued
            joined[-1] += " " + line.strip()
        else:
            joined.append(line[4:])
    return tuple(joined)


def label_of(line: str) -> str:
    """Return "line 9" for a listing's line that begins with 9, "equation 4" for (4)."""
    number = line.split(maxsplit=1)[0] if line.strip() else ""
    return f"equation {number[1:-1]}" if number.startswith("(") else f"line {number}"


def source_of(sites: Iterable[Site]) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
    """Return the functions that `sites` are in, as (file, number of the first line, lines), the
    busiest file first.
    """
    by_file: dict[str, set[int]] = {}
    for file, line in sites:
        by_file.setdefault(file, set()).add(line)
    pieces = []
    for file, numbers in sorted(by_file.items(), key=lambda item: -len(item[1])):
        lines = linecache.getlines(file)
        for first, last in _functions(lines, numbers):
            pieces.append(
                (short(file), first, tuple(line.rstrip("\n") for line in lines[first - 1 : last]))
            )
    return tuple(pieces)


def _functions(lines: Sequence[str], numbers: Iterable[int]) -> list[Span]:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return []
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    around = {max((s for s in spans if s[0] <= n <= s[1]), default=None) for n in numbers}
    return sorted(span for span in around if span is not None)


def short(file: str) -> str:
    """Return a path as it is in the package: nothing of the machine that a run was made on."""
    parts = Path(file).parts
    if "flashsim" in parts:
        position = len(parts) - 1 - parts[::-1].index("flashsim")
        return "/".join(parts[position:])
    return parts[-1] if parts else file
