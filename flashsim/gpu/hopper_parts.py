"""What both kernels for few queries share: struct Problem of kernels/hopper_parts.cuh, and the
launch that merges parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsim.gpu import tensor_core
from flashsim.gpu.launching import STRIDES, ready

MERGING = "hopper_decode.cu"  # the file with `merge`
WARPS = 8  # of a block that merges
PARTS = 2  # parts of a warp, if there are enough warps
MANY_PARTS = 4  # the same for more than FEW rows, which have warps enough without
FEW = 64
MOST = 2**31 - 2**16  # heads, and rows of all heads, which are counted in 32 bits

PROBLEM = np.dtype(
    [("Q", STRIDES), ("tiles", "i8"), ("table", "u8"), ("lengths", "u8")]
    + [
        (name, "i4")
        for name in (
            "width",
            "pages",
            "page",
            "N_q",
            "N_k",
            "H_kv",
            "group",
            "heads",
            "rows",
            "T_c",
        )
    ]
    + [("causal", "i4"), ("wants_L", "i4"), ("c", "f4"), ("sign", "f4")]
)


def problem_of(
    q: tuple[int, ...], k: tuple[int, ...], strides: tuple[int, ...], scale: float, **fields: int
) -> Any:
    """Return PROBLEM for q and k of these shapes: a NumPy scalar. Strides are q's; `fields` are
    others, T_c among them.
    """
    (b, H, N_q, _), H_kv = q, k[1]
    heads = b * H_kv
    group = H // H_kv
    problem = np.zeros((), PROBLEM)
    problem["Q"] = tuple(stride // 2 for stride in strides[:3])
    sizes = {
        "tiles": heads * fields["T_c"],
        "N_q": N_q,
        "H_kv": H_kv,
        "group": group,
        "heads": heads,
        "rows": group * N_q,
    }
    for name, value in {**sizes, **fields}.items():
        problem[name] = value
    problem["c"], problem["sign"] = tensor_core.factor_and_sign(scale)
    return problem


def merge_function(dtype: str, d: int) -> str:
    """Return the merging kernel's name."""
    return f"merge<{tensor_core.ELEMENTS[dtype]}, {d}>"


def parts_of(heads: int, rows: int, merged: int) -> tuple[int, int]:
    """Return how many rows all parts have, if `merged` parts of `heads` heads are merged, and
    how many warps share a row.
    """
    places = 0 if merged == heads else (merged + heads - 1) * rows
    each = PARTS if rows <= FEW else MANY_PARTS
    share = next(
        share for share in (1, 2, 4, 8) if share == WARPS or -(-merged // heads) <= each * share
    )
    return places, share


def merge_launch(kernel: Any, heads: int, rows: int, share: int) -> tuple[Any, int, int, int]:
    """Return the merging kernel with its grid, threads and shared memory."""
    return kernel, -(-heads * rows * share // WARPS), 32 * WARPS, 0


def load_merge(device: int, dtype: str, d: int, counting: bool) -> Any:
    """Return the merging kernel, loaded on `device`, the current one."""
    (kernel,) = ready(device, MERGING, names := (merge_function(dtype, d),), names[0], 0, counting)
    return kernel
