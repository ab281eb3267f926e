"""FlashAttention of 8-bit numbers, e4m3, on Hopper: launches kernels/hopper_fp8.cu, after its kernel that transposes V.

The kernel needs a GPU of compute capability 9.0 and d = 128; no other rung takes these numbers. O is float16.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from flashsim.gpu import hopper, tensor_core
from flashsim.gpu.compiling import MissingGPU, capability, current_device, import_cupy, load
from flashsim.gpu.kernel import Kernel, Options, Variant
from flashsim.gpu.launching import ELEMENTS, Launch, check_rows, counter, ready, section
from flashsim.gpu.tensor_maps import contiguous, tensor_map

FILE, NAME = "hopper_fp8.cu", "float8_e4m3fn"
ARRAYS = ("Q", "K", "V", "O", "L", "V transposed")
BLOCKS = (128, 128)  # B_r, B_c
THREADS, TRANSPOSES, ROUNDS = 384, 256, 256  # of the three kernels
SHARED = 1024 * (2 * 16 + 4 * 16 + 4 * 16 + 32) + 10 * 16 + 3 * 12  # Q_i, K_j, V_j, O_i, barriers, row blocks' numbers
LARGEST = 448.0

_STRIDES = np.dtype([("batch", "i8"), ("head", "i8"), ("row", "i8")])
_PROBLEM = np.dtype(
    [(name, "i4") for name in ("N_q", "N_k", "H", "group", "T_r", "row_blocks", "section", "wants_L")]
    + [("c", "f4"), ("sign", "f4")]
)


def function(causal: bool) -> str:
    """Return the kernel's name for one case."""
    return f"hopper_fp8<{str(causal).lower()}>"


def to_fp8(x: Any) -> Any:
    """Return x rounded to e4m3: CuPy's array of ml_dtypes' type, contiguous, of an array of float32, float16 or bfloat16.

    What is beyond ±448 becomes ±448: divide by a scale before, and let `forward` have it in its own `scale`, as in
    `forward(to_fp8(q / s), to_fp8(k / t), to_fp8(v), scale=s * t / d**0.5)`. Raises ValueError for other dtypes.
    """
    cupy = import_cupy()
    if x.dtype.name not in ELEMENTS or x.size % 4:
        raise ValueError(
            f"x has dtype {x.dtype.name} and {x.size:,} elements; expected {', '.join(ELEMENTS)}, and a multiple of 4"
        )
    x = cupy.ascontiguousarray(x)
    rounded = cupy.empty(x.shape, "uint8")
    name = f"round_to_8<{ELEMENTS[x.dtype.name]}>"
    kernel = load(FILE, (name,), {"COUNT": 0})[name]
    kernel((-(-x.size // (4 * ROUNDS)),), (ROUNDS,), (x, rounded, np.int64(x.size // 4)))
    return rounded.view(dtype())


@cache
def dtype() -> Any:
    """Return ml_dtypes' type, or MissingGPU."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingGPU(f'ml_dtypes is missing ({error}): pip install "flashsim[gpu]"') from None
    return np.dtype(ml_dtypes.float8_e4m3fn)


def why_not(capability: str, d: int) -> str:
    """Return why the kernel cannot run, or ""."""
    return hopper.why_not(capability, d) if d == 128 else f"d is {d}, and the kernel takes 128"


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o, float16, and, unless None, lse. Raises ValueError for rows that do not start at multiples of 16 bytes."""
    device = current_device()
    reason = why_not(capability(device), q.shape[3])
    if reason:
        raise ValueError(f"hopper_fp8 cannot run: {reason}; no other kernel takes {NAME}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_rows(name, x.data.ptr, x.shape, x.strides)
    cupy, counters, wants_L = import_cupy(), options.counters, lse is not None
    strides = q.strides, k.strides, v.strides
    asked = wants_L, options.causal, options.scale, counters is not None
    transpose, attend = _launches(device, q.shape, k.shape, strides, *asked)
    totals = 0 if counters is None else counters.for_launch(ARRAYS).data.ptr
    turned = cupy.empty(transposed(k.shape), "uint8").data.ptr
    transpose(v.data.ptr, turned, totals)
    L = lse.data.ptr if wants_L else 0
    attend(q.data.ptr, k.data.ptr, turned, o.data.ptr, L, counter(device).data.ptr, totals)


def transposed(k: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of V transposed, whole tiles."""
    B, H_kv, N_k, d = k
    return B, H_kv, -(-N_k // BLOCKS[1]) * d, BLOCKS[1]


@lru_cache(maxsize=1024)
def _launches(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    wants_L: bool,
    causal: bool,
    scale: float,
    counting: bool,
) -> tuple[Launch, Launch]:
    """Return both for q and k of these shapes, and q, k and v of these strides.

    They are to be called with the addresses of V, V transposed and totals; of Q, K, V transposed, O, L, the counter and totals.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    T_r, T_c = -(-N_q // BLOCKS[0]), -(-N_k // BLOCKS[1])
    row_blocks, tiles = B * H * T_r, B * H_kv * T_c
    if max(row_blocks, tiles) >= hopper.MOST:
        raise ValueError(f"q has shape {q}, k {k}; hopper_fp8 takes fewer than {hopper.MOST:,} tiles")
    attributes = import_cupy().cuda.Device(device).attributes
    problem = np.zeros((), _PROBLEM)
    problem["N_q"], problem["N_k"], problem["H"], problem["group"] = N_q, N_k, H, H // H_kv
    problem["T_r"], problem["row_blocks"], problem["wants_L"] = T_r, row_blocks, wants_L
    problem["section"] = section(2 * N_k * d * H_kv / H, attributes["L2CacheSize"], B * H) if causal else 1
    problem["c"], problem["sign"] = tensor_core.factor_and_sign(scale)
    name, by_value, v_strides = function(causal), np.void(problem.tobytes()), np.array([strides[2][:3]], _STRIDES)
    turning, kernel = ready(device, FILE, ("transpose", name), name, SHARED, counting)
    shape, numbers = transposed(k), tuple(np.int32(n) for n in (H_kv, N_k, T_c))
    shapes, given = (q, k, shape, q), (*strides[:2], contiguous(shape, 1), contiguous(q, 2))
    types, heights = (NAME, NAME, NAME, "float16"), (BLOCKS[0], BLOCKS[1], d, hopper.ROWS)
    sides = tuple(zip(("q", "k", "v", "o"), shapes, given, types, heights, strict=True))

    def of_transpose(V: int, turned: int, totals: int) -> tuple[Any, ...]:
        return np.uint64(V), v_strides, np.uint64(turned), *numbers, np.uint64(totals)

    def of_attend(Q: int, K: int, V: int, O: int, L: int, counter: int, totals: int) -> tuple[Any, ...]:
        maps = (tensor_map(name, at, *side) for at, (name, *side) in zip((Q, K, V, O), sides, strict=True))
        return *maps, np.uint64(L), np.uint64(counter), by_value, np.uint64(totals)

    grid = min(attributes["MultiProcessorCount"], row_blocks)
    return (
        Launch(device, turning, tiles, TRANSPOSES, 0, of_transpose),
        Launch(device, kernel, grid, THREADS, SHARED, of_attend, early=True),
    )


def choose_blocks(d: int, dtype: str, direction: str) -> tuple[int, int]:
    """Return (B_r, B_c)."""
    return BLOCKS


KERNEL = Kernel(
    name="hopper_fp8",
    about="8 bits: e4m3 operands, V transposed first, P̃ kept below 448; O in fp16",
    rung=7,
    fastest_in=("forward",),
    short="wgmma and TMA, 8 bits",
    look=("vermillion", "p", "-"),
    model="q_outer",
    tensor_cores=True,
    dtypes=(NAME,),
    output="float16",
    head_dims=(128,),
    variants=(
        Variant(
            FILE, (("COUNT", 0),), ("transpose", "round_to_8<float>", function(False), function(True)), ("sm_90a",)
        ),
        Variant(FILE, (("COUNT", 1),), ("transpose", function(True)), ("sm_90a",)),
    ),
    forward=forward,
    counts=True,
    aligned=True,
    choose_blocks=choose_blocks,
    why_not=why_not,
)
