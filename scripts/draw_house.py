"""Draw the rooms of flashsim and what imports what, as a Mermaid graph: `python
scripts/draw_house.py` prints it.

An arrow from one room to another says that some module of the first imports some module of the
second as it is loaded. A dashed arrow says that functions alone do, when they are called, or type
checkers. Arrows that follow from others, a → c beside a → b → c, are left out; a dashed one may
follow from any, another one from whole arrows alone. docs/code.md has what this prints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "flashsim"
Graph = dict[str, set[str]]
"""For each room, the rooms that it imports from."""


def imports(node: ast.AST, *, is_late: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a node imports, each with whether that is late: in a function, or for
    type checkers.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, is_late
    if isinstance(node, ast.ImportFrom) and node.module == "flashsim":
        for alias in node.names:
            yield f"flashsim.{alias.name}", is_late
    elif isinstance(node, ast.ImportFrom):
        yield str(node.module), is_late
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        is_late = True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        is_late = True
    for child in ast.iter_child_nodes(node):
        yield from imports(child, is_late=is_late)


def rooms_imported(source: str) -> tuple[set[str], set[str]]:
    """Return the rooms that a module's source imports from as it is loaded, and wherever it
    does.
    """
    early_rooms = set()
    rooms = set()
    for module, is_late in imports(ast.parse(source)):
        first, _, rest = module.partition(".")
        room = rest.partition(".")[0]
        if first == "flashsim" and (ROOT / room).is_dir() and room:
            rooms.add(room)
            if not is_late:
                early_rooms.add(room)
    return early_rooms, rooms


def arrows() -> tuple[Graph, Graph]:
    """Return the graph of what rooms import as they are loaded, and that of all they import."""
    early: Graph = {}
    whole: Graph = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if len(parts) > 1:
            room = parts[0]
            early_rooms, rooms = rooms_imported(path.read_text(encoding="utf-8"))
            early.setdefault(room, set()).update(early_rooms - {room})
            whole.setdefault(room, set()).update(rooms - {room})
    return early, whole


def reachable(graph: Graph, room: str) -> set[str]:
    """Return the rooms that a room imports from, directly or by way of others."""
    rooms: set[str] = set()
    waiting = list(graph.get(room, ()))
    while waiting:
        other = waiting.pop()
        if other not in rooms:
            rooms.add(other)
            waiting += graph.get(other, ())
    return rooms


def follows(graph: Graph, room: str, other: str) -> bool:
    """Return whether a room imports from another by way of a third."""
    return any(other in reachable(graph, middle) for middle in graph[room] - {other})


def drawn(early: Graph, whole: Graph) -> str:
    """Return the graphs as Mermaid text, without arrows that follow from others."""
    lines = ["flowchart TD"]
    for room in sorted(whole):
        for other in sorted(whole[room]):
            if other in early[room] and not follows(early, room, other):
                lines.append(f"    {room} --> {other}")
            elif other not in early[room] and not follows(whole, room, other):
                lines.append(f"    {room} -.-> {other}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(drawn(*arrows()))
