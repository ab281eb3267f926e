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
from typing import Any, NamedTuple

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
    return frozenset(unit for i, j in pairs for unit in (("Q", i), ("O", i), ("K", j), ("V", j)))


def compulsory(game: Game, todo: frozenset[Pair]) -> int:
    """Return what it costs to load each row once."""
    return sum(game.out if name == "O" else getattr(game, name) for name, _ in needs(todo))


def price(game: Game, gone: Sequence[Unit]) -> int:
    """Return what it costs to evict rows that are needed again."""
    return sum(2 * game.O if name == "O" else getattr(game, name) for name, _ in gone)


def moves(game: Game, state: State, below: int) -> Iterator[tuple[Pair, tuple[Unit, ...]]]:
    """Yield each product that may be next, and each set of rows to evict for it at a price below
    this one.

    Of rows that are alike, and of columns, the first is enough.
    """
    size = {unit: int(getattr(game, unit[0])) for unit in needs(state.todo)}
    room = game.room - sum(size[unit] for unit in state.chip)
    large_first = sorted(state.chip, key=lambda unit: (-size[unit], unit))
    row = {
        i: (_on(state, "QO", i), frozenset(b for a, b in state.todo if a == i))
        for i, _ in state.todo
    }
    column = {
        j: (_on(state, "KV", j), frozenset(a for a, b in state.todo if b == j))
        for _, j in state.todo
    }
    for i, j in sorted(
        {(row[i], column[j]): (i, j) for i, j in sorted(state.todo, reverse=True)}.values()
    ):
        need = needs(frozenset({(i, j)}))
        lack = sum(size[unit] for unit in need - state.chip) - room
        for gone in least(
            game, [unit for unit in large_first if size[unit] and unit not in need], lack, below
        ):
            yield (i, j), gone


def least(game: Game, units: Sequence[Unit], lack: int, below: int) -> Iterator[tuple[Unit, ...]]:
    """Yield the sets of units, given from large to small, that make `lack` room, can spare none
    of their own, and cost less.
    """
    if lack <= 0:
        yield ()
        return
    for at, unit in enumerate(units):
        left = below - price(game, (unit,))
        if left > 0:
            yield from (
                (unit, *more)
                for more in least(game, units[at + 1 :], lack - getattr(game, unit[0]), left)
            )


def after(state: State, pair: Pair, gone: Sequence[Unit]) -> State:
    """Return the state after a move."""
    chip = (state.chip - {*gone}) | needs(frozenset({pair}))
    todo = frozenset(
        (i, j) for i, j in state.todo if not {("Q", i), ("O", i), ("K", j), ("V", j)} <= chip
    )
    return State(chip & needs(todo), todo)


def in_order(state: State) -> tuple[State, list[int], list[int]]:
    """Return the state with rows and columns renumbered, most often alike for states that are
    alike; and their old numbers.
    """
    across = {i: [b for a, b in state.todo if a == i] for i in {i for i, _ in state.todo}}
    down = {j: [a for a, b in state.todo if b == j] for j in {j for _, j in state.todo}}
    by_row: dict[int, Any] = dict.fromkeys(across, 0)
    for _ in range(3):
        by_column = _ranks(
            {j: (_on(state, "KV", j), sorted(by_row[i] for i in down[j])) for j in down}
        )
        by_row = _ranks(
            {i: (_on(state, "QO", i), sorted(by_column[j] for j in across[i])) for i in across}
        )
    rows = sorted(across, key=lambda i: (by_row[i], i))
    columns = sorted(down, key=lambda j: (by_column[j], j))
    new = {
        (X, old): n
        for X, olds in (("Q", rows), ("O", rows), ("K", columns), ("V", columns))
        for n, old in enumerate(olds)
    }
    chip = frozenset((unit[0], new[unit]) for unit in state.chip)
    return State(chip, frozenset((new["Q", i], new["K", j]) for i, j in state.todo)), rows, columns


def _on(state: State, arrays: str, n: int) -> tuple[bool, ...]:
    return tuple((X, n) in state.chip for X in arrays)


def _ranks(values: Mapping[int, Any]) -> dict[int, int]:
    order = sorted(values.values())
    return {key: order.index(value) for key, value in values.items()}
