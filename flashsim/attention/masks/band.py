"""What positions allow, as a band of S, and how many of its tiles are live, by kind, without
looking at each.

A tile's cost in a run depends on its kind alone: whether it is in the last row of tiles, whether in
the last column (these may be ragged), and whether it is partial. The live tiles of a row lie side
by side, and so do the full ones; where they begin and end is, row by row, the floor of a straight
line. So the counts are sums of such floors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.shapes import Blocks, Shape
from flashsim.support.sizes import ceil_div
from flashsim.support.sizes import smallest_true as least

Kind = tuple[bool, bool, bool]
"""(in the last row, in the last column, partial)."""
Found = tuple[int, tuple[int, int]]
"""How many, and (i, j) of one of them."""


class Band(NamedTuple):
    """Keys j < `keys` with −left ≤ j − p ≤ right of the query i < `queries` at position p = i + N_k
    − N_q.

    A side that is None has no limit, and neither have queries that are None. `left` or `right` may
    be negative: the query's own position is then outside. `is_exact`: the mask allows all pairs
    inside, so a tile inside is full. Otherwise the band is only around them, and every live tile
    is partial.
    """

    left: int | None
    right: int | None
    keys: int
    is_exact: bool = True
    queries: int | None = None

    def __and__(self, other: Band) -> Band:
        left = _least(self.left, other.left)
        right = _least(self.right, other.right)
        keys = min(self.keys, other.keys)
        queries = _least(self.queries, other.queries)
        return Band(left, right, keys, self.is_exact and other.is_exact, queries)

    @property
    def is_empty(self) -> bool:
        """Whether no distance j − p is inside."""
        return self.left is not None and self.right is not None and self.left + self.right < 0

    def allows(self, rows: Any, cols: Any, shape: Shape) -> NDArray[np.bool_]:
        """Return which pairs of a query and a key are inside, (len(rows), len(cols))."""
        apart = cols - rows[:, None]
        return self._meets(apart, apart, rows[:, None], cols, 0, shape)

    def live(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Shape
    ) -> NDArray[np.bool_]:
        """Return, for tiles [rows, row_ends) × [cols, col_ends), whether what comes nearest to
        each limit is inside.
        """
        met = self._meets(cols - row_ends, col_ends - rows, rows - 1, cols - 1, -1, shape)
        return np.zeros_like(met) if self.is_empty else met

    def full(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Shape
    ) -> NDArray[np.bool_]:
        """Return, for the same tiles, whether what is farthest from each limit is inside, and
        the band is exact.
        """
        met = self._meets(col_ends - rows, cols - row_ends, row_ends, col_ends, 1, shape)
        return met if self.is_exact else np.zeros_like(met)

    def _meets(
        self, least: Any, most: Any, row: Any, col: Any, over: int, shape: Shape
    ) -> NDArray[np.bool_]:
        """Return whether j − i, from `least` to `most`, meets what is inside, and row and col
        are, `over` by so much.
        """
        shift = shape.N_k - shape.N_q
        met = (
            np.ones(least.shape, bool) if self.right is None else least <= self.right + shift + over
        )
        met = met if self.left is None else met & (most >= shift - self.left - over)
        met = met if self.keys >= shape.N_k else met & (col < self.keys + over)
        return met if self.queries is None else met & (row < self.queries + over)

    def kinds(self, blocks: Blocks, shape: Shape, group: int = 1) -> Mapping[Kind, Found]:
        """Return the kinds of live tiles that occur. Row r is at position r // `group`, of
        interleaved heads.
        """
        classes: dict[Kind, Found] = {}
        for is_last, (first, height, number), band in self._runs(blocks, shape, group):
            rows = _Rows(band, blocks, shape, group)
            for (in_last, partial), count in rows.counts(first, height, number).items():
                if count:
                    before, example = classes.get((is_last, in_last, partial), (0, None))
                    example = example or rows.one(first, height, number, in_last, partial)
                    classes[is_last, in_last, partial] = before + count, example
        return classes

    def _runs(
        self, blocks: Blocks, shape: Shape, group: int
    ) -> Iterator[tuple[bool, tuple[int, int, int], Band]]:
        """Yield row blocks that are alike: whether they are the last; (first, rows attending in
        each, how many); their band.

        Those before the last; the one in which the queries end, every tile of which is partial; the
        last.
        """
        T_r = blocks.T_r
        B_r = blocks.B_r
        rows = shape.N_q if self.queries is None else self.queries * group
        partial = self._replace(is_exact=False)
        yield False, (0, B_r, min(rows // B_r, T_r - 1)), self
        if rows // B_r < T_r - 1:
            yield False, (rows // B_r, rows % B_r, min(rows % B_r, 1)), partial
        else:
            height = rows - (T_r - 1) * B_r
            yield True, (T_r - 1, height, min(height, 1)), self if rows == shape.N_q else partial


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


class _Rows:
    """Counts over `number` consecutive row blocks from `first` on, each of `height` rows."""

    def __init__(self, band: Band, blocks: Blocks, shape: Shape, group: int) -> None:
        far = shape.N_q + shape.N_k
        self._left, self._right = (
            far if side is None else side for side in (band.left, band.right)
        )
        self._band, self._blocks, self._N_k, self._g = band, blocks, shape.N_k, group
        if self._left + self._right < 0:
            self._band = band._replace(keys=0)
        self._shift = shape.N_k - shape.N_q // group

    def counts(self, first: int, height: int, number: int) -> dict[tuple[bool, bool], int]:
        """Return how many live tiles there are, by (in the last column, partial)."""
        T_c = self._blocks.T_c
        begin, end = self._live(first, height, number, T_c - 1)
        all_begin, all_end = self._live(first, height, number, T_c)
        full_begin, full_end = self._full(first, height, number)
        live = end - begin
        full = full_end - full_begin
        last = all_end - all_begin - live
        full_last = self._full_last(first, height, number)
        of_last = {(True, True): last - full_last, (True, False): full_last}
        return {(False, True): live - full, (False, False): full, **of_last}

    def one(
        self, first: int, height: int, number: int, in_last: bool, partial: bool
    ) -> tuple[int, int]:
        """Return the first row block that has such a tile, and its column."""
        before = (
            least(lambda n: n >= number or self.counts(first, height, n)[in_last, partial] > 0) - 1
        )
        i = first + before
        if in_last:
            return i, self._blocks.T_c - 1
        begin, _ = self._live(i, height, 1, self._blocks.T_c - 1)
        full_begin, full_end = self._full(i, height, 1)
        if not partial:
            return i, full_begin
        return i, begin if full_begin == full_end or begin < full_begin else full_end

    def _live(self, first: int, height: int, number: int, columns: int) -> tuple[int, int]:
        """Return Σ over the row blocks of where live tiles begin, and of where they end, among so
        many columns.

        The last row's position reaches right to b ≤ last + shift + right, the first's left to e − 1
        ≥ first + shift − left.
        """
        top = first * self._blocks.B_r
        g = self._g
        B_r = self._blocks.B_r
        B_c = self._blocks.B_c
        keys = self._band.keys
        left = self._left
        shift = self._shift
        # the others begin beyond the keys
        number = min(max(ceil_div((keys - shift + left) * g - top, B_r), 0), number)
        columns = min(columns, ceil_div(keys, B_c))
        begin = _clipped_sum(B_r, top + (shift - left) * g, g * B_c, number, columns)
        end = _clipped_sum(
            B_r, top + height - 1 + (shift + self._right + B_c) * g, g * B_c, number, columns
        )
        return begin, end

    def _full(self, first: int, height: int, number: int) -> tuple[int, int]:
        """Return the same of full tiles, those of the last column left out.

        B_c keys must fit between last + shift − left and first + shift + right: in all row blocks,
        or in none.
        """
        top = first * self._blocks.B_r
        g = self._g
        B_r = self._blocks.B_r
        B_c = self._blocks.B_c
        left = self._left
        right = self._right
        shift = self._shift
        columns = min(self._blocks.T_c - 1, self._band.keys // B_c)
        if not self._band.is_exact or left + right + 2 - (height - 1) // g <= B_c:
            return 0, 0
        begin = _clipped_sum(
            B_r, top + height - 1 + (shift - left + B_c - 1) * g, g * B_c, number, columns
        )
        end = _clipped_sum(B_r, top + (shift + right + 1) * g, g * B_c, number, columns)
        return begin, end

    def _full_last(self, first: int, height: int, number: int) -> int:
        """Return how many of the row blocks have a full tile in the last column."""
        if not self._band.is_exact or self._band.keys < self._N_k:
            return 0
        top = first * self._blocks.B_r
        g = self._g
        B_r = self._blocks.B_r
        shift = self._shift
        least = self._N_k - shift - self._right - 1  # what the first row's position must be
        most = (self._blocks.T_c - 1) * self._blocks.B_c - shift + self._left  # and the last row's
        begin = ceil_div(least * g - top, B_r)
        end = ceil_div((most + 1) * g - top - height + 1, B_r)
        return max(min(end, number) - max(begin, 0), 0)


def _clipped_sum(a: int, b: int, m: int, n: int, most: int) -> int:
    """Return Σ over 0 ≤ i < n of ⌊(a·i + b) / m⌋, each clipped to 0 … most; a > 0."""
    if n <= 0 or most <= 0:
        return 0
    from_zero = min(max(ceil_div(-b, a), 0), n)
    to_most = min(max(ceil_div(m * most - b, a), from_zero), n)
    return floor_sum(a, a * from_zero + b, m, to_most - from_zero) + most * (n - to_most)


def floor_sum(a: int, b: int, m: int, n: int) -> int:
    """Return Σ over 0 ≤ i < n of ⌊(a·i + b) / m⌋; a, b ≥ 0. By Euclid's algorithm: whole parts
    out, then axes exchanged.
    """
    total = 0
    while n > 0:
        total += (a // m) * (n * (n - 1) // 2) + (b // m) * n
        a = a % m
        b = b % m
        top = a * n + b
        n, b, a, m = top // m, top % m, m, a
    return total
