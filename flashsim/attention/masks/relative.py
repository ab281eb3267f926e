"""A relative bias: a table with a number for each bucket of distances, which each tile loads and
spreads over its scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_count, short_repr
from flashsim.attention.inputs import Array
from flashsim.attention.masks.bias import Bias
from flashsim.attention.masks.rules import Head, Index, check_broadcast, head_of
from flashsim.attention.shapes import Shape
from flashsim.memory.hbm import Tile
from flashsim.memory.shape_only import ShapeOnly


class RelativeBias(Bias):
    """T[bucket(p − j)] is added to query i's score of key j; p = i + N_k − N_q is i's position,
    bottom-right. It combines with &.

    `table` is (..., buckets), with leading axes that broadcast to the heads'. `bucket` turns whole
    distances, an array of any shape, into the numbers of their buckets; without one they are 0 to
    buckets − 1, and distances beyond those are the nearest of these. `t5` has T5's.

    In HBM it is "bias", one head's table, which each computed tile of S loads, where
    `flashsim.Bias` loads as many numbers as the tile has. Its gradient, `Gradients.dB` of the
    table's shape, is "dB", as large, which each tile of dS loads and stores. With gqa="grouped" a
    group's tables are one, loaded together. All that is said of `flashsim.Bias` holds, but that
    "standard", which adds in a pass of its own, takes Bias(table[buckets]) instead. Sources: Raffel
    et al., arXiv 1910.10683, section 2.1; Shaw et al., arXiv 1803.02155.

    Raises ValueError for a table that is not an array of finite floats, and for buckets that the
    table lacks.
    """

    argument = "RelativeBias's table"
    is_table = True

    def __init__(
        self, table: Any, bucket: Callable[[Index], Any] | None = None, *, group: int = 1
    ) -> None:
        super().__init__(table)
        if not self.array.shape or not self.array.shape[-1]:
            raise ValueError(
                f"{self.argument} has shape {self.array.shape}; expected (..., buckets), at least "
                "one bucket"
            )
        self._bucket, self._group, self._size = bucket, group, self.array.shape[-1]

    @classmethod
    def t5(cls, table: Any, *, most: int = 128, both: bool = True) -> RelativeBias:
        """Return T5's: half of the buckets are a distance each, the others grow as its logarithm up
        to `most`.

        `both` has the two sides apart; else keys behind a query are at distance 0.
        """
        mask = cls(table)
        mask._bucket = partial(
            t5_buckets, size=mask._size, most=check_count("most", most), both=both
        )
        return mask

    @property
    def matrix(self) -> tuple[int, int]:
        return 1, self.array.shape[-1]

    @property
    def leading(self) -> tuple[int, ...]:
        return self.array.shape[:-1]

    @property
    def per_head(self) -> bool:
        return self.array.ndim > 1

    def check(self, shape: Shape, leading: Head) -> None:
        check_broadcast(self.argument, self.leading, leading, "(..., buckets), of leading axes")
        self.buckets(np.arange(1 - shape.N_q, shape.N_k))

    def buckets(self, apart: Index) -> Index:
        """Return the bucket of each distance. Raises ValueError for one that the table lacks."""
        if self._bucket is None:
            return np.asarray(apart.clip(0, self._size - 1))
        numbers = np.asarray(self._bucket(apart))
        if (
            numbers.shape != apart.shape
            or numbers.dtype.kind not in "iu"
            or numbers.min() < 0
            or numbers.max() >= self._size
        ):
            raise ValueError(
                f"RelativeBias's bucket returned {short_repr(numbers)}; expected a number from 0 "
                f"to {self._size - 1} for each"
            )
        return numbers

    def at(self, head: Head) -> tuple[int, ...]:
        return head_of(head, self.leading)

    def by_tile(self, rows: int, columns: int) -> tuple[int, int]:
        return self.matrix

    def spread(self, block: Tile, rows: Index, cols: Index, shape: Shape) -> Any:
        if isinstance(block, ShapeOnly):
            return np.zeros((len(rows), len(cols)))
        return block[0, self._entries(rows, cols, shape)]

    def summed(
        self, dS: Tile, block: tuple[int, int], rows: Index, cols: Index, shape: Shape
    ) -> Tile:
        if isinstance(dS, ShapeOnly):
            return dS.made(block, other=dS.size)
        sums = np.zeros(block, dS.dtype)
        np.add.at(sums[0], self._entries(rows, cols, shape), dS)
        return sums

    def _entries(self, rows: Index, cols: Index, shape: Shape) -> Index:
        """Return which entry of the tables each score has: those of a group's heads lie one
        after another.
        """
        apart = (rows // self._group)[:, None] + shape.N_k - shape.N_q // self._group - cols
        tables = self.array.shape[-1] // self._size
        return np.asarray(self.buckets(apart) + self._size * (rows % tables)[:, None])

    def grouped(self, group: int) -> RelativeBias:
        array = self.array
        if array.ndim > 1 and array.shape[-2] > 1:
            array = array.reshape(*array.shape[:-2], array.shape[-2] // group, group * self._size)
        other = RelativeBias(array, self._bucket, group=group)
        other._size = self._size
        return other

    def __repr__(self) -> str:
        return f"RelativeBias(table of shape {self.array.shape})"


def t5_buckets(apart: Array, size: int, most: int, both: bool) -> Index:
    """Return T5's bucket of each distance p − j: keys behind the query have the second half
    where `both` sides are apart.
    """
    half = size // 2 if both else size
    near = max(half // 2, 1)
    behind = (apart < 0) & both
    n = np.abs(apart) if both else np.maximum(apart, 0)
    grown = (
        np.log(np.maximum(n, near) / near) / math.log(max(most / near, 1 + 1e-9)) * (half - near)
    )
    return np.asarray(
        np.where(n < near, n, np.minimum(near + grown.astype(int), half - 1)) + half * behind
    )
