"""The row game of attention: its rules, which search, replay and certificate share. It imports
nothing of flashsim.

The game. What moves is a row: Q_i, K_j, V_j, or O_i with its m_i and ℓ_i, which is in one place at
a time. A product (i, j) is S_ij, P_ij and its term of O_i at once; it needs Q_i, K_j, V_j and O_i
on chip, and one element for S_ij. Products come in any order, with at most M elements on chip.
Loading a row costs its d or d_v elements; beginning O_i costs d_v + 1, which pays for its last
write, O_i and L_i. That much is compulsory. A row that is evicted before it is done is moved again:
d or d_v, and 2 (d_v + 2) for O_i, out and in. So the cost is what is compulsory, and the price of
evictions.

Normal form. A state with more on chip, or with more products done, is never worse: what follows the
one can follow the other, at no more cost. So load late, evict late, multiply early: some optimum
goes from product to product, and for the next one evicts rows of which none could stay, loads what
is lacking, and makes every product that is possible then. Rows that are done leave the chip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Pair = tuple[int, int]
Unit = tuple[str, int]  # a row: its array, its number


class Game(NamedTuple):
    """Elements of a row of each array on chip; of O_i's last write; and the room for rows."""

    Q: int
    K: int
    V: int
    O: int
    out: int
    room: int


class State(NamedTuple):
    """The rows on chip, and the products to do."""

    chip: frozenset[Unit]
    todo: frozenset[Pair]


def needs(pairs: frozenset[Pair]) -> frozenset[Unit]:
    """Return the rows that products take."""
    return frozenset(unit for i, j in pairs for unit in units_of(i, j))


def units_of(i: int, j: int) -> tuple[Unit, Unit, Unit, Unit]:
    """Return the rows that a product takes."""
    return ("Q", i), ("O", i), ("K", j), ("V", j)


def compulsory(game: Game, todo: frozenset[Pair]) -> int:
    """Return the cost of loading each row once."""
    return sum(game.out if name == "O" else getattr(game, name) for name, _ in needs(todo))


def price(game: Game, evicted: Sequence[Unit]) -> int:
    """Return the cost of evicting rows that are needed again."""
    return sum(2 * game.O if name == "O" else getattr(game, name) for name, _ in evicted)


def moves(game: Game, state: State, below: int) -> Iterator[tuple[Pair, tuple[Unit, ...]]]:
    """Yield each product that may be next, and each set of rows to evict for it at a price less
    than `below`.

    Of rows that are alike, and of columns, the first is enough.
    """
    size = {unit: int(getattr(game, unit[0])) for unit in needs(state.todo)}
    room = game.room - sum(size[unit] for unit in state.chip)
    large_first = sorted(state.chip, key=lambda unit: (-size[unit], unit))
    across, down = _neighbours(state.todo)
    row = {i: (_on_chip(state, "QO", i), frozenset(across[i])) for i in across}
    column = {j: (_on_chip(state, "KV", j), frozenset(down[j])) for j in down}
    first = {(row[i], column[j]): (i, j) for i, j in sorted(state.todo, reverse=True)}
    for i, j in sorted(first.values()):
        need = needs(frozenset({(i, j)}))
        lack = sum(size[unit] for unit in need - state.chip) - room
        units = [unit for unit in large_first if size[unit] and unit not in need]
        for evicted in evictions(game, units, lack, below):
            yield (i, j), evicted


def evictions(
    game: Game, units: Sequence[Unit], lack: int, below: int
) -> Iterator[tuple[Unit, ...]]:
    """Yield the sets of units that make room for `lack` elements, without a unit to spare, at a
    price less than `below`. The units come from large to small.
    """
    if lack <= 0:
        yield ()
        return
    for index, unit in enumerate(units):
        budget = below - price(game, (unit,))
        if budget > 0:
            smaller = units[index + 1 :]
            for others in evictions(game, smaller, lack - getattr(game, unit[0]), budget):
                yield (unit, *others)


def after(state: State, pair: Pair, evicted: Sequence[Unit]) -> State:
    """Return the state after a move."""
    chip = (state.chip - {*evicted}) | needs(frozenset({pair}))
    todo = frozenset((i, j) for i, j in state.todo if not chip.issuperset(units_of(i, j)))
    return State(chip & needs(todo), todo)


def in_order(state: State) -> tuple[State, list[int], list[int]]:
    """Return the state with rows and columns renumbered, and their old numbers. States that are
    alike mostly become the same.
    """
    across, down = _neighbours(state.todo)
    row_rank = dict.fromkeys(across, 0)
    for _ in range(3):
        column_rank = _ranks(state, "KV", down, row_rank)
        row_rank = _ranks(state, "QO", across, column_rank)
    rows = sorted(across, key=lambda i: (row_rank[i], i))
    columns = sorted(down, key=lambda j: (column_rank[j], j))
    new_row = {old: new for new, old in enumerate(rows)}
    new_column = {old: new for new, old in enumerate(columns)}
    chip = frozenset((X, new_row[n] if X in "QO" else new_column[n]) for X, n in state.chip)
    todo = frozenset((new_row[i], new_column[j]) for i, j in state.todo)
    return State(chip, todo), rows, columns


def _neighbours(todo: frozenset[Pair]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return the columns of each row's products, and the rows of each column's."""
    across: dict[int, list[int]] = {}
    down: dict[int, list[int]] = {}
    for i, j in todo:
        across.setdefault(i, []).append(j)
        down.setdefault(j, []).append(i)
    return across, down


def _on_chip(state: State, arrays: str, n: int) -> tuple[bool, ...]:
    return tuple((X, n) in state.chip for X in arrays)


def _ranks(
    state: State, arrays: str, products: Mapping[int, list[int]], ranks: Mapping[int, int]
) -> dict[int, int]:
    """Return the rank of each row (or column): by what it has on chip, then by the ranks of the
    columns (or rows) of its products.
    """
    keys = {}
    for n, others in products.items():
        keys[n] = (_on_chip(state, arrays, n), sorted(ranks[other] for other in others))
    order = sorted(keys.values())
    return {n: order.index(key) for n, key in keys.items()}
