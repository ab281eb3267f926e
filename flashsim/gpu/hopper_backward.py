"""FlashAttention's backward pass on Hopper's own instructions: launches kernels/hopper_backward.cu on the current stream.

dQ is summed in HBM, in fp32, by blocks of threads that run at once: in any order, or, if `deterministic`, by turns.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Options, Variant
from flashsim.gpu.launching import DROPOUT, NOWHERE, dropout, ready, section
from flashsim.gpu.tensor_core import ELEMENTS, LOG2_E
from flashsim.gpu.tensor_maps import tensor_map

FILE = "hopper_backward.cu"
HEAD_DIMS = (64, 128)
ROWS = 64  # of the boxes in which dK_j and dV_j are stored
PREPARES, SUMS, ROUNDS = 256, 384, 256  # threads of the three kernels
GRID = 2**31 - 1
POINTERS = 3 * 8  # bytes, at the end of struct Problem
MOVES = (  # what each kernel's totals are of, in its order
    ("O", "dO", "L", "D", "dQ"),
    ("Q", "K", "V", "dO", "L", "D", "dQ", "dK", "dV"),
    ("dQ",),
)

_PROBLEM = np.dtype(
    [(name, "i4") for name in ("N_q", "N_k", "H", "H_kv", "group", "T_r", "T_c")]
    + [("section", "i4"), ("tau", "f4"), ("half_c", "f4"), ("dropout", DROPOUT)]
    + [(name, "u8") for name in ("rows", "sums", "turns")],
    align=True,
)


def choose_blocks(d: int) -> tuple[int, int]:
    """Return (B_r, B_c), the file's."""
    return (128 if d == 64 else 64), 128


def shared_bytes(d: int) -> int:
    """Return the shared memory of K_j, V_j, two Q_i, dO_i, dS_ij and rows of L_i and D_i, dQ_i, and ten pairs of barriers."""
    B_r, B_c = choose_blocks(d)
    return 2 * (2 * B_c * d + 4 * B_r * d + 2 * B_r * B_c) + 4 * B_r * d + 2 * 8 * B_r + 10 * 16


def functions(dtype: str, d: int, causal: bool, drops: bool, deterministic: bool) -> tuple[str, str, str]:
    """Return the kernels for one case, in the order in which they are launched."""
    T = f"{ELEMENTS[dtype]}, {d}"
    switches = ", ".join(str(on).lower() for on in (causal, drops, deterministic))
    return f"prepare<{T}>", f"hopper_backward<{T}, {switches}>", f"round_dQ<{T}>"


def backward(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options) -> None:
    """Fill dq, dk, dv. Raises ValueError for rows that do not start at multiples of 16 bytes, and for too large a grid."""
    cupy, counters = import_cupy(), options.counters
    made = _made(
        cupy.cuda.runtime.getDevice(),
        q.shape,
        k.shape,
        do.strides,
        q.dtype,
        options.causal,
        options.scale,
        options.dropout_p,
        options.seed,
        options.deterministic,
        counters is not None,
    )
    B_r, B_c = made.blocks
    sides = (("q", q, B_r), ("k", k, B_c), ("v", v, B_c), ("do", do, B_r), ("dk", dk, ROWS), ("dv", dv, ROWS))
    maps = [tensor_map(name, x.data.ptr, x.shape, x.strides, made.dtype, rows) for name, x, rows in sides]
    scratch = cupy.empty(made.ends[-1], "uint8")  # dQ's sums; L and D; whose turn it is
    at = scratch.data.ptr
    problem = np.void(made.problem + struct.pack("<3Q", at + made.ends[0], at, at + made.ends[1]))
    totals = [counters.for_launch(names) if counters is not None else NOWHERE for names in MOVES]
    prepare, main, round_dQ = made.kernels
    prepare(made.grid, (PREPARES,), (o, do, *made.strides, lse, problem, totals[0]))
    main(made.main_grid, (SUMS,), (*maps, problem, totals[1]), shared_mem=made.shared)
    round_dQ(made.grid, (ROUNDS,), (dq, problem, totals[2]))


class _Made(NamedTuple):
    """What the launches need besides their arrays. `problem` lacks its three pointers into scratch memory."""

    kernels: tuple[Any, ...]
    grid: tuple[int]
    main_grid: tuple[int]
    shared: int
    blocks: tuple[int, int]
    problem: bytes
    strides: tuple[Any, ...]
    ends: tuple[int, int, int]  # of what is in scratch memory, in bytes
    dtype: str


@lru_cache(maxsize=1024)
def _made(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    do_strides: tuple[int, ...],
    dtype: Any,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: int,
    deterministic: bool,
    counting: bool,
) -> _Made:
    """Return it for q and k of these shapes, and do of these strides."""
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    B_r, B_c = choose_blocks(d)
    T_r, T_c = -(-N_q // B_r), -(-N_k // B_c)
    row_blocks, key_blocks = B * H * T_r, B * H_kv * T_c
    if max(row_blocks, key_blocks) > GRID:
        raise ValueError(
            f"q has shape {q}, k {k}: {max(row_blocks, key_blocks):,} tiles; hopper takes {GRID:,} at most"
        )
    l2_bytes = import_cupy().cuda.Device(device).attributes["L2CacheSize"]
    problem = np.zeros((), _PROBLEM)
    problem["N_q"], problem["N_k"], problem["H"], problem["H_kv"], problem["group"] = N_q, N_k, H, H_kv, H // H_kv
    problem["T_r"], problem["T_c"] = T_r, T_c
    problem["section"] = section(8 * N_q * d * H / H_kv, l2_bytes, B * H_kv) if causal else 1  # Q, dO, and dQ in fp32
    most = float(np.finfo(np.float32).max)
    problem["tau"], problem["half_c"] = (max(-most, min(x, most)) for x in (scale, scale * LOG2_E / 2))
    problem["dropout"] = dropout(dropout_p, seed)
    names = functions(dtype.name, d, causal, dropout_p > 0, deterministic)
    sums, rows, turns = 4 * row_blocks * B_r * d, 8 * row_blocks * B_r, 8 * row_blocks
    return _Made(
        ready(device, FILE, names, names[1], shared_bytes(d), counting),
        (row_blocks,),
        (key_blocks,),
        shared_bytes(d),
        (B_r, B_c),
        problem.tobytes()[:-POINTERS],
        tuple(np.int64(stride // 2) for stride in do_strides[:3]),
        (sums, sums + rows, sums + rows + turns),
        dtype.name,
    )


VARIANTS = tuple(
    Variant(
        FILE,
        (("COUNT", count),),
        tuple(
            dict.fromkeys(
                name
                for d in HEAD_DIMS
                for causal in (False, True)
                for drops in ((False,) if count else (False, True))
                for deterministic in (False, True)
                for name in functions(dtype, d, causal, drops, deterministic)
            )
        ),
        ("sm_90a",),
    )
    for dtype, count in (("float16", 0), ("bfloat16", 0), ("float16", 1))
)
