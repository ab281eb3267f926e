"""Which tiles of S a run computes, counted column by column; the last row block, which may be
ragged, apart from the others.

A mask's windows together are one, −left ≤ δ ≤ right, of δ = j − i − (N_k − N_q), from which an
offset moves them; its paddings of keys one, j < length, and of queries one, i < rows. In column
block b ≤ j < e, e clipped to the length, a row block is live if it has a position from b − right to
e − 1 + left, less the shift N_k − N_q. Row blocks from ⌊(b − shift − right)/B_r⌋ up to, not
including, ⌈(e − shift + left)/B_r⌉ do; sums of such floors over columns count the points of a
lattice under a line. Of N_q rows that are `group` interleaved heads', ⌊row/group⌋ is the position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.shapes import Blocks

Bools = NDArray[np.bool_]


Chosen = Callable[[int, int], tuple[int, int]]
"""The tiles to compute: how many are in columns first … end − 1, of the row blocks before the
last, and of the last.
"""


def choice_of(array: Bools) -> Chosen:
    """Return those of an array, (T_r, T_c)."""

    def chosen(first: int, end: int) -> tuple[int, int]:
        here = array[:, first:end]
        return int(np.count_nonzero(here[:-1])), int(np.count_nonzero(here[-1]))

    return chosen


@dataclass(frozen=True)
class Live:
    """The tiles with a position that all windows and paddings allow. `left` and `right` are large
    where there is no limit.

    Only the first `length` keys and the first `rows` rows may be allowed. left + right ≥ 0; if no
    key is allowed, length = 0.
    """

    N_q: int
    N_k: int
    blocks: Blocks
    left: int
    right: int
    length: int
    group: int
    rows: int

    def cut(self, B_r: int, B_c: int) -> Live:
        """Return the live tiles of other sizes, at most as long as S."""
        return replace(self, blocks=Blocks(B_r, B_c, N_q=self.N_q, N_k=self.N_k))

    def __call__(self, first: int, end: int) -> tuple[int, int]:
        """Sum over columns; the one in which the length ends has an end of its own."""
        whole = self.length // self.blocks.B_c
        full, last = self._sum(first, min(end, whole), self.blocks.B_c)
        rest = self.length - whole * self.blocks.B_c
        if rest and first <= whole < end:
            more_full, more_last = self._sum(whole, whole + 1, rest)
            full = full + more_full
            last = last + more_last
        return full, last

    def _sum(self, first: int, end: int, width: int) -> tuple[int, int]:
        """Return the same of columns with `width` keys to attend to."""
        B_r = self.blocks.B_r
        B_c = self.blocks.B_c
        T_r = self.blocks.T_r
        g = self.group
        shift = self.N_k - self.N_q // g
        last_position = (self.rows - 1) // g
        live_blocks = -(-self.rows // B_r)
        # columns beyond begin after the last row's window
        end = min(end, (last_position + shift + self.right) // B_c + 1)
        begins = B_c * g, (first * B_c - shift - self.right) * g, B_r, end - first
        ends = B_c * g, (first * B_c + width - shift + self.left) * g + B_r - 1, B_r, end - first
        most_of = (min(most, live_blocks) for most in (T_r - 1, T_r))
        full, both = (_clipped(*ends, most) - _clipped(*begins, most) for most in most_of)
        return full, both - full


def _clipped(a: int, b: int, m: int, n: int, most: int) -> int:
    """Return Σ over 0 ≤ j < n of ⌊(a·j + b)/m⌋, each at least 0 and at most `most`."""
    below = min(max(-(b // a), 0), max(n, 0))  # a·j + b < 0 for j < ⌈−b/a⌉
    # and at least m·most from there on
    reached = min(max(-((b - m * most) // a), below), max(n, 0))
    return points(a, b + a * below, m, reached - below) + most * (max(n, 0) - reached)


def points(a: int, b: int, m: int, n: int) -> int:
    """Return Σ over 0 ≤ j < n of ⌊(a·j + b)/m⌋: how many points (j, y), y ≥ 1, lie on or under
    the line; a, b ≥ 0.
    """
    whole = (a // m) * (n * (n - 1) // 2) + (b // m) * n
    slope = a % m
    start = b % m
    top = (slope * (n - 1) + start) // m if n > 0 else 0
    # of the n·top points of the rectangle: for each y, ⌈(m·y − start)/slope⌉ are above the line
    return whole + n * top - points(m, m - start + slope - 1, slope, top) if top > 0 else whole
