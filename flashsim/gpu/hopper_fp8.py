"""FlashAttention of 8-bit numbers, e4m3, on Hopper: launches kernels/hopper_fp8.cu.

The kernel needs a GPU of compute capability 9.0 and d = 128; no other kernel takes these numbers. O
is float16.
"""

from __future__ import annotations

import importlib
import math
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np

from flashsim.gpu import hopper, tensor_core
from flashsim.gpu.arrays import CUDA, as_cupy
from flashsim.gpu.compiling import MissingGPU, capability, current_device, import_cupy, load
from flashsim.gpu.kernel import Kernel, Options, Variant
from flashsim.gpu.launching import (
    ELEMENTS,
    WORDS_EACH,
    Launch,
    Prepared,
    check_rows,
    counter,
    ready,
    section,
    totals,
)
from flashsim.gpu.tensor_maps import columns_map, contiguous, fours_map, tensor_map
from flashsim.support.install import extra_with

FILE = "hopper_fp8.cu"
NAME = "float8_e4m3fn"
ARRAYS = ("Q", "K", "V", "O", "L", "V transposed")
EVENTS = ("mended", "S again")
"""Halves of tiles in which a warp raised m: by mending weights, or by computing the scores
again.
"""
BLOCKS = (192, 128)  # B_r, B_c
WARPGROUP = 64  # rows of B_r
# of both kernels
THREADS = 512
ROUNDS = 256
# tiles, barriers, numbers
SHARED = 1024 * (2 * 24 + 3 * 16 + 3 * 16 + 48 + 2 * 16) + 9 * 16 + 3 * 12 + 4
COUNTS = WORDS_EACH - 2  # words that count transposed tiles of V
LARGEST = 448.0
OFFSET = 2  # log₂ of P̃ where a score equals m. The rest of e4m3's 2^8 is for scores above m
FOURS = 4  # if V is taken as it is, N_k is a multiple of this, since K's rows are loaded by fours
# of each section but the last, if V is transposed: its heads begin together, and each waits for its
# V
HEADS = 32

_PROBLEM = np.dtype(
    [
        (name, "i4")
        for name in (
            "N_q",
            "N_k",
            "H",
            "group",
            "T_r",
            "row_blocks",
            "section",
            "last_section",
            "wants_L",
            "ahead",
        )
    ]
    + [(name, "u4") for name in ("T_c", "H_kv", "tiles", "last_draw", "together", "last")]
    + [("count", [("tiles", "u4"), ("steps", "u4")], 2)]
    + [("c", "f4"), ("sign", "f4")]
)


def function(causal: bool, keys_contiguous: bool, offset: int = OFFSET) -> str:
    """Return the kernel's name for one case. `keys_contiguous`: V has its keys next to each
    other, not its columns.
    """
    return f"hopper_fp8<{str(causal).lower()}, {str(keys_contiguous).lower()}, {offset}>"


def to_fp8(x: Any, *, keys_contiguous: bool = False) -> Any:
    """Return x rounded to e4m3, contiguous: a CuPy array of ml_dtypes' type, or for a PyTorch
    tensor one of float8_e4m3fn.

    x is float32, float16 or bfloat16. The result has no gradient.

    keys_contiguous  for V, (…, N, d): put its keys next to each other in memory, each of the d
                     columns padded to a multiple of 16 keys. The shape stays the same. `forward`
                     uses such a V as it is; it must transpose any other V

    Numbers beyond ±448 become ±448. To avoid this, divide by a scale and give it to `forward`:
    `forward(to_fp8(q / s), to_fp8(k / t), to_fp8(v), scale=s * t / d**0.5)`. Raises ValueError for
    other dtypes, and for a tensor that is not on a GPU.
    """
    cupy = import_cupy()
    name = getattr(x.dtype, "name", None) or str(x.dtype).removeprefix("torch.")
    size = math.prod(x.shape)
    if name not in ELEMENTS or size % 4:
        expected = f"one of {', '.join(ELEMENTS)}, and a multiple of 4 elements"
        raise ValueError(f"x has dtype {name} and {size:,} elements; expected {expected}")
    tensor = str(x.dtype).startswith("torch.")
    if tensor and x.__dlpack_device__()[0] not in CUDA:
        raise ValueError("x is a tensor in the CPU's memory; expected one on a GPU")
    x = cupy.ascontiguousarray(as_cupy("x", x) if tensor else x)
    rounded = cupy.empty(x.shape, "uint8")
    function = f"round_to_8<{ELEMENTS[name]}>"
    kernel = load(FILE, (function,), {"COUNT": 0})[function]
    kernel((-(-size // (4 * ROUNDS)),), (ROUNDS,), (x, rounded, np.int64(size // 4)))
    if keys_contiguous:
        *others, N, d = x.shape
        transposed = cupy.empty((*others, d, -(-N // 16) * 16), "uint8")[..., :N].swapaxes(-1, -2)
        transposed[...] = rounded
        rounded = transposed
    if tensor:
        torch = importlib.import_module("torch")
        return torch.from_dlpack(rounded).view(torch.float8_e4m3fn)
    return rounded.view(dtype())


@cache
def dtype() -> Any:
    """Return ml_dtypes' type, or raise MissingGPU."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingGPU(f"ml_dtypes is missing ({error}): {extra_with('ml_dtypes')}") from None
    return np.dtype(ml_dtypes.float8_e4m3fn)


def why_not(capability: str, d: int) -> str:
    """Return why the kernel cannot run, or ""."""
    return hopper.why_not(capability, d) if d == 128 else f"d is {d}, and the kernel takes 128"


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o, float16, and, unless None, lse. Raises ValueError for rows that do not start at
    multiples of 16 bytes.
    """
    device = current_device()
    reason = why_not(capability(device), q.shape[3])
    if reason:
        raise ValueError(f"hopper_fp8 cannot run: {reason}; no other kernel takes {NAME}")
    _prepared(device, q, k, v, lse is not None, options)(q, k, v, o, lse)


def prepare(
    device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options
) -> Prepared | None:
    """Return `forward` for arrays of these shapes, strides and dtypes, or None if it cannot run."""
    return (
        None
        if why_not(capability(device), q.shape[3])
        else _prepared(device, q, k, v, wants_L, options)
    )


def _prepared(device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options) -> Prepared:
    strides = (q.strides, k.strides, v.strides)
    settings = (wants_L, options.causal, options.scale, OFFSET)
    start, scratch = _launch(
        device, q.shape, k.shape, strides, *settings, options.counters is not None
    )

    def run(stream: int, transposed: int, Q: int, K: int, V: int, O: int, L: int = 0) -> None:
        start(
            stream,
            Q,
            K,
            V,
            O,
            L,
            transposed,
            counter(device, stream),
            totals(options, ARRAYS, EVENTS),
        )

    return Prepared(run, scratch)


@lru_cache(maxsize=1024)
def _launch(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    wants_L: bool,
    causal: bool,
    scale: float,
    offset: int,
    counting: bool,
) -> tuple[Launch, int]:
    """Return the launch and the bytes of Vᵀ, which are 0 if V's keys lie next to each other.

    The launch is to be called with the addresses of Q, K, V, O, L, Vᵀ, the counters and totals.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    B_r, B_c = BLOCKS
    T_r = -(-N_q // B_r)
    T_c = -(-N_k // B_c)
    row_blocks = B * H * T_r
    tiles = B * H_kv * T_c
    if max(row_blocks, tiles) >= hopper.MOST:
        raise ValueError(
            f"q has shape {q}, k {k}; hopper_fp8 takes fewer than {hopper.MOST:,} tiles"
        )
    keys_contiguous = strides[2][3] != 1
    if keys_contiguous and N_k % FOURS:
        raise ValueError(
            f"v has shape {k} and its keys stride 1; hopper_fp8 then expects a multiple of {FOURS} "
            "keys"
        )
    attributes = import_cupy().cuda.Device(device).attributes
    grid = min(
        attributes["MultiProcessorCount"], row_blocks if keys_contiguous else max(row_blocks, tiles)
    )
    problem = np.zeros((), _PROBLEM)
    problem["N_q"] = N_q
    problem["N_k"] = N_k
    problem["H"] = H
    problem["group"] = H // H_kv
    problem["T_r"] = T_r
    problem["row_blocks"] = row_blocks
    problem["wants_L"] = wants_L
    problem["ahead"] = (T_r * B_r - N_q) // WARPGROUP * WARPGROUP if causal else 0
    heads = section(2 * N_k * d * H_kv / H, attributes["L2CacheSize"], B * H)
    each = heads if keys_contiguous else min(heads, HEADS)
    # a small section comes first, unless the last were as small
    last = min(heads, max(B * H - each, 2 * each))
    problem["section"] = each
    problem["last_section"] = -((last - B * H) // each) * each
    problem["T_c"] = T_c
    problem["H_kv"] = H_kv
    problem["tiles"] = tiles
    problem["last_draw"] = tiles + grid - 1
    shift = ((B * H_kv - 1) // COUNTS).bit_length()
    problem["together"] = shift
    problem["last"] = (B * H_kv - 1) >> shift
    of_count = np.array([2**shift, B * H_kv - (problem["last"] << shift)])
    problem["count"]["tiles"] = of_count * T_c
    problem["count"]["steps"] = of_count * (T_c + H // H_kv * T_r) - 1
    problem["c"], problem["sign"] = tensor_core.factor_and_sign(scale)
    name = function(causal, keys_contiguous, offset)
    (kernel,) = ready(device, FILE, (name,), name, SHARED, counting)
    K_map, V_map = (
        ((fours_map, B_c // 4), columns_map) if keys_contiguous else ((tensor_map, B_c), tensor_map)
    )
    sides = (
        ("q", tensor_map, q, strides[0], NAME, B_r),
        ("k", K_map[0], k, strides[1], NAME, K_map[1]),
        ("v", V_map, k, strides[2], NAME, B_c),
        ("o", tensor_map, q, contiguous(q, 2), "float16", hopper.ROWS),
    )
    in_rows = (q, strides[0]), (k, strides[1]), _rows(k, strides[2])
    by_value = np.void(problem.tobytes())

    def arguments(
        Q: int, K: int, V: int, O: int, L: int, transposed: int, counters: int, totals: int
    ) -> tuple[Any, ...]:
        for name, address, rows in zip("qkv", (Q, K, V), in_rows, strict=True):
            check_rows(name, address, *rows)
        maps = (
            described(name, address, *rest)
            for (name, described, *rest), address in zip(sides, (Q, K, V, O), strict=True)
        )
        words = np.array([counters, counters + 4, counters + 8], "u8")
        return (
            *maps,
            np.uint64(L),
            np.uint64(transposed),
            np.void(words.tobytes()),
            by_value,
            np.uint64(totals),
        )

    return Launch(
        kernel, grid, THREADS, SHARED, arguments
    ), 0 if keys_contiguous else tiles * d * B_c


def _rows(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return V's shape and strides with its contiguous axis last."""
    B, H, N, d = shape
    batch, head, key, column = strides
    return (shape, strides) if column == 1 else ((B, H, d, N), (batch, head, column, key))


def choose_blocks(d: int, dtype: str, direction: str) -> tuple[int, int]:
    """Return (B_r, B_c)."""
    return BLOCKS


FUNCTIONS = tuple(function(causal, keys) for keys in (False, True) for causal in (False, True))
KERNEL = Kernel(
    name="hopper_fp8",
    about="8 bits: e4m3 operands, V transposed on the way, P̃ kept below 448; O in fp16",
    rung=8,
    fastest_in=("forward",),
    short="wgmma and TMA, 8 bits",
    look=("vermillion", "p", "-"),
    model="q_outer",
    tensor_cores=True,
    dtypes=(NAME,),
    output="float16",
    head_dims=(128,),
    variants=tuple(
        Variant(FILE, (("COUNT", count),), ("round_to_8<float>", *FUNCTIONS[at::2]), ("sm_90a",))
        for count, at in product((0, 1), (0, 1))
    ),
    forward=forward,
    prepare=prepare,
    takes=("causal", "count"),
    aligned=True,
    keys_contiguous=FOURS,
    choose_blocks=choose_blocks,
    why_not=why_not,
)
