"""FlashAttention, forward, full and causal, on Hopper: launches kernels/hopper_forward.cu, the
kernel to read first.

`hopper` also takes masks and dropout, and is faster for d = 64 with a causal mask. So
`flashsim.gpu.plan` chooses `hopper`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from flashsim.gpu import hopper
from flashsim.gpu.compiling import capability, import_cupy
from flashsim.gpu.kernel import Kernel, Options, hopper_variants
from flashsim.gpu.launching import Launch, Prepared, counter, ready, totals, warn
from flashsim.gpu.tensor_core import ELEMENTS, factor_and_sign
from flashsim.gpu.tensor_maps import contiguous, tensor_map
from flashsim.support.sizes import ceil_div

FILE = "hopper_forward.cu"
ARRAYS = ("Q", "K", "V", "O", "L")
BLOCKS = {64: (256, 64), 128: (128, 128), 256: (128, 64)}  # (B_r, B_c) by d
# by d: how many Q_i, and how many K_j and V_j, are on chip
STAGES = {64: (2, 8), 128: (1, 2), 256: (1, 2)}
# rows of Q_i of a warpgroup; rows and columns of O_i that a warp stores at a time
ROWS = 64
O_ROWS = 16
O_COLUMNS = 128
PROBLEM = np.dtype(
    [
        (name, "i4")
        for name in ("N_q", "N_k", "H", "group", "T_r", "row_blocks", "section", "wants_L")
    ]
    + [("c", "f4"), ("sign", "f4")]
)


def function(dtype: str, d: int, causal: bool) -> str:
    """Return the kernel's name for one case."""
    return f"hopper_forward<{ELEMENTS[dtype]}, {d}, {str(causal).lower()}>"


def shared_bytes(d: int) -> int:
    """Return the bytes for Q_i, K_j, V_j, O_i, pairs of barriers, and the row blocks' numbers."""
    B_r, B_c = BLOCKS[d]
    Q_stages, stages = STAGES[d]
    tiles = 2 * (d * (Q_stages * B_r + 2 * stages * B_c) + min(d, O_COLUMNS) * B_r)
    return tiles + (Q_stages + 2 * stages) * 16 + (Q_stages + 1) * 12


def choose_blocks(d: int, dtype: str, direction: str) -> tuple[int, int]:
    """Return (B_r, B_c)."""
    return BLOCKS[d]


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse. Raises ValueError for rows of q, k or v that do not start at
    multiples of 16 bytes.
    """
    device = import_cupy().cuda.runtime.getDevice()
    reason = hopper.why_not(capability(device), q.shape[3])
    if reason:
        warn(f"hopper runs instead of hopper_forward: {reason}")
        hopper.forward(q, k, v, o, lse, options)
    else:
        prepared(device, q, k, v, lse is not None, options)(q, k, v, o, lse)


def prepare(
    device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options
) -> Prepared | None:
    """Return `forward` for arrays of these shapes, strides and dtypes, or None if `hopper` runs
    instead.
    """
    return (
        None
        if hopper.why_not(capability(device), q.shape[3])
        else prepared(device, q, k, v, wants_L, options)
    )


def prepared(device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options) -> Prepared:
    """Return what fills o and lse for arrays of these shapes, strides and dtypes."""
    strides = q.strides, k.strides, v.strides
    counting = options.counters is not None
    start = _launch(
        device, q.shape, k.shape, strides, q.dtype, wants_L, options.causal, options.scale, counting
    )

    def run(stream: int, _: int, Q: int, K: int, V: int, O: int, L: int = 0) -> None:
        start(stream, Q, K, V, O, L, counter(device, stream), totals(options, ARRAYS))

    return Prepared(run)


@lru_cache(maxsize=1024)
def _launch(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: Any,
    wants_L: bool,
    causal: bool,
    scale: float,
    counting: bool,
) -> Launch:
    """Return the launch, to be called with the addresses of Q, K, V, O, L, the counter and
    totals.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    B_r, B_c = BLOCKS[d]
    attributes = import_cupy().cuda.Device(device).attributes
    problem = np.zeros((), PROBLEM)
    problem["N_q"] = N_q
    problem["N_k"] = N_k
    problem["H"] = H
    problem["group"] = H // H_kv
    T_r = ceil_div(N_q, B_r)
    row_blocks = B * H * T_r
    if row_blocks >= hopper.MOST:
        raise ValueError(
            f"q has shape {q}: {row_blocks:,} row blocks; hopper_forward takes fewer than "
            f"{hopper.MOST:,}"
        )
    problem["T_r"] = T_r
    problem["row_blocks"] = row_blocks
    problem["wants_L"] = wants_L
    bytes_a_head = 4 * N_k * d * H_kv / H
    problem["section"] = (
        hopper.section_of(bytes_a_head, attributes["L2CacheSize"], B * H) if causal else 1
    )
    problem["c"], problem["sign"] = factor_and_sign(scale)
    name, shared = function(dtype.name, d, causal), shared_bytes(d)
    (kernel,) = ready(device, FILE, (name,), name, shared, counting)
    blocks = min(attributes["MultiProcessorCount"], row_blocks)
    threads = 128 * (B_r // ROWS + 1)
    shapes = (q, k, k, q)
    by_side = (*strides, contiguous(q, dtype.itemsize))
    boxes = (B_r,), (B_c,), (B_c,), (O_ROWS, O_COLUMNS)
    sides = tuple(zip("qkvo", shapes, by_side, boxes, strict=True))
    by_value = np.void(problem.tobytes())

    def arguments(
        Q: int, K: int, V: int, O: int, L: int, counter: int, totals: int
    ) -> tuple[Any, ...]:
        each = zip(sides, (Q, K, V, O), strict=True)
        maps = [
            tensor_map(name, address, shape, stride, dtype.name, *box)
            for (name, shape, stride, box), address in each
        ]
        return (*maps, np.uint64(L), np.uint64(counter), by_value, np.uint64(totals))

    return Launch(kernel, blocks, threads, shared, arguments)


def _functions(dtype: str, _: bool) -> Iterator[str]:
    """Yield what the tests compile."""
    for d, causal in product(BLOCKS, (False, True)):
        yield function(dtype, d, causal)


KERNEL = Kernel(
    name="hopper_forward",
    about="full and causal, forward: the kernel for Hopper to read first; fp16 and bf16",
    short="wgmma and TMA, to read",
    look=("vermillion", "*", "-"),
    rung=5,
    fastest_in=(),
    model="q_outer",
    tensor_cores=True,
    dtypes=tuple(ELEMENTS),
    head_dims=tuple(BLOCKS),
    variants=hopper_variants(FILE, _functions),
    forward=forward,
    prepare=prepare,
    takes=("causal", "count"),
    aligned=True,
    choose_blocks=choose_blocks,
    why_not=hopper.why_not,
)
