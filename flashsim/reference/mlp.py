"""A sparse MLP in plain NumPy, and how far rounding may lead from it, element by element.

Bounds. u is the chip's unit roundoff. Each element of H sums d terms in T_d blocks: it is off by (d
+ T_d + 2)u of Σ_c |x_ic||w1_cj|. relu brings no more, as it stretches nothing. Stored, H is rounded
to its type. Y sums f terms in T_f blocks: it is off by what H is, through |W2|, by (f + T_f + 2)u
of Σ_j |h_ij||w2_jk|, and by its own type's rounding. First-order terms are taken `C` times, 2 by
default, for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flashsim.attention.inputs import Array
from flashsim.reference.operands import (
    ResultsAndBounds,
    booleans,
    flag,
    float_type,
    oracle,
    positive,
    roundoffs,
    two_whole_numbers,
)

OPERANDS = {"X": ("N", "d"), "W1": ("d", "f"), "W2": ("f", "o")}


@oracle(OPERANDS, keep1=booleans("d", "f"), keep2=booleans("f", "o"))
def sparse_mlp(X: Any, W1: Any, W2: Any, keep1: Any = True, keep2: Any = True) -> Array:
    """Return relu(X W1) W2 in float64, (N, o). `keep1`, `keep2`: booleans that broadcast to W1,
    W2; False: a zero instead.
    """
    return np.asarray(np.maximum(X @ np.where(keep1, W1, 0.0), 0) @ np.where(keep2, W2, 0.0))


@oracle(
    OPERANDS,
    keep1=booleans("d", "f"),
    keep2=booleans("f", "o"),
    blocks=two_whole_numbers,
    fused=flag,
    stored=float_type,
    C=positive,
)
def sparse_mlp_bounds(
    X: Any,
    W1: Any,
    W2: Any,
    keep1: Any = True,
    keep2: Any = True,
    *,
    blocks: tuple[int, int] = (1, 1),
    fused: bool = True,
    stored: DTypeLike = "float64",
    C: float = 2.0,
) -> Array:
    """Return how far each element of Y may lie from exact arithmetic, (N, o), in so many blocks
    of d and of f.
    """
    u, u_s, least, step = roundoffs(stored)
    W1 = np.where(keep1, W1, 0.0)
    W2 = np.where(keep2, W2, 0.0)
    (d, f), (T_d, T_f) = W1.shape, blocks
    H = np.maximum(X @ W1, 0)
    size2 = np.abs(W2)
    off = C * ((d + T_d + 2) * u * (np.abs(X) @ np.abs(W1)) + (d + 1) * least)
    if not fused:
        off = off + C * (u_s * H + step)
    summed = (f + T_f + 2) * u * ((H + off) @ size2) + (f + 1) * least + step
    return np.asarray(off @ size2 + C * (summed + u_s * np.abs(H @ W2)))


def _of_program(
    fused: bool, arguments: Mapping[str, Any], blocks: Mapping[str, int]
) -> ResultsAndBounds:
    X, W1, W2 = (arguments[name] for name in ("X", "W1", "W2"))
    keep1 = _spread(arguments["mask1"], W1.shape, (blocks["B_d"], blocks["B_f"]))
    keep2 = _spread(arguments["mask2"], W2.shape, (blocks["B_f"], blocks["B_o"]))
    # a product's blocks are columns at least
    bound = sparse_mlp_bounds(X, W1, W2, keep1, keep2, blocks=W1.shape, fused=fused)
    return {"Y": (sparse_mlp(X, W1, W2, keep1, keep2), bound)}


def _spread(mask: Any, shape: tuple[int, int], block: tuple[int, int]) -> Any:
    if mask is None:
        return True
    (rows, cols), (down, across) = shape, block
    live = mask(-(-rows // down), -(-cols // across)) if callable(mask) else mask
    return np.repeat(np.repeat(live, down, axis=0), across, axis=1)[:rows, :cols]


NAIVE = {
    "sparse_mlp_fused": partial(_of_program, True),
    "sparse_mlp_unfused": partial(_of_program, False),
    "sparse_mlp_square": partial(_of_program, False),
}
