"""What every device knows of the problem and of how its rows are shared out: positions, blocks,
which tiles are live.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from flashsim.algorithms.parts import Which
from flashsim.attention.arguments import check_count
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.rules import allowed_by
from flashsim.attention.problem import EVERYTHING, Problem
from flashsim.devices.layouts import Positions, blocks_of
from flashsim.memory.folding import Kinds
from flashsim.memory.hbm import Matrix, Tile
from flashsim.memory.shape_only import ShapeOnly

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Share:
    """A problem that is shared out over P devices.

    problem   attention with heads; its mask depends on positions alone, the same for all heads
    where     `where[p]`, the positions of device p's keys
    queries   `queries[p]`, those of its queries: mostly the same
    B_r, B_c  block sizes

    Raises ValueError for another mask, for blocks below 1, and for positions that are not as many
    as there are keys, or queries.
    """

    problem: Problem
    where: Sequence[Positions]
    queries: Sequence[Positions]
    B_r: int
    B_c: int
    _live: dict[tuple[int, int], Bools] = field(default_factory=dict, init=False)
    _steps: dict[int, list[list[int]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Check all fields."""
        problem = self.problem
        if problem.in_hbm or problem.mask.per_head or problem.mask.scores:
            raise ValueError(
                f"mask is {problem.mask!r}; expected a mask that depends on positions alone, the "
                "same for all heads"
            )
        check_count("B_r", self.B_r)
        check_count("B_c", self.B_c)
        for name, positions, length in (
            ("where", self.where, problem.shape.N_k),
            ("queries", self.queries, problem.shape.N_q),
        ):
            total = sum(map(len, positions))
            if total != length:
                raise ValueError(f"{name} has {total} positions; expected {length}")

    @property
    def H_q(self) -> int:
        """Query heads."""
        return self.problem.heads

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.problem.group

    @property
    def H_kv(self) -> int:
        """KV heads."""
        return self.H_q // self.group

    @property
    def tau(self) -> float:
        """The softmax scale."""
        return self.problem.scale

    def __len__(self) -> int:
        return self.problem.shape.N_q

    def heads(self, rank: int) -> range:
        """Return the query heads that a device computes under Ulysses."""
        P = len(self.where)
        return range(rank * self.H_q // P, (rank + 1) * self.H_q // P)

    def kv_heads(self, rank: int) -> range:
        """Return the KV heads that those share."""
        mine = self.heads(rank)
        return range(mine.start // self.group, -(-mine.stop // self.group)) if mine else range(0)

    def family(self, rank: int) -> tuple[int | None, list[int]]:
        """Return a device's parent in the binary tree whose root is 0, None there, and its
        children, the nearest first.
        """
        P = len(self.where)
        lowest = rank & -rank or P
        steps = [2**t for t in range(P.bit_length()) if 2**t < lowest]
        return (rank - lowest if rank else None), [rank + step for step in steps if rank + step < P]

    def rows(self, rank: int) -> int:
        """Return how many rows a device has."""
        return len(self.where[rank])

    @property
    def most_rows(self) -> int:
        """The most rows that a device has."""
        return max(map(len, self.where))

    def head(self, matrix: Matrix, h: int, n: int) -> Matrix:
        """Return head h's rows of a matrix in which heads of n rows lie one below the other."""
        return matrix.rows(h * n, (h + 1) * n)

    def of_heads(self, matrix: Matrix, heads: range, n: int) -> Matrix:
        """Return the rows of heads that follow one another in such a matrix."""
        return matrix.rows(heads.start * n, heads.stop * n)

    def live(self, rank: int, src: int) -> Bools:
        """Return which tiles of rank's row blocks against src's key blocks hold a pair that the
        mask allows.
        """
        if (rank, src) not in self._live:
            rows = self.queries[rank]
            cols = self.where[src]
            band = self.problem.mask.band(self.problem.shape, ())
            if band is not None and band.positional:
                self._live[rank, src] = self._touched(rows, cols, band)
            else:
                tiles = blocks_of(rows, self.B_r), blocks_of(cols, self.B_c)
                live = [self._allowed(i, j).any() for i, j in product(*tiles)]
                self._live[rank, src] = np.array(live, bool).reshape([*map(len, tiles)])
        return self._live[rank, src]

    def _touched(self, rows: Positions, cols: Positions, band: Band) -> Bools:
        """Return the same for a band: each row's keys are a stretch of `cols`, which goes from
        one tile to another.
        """
        shape = self.problem.shape
        to = np.full(len(rows), band.keys)
        diagonal = rows + shape.N_k - shape.N_q
        if band.right is not None:
            to = np.minimum(to, diagonal + band.right + 1)
        first = np.searchsorted(cols, diagonal - (diagonal if band.left is None else band.left))
        end = np.searchsorted(
            cols, np.where(rows < (shape.N_q if band.queries is None else band.queries), to, 0)
        )
        some = np.flatnonzero(first < end)
        changes = np.zeros((-(-len(rows) // self.B_r), -(-len(cols) // self.B_c) + 1), int)
        np.add.at(changes, (some // self.B_r, first[some] // self.B_c), 1)
        np.add.at(changes, (some // self.B_r, (end[some] - 1) // self.B_c + 1), -1)
        return changes.cumsum(1)[:, :-1] > 0

    def steps(self, rank: int) -> list[list[int]]:
        """Return, for each row block, the ring's steps in which it has a live tile; if none, the
        first, which writes zeros.
        """
        if rank not in self._steps:
            P = len(self.where)
            live = np.array([self.live(rank, (rank - s) % P).any(1) for s in range(P)])
            self._steps[rank] = [np.flatnonzero(block).tolist() or [0] for block in live.T]
        return self._steps[rank]

    def due(self, rank: int, s: int) -> Bools:
        """Return which row blocks have something to do in step s of the ring."""
        return np.array([s in steps for steps in self.steps(rank)], bool)

    def kinds(self, rank: int, s: int) -> Sequence[Hashable]:
        """Return, for each row block, whether step s of the ring is one of its steps, the first,
        the last.
        """
        return [(s in steps, s == steps[0], s == steps[-1]) for steps in self.steps(rank)]

    def row(self, x: int, y: int, i: int, kinds: Sequence[Hashable] | None = None) -> Which:
        """Return which tiles of x's row block i against y's key blocks are live; `kinds` as the
        loop over row blocks has them.
        """
        return cast(Bools, self.live(x, y)[i])

    def column(self, x: int, y: int, j: int, kinds: Sequence[Hashable] | None = None) -> Which:
        """Return the same of y's key block j against x's row blocks."""
        return self.live(x, y)[:, j]

    def mask(self, S_ij: Tile, rank: int, i: int, src: int, j: int) -> Tile:
        """Return a tile of scores with −∞ where the mask forbids."""
        if self.problem.mask is EVERYTHING or isinstance(S_ij, ShapeOnly):
            return S_ij
        rows = blocks_of(self.queries[rank], self.B_r)[i]
        cols = blocks_of(self.where[src], self.B_c)[j]
        return np.where(self._allowed(rows, cols), S_ij, np.asarray(-np.inf, S_ij.dtype))

    def _allowed(self, rows: Positions, cols: Positions) -> Any:
        return allowed_by(self.problem.mask, rows, cols, self.problem.shape, ())


class CountedShare(Share):
    """The same on lengths alone: a block that a loop runs stands for others of its kind, and has
    the mean of their live tiles.
    """

    def row(self, x: int, y: int, i: int, kinds: Sequence[Hashable] | None = None) -> Which:
        """Return how many tiles of each kind are live; so does `column`."""
        return _mean(self.live(x, y), i, kinds)

    def column(self, x: int, y: int, j: int, kinds: Sequence[Hashable] | None = None) -> Which:  # noqa: D102
        return _mean(self.live(x, y).T, j, kinds)


def _mean(live: Bools, block: int, kinds: Sequence[Hashable] | None) -> Kinds:
    """Return how many tiles, without the last, which may be ragged, and with it alone, the
    blocks have that one stands for.
    """
    last = len(live) - 1
    end = live.shape[1] - 1
    same = (
        [b for b in range(last) if kinds is None or kinds[b] == kinds[block]]
        if block < last
        else [last]
    )
    sums = {0: int(np.count_nonzero(live[same, :-1])), end: int(np.count_nonzero(live[same, -1:]))}
    return Kinds({tile: Fraction(count, len(same)) for tile, count in sums.items() if count})
