"""FlashAttention's backward pass on Hopper's own instructions: launches kernels/hopper_backward.cu on the current stream.

dQ is summed in HBM, in fp32, by blocks of threads that run at once: in any order, or, if `deterministic`, by turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Options, hopper_variants
from flashsim.gpu.launching import DROPOUT, Launches, Prepared, dropout, ready, section, totals
from flashsim.gpu.tensor_core import ELEMENTS, LOG2_E
from flashsim.gpu.tensor_maps import contiguous, tensor_map

FILE = "hopper_backward.cu"
HEAD_DIMS = (64, 128)
ROWS = 64  # of the boxes in which dK_j and dV_j are stored
PREPARES, SUMS = 256, 384  # threads of the two kernels
GRID = 2**31 - 1
MOVES = (  # what each kernel's totals are of, in its order
    ("O", "dO", "L", "D", "dQ"),
    ("Q", "K", "V", "dO", "L", "D", "dQ", "dK", "dV"),
)
NOT_COUNTED = 0, 0

_PROBLEM = np.dtype(
    [(name, "i4") for name in ("N_q", "N_k", "H", "H_kv", "group", "T_r", "T_c")]
    + [("heads", "i4"), ("section", "i4"), ("unseen", "i4"), ("tau", "f4"), ("half_c", "f4"), ("dropout", DROPOUT)]
    + [(name, "u8") for name in ("rows", "sums", "turns", "drawn")],
    align=True,
)


def choose_blocks(d: int) -> tuple[int, int]:
    """Return (B_r, B_c), the file's."""
    return (128 if d == 64 else 64), 128


def shared_bytes(d: int, drops: bool) -> int:
    """Return the shared memory of K_j, V_j, two Q_i, dO_i, dS_ij, L_i and D_i, dQ_i, dropout's bits, sums, barriers and words."""
    B_r, B_c = choose_blocks(d)
    keys = 3 if d == 64 and not drops else 2  # tiles: K_j, V_j, and the next K_j
    tiles = 2 * (keys * B_c * d + 4 * B_r * d + 2 * B_r * B_c) + 4 * B_r * d + 2 * 8 * B_r
    return tiles + drops * 2 * 2048 + 8 * (8 * 64 * 4 + 16) + 304


def functions(dtype: str, d: int, causal: bool, drops: bool, deterministic: bool) -> tuple[str, str]:
    """Return the kernels for one case, in the order in which they are launched."""
    T = f"{ELEMENTS[dtype]}, {d}"
    switches = ", ".join(str(on).lower() for on in (causal, drops, deterministic))
    return f"prepare<{T}>", f"hopper_backward<{T}, {switches}>"


def backward(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options) -> None:
    """Fill dq, dk, dv. Raises ValueError for rows that do not start at multiples of 16 bytes, and for too large a grid."""
    device = import_cupy().cuda.runtime.getDevice()
    prepared(device, q, k, v, do, options)(q, k, v, o, lse, do, dq, dk, dv)


def prepared(device: int, q: Any, k: Any, v: Any, do: Any, options: Options) -> Prepared:
    """Return `backward` for arrays of these shapes, strides and dtypes."""
    strides = q.strides, k.strides, v.strides, do.strides
    asked = options.causal, options.scale, options.dropout_p, options.seed, options.deterministic
    counting = options.counters is not None
    start, scratch = _launches(device, q.shape, k.shape, strides, q.dtype, *asked, counting)

    def run(stream: int, at: int, *addresses: int) -> None:
        moved = [totals(options, names) for names in MOVES] if counting else NOT_COUNTED
        start(stream, at, *addresses, *moved)

    return Prepared(run, scratch)


@lru_cache(maxsize=1024)
def _launches(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: Any,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: int,
    deterministic: bool,
    counting: bool,
) -> tuple[Launches, int]:
    """Return what `run` starts, for q and k of these shapes, and the bytes of scratch; strides are q's, k's, v's and do's.

    It is called with the addresses of scratch memory, of Q, K, V, O, L, dO, dQ, dK, dV, and of each kernel's totals.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    B_r, B_c = choose_blocks(d)
    T_r, T_c = -(-N_q // B_r), -(-N_k // B_c)
    row_blocks, key_blocks = B * H * T_r, B * H_kv * T_c
    if max(row_blocks, key_blocks) > GRID:
        raise ValueError(
            f"q has shape {q}, k {k}: {max(row_blocks, key_blocks):,} tiles; hopper takes {GRID:,} at most"
        )
    attributes = import_cupy().cuda.Device(device).attributes
    # Blocks of threads that draw no key block help to round dQ.
    blocks = min(max(key_blocks, row_blocks), attributes["MultiProcessorCount"])
    shared = shared_bytes(d, dropout_p > 0)
    problem = np.zeros((), _PROBLEM)
    problem["N_q"], problem["N_k"], problem["H"], problem["H_kv"], problem["group"] = N_q, N_k, H, H_kv, H // H_kv
    problem["T_r"], problem["T_c"], problem["heads"] = T_r, T_c, B * H_kv
    problem["unseen"] = min(T_r, max(0, N_q - N_k) // B_r) if causal else 0
    a_head = 8 * N_q * d * H / H_kv  # bytes of Q, dO, and dQ in fp32
    problem["section"] = section(a_head, attributes["L2CacheSize"], B * H_kv) if causal else 1
    most = float(np.finfo(np.float32).max)
    problem["tau"], problem["half_c"] = (max(-most, min(x, most)) for x in (scale, scale * LOG2_E / 2))
    problem["dropout"] = dropout(dropout_p, seed)
    names = functions(dtype.name, d, causal, dropout_p > 0, deterministic)
    kernels = ready(device, FILE, names, names[1], shared, counting)
    sums, rows, turns = (
        4 * row_blocks * B_r * d,
        8 * row_blocks * B_r,
        8 * row_blocks,
    )  # dQ's; L and D; whose turn it is
    do_strides = tuple(np.int64(stride // 2) for stride in strides[3][:3])
    sides = tuple(
        zip(
            ("q", "k", "v", "do", "dk", "dv"),
            (q, k, k, q, k, k),
            (*strides, *[contiguous(k, dtype.itemsize)] * 2),
            (B_r, B_c, B_c, B_r, ROWS, ROWS),
            strict=True,
        )
    )

    def arguments(
        scratch: int, Q: int, K: int, V: int, O: int, L: int, dO: int, dQ: int, dK: int, dV: int, *moved: int
    ) -> Any:
        found = problem.copy()
        found["rows"], found["sums"], found["turns"] = scratch + sums, scratch, scratch + sums + rows
        found["drawn"] = scratch + sums + rows + turns
        placed, counts = np.void(found.tobytes()), [np.uint64(at) for at in moved]
        each = zip(sides, (Q, K, V, dO, dK, dV), strict=True)
        maps = (tensor_map(name, at, *given, dtype.name, B) for (name, *given, B), at in each)
        return (
            (np.uint64(O), np.uint64(dO), *do_strides, np.uint64(L), np.uint64(dQ), placed, counts[0]),
            (*maps, np.uint64(dQ), placed, counts[1]),
        )

    grids = (row_blocks, PREPARES, 0), (blocks, SUMS, shared)
    each = [(kernel, *how) for kernel, how in zip(kernels, grids, strict=True)]
    return Launches(each, arguments), sums + rows + turns + 8


def _functions(dtype: str, count: bool) -> Iterator[str]:
    """Yield what the tests compile."""
    for d, causal, drops, deterministic in product(HEAD_DIMS, (False, True), (False, True), (False, True)):
        if not (drops and count):
            yield from functions(dtype, d, causal, drops, deterministic)


VARIANTS = hopper_variants(FILE, _functions)
