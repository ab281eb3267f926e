"""Sink tokens and a window: the mask of StreamingLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_count
from flashsim.attention.masks.rules import Bools, Head, Index, Mask
from flashsim.attention.shapes import Shape
from flashsim.support.records import set_fields


@dataclass(frozen=True, repr=False)
class Streaming(Mask):
    """The first `sinks` keys and the last `window`, the query's own among them: j ≤ p, and j <
    sinks or j > p − window.

    p = i + N_k − N_q is query i's position, bottom-right. No two masks joined by & are this one, as
    it is the union of two. A decoding step moves at most sinks + window keys, rounded up to tiles,
    however long the cache is. Positions that keys are embedded at are the caller's. Source: Xiao et
    al., arXiv 2309.17453.

    Raises ValueError for what is not a whole number, sinks below 0, and a window below 1.
    """

    sinks: int
    window: int

    def __post_init__(self) -> None:
        set_fields(
            self,
            sinks=check_count("Streaming's sinks", self.sinks, 0),
            window=check_count("Streaming's window", self.window),
        )

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        back = rows[:, None] + shape.N_k - shape.N_q - cols
        return np.asarray((back >= 0) & ((back < self.window) | (cols < self.sinks)))

    def live(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Shape, head: Head
    ) -> Bools:
        first = rows + shape.N_k - shape.N_q
        last = row_ends - 1 + shape.N_k - shape.N_q
        return np.asarray(
            (cols <= last) & ((cols < self.sinks) | (first - (col_ends - 1) < self.window))
        )

    def full(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Shape, head: Head
    ) -> Bools:
        first = rows + shape.N_k - shape.N_q
        last = row_ends - 1 + shape.N_k - shape.N_q
        beyond = np.maximum(cols, self.sinks)  # the first key that only the window may hold
        return np.asarray(
            (col_ends - 1 <= first) & ((beyond >= col_ends) | (last - beyond < self.window))
        )

    def __repr__(self) -> str:
        return f"Streaming({self.sinks}, {self.window})"
