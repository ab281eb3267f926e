"""What every device knows of the problem and of the division of its rows: positions, blocks, which
tiles are live.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
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
Alike = Sequence[Hashable] | None
"""Which blocks of a loop are of one kind; None: all but the last."""


@dataclass(frozen=True, eq=False)
class Share:
    """A problem that is divided among P devices.

    problem   attention with heads; its mask depends on positions alone, the same for all heads
    where     `where[p]`, the positions of device p's keys
    queries   `queries[p]`, those of its queries: mostly the same
    B_r, B_c  block sizes

    Raises ValueError for another mask, for blocks below 1, and unless each key's position, and each
    query's, is on one device.
    """

    problem: Problem
    where: Sequence[Positions]
    queries: Sequence[Positions]
    B_r: int
    B_c: int
    _live: dict[tuple[int, int], Bools] = field(default_factory=dict, init=False)

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
        lengths = (
            ("where", self.where, problem.shape.N_k),
            ("queries", self.queries, problem.shape.N_q),
        )
        for name, positions, length in lengths:
            every_position = np.concatenate([*positions])
            if not np.array_equal(np.sort(every_position), np.arange(length)):
                raise ValueError(
                    f"{name} has {len(every_position)} positions; expected each of 0 to "
                    f"{length - 1} once"
                )

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
            if band is not None and band.is_exact:
                live = self._touched(rows, cols, band)
            else:
                live = self._looked_at(rows, cols)
            self._live[rank, src] = live
        return self._live[rank, src]

    def _looked_at(self, rows: Positions, cols: Positions) -> Bools:
        """Return the same for any mask, tile by tile."""
        row_blocks = blocks_of(rows, self.B_r)
        col_blocks = blocks_of(cols, self.B_c)
        live = np.zeros((len(row_blocks), len(col_blocks)), bool)
        for i, row_block in enumerate(row_blocks):
            for j, col_block in enumerate(col_blocks):
                live[i, j] = self._allowed(row_block, col_block).any()
        return live

    def _touched(self, rows: Positions, cols: Positions, band: Band) -> Bools:
        """Return the same for a band: each row's keys are a stretch of `cols`, which goes from
        one tile to another.
        """
        shape = self.problem.shape
        diagonal = rows + shape.N_k - shape.N_q
        start = np.zeros(len(rows), int)
        stop = np.full(len(rows), band.keys)
        if band.left is not None:
            start = diagonal - band.left
        if band.right is not None:
            stop = np.minimum(stop, diagonal + band.right + 1)
        if band.queries is not None:
            stop = np.where(rows < band.queries, stop, 0)
        first = np.searchsorted(cols, start)
        end = np.searchsorted(cols, stop)
        some = np.flatnonzero(first < end)
        row_block = some // self.B_r
        first_tile = first[some] // self.B_c
        last_tile = (end[some] - 1) // self.B_c
        T_r = len(blocks_of(rows, self.B_r))
        T_c = len(blocks_of(cols, self.B_c))
        # +1 where a row's stretch begins, −1 behind its end: the sum is above 0 inside of one
        changes = np.zeros((T_r, T_c + 1), int)
        np.add.at(changes, (row_block, first_tile), 1)
        np.add.at(changes, (row_block, last_tile + 1), -1)
        return changes.cumsum(axis=1)[:, :-1] > 0

    def row(self, x: int, y: int, i: int, kinds: Alike = None) -> Which:
        """Return which tiles of x's row block i against y's key blocks are live; `kinds` as the
        loop over row blocks has them.
        """
        return cast(Bools, self.live(x, y)[i])

    def column(self, x: int, y: int, j: int, kinds: Alike = None) -> Which:
        """Return the same of y's key block j against x's row blocks."""
        return self.live(x, y)[:, j]

    def mask(self, S_ij: Tile, rank: int, i: int, src: int, j: int) -> Tile:
        """Return a tile of scores with −∞ where the mask forbids."""
        if self.problem.mask is EVERYTHING or isinstance(S_ij, ShapeOnly):
            return S_ij
        rows = blocks_of(self.queries[rank], self.B_r)[i]
        cols = blocks_of(self.where[src], self.B_c)[j]
        forbidden = np.asarray(-np.inf, S_ij.dtype)
        return np.where(self._allowed(rows, cols), S_ij, forbidden)

    def _allowed(self, rows: Positions, cols: Positions) -> Any:
        return allowed_by(self.problem.mask, rows, cols, self.problem.shape, ())


class CountedShare(Share):
    """The same on lengths alone: a block that a loop runs stands for others of its kind, and has
    the mean of their live tiles.
    """

    def row(self, x: int, y: int, i: int, kinds: Alike = None) -> Which:
        """Return how many tiles of each kind are live; so does `column`."""
        return _mean(self.live(x, y), i, kinds)

    def column(self, x: int, y: int, j: int, kinds: Alike = None) -> Which:  # noqa: D102
        return _mean(self.live(x, y).T, j, kinds)


def _mean(live: Bools, block: int, kinds: Alike) -> Kinds:
    """Return how many tiles, without the last, which may be ragged, and with it alone, the
    blocks have that one stands for.
    """
    last = len(live) - 1
    end = live.shape[1] - 1
    if block == last:
        same = [last]
    else:
        same = [b for b in range(last) if kinds is None or kinds[b] == kinds[block]]
    whole_tiles = int(np.count_nonzero(live[same, :-1]))
    last_tiles = int(np.count_nonzero(live[same, -1:]))
    sums = {0: whole_tiles, end: last_tiles}
    means = {tile: Fraction(total, len(same)) for tile, total in sums.items() if total}
    return Kinds(means)
