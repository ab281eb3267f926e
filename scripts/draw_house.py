"""Draw the rooms of flashsim and what imports what, as a Mermaid graph: `python
scripts/draw_house.py` prints it.

An arrow from one room to another says that some module of the first imports some module of the
second, in a function, too. Arrows that follow from others, a → c beside a → b → c, are left out.
docs/code.md has what this prints.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "flashsim"


def rooms_imported(path: Path) -> set[str]:
    """Return the rooms that a module imports from, wherever it does."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "flashsim":
            modules = [f"flashsim.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [str(node.module)]
        for module in modules:
            first, _, rest = module.partition(".")
            room = rest.partition(".")[0]
            if first == "flashsim" and (ROOT / room).is_dir() and room:
                rooms.add(room)
    return rooms


def arrows() -> dict[str, set[str]]:
    """Return, for each room, the rooms that it imports from."""
    graph: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if len(parts) > 1:
            graph.setdefault(parts[0], set()).update(rooms_imported(path) - {parts[0]})
    return graph


def reachable(graph: dict[str, set[str]], room: str) -> set[str]:
    """Return the rooms that a room imports from, directly or by way of others."""
    events: set[str] = set()
    waiting = list(graph.get(room, ()))
    while waiting:
        other = waiting.pop()
        if other not in events:
            events.add(other)
            waiting += graph.get(other, ())
    return events


def drawn(graph: dict[str, set[str]]) -> str:
    """Return the graph as Mermaid text, without arrows that follow from others."""
    lines = ["flowchart TD"]
    for room in sorted(graph):
        for other in sorted(graph[room]):
            between = graph[room] - {other}
            if not any(other in reachable(graph, middle) for middle in between):
                lines.append(f"    {room} --> {other}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(drawn(arrows()))
