"""Padding at the end: masks that leave only the first keys, or the first queries; one length, or one for each head."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from flashsim.band import Band
from flashsim.checking import check_whole
from flashsim.masks import Bools, Head, Index, Mask, at_head, check_leading
from flashsim.records import Shape


class _Padding(Mask):
    """Only the first `lengths` of one side."""

    side: ClassVar[str]  # the length that theirs is at most

    def __init__(self, lengths: Any) -> None:
        self.lengths = check_whole(f"{self._name} lengths", lengths).copy()

    @property
    def _name(self) -> str:
        return f"{type(self).__name__}'s"

    def check(self, shape: Shape, leading: Head) -> None:
        most = getattr(shape, self.side)
        if self.lengths.size and not (self.lengths.min() >= 0 and self.lengths.max() <= most):
            raise ValueError(
                f"{self._name} lengths run from {self.lengths.min()} to {self.lengths.max()}; expected 0 to "
                f"{self.side} = {most}"
            )
        check_leading(f"{self._name} lengths array", self.lengths.shape, leading)

    @property
    def per_head(self) -> bool:
        return self.lengths.ndim > 0

    def _length(self, head: Head) -> int:
        return int(at_head(self.lengths, head))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lengths.tolist()})"


class KeyPadding(_Padding):
    """Only the first `lengths` keys: a number, or an array that broadcasts to the leading axes (one for each head).

    Raises ValueError for what is no whole number; in a run, for lengths below 0 or above N_k.
    """

    side = "N_k"

    def keys(self, shape: Shape, head: Head) -> int:
        return self._length(head)

    def band(self, shape: Shape, head: Head) -> Band:
        return Band(None, None, self._length(head))

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        return np.broadcast_to(cols[None, :] < self._length(head), (len(rows), len(cols)))

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        return np.broadcast_to(cols < self._length(head), np.broadcast_shapes(rows.shape, cols.shape))

    def full(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        return np.broadcast_to(col_ends <= self._length(head), np.broadcast_shapes(rows.shape, cols.shape))


class QueryPadding(_Padding):
    """Only the first `lengths` queries attend to anything: a number, or an array that broadcasts to the leading axes.

    The rows of the others are 0 in O and dQ, and add nothing to dK and dV. Positions stay those of N_q queries: with padding, say
    where the queries are by `Causal(offset=…)`. Raises ValueError for what is no whole number; in a run, for lengths below 0 or
    above N_q.
    """

    side = "N_q"

    def queries(self, shape: Shape, head: Head) -> int:
        return self._length(head)

    def band(self, shape: Shape, head: Head) -> Band:
        return Band(None, None, shape.N_k, queries=self._length(head))

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        return np.broadcast_to(rows[:, None] < self._length(head), (len(rows), len(cols)))

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        return np.broadcast_to(rows < self._length(head), np.broadcast_shapes(rows.shape, cols.shape))

    def full(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        return np.broadcast_to(row_ends <= self._length(head), np.broadcast_shapes(rows.shape, cols.shape))
