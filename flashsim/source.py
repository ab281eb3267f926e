"""Names for tiles and loops, read from the source line that made them.

The memory wants to say "S_ij does not fit", yet `S_ij = on_chip(Q_i @ K_j.T)` never tells it the name.
The name stands in the source, so it is looked up there, and only when somebody asks.
"""

from __future__ import annotations

import ast
import linecache
import re
from functools import cache
from pathlib import Path
from types import FrameType

Site = tuple[str, int]
"""(file name, line number) of a call."""

LABEL = re.compile(r"#\s*(line \d+|equation \d+|summarise|combine|recompute|differentiate)")


def site_of(frame: FrameType) -> Site:
    """Return where `frame` stands."""
    return frame.f_code.co_filename, frame.f_lineno


@cache
def _targets(filename: str) -> dict[int, str]:
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:  # a notebook cell with magics, say
        return {}
    names: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                names[line] = node.targets[0].id
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            names.setdefault(node.lineno, node.target.id)
    return names


def target_at(site: Site, default: str) -> str:
    """Return the name assigned (or looped over) at `site`, or `default` where the source has none."""
    filename, line = site
    return _targets(filename).get(line, default)


def label_at(site: Site) -> str | None:
    """Return what labels the source line in the paper's terms ("line 9", "equation 4", "combine"), or None.

    In a file of the user's that has no labels, each line's own number is its label.
    """
    found = LABEL.search(linecache.getline(*site))
    if found:
        return found[1]
    filename, line = site
    return f"line {line}" if _unlabelled(filename) else None


@cache
def _unlabelled(filename: str) -> bool:
    return not filename.startswith(_OURS) and not any(map(LABEL.search, linecache.getlines(filename)))


_OURS = str(Path(__file__).parent)
