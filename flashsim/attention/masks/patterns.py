"""Block masks for Algorithm 5: which of the T_r × T_c tiles of S are computed.

Each returns a boolean array (T_r, T_c), True = computed. `s`, the fraction computed, is what
Proposition 4 scales with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_count

Bools = NDArray[np.bool_]


def _grid(T_r: int, T_c: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row and column indices of the tiles, spread over a square of max(T_r, T_c)."""
    T_r = check_count("T_r", T_r)
    T_c = check_count("T_c", T_c)
    side = max(T_r, T_c)
    return (np.arange(T_r) * side // T_r)[:, None], (np.arange(T_c) * side // T_c)[None, :]


def butterfly(T_r: int, T_c: int) -> Bools:
    """Return the fixed butterfly pattern: tile (i, j) if i = j or i and j differ in one bit. s ≈ (1
    + log₂ T) / T.

    The support of the sum of butterfly factors: the fixed pattern of the paper's block-sparse
    experiments. Where T_r ≠ T_c, both are spread over the larger.
    """
    i, j = _grid(T_r, T_c)
    differ = i ^ j
    return np.asarray((differ & (differ - 1)) == 0)


def local(T_r: int, T_c: int, width: int = 1) -> Bools:
    """Return a band: tile (i, j) if |i − j| ≤ width, in tiles. s ≈ (2·width + 1) / T."""
    i, j = _grid(T_r, T_c)
    return np.asarray(np.abs(i - j) <= check_count("width", width, 0))


def strided(T_r: int, T_c: int, stride: int) -> Bools:
    """Return every stride-th column of tiles, and the diagonal. s ≈ 1 / stride + 1 / T."""
    i, j = _grid(T_r, T_c)
    return np.asarray((i == j) | (j % check_count("stride", stride) == 0))


def strided_by_root(T_r: int, T_c: int) -> Bools:
    """Return `strided` with a stride of about √T_c."""
    return strided(T_r, T_c, round(check_count("T_c", T_c) ** 0.5))
