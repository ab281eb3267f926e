"""Padding at the end: masks that leave only the first keys, or the first queries; one length, or
one for each head.
"""

from __future__ import annotations

from typing import Any, ClassVar

from flashsim.attention.arguments import check_whole
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.rules import BandMask, Head, at_head, check_broadcast
from flashsim.attention.shapes import Shape


class _Padding(BandMask):
    """Only the first `lengths` of one side."""

    side: ClassVar[str]  # the length that theirs is at most

    def __init__(self, lengths: Any) -> None:
        self.lengths = check_whole(f"{type(self).__name__}'s lengths", lengths).copy()

    def check(self, shape: Shape, leading: Head) -> None:
        name = f"{type(self).__name__}'s lengths"
        most = getattr(shape, self.side)
        if self.lengths.size and not (self.lengths.min() >= 0 and self.lengths.max() <= most):
            range_text = f"run from {self.lengths.min()} to {self.lengths.max()}"
            raise ValueError(f"{name} {range_text}; expected 0 to {self.side} = {most}")
        check_broadcast(f"{name} array", self.lengths.shape, leading, "the leading axes")

    @property
    def per_head(self) -> bool:
        return self.lengths.ndim > 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lengths.tolist()})"


class KeyPadding(_Padding):
    """Only the first `lengths` keys: a number, or an array that broadcasts to the leading axes (one
    for each head).

    Raises ValueError for what is not a whole number; in a run, for lengths below 0 or above N_k.
    """

    side = "N_k"

    def band(self, shape: Shape, head: Head) -> Band:
        return Band(None, None, at_head(self.lengths, head))


class QueryPadding(_Padding):
    """Only the first `lengths` queries attend to anything: a number, or an array that broadcasts to
    the leading axes.

    The rows of the others are 0 in O and dQ, and add nothing to dK and dV. Positions stay those of
    N_q queries: with padding, say where the queries are by `Causal(offset=…)`. Raises ValueError
    for what is not a whole number; in a run, for lengths below 0 or above N_q.
    """

    side = "N_q"

    def band(self, shape: Shape, head: Head) -> Band:
        return Band(None, None, shape.N_k, queries=at_head(self.lengths, head))
