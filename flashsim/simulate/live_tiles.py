"""Which tiles a run computes. Runs look at each tile; counting on shapes alone, at kinds of
tiles (`flashsim.attention.masks.band`).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property

import numpy as np

from flashsim.algorithms.parts import Live
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.rules import Bools, Head, Mask
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.folding import Kinds
from flashsim.support.sizes import ceil_div


class LiveTiles:
    """The live tiles of a mask, as far as positions tell: skip the others, and nothing changes
    but the counts.
    """

    alike = None
    rows_alike = None

    def __init__(self, mask: Mask, blocks: Blocks, shape: Shape, head: Head) -> None:
        self._mask = mask
        self._shape = shape
        self._head = head
        self._rows = np.arange(blocks.T_r) * blocks.B_r
        self._row_ends = np.minimum(
            np.minimum(self._rows + blocks.B_r, shape.N_q), mask.queries(shape, head)
        )
        self._cols = np.arange(blocks.T_c) * blocks.B_c
        self._col_ends = np.minimum(
            np.minimum(self._cols + blocks.B_c, shape.N_k), mask.keys(shape, head)
        )

    def column(self, j: int) -> Bools:
        cols = self._cols[j : j + 1]
        col_ends = self._col_ends[j : j + 1]
        return self._mask.live(self._rows, self._row_ends, cols, col_ends, self._shape, self._head)

    def divided(self, blocks: Blocks) -> LiveTiles:
        return LiveTiles(self._mask, blocks, self._shape, self._head)

    def row(self, i: int) -> Bools:
        rows = self._rows[i : i + 1]
        row_ends = self._row_ends[i : i + 1]
        return self._mask.live(rows, row_ends, self._cols, self._col_ends, self._shape, self._head)


class TileSplits:
    """The blocks of this head's keys in `number` runs of equally many blocks; the last may be
    shorter, or empty.
    """

    alike = None

    def __init__(
        self, live: Live, mask: Mask, blocks: Blocks, shape: Shape, head: Head, number: int | None
    ) -> None:
        self._live = live
        self.number = blocks.T_c if number is None else number
        self._split_of = np.arange(blocks.T_c) // _share(
            mask.keys(shape, head), blocks, self.number
        )

    def row(self, s: int, i: int) -> Bools:
        inside: Bools = self._split_of == s
        live = self._live.row(i)
        return inside & live if isinstance(live, np.ndarray) else inside

    def rows_alike(self, s: int) -> None:
        """Say nothing: every row is run."""


def _share(keys: int, blocks: Blocks, number: int) -> int:
    """Return how many blocks of keys make a split."""
    return max(ceil_div(ceil_div(keys, blocks.B_c), number), 1)


class CountedTiles:
    """The live tiles of a band, counted by one tile of each kind.

    The row of that tile is run, and stands for other rows; the tile stands for all live tiles of
    its kind. So a loop over rows runs few of them, which together stand for all. A loop over a
    row's tiles runs the kinds' tiles that are in it, each as often as the kind occurs, divided by
    how many rows its row stands for: an average, which may be a fraction. Columns likewise.
    """

    def __init__(self, band: Band, blocks: Blocks, shape: Shape, group: int) -> None:
        self._kinds = band.kinds(blocks, shape, group)
        self._blocks = blocks
        self._rest = band, shape, group

    def divided(self, blocks: Blocks) -> CountedTiles:
        band, shape, group = self._rest
        return CountedTiles(band, blocks, shape, group)

    @cached_property
    def rows_alike(self) -> Kinds:
        return _standing(self._blocks.T_r, (i for _, (i, _) in self._kinds.values()))

    @cached_property
    def alike(self) -> Kinds:
        return _standing(self._blocks.T_c, (j for _, (_, j) in self._kinds.values()))

    def row(self, i: int) -> Kinds:
        rows = self.rows_alike[i]
        return Kinds({j: Fraction(n) / rows for n, (row, j) in self._kinds.values() if row == i})

    def column(self, j: int) -> Kinds:
        columns = self.alike[j]
        return Kinds(
            {i: Fraction(n) / columns for n, (i, column) in self._kinds.values() if column == j}
        )


class CountedSplits:
    """The same where the keys are cut into `number` splits: a split with a tile to run stands
    for others.
    """

    def __init__(
        self, band: Band, blocks: Blocks, shape: Shape, group: int, number: int | None
    ) -> None:
        self.number = blocks.T_c if number is None else number
        share = _share(band.keys, blocks, self.number)
        self._T_r = blocks.T_r
        self._tiles = [
            (n, j // share, i, j) for n, (i, j) in band.kinds(blocks, shape, group).values()
        ]

    @cached_property
    def alike(self) -> Kinds:
        return _standing(self.number, (s for _, s, _, _ in self._tiles))

    def rows_alike(self, s: int) -> Kinds:
        return _standing(self._T_r, (i for _, split, i, _ in self._tiles if split == s))

    def row(self, s: int, i: int) -> Kinds:
        turns = self.alike[s] * self.rows_alike(s)[i]
        return Kinds({j: Fraction(n) / turns for n, *place, j in self._tiles if place == [s, i]})


def _standing(turns: int, run: Iterable[int]) -> Kinds:
    """Return the turns to run, with how many turns each stands for: the last for itself, the
    first for all others.
    """
    last = turns - 1
    others = sorted({*run} - {turns - 1}) or [0] * (turns > 1)
    times = dict.fromkeys(others, 1)
    if others:
        times[others[0]] += last - len(others)
    return Kinds({**times, last: 1})
