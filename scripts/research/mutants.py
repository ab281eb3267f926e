"""What the mutants are: one change at one place, as Cosmic Ray makes it, drawn by a hash of the
line and a seed.

Places are drawn first, then a change possible there, so that a `*`, which can become eleven other
signs, counts once. An edit elsewhere does not change what is drawn.
"""

import ast
from collections import defaultdict
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

# what runs, reads and draws flashsim; all else is mutated
BESIDE = ("gpu", "cli", "plots", "learn/gallery")

Entry = dict[str, Any]


class Mutant(NamedTuple):
    """What the record says of it (`which`: of the lines that read like it); its source; and its
    statement's last line.
    """

    entry: Entry
    source: str
    end: int


def key(entry: Entry) -> tuple[Any, ...]:
    """Return what tells a mutant from others, wherever in its file its line has moved."""
    return entry["file"], entry["which"], entry["before"], entry["after"]


def places_and_mutants(home: Path, sample: int, seed: int) -> tuple[int, list[Mutant]]:
    """Return how many places there are, and the first mutants of the seeded order."""

    def order(*what: Any) -> bytes:
        return sha256(repr((seed, *what)).encode()).digest()

    operators = {
        name: get_operator(name)()
        for name in operator_names()
        if not get_operator(name).arguments()
    }
    index: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    package = home / "flashsim"
    for path in sorted(package.rglob("*.py")):
        if not any(path.is_relative_to(package / room) for room in BESIDE):
            file = str(path.relative_to(home))
            source = path.read_text("utf-8")
            nodes = list(ast_nodes(get_ast(source)))
            for name, operator in operators.items():
                spots = (spot for node in nodes for spot in operator.mutation_positions(node))
                for number, ((line, column), (end, _)) in enumerate(spots):
                    index[file, path.name, *_line(source, line), column].append(
                        (name, file, source, number, line, end)
                    )
    drawn: list[Mutant] = []
    for place in sorted(index, key=lambda place: order(*place[1:])):
        changes = sorted(index[place], key=lambda change: order(change[0], {}))
        drawn += next(([mutant] for change in changes if (mutant := _made(*change))), [])
        if len(drawn) == sample:
            break
    return len(index), drawn


def _made(operator: str, file: str, source: str, number: int, line: int, end: int) -> Mutant | None:
    """Return the mutant, or None if it is not Python or means the same: an annotation."""
    mutated = mutate_code(source, get_operator(operator)(), number)
    if _meaning(mutated) in (None, _meaning(source)):
        return None
    pairs = enumerate(zip(source.splitlines(), mutated.splitlines(), strict=False), 1)
    changed, after = next((number, new.strip()) for number, (old, new) in pairs if old != new)
    if source.count("\n") == mutated.count("\n"):  # else a decorator is gone: the others moved
        line = changed
    before, which = _line(source, line)
    return Mutant(
        {"file": file, "line": line, "which": which, "before": before, "after": after}, mutated, end
    )


def _line(source: str, number: int) -> tuple[str, int]:
    """Return a line, and which of the lines that read so it is."""
    lines = [line.strip() for line in source.splitlines()[:number]]
    return lines[-1], lines.count(lines[-1])


@cache
def _meaning(source: str) -> str | None:
    with suppress(SyntaxError):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            # nothing evaluates them
            for name in {"annotation", "returns"}.intersection(node._fields):
                setattr(node, name, None)
        return ast.dump(tree)
    return None
