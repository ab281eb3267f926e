"""FlashAttention with the loops exchanged, without tensor cores: launches kernels/q_outer.cu."""

from __future__ import annotations

from typing import Any

from flashsim.gpu.algorithm_1 import choose_blocks
from flashsim.gpu.algorithm_2 import TYPES
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Kernel, Options
from flashsim.gpu.launching import (
    ELEMENTS,
    FLOAT,
    HEAD_DIMS,
    check_blocks,
    launch,
    problem,
    state,
    variant_types,
    variants,
)

FILE = "q_outer.cu"
ARRAYS = ("Q", "K", "V", "O", "L", "R", "mask")


def shared_bytes(d: int, B_r: int, B_c: int) -> int:
    """Return the bytes of shared memory of Q_i, K_j, V_j, P̃_ij. Each row of a tile is padded by
    one element.
    """
    return FLOAT * (B_r * (d + 1) + 2 * B_c * (d + 1) + B_r * (B_c + 1))


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse. The kernel always writes L."""
    cupy = import_cupy()
    B, H, N_q, d = q.shape
    B_r, B_c = options.blocks or choose_blocks(d, q.dtype.name, "forward")
    shared = shared_bytes(d, B_r, B_c)
    check_blocks("q_outer", (B_r, B_c), shared)
    L = cupy.empty((B, H, N_q), "float32") if lse is None else lse
    R = state(B * H, None) if options.dropout_p else None
    MASK, dropout = variant_types(options)
    function = f"q_outer<{ELEMENTS[q.dtype.name]}, {d}, {B_r}, {B_c}, {MASK}, {dropout}>"
    blocks = B * H * -(-N_q // B_r)
    launch(
        FILE,
        function,
        blocks,
        shared,
        (q, k, v, o, L, R, problem(q, k, v, options)),
        ARRAYS,
        options,
    )


KERNEL = Kernel(
    name="q_outer",
    about="loops exchanged, scalar: O stays on chip, a block of threads per row block",
    short="loops exchanged",
    look=("orange", "v", "-"),
    rung=3,
    fastest_in=("forward",),
    model="q_outer",
    longest=8192,
    dtypes=tuple(ELEMENTS),
    head_dims=HEAD_DIMS,
    variants=variants(
        FILE,
        "q_outer",
        TYPES,
        dims=[(d, *choose_blocks(d, "float32", "forward")) for d in HEAD_DIMS],
    ),
    forward=forward,
    takes=("causal", "mask", "dropout_p", "blocks", "count"),
    choose_blocks=choose_blocks,
)
