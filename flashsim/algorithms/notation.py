"""The paper's notation, as NumPy spells it.

ℓ and m are columns, (N, 1) in HBM and (B_r, 1) on chip: so diag(ℓ_i) X is `l_i * X`, and S_ij − m̃_ij reads as printed.
Block indices count from 0: `K[j]` with j = 0 is the paper's K_1.
"""

from __future__ import annotations

import numpy as np

from flashsim.memory import Tile

exp = np.exp
maximum = np.maximum


def rowmax(X: Tile) -> Tile:
    """Return the largest entry of each row, as a column."""
    return X.max(axis=1, keepdims=True)  # type: ignore[no-any-return]


def rowsum(X: Tile) -> Tile:
    """Return the sum of each row, as a column."""
    return X.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]
