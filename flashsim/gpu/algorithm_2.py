"""Algorithm 2 on a GPU, with Algorithm 4 as its backward pass: launches kernels/algorithm_2.cu
and algorithm_4.cu.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Kernel, Options, Variant
from flashsim.gpu.launching import (
    ELEMENTS,
    FLOAT,
    HEAD_DIMS,
    THREADS,
    check_blocks,
    launch,
    problem,
    state,
    variant_types,
    variants,
)

FORWARD = "algorithm_2.cu"
BACKWARD = "algorithm_4.cu"
ARRAYS = ("Q", "K", "V", "O", "l", "m", "R", "mask")
BACKWARD_ARRAYS = ("Q", "K", "V", "O", "dO", "l", "m", "R", "dQ", "dK", "dV", "mask")
TYPES = [
    f", {mask}, {drop}"
    for mask in ("NoMask", "Causal", "Dense", "CausalDense")
    for drop in ("NoDropout", "PhiloxDropout")
]


def shared_bytes(d: int, B_r: int, B_c: int) -> int:
    """Return the bytes of shared memory of Q_i, K_j, V_j, P̃_ij, ℓ_i, m_i. Each row of a tile is
    padded by one element.
    """
    return FLOAT * (B_r * (d + 1) + 2 * B_c * (d + 1) + B_r * (B_c + 1) + 2 * B_r)


def backward_shared_bytes(d: int, B_r: int, B_c: int) -> int:
    """Return the bytes of shared memory of Q_i, dO_i, K_j, V_j, P_ij^dropped, dS_ij, ℓ_i, m_i;
    R takes two words more.
    """
    return FLOAT * (2 * B_r * (d + 1) + 2 * B_c * (d + 1) + 2 * B_r * (B_c + 1) + 2 * B_r)


def choose_blocks(d: int, dtype: str, direction: str) -> tuple[int, int]:
    """Return the default (B_r, B_c): 64 × 64, or 32 × 64 where the backward pass would run out
    of registers.
    """
    return (32 if direction == "backward" and d > 64 else 64), 64


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse."""
    cupy = import_cupy()
    B, H, N_q, d = q.shape
    B_r, B_c = options.blocks or choose_blocks(d, q.dtype.name, "forward")
    shared = shared_bytes(d, B_r, B_c)
    check_blocks("algorithm_2", (B_r, B_c), shared)
    l = cupy.empty((B, H, N_q), "float32")
    m = cupy.empty((B, H, N_q), "float32")
    R = state(B * H, None) if options.dropout_p else None
    MASK, dropout = variant_types(options)
    function = f"algorithm_2<{ELEMENTS[q.dtype.name]}, {d}, {B_r}, {B_c}, {MASK}, {dropout}>"
    launch(
        FORWARD,
        function,
        B * H,
        shared,
        (q, k, v, o, l, m, R, problem(q, k, v, options)),
        ARRAYS,
        options,
    )
    if lse is not None:
        cupy.add(m, cupy.log(l), out=lse)  # −∞ for rows without keys


def backward(
    q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options
) -> None:
    """Fill dq, dk, dv.

    Algorithm 4 takes ℓ and m. Here ℓ = 1 and m = lse, which give the same softmax. Each query
    head of a group writes its own part of dK and dV in the inputs' dtype. A second pass sums the
    parts.
    """
    cupy = import_cupy()
    (B, H, N_q, d), (_, H_kv, N_k, _) = q.shape, k.shape
    B_r, B_c = options.blocks or choose_blocks(d, q.dtype.name, "backward")
    shared = backward_shared_bytes(d, B_r, B_c)
    check_blocks("algorithm_4", (B_r, B_c), shared + 16)
    l = cupy.ones((B, H, N_q), "float32")
    m = lse
    R = state(B * H, options.seed) if options.dropout_p else None
    group = H // H_kv
    dk_parts, dv_parts = (
        (dk, dv) if group == 1 else (cupy.empty((B, H, N_k, d), q.dtype) for _ in range(2))
    )
    names = (
        BACKWARD_ARRAYS
        if group == 1
        else tuple({"dK": "dK_parts", "dV": "dV_parts"}.get(n, n) for n in BACKWARD_ARRAYS)
    )
    T, (MASK, dropout) = ELEMENTS[q.dtype.name], variant_types(options)
    function = f"algorithm_4<{T}, {d}, {B_r}, {B_c}, {MASK}, {dropout}>"
    arguments = (
        q,
        k,
        v,
        o,
        do,
        l,
        m,
        R,
        dq,
        dk_parts,
        dv_parts,
        problem(q, k, v, options, o=o, do=do),
    )
    launch(BACKWARD, function, B * H, shared, arguments, names, options)
    if group > 1:
        for name, parts, sums in (("dK", dk_parts, dk), ("dV", dv_parts, dv)):
            total = B * H_kv * N_k * d
            sizes = np.int32(group), np.int64(N_k * d), np.int64(total)
            blocks = min(-(-total // THREADS), 2**20)
            launch(
                BACKWARD,
                f"group_sum<{T}>",
                blocks,
                0,
                (parts, sums, *sizes),
                (f"{name}_parts", name),
                options,
            )


KERNEL = Kernel(
    name="algorithm_2",
    about="Algorithm 2 as printed: mask and dropout; Algorithm 4 backward",
    short="Algorithm 2, 4",
    look=("blue", "o", "-"),
    rung=2,
    fastest_in=("backward",),
    model="flash",
    longest=2048,
    dtypes=tuple(ELEMENTS),
    head_dims=HEAD_DIMS,
    variants=(
        *variants(
            FORWARD,
            "algorithm_2",
            TYPES,
            dims=[(d, *choose_blocks(d, "", "forward")) for d in HEAD_DIMS],
        ),
        *variants(
            BACKWARD,
            "algorithm_4",
            TYPES,
            dims=[(d, *choose_blocks(d, "", "backward")) for d in HEAD_DIMS],
        ),
        *(
            Variant(
                BACKWARD, (("COUNT", count),), tuple(f"group_sum<{T}>" for T in ELEMENTS.values())
            )
            for count in (0, 1)
        ),
    ),
    forward=forward,
    backward=backward,
    takes=("causal", "mask", "dropout_p", "blocks", "count"),
    choose_blocks=choose_blocks,
)
