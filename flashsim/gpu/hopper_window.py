"""Narrow sliding windows on Hopper: launches kernels/hopper_window.cu, where `hopper` finds that a window is narrow."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from flashsim.gpu import tensor_core
from flashsim.gpu.compiling import import_cupy, load
from flashsim.gpu.kernel import Options, Variant
from flashsim.gpu.launching import counter
from flashsim.gpu.tensor_maps import tensor_map

FILE = "hopper_window.cu"
ARRAYS = ("Q", "K", "V", "O", "L")
ELEMENTS = tensor_core.ELEMENTS
HEAD_DIM, ROWS, KEYS, FOUR = 64, 64, 64, 256  # d; of a strip; of a tile; rows of four strips
THREADS, SHARED = 640, 28 * (64 * 64 * 2 + 16) + 4 * 24  # the kernel's: 28 tiles with their barriers, and which strips
NARROW = 256  # keys: what four strips see must fit the ring
LONGEST, REFILL = 64, 0.5  # fours in a run, at most; of a four's time, what it costs to begin a run
MOST = 2**31 - 2**16  # runs, counted in 32 bits

_PROBLEM = np.dtype(
    [(name, "i4") for name in ("N_q", "N_k", "H", "group", "fours", "run", "runs", "left", "right", "wants_L")]
    + [("c", "f4"), ("sign", "f4")]
)


def takes(d: int, options: Options) -> bool:
    """Say whether the window is one for this kernel, and `blocks` are, if given: rows of a run, and 64."""
    left, right = options.window or (-1, -1)
    fits = options.blocks is None or (options.blocks[0] % FOUR == 0 and options.blocks[1] == KEYS)
    return d == HEAD_DIM and min(left, right) >= 0 and left + right < NARROW and not options.dropout_p and fits


def run_length(fours: int, heads: int, multiprocessors: int) -> int:
    """Return how many fours of a head make a run, so that those who have most are done soonest."""

    def longest(run: int) -> float:
        return -(-heads * -(-fours // run) // multiprocessors) * (run + REFILL)

    return int(min((min(2**n, fours) for n in range(LONGEST.bit_length())), key=longest))


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse. Raises ValueError for rows of q, k or v that do not start at multiples of 16 bytes."""
    device, dtype = import_cupy().cuda.runtime.getDevice(), q.dtype.name
    assert options.window is not None
    rows = options.blocks and options.blocks[0]
    problem, blocks = _prepared(device, q.shape, k.shape, lse is not None, options.window, options.scale, rows)
    maps = (
        tensor_map(name, x.data.ptr, x.shape, x.strides, dtype, 64)
        for name, x in (("q", q), ("k", k), ("v", v), ("o", o))
    )
    L = np.uint64(0) if lse is None else lse
    totals = options.counters.for_launch(ARRAYS) if options.counters is not None else np.uint64(0)
    kernel = _ready(device, dtype, options.counters is not None)
    kernel((blocks,), (THREADS,), (*maps, L, counter(device), problem, totals), shared_mem=SHARED)


@lru_cache(maxsize=1024)
def _prepared(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    wants_L: bool,
    window: tuple[int, int],
    scale: float,
    rows: int | None,
) -> tuple[Any, int]:
    """Return struct Problem, and how many blocks of threads, for q and k of these shapes, and runs of so many rows."""
    (B, H, N_q, _), (_, H_kv, N_k, _) = q, k
    multiprocessors = import_cupy().cuda.Device(device).attributes["MultiProcessorCount"]
    fours = -(-N_q // FOUR)
    run = rows // FOUR if rows else run_length(fours, B * H, multiprocessors)
    runs = B * H * -(-fours // run)
    if runs >= MOST:
        raise ValueError(f"q has shape {q}: {runs:,} runs of rows; hopper takes fewer than {MOST:,}")
    problem = np.zeros((), _PROBLEM)
    problem["N_q"], problem["N_k"], problem["H"], problem["group"] = N_q, N_k, H, H // H_kv
    problem["fours"], problem["run"], problem["runs"], problem["wants_L"] = fours, run, runs, wants_L
    problem["left"], problem["right"] = window
    problem["c"], problem["sign"] = tensor_core.factor_and_sign(scale)
    return np.void(problem.tobytes()), min(multiprocessors, runs)


@cache
def _ready(device: int, dtype: str, counting: bool) -> Any:
    """Return the function, loaded and allowed its shared memory, on `device`, the current one."""
    name = f"hopper_window<{ELEMENTS[dtype]}>"
    kernel = load(FILE, (name,), {"COUNT": int(counting)})[name]
    kernel.max_dynamic_shared_size_bytes = SHARED
    return kernel


VARIANTS = tuple(
    Variant(FILE, (("COUNT", count),), tuple(f"hopper_window<{T}>" for T in ELEMENTS.values()), ("sm_90a",))
    for count in (0, 1)
)
