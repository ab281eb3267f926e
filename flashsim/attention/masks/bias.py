"""An additive bias: an array of floats in HBM that is added to the scaled scores, tile by tile,
before any mask.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from flashsim.attention.arguments import check_array
from flashsim.attention.inputs import FLOATS, Array
from flashsim.attention.masks.rules import ArrayMask, Head, Index, head_of
from flashsim.attention.shapes import Shape
from flashsim.memory.hbm import Tile


class Bias(ArrayMask):
    """Floats that broadcast to (..., N_q, N_k), added to the scaled scores: S = τQKᵀ + bias, and
    then masked. It combines with &.

    In HBM it is "bias", as large as it was given, in its own type; each computed tile of S loads
    its block, which is counted. The backward pass adds dS to its gradient there, "dB", block by
    block, in the type that is computed in: a block is loaded, added to, and stored; heads that
    share the bias, one after another, share dB. `Gradients.dB` has the shape that was given.

    Every forward pass that takes masks takes a bias, and so does every backward pass that has a
    tile of dS whole on chip. "standard", which has dS in HBM, adds it to dB in a pass of its own.
    With gqa="grouped" each row of a group has its own row of the bias, and of "dB_parts", which a
    pass (`flashsim.algorithms.group_sum`) then sums to dB; a bias of one row for all is as it was
    given. A mask may have one bias. Raises ValueError for what is not a float, NaN or ∞; to forbid
    a key is a mask's part.
    """

    argument = "Bias's array"
    is_table: ClassVar[bool] = False
    """Whether a head has one block, for every tile, as a `flashsim.RelativeBias` has."""

    def __init__(self, array: Any) -> None:
        self.array: Array = check_array(self.argument, array).copy()
        if self.array.dtype.name not in FLOATS:
            raise ValueError(
                f"{self.argument} has dtype {self.array.dtype}; expected one of {', '.join(FLOATS)}"
            )
        if not np.isfinite(self.array).all():
            raise ValueError(
                f"{self.argument} has NaN or ∞ in it; expected finite numbers, and a mask to "
                "forbid keys"
            )

    @property
    def bias(self) -> Bias:
        return self

    @property
    def matrix(self) -> tuple[int, int]:
        """The shape for one head, (1 or N_q, 1 or N_k)."""
        rows, columns = (1, 1, *self.array.shape)[-2:]
        return rows, columns

    @property
    def leading(self) -> tuple[int, ...]:
        """The leading axes of the array."""
        return self.array.shape[:-2]

    def by_tile(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the size of the blocks of a head's matrix that go with tiles of that size."""
        return rows if self.matrix[0] > 1 else 1, columns if self.matrix[1] > 1 else 1

    def spread(self, block: Tile, rows: Index, cols: Index, shape: Shape) -> Any:
        """Return what of a block is added to the scores of these queries and keys, its own."""
        return block

    def summed(
        self, dS: Tile, block: tuple[int, int], rows: Index, cols: Index, shape: Shape
    ) -> Tile:
        """Return dS of these queries and keys, summed up to be as large as their block."""
        for axis in (0, 1):
            if block[axis] < dS.shape[axis]:
                dS = dS.sum(axis=axis, keepdims=True)
        return dS

    def grouped(self, group: int) -> Bias:
        """Return a table for the interleaved rows of groups of heads."""
        return self

    def largest(self, shape: Shape) -> float:
        """Return the largest entry in absolute value."""
        return float(np.abs(self.array.astype(np.float64)).max(initial=0.0))

    def at(self, head: Head) -> tuple[int, ...]:
        """Return where a head's matrix is among the leading axes of the array."""
        return head_of(head, self.leading)

    def of(self, head: Head) -> Array:
        """Return a head's matrix, as large as it was given."""
        return np.asarray(self.array[self.at(head)]).reshape(self.matrix)
