"""FlashAttention's backward pass on Hopper's own instructions: launches kernels/hopper_backward.cu on the current stream.

dQ is summed in HBM, in fp32, by blocks of threads that run at once: in any order, or, if `deterministic`, by turns.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from flashsim.gpu.compiling import import_cupy, load
from flashsim.gpu.kernel import Options, Variant
from flashsim.gpu.launching import DROPOUT, dropout
from flashsim.gpu.tensor_core import ELEMENTS, LOG2_E
from flashsim.gpu.tensor_maps import tensor_map

FILE = "hopper_backward.cu"
HEAD_DIMS = (64, 128)
ROWS = 64  # of the boxes in which dK_j and dV_j are stored
PREPARES, SUMS, ROUNDS = 256, 384, 256  # threads of the three kernels
GRID = 2**31 - 1
MOVES = (  # what each kernel's totals are of, in its order
    ("O", "dO", "L", "D", "dQ"),
    ("Q", "K", "V", "dO", "L", "D", "dQ", "dK", "dV"),
    ("dQ",),
)

_PROBLEM = np.dtype(
    [(name, "i4") for name in ("N_q", "N_k", "H", "H_kv", "group", "T_r", "T_c")]
    + [("tau", "f4"), ("c", "f4"), ("dropout", DROPOUT)]
    + [(name, "u8") for name in ("rows", "sums", "turns")],
    align=True,
)


def choose_blocks(d: int) -> tuple[int, int]:
    """Return (B_r, B_c), the file's."""
    return (128 if d == 64 else 64), 128


def shared_bytes(d: int) -> int:
    """Return the shared memory of K_j, V_j, two Q_i, dO_i, dS_ij and rows of L_i and D_i, and six pairs of barriers."""
    B_r, B_c = choose_blocks(d)
    return 2 * (2 * B_c * d + 4 * B_r * d + 2 * B_r * B_c) + 4 * B_r * d + 2 * 8 * B_r + 6 * 16


def functions(dtype: str, d: int, causal: bool, drops: bool, deterministic: bool) -> tuple[str, str, str]:
    """Return the kernels for one case, in the order in which they are launched."""
    T = f"{ELEMENTS[dtype]}, {d}"
    switches = ", ".join(str(on).lower() for on in (causal, drops, deterministic))
    return f"prepare<{T}>", f"hopper_backward<{T}, {switches}>", f"round_dQ<{T}>"


def backward(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options) -> None:
    """Fill dq, dk, dv. Raises ValueError for rows that do not start at multiples of 16 bytes, and for too large a grid."""
    cupy = import_cupy()
    (B, H, N_q, d), (_, H_kv, N_k, _) = q.shape, k.shape
    B_r, B_c = choose_blocks(d)
    T_r, T_c = -(-N_q // B_r), -(-N_k // B_c)
    grids = B * H * T_r, B * H_kv * T_c, B * H * T_r
    if max(grids) > GRID:
        raise ValueError(f"q has shape {q.shape}, k {k.shape}: {max(grids):,} tiles; hopper takes {GRID:,} at most")
    dtype = q.dtype.name
    sides = (("q", q, B_r), ("k", k, B_c), ("v", v, B_c), ("do", do, B_r), ("dk", dk, ROWS), ("dv", dv, ROWS))
    maps = [tensor_map(name, x.data.ptr, x.shape, x.strides, dtype, rows) for name, x, rows in sides]
    rows = cupy.empty((B * H * T_r, 2, B_r), "float32")
    sums = cupy.empty((B * H * T_r, B_r, d), "float32")
    turns = cupy.empty((B * H * T_r, 2), "uint32")
    problem = _problem(q.shape, k.shape, options.scale, options.dropout_p, options.seed)
    for name, x in (("rows", rows), ("sums", sums), ("turns", turns)):
        problem[name] = x.data.ptr
    given = np.void(problem.tobytes())
    batch, head, row, _ = (np.int64(stride // 2) for stride in do.strides)
    counters = options.counters
    totals = [counters.for_launch(names) if counters is not None else np.uint64(0) for names in MOVES]
    kernels = _ready(
        cupy.cuda.runtime.getDevice(),
        dtype,
        d,
        options.causal,
        options.dropout_p > 0,
        options.deterministic,
        counters is not None,
    )
    prepare, main, round_dQ = kernels
    prepare((grids[0],), (PREPARES,), (o, do, batch, head, row, lse, given, totals[0]))
    main((grids[1],), (SUMS,), (*maps, given, totals[1]), shared_mem=shared_bytes(d))
    round_dQ((grids[2],), (ROUNDS,), (dq, given, totals[2]))


@lru_cache(maxsize=1024)
def _problem(q: tuple[int, ...], k: tuple[int, ...], scale: float, dropout_p: float, seed: int) -> Any:
    """Return struct Problem but for its pointers, for q and k of these shapes."""
    (_, H, N_q, d), (_, H_kv, N_k, _) = q, k
    B_r, B_c = choose_blocks(d)
    problem = np.zeros((), _PROBLEM)
    problem["N_q"], problem["N_k"], problem["H"], problem["H_kv"], problem["group"] = N_q, N_k, H, H_kv, H // H_kv
    problem["T_r"], problem["T_c"] = -(-N_q // B_r), -(-N_k // B_c)
    most = float(np.finfo(np.float32).max)
    problem["tau"], problem["c"] = (max(-most, min(x, most)) for x in (scale, scale * LOG2_E))
    problem["dropout"] = dropout(dropout_p, seed)
    return problem


@cache
def _ready(device: int, dtype: str, d: int, causal: bool, drops: bool, deterministic: bool, counting: bool) -> Any:
    """Return the three kernels, loaded and allowed their shared memory, on `device`, the current one."""
    names = functions(dtype, d, causal, drops, deterministic)
    kernels = load(FILE, names, {"COUNT": int(counting)})
    kernels[names[1]].max_dynamic_shared_size_bytes = shared_bytes(d)
    return tuple(kernels[name] for name in names)


VARIANTS = tuple(
    Variant(
        FILE,
        (("COUNT", count),),
        tuple(
            dict.fromkeys(
                name
                for d in HEAD_DIMS
                for causal in (False, True)
                for drops in (False, True)
                for deterministic in (False, True)
                for name in functions(dtype, d, causal, drops, deterministic)
            )
        ),
        ("sm_90a",),
    )
    for dtype, count in (("float16", 0), ("bfloat16", 0), ("float16", 1))
)
