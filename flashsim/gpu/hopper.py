"""FlashAttention on Hopper's own instructions: launches kernels/hopper.cu; the backward pass is `hopper_backward`'s.

The kernel needs a GPU of compute capability 9.0 and d of 64 or 128. Elsewhere this rung runs `tensor_core` in its place, with
a RuntimeWarning; `flashsim.gpu.plan` says so beforehand.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from flashsim.gpu import hopper_backward, tensor_core
from flashsim.gpu.compiling import capability, import_cupy, load
from flashsim.gpu.kernel import Kernel, Options, Variant
from flashsim.gpu.launching import DROPOUT, dropout

FILE = "hopper.cu"
ARRAYS = ("Q", "K", "V", "O", "L")
ELEMENTS = tensor_core.ELEMENTS
HEAD_DIMS = (64, 128)  # the kernel's; the rung takes tensor_core's
ROWS = 64  # of Q_i that a warpgroup has; of the boxes in which O_i is stored
COLUMNS = 64  # of a half of a tile: 128 bytes, the widest swizzle
MOST = 2**31 - 2**16  # row blocks, counted in 32 bits
SHORT = 1024  # up to so many causal queries, smaller row blocks waste less than their loads cost
L2_PART = 0.8  # of the L2 that K and V of a section of heads may fill

_PROBLEM = np.dtype(
    [(name, "i4") for name in ("N_q", "N_k", "H", "group", "T_r", "row_blocks", "section", "wants_L")]
    + [("c", "f4"), ("sign", "f4"), ("dropout", DROPOUT)]
)


@dataclass(frozen=True)
class Tiles:
    """B_r × B_c, and which of the two ways to overlap: `turns` between warpgroups, `lazy` rescaling of O_i."""

    B_r: int
    B_c: int
    turns: bool
    lazy: bool

    def function(self, dtype: str, d: int, causal: bool, dropout: bool) -> str:
        """Return the kernel's name for one case."""
        switches = ", ".join(str(on).lower() for on in (causal, dropout, self.turns, self.lazy))
        return f"hopper<{ELEMENTS[dtype]}, {d}, {self.B_r}, {self.B_c}, {switches}>"

    def shared_bytes(self, d: int) -> int:
        """Return the shared memory of Q_i, two K_j, two V_j, O_i, five pairs of barriers, and two row blocks' numbers."""
        return 2 * d * (2 * self.B_r + 4 * self.B_c) + 5 * 16 + 2 * 12


WIDE, TALL = Tiles(128, 128, turns=False, lazy=True), Tiles(192, 128, turns=True, lazy=True)
SMALL = Tiles(128, 128, turns=False, lazy=True)
TILES = {128: (WIDE,), 64: (TALL, SMALL)}


def choose_tiles(d: int, causal: bool, N_q: int, dropout: bool = False, blocks: tuple[int, int] | None = None) -> Tiles:
    """Return what is fastest, or the tiles of these sizes; ValueError for sizes that the kernel is not compiled for.

    Philox needs registers, of which three consumers have too few.
    """
    choices = [tiles for tiles in TILES[d] if not (dropout and tiles.B_r == 192)]
    if blocks is None:
        return choices[-1] if causal and N_q <= SHORT else choices[0]
    for tiles in choices:
        if (tiles.B_r, tiles.B_c) == blocks:
            return tiles
    known = " or ".join(f"({tiles.B_r}, {tiles.B_c})" for tiles in choices)
    raise ValueError(f"blocks is {blocks}; hopper takes {known} where d = {d}{' and with dropout' if dropout else ''}")


def choose_blocks(d: int, dtype: str, direction: str) -> tuple[int, int]:
    """Return (B_r, B_c), forward of all but short causal problems."""
    if d not in TILES:
        return tensor_core.block_sizes(d)
    if direction == "backward":
        return hopper_backward.choose_blocks(d)
    return TILES[d][0].B_r, TILES[d][0].B_c


def why_not(capability: str, d: int) -> str:
    """Return why tensor_core is to run in the kernel's place, or "" if it is not."""
    if capability != "90":
        return f"the GPU has compute capability {capability}, and wgmma needs 90 (Hopper)"
    return "" if d in HEAD_DIMS else f"d is {d}, and the kernel takes {' or '.join(map(str, HEAD_DIMS))}"


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse. Raises ValueError for rows of q, k or v that do not start at multiples of 16 bytes."""
    device = import_cupy().cuda.runtime.getDevice()
    reason = why_not(capability(device), q.shape[3])
    if reason:
        _refuse(options, f"runs in hopper's place as {reason}")
        warnings.warn(f"tensor_core runs in hopper's place: {reason}", RuntimeWarning, stacklevel=3)
        tensor_core.forward(q, k, v, o, lse, options)
        return
    dtype = q.dtype.name
    tiles, problem, blocks = _prepared(
        device,
        q.shape,
        k.shape,
        lse is not None,
        options.causal,
        options.scale,
        options.dropout_p,
        options.seed,
        options.blocks,
    )
    kernel = _ready(
        device, tiles, dtype, q.shape[3], options.causal, options.dropout_p > 0, options.counters is not None
    )
    sides = (("q", q, tiles.B_r), ("k", k, tiles.B_c), ("v", v, tiles.B_c), ("o", o, ROWS))
    maps = [_tensor_map(name, x.data.ptr, x.shape, x.strides, dtype, rows) for name, x, rows in sides]
    L = np.uint64(0) if lse is None else lse
    totals = options.counters.for_launch(ARRAYS) if options.counters is not None else np.uint64(0)
    threads = 128 * (tiles.B_r // ROWS + 1)
    arguments = (*maps, L, _counter(device), problem, totals)
    kernel((blocks,), (threads,), arguments, shared_mem=tiles.shared_bytes(q.shape[3]))


@lru_cache(maxsize=1024)
def _prepared(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    wants_L: bool,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: int,
    blocks: tuple[int, int] | None,
) -> tuple[Tiles, Any, int]:
    """Return the tiles, struct Problem, and how many blocks of threads, for q and k of these shapes."""
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    tiles = choose_tiles(d, causal, N_q, dropout_p > 0, blocks)
    T_r = -(-N_q // tiles.B_r)
    row_blocks = B * H * T_r
    if row_blocks >= MOST:
        raise ValueError(f"q has shape {q}: {row_blocks:,} row blocks; hopper takes fewer than {MOST:,}")
    attributes = import_cupy().cuda.Device(device).attributes
    problem = np.zeros((), _PROBLEM)
    problem["N_q"], problem["N_k"], problem["H"], problem["group"] = N_q, N_k, H, H // H_kv
    problem["T_r"], problem["row_blocks"], problem["wants_L"] = T_r, row_blocks, wants_L
    problem["section"] = section(4 * N_k * d * H_kv / H, attributes["L2CacheSize"], B * H) if causal else 1
    problem["c"], problem["sign"] = tensor_core.factor_and_sign(scale)
    problem["dropout"] = dropout(dropout_p, seed)
    return tiles, np.void(problem.tobytes()), min(attributes["MultiProcessorCount"], row_blocks)


def section(bytes_a_head: float, l2_bytes: int, heads: int) -> int:
    """Return of how many heads K and V, of so many bytes for each, stay in the L2 together: a power of two, or all."""
    return min(heads, 1 << max(0, int(L2_PART * l2_bytes / bytes_a_head).bit_length() - 1))


@cache
def _ready(device: int, tiles: Tiles, dtype: str, d: int, causal: bool, dropout: bool, counting: bool) -> Any:
    """Return a function, loaded and allowed its shared memory, on `device`, the current one."""
    name = tiles.function(dtype, d, causal, dropout)
    kernel = load(FILE, (name,), {"COUNT": int(counting)})[name]
    kernel.max_dynamic_shared_size_bytes = tiles.shared_bytes(d)
    return kernel


_counters: dict[tuple[int, ...], Any] = {}


def _counter(device: int) -> Any:
    """Return the word from which blocks of threads draw row blocks: 0 between launches, one for each stream."""
    cupy = import_cupy()
    key = device, cupy.cuda.get_current_stream().ptr, threading.get_ident()
    if key not in _counters:
        _counters[key] = cupy.zeros(1, "uint32")
    return _counters[key]


def backward(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options) -> None:
    """Fill dq, dk, dv. Raises ValueError as `hopper_backward.backward`.

    With dropout at d = 64 `tensor_core` is the faster one, and runs, unless it is asked to count, which it cannot.
    """
    reason = why_not(capability(import_cupy().cuda.runtime.getDevice()), q.shape[3])
    if reason:
        _refuse(options, f"runs in hopper's place as {reason}")
        warnings.warn(f"tensor_core runs in hopper's place: {reason}", RuntimeWarning, stacklevel=3)
        tensor_core.backward(q, k, v, o, lse, do, dq, dk, dv, options)
        return
    slower = options.dropout_p > 0 and q.shape[3] == 64 and options.counters is None
    of = tensor_core if slower else hopper_backward
    of.backward(q, k, v, o, lse, do, dq, dk, dv, options)


def _refuse(options: Options, why: str) -> None:
    for name, wanted in (("blocks", options.blocks), ("count", options.counters)):
        if wanted is not None:
            raise ValueError(f"{name} is given; tensor_core, which {why}, does not take it")


# ----------------------------------------------------------------------------------------------------------- tensor maps


@lru_cache(maxsize=4096)
def _tensor_map(
    name: str, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, rows: int
) -> Any:
    """Return the driver's description of an array (B, H, N, d) in tiles of so many rows: struct TensorMap of hopper.cuh.

    Its axes: column within a half, row, half, head, batch. Raises ValueError, with the array's name, where there is none.
    """
    B, H, N, d = shape
    batch, head, row = (stride if n > 1 else 16 for stride, n in zip(strides[:3], shape[:3], strict=True))
    memory = np.zeros(128 + 63, np.uint8)
    found = memory[-memory.ctypes.data % 64 :][:128]
    status = _encode()(
        ctypes.c_void_p(found.ctypes.data),
        {"float16": 6, "bfloat16": 9}[dtype],
        5,
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * 5)(COLUMNS, N, d // COLUMNS, H, B),
        (ctypes.c_uint64 * 4)(row, 2 * COLUMNS, head, batch),
        (ctypes.c_uint32 * 5)(COLUMNS, rows, d // COLUMNS, 1, 1),
        (ctypes.c_uint32 * 5)(1, 1, 1, 1, 1),
        0,  # not interleaved
        3,  # swizzled over 128 bytes
        2,  # the L2 fetches 128 bytes
        0,  # zeros out of bounds
    )
    if status:
        raise ValueError(
            f"{name} is at {pointer:#x} with strides {strides} bytes; expected multiples of 16, below 2^40, for hopper"
        )
    return np.void(found.tobytes())


@cache
def _encode() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled


KERNEL = Kernel(
    name="hopper",
    about="loops exchanged, Hopper's wgmma and TMA, a producer and consumers, persistent; fp16 and bf16",
    rung=5,
    fastest_in=("forward", "backward"),
    model="q_outer",
    tensor_cores=True,
    dtypes=tuple(ELEMENTS),
    head_dims=tensor_core.HEAD_DIMS,
    variants=tuple(
        Variant(
            FILE,
            (("COUNT", count),),
            tuple(
                tiles.function(dtype, d, causal, dropout)
                for d in HEAD_DIMS
                for tiles in TILES[d]
                for causal in (False, True)
                for dropout in (False, True)
                if not (dropout and tiles.B_r == 192)
            ),
            ("sm_90a",),
        )
        for dtype, count in (("float16", 0), ("bfloat16", 0), ("float16", 1))
    )
    + hopper_backward.VARIANTS,
    forward=forward,
    backward=backward,
    dropout=True,
    blocks=True,
    counts=True,
    forward_only=("blocks",),
    aligned=True,
    choose_blocks=choose_blocks,
    why_not=why_not,
)
