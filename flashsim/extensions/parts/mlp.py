"""What the passes of the sparse MLP share: which blocks of the weights are live, and their block
sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_array, check_mask_blocks
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.memory.hbm import Matrix, Tile

SIDE = 16
"""Rows and columns of a weight's block, where nobody says otherwise."""


def live(name: str, mask: Any, W: Matrix, rows: int, columns: int) -> NDArray[np.bool_]:
    """Return which blocks of a weight are live, (T_rows, T_columns): all, those of an array, or of
    a function of these numbers.

    Raises ValueError for a mask of another shape, and for more blocks than `check_mask_blocks`
    takes.
    """
    T = check_mask_blocks(name, (-(-W.shape[0] // rows), -(-W.shape[1] // columns)))
    if mask is None:
        return np.ones(T, bool)
    array = check_live(name, mask(*T) if callable(mask) else mask)
    if array.shape != T:
        raise ValueError(
            f"{name} has shape {array.shape}; expected {T}: {W.name} is {W.shape[0]} × "
            f"{W.shape[1]}, in blocks of "
            f"{rows} × {columns}"
        )
    return array


def check_live(name: str, mask: Any) -> NDArray[np.bool_]:
    """Return a copy of a block mask's booleans, of two axes. Raises ValueError."""
    array = check_array(name, mask)
    if array.dtype != bool or array.ndim != 2:
        raise ValueError(
            f"{name} has shape {array.shape}, dtype {array.dtype}; expected booleans, True = live, "
            "a row for each row of blocks"
        )
    return array.copy()


def relu(H: Tile) -> Tile:
    """Return max(H, 0)."""
    return np.maximum(H, 0)


def fused_rows(M: int, sizes: Sizes) -> int:
    """Return the most rows r with r(d + o + 16) + 16² ≤ M, at least 1."""
    return max((M - SIDE**2) // (sizes.d + sizes.o + SIDE), 1)


def unfused_rows(M: int, sizes: Sizes) -> int:
    """Return the most rows r with r(max(d, o) + 16) + 16² ≤ M, at least 1."""
    return max((M - SIDE**2) // (max(sizes.d, sizes.o) + SIDE), 1)


def square_rows(M: int, sizes: Sizes) -> int:
    """Return the most rows b with b² + 2b ≤ M, at least 1."""
    return max(isqrt(M + 1) - 1, 1)


def row_line_1(rows: int, sizes: Sizes) -> tuple[int, int, int, int]:
    """Return (B_r, B_d, B_f, B_o)."""
    return rows, *3 * (min(rows, SIDE),)


def square_line_1(rows: int, sizes: Sizes) -> tuple[int, int, int, int]:
    """Return (B_r, B_d, B_f, B_o)."""
    return rows, rows, rows, rows


@dataclass(frozen=True)
class Some:
    """A mask to try a program with: so large a share of blocks, the first always."""

    share: float
    seed: int

    def __call__(self, rows: int, columns: int) -> NDArray[np.bool_]:
        """Return which of rows × columns blocks are live."""
        mask: NDArray[np.bool_] = (
            np.random.default_rng(self.seed).random((rows, columns)) < self.share
        )
        mask[0, 0] = True
        return mask


def example(
    rng: np.random.Generator, sizes: Sizes, blocks: Sizes
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return masks to try a program with."""
    return {}, {
        f"mask{which}": Some(float(rng.random()), int(rng.integers(1000))) for which in (1, 2)
    }


SPARSE_MLP: dict[str, Any] = {
    "source": "Appendix D.2",
    "operands": {"X": Kind("N", "d"), "W1": Kind("d", "f"), "W2": Kind("f", "o")},
    "returns": {"Y": Kind("N", "o")},
    "blocks": {"B_r": "N", "B_d": "d", "B_f": "f", "B_o": "o"},
    "by": ("B_r", "B_f"),
    "words": ("rows", "hidden columns"),
    "example": example,
}
"""What the records of the sparse MLP share."""
