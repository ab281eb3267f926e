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
from flashsim.gpu.launching import ELEMENTS, Launch, Prepared, check_rows, counter, ready, section, totals
from flashsim.gpu.tensor_maps import contiguous, tensor_map

FILE, NAME = "hopper_fp8.cu", "float8_e4m3fn"
ARRAYS = ("Q", "K", "V", "O", "L", "V transposed")
EVENTS = ("S again",)  # tiles of which a warp computed its scores again
BLOCKS = (128, 128)  # B_r, B_c
THREADS, TRANSPOSES, ROUNDS = 384, 256, 256  # of the three kernels
SHARED = 1024 * (2 * 16 + 4 * 16 + 4 * 16 + 32) + 10 * 16 + 3 * 12 + 2 * 4  # Q_i, K_j, V_j, O_i, and what is small
LARGEST = 448.0

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
    _prepared(device, q, k, v, lse is not None, options)(q, k, v, o, lse)


def prepare(device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options) -> Prepared | None:
    """Return `forward` for arrays of these shapes, strides and dtypes, or None where it cannot run."""
    return None if why_not(capability(device), q.shape[3]) else _prepared(device, q, k, v, wants_L, options)


def _prepared(device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options) -> Prepared:
    strides, asked = (q.strides, k.strides, v.strides), (wants_L, options.causal, options.scale)
    transpose, start, scratch = _launches(device, q.shape, k.shape, strides, *asked, options.counters is not None)

    def run(stream: int, transposed: int, Q: int, K: int, V: int, O: int, L: int = 0) -> None:
        moved = totals(options, ARRAYS, EVENTS)
        transpose(stream, Q, K, V, transposed, moved)
        start(stream, Q, K, transposed, O, L, counter(device, stream), moved)

    return Prepared(run, scratch)


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
) -> tuple[Launch, Launch, int]:
    """Return what transposes V, called with the addresses of Q, K, V, Vᵀ and totals; the kernel; and the bytes of Vᵀ.

    The kernel is called with the addresses of Q, K, Vᵀ, O, L, the counter and totals.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    B_r, B_c = BLOCKS
    T_r, T_c = -(-N_q // B_r), -(-N_k // B_c)
    row_blocks, tiles = B * H * T_r, B * H_kv * T_c
    if max(row_blocks, tiles) >= hopper.MOST:
        raise ValueError(f"q has shape {q}, k {k}; hopper_fp8 takes fewer than {hopper.MOST:,} tiles")
    attributes = import_cupy().cuda.Device(device).attributes
    problem = np.zeros((), _PROBLEM)
    problem["N_q"], problem["N_k"], problem["H"], problem["group"] = N_q, N_k, H, H // H_kv
    problem["T_r"], problem["row_blocks"], problem["wants_L"] = T_r, row_blocks, wants_L
    problem["section"] = section(2 * N_k * d * H_kv / H, attributes["L2CacheSize"], B * H) if causal else 1
    problem["c"], problem["sign"] = tensor_core.factor_and_sign(scale)
    name = function(causal)
    kernels = ready(device, FILE, ("transpose", name), name, SHARED, counting)
    numbers = np.void(np.array(strides[2][:3], "i8").tobytes()), *(np.int32(n) for n in (H_kv, N_k, T_c))
    across, by_value = (B, H_kv, T_c * d, B_c), np.void(problem.tobytes())
    sides = (
        ("q", q, strides[0], NAME, B_r),
        ("k", k, strides[1], NAME, B_c),
        ("v", across, contiguous(across, 1), NAME, d),
        ("o", q, contiguous(q, 2), "float16", hopper.ROWS),
    )

    def transposing(Q: int, K: int, V: int, transposed: int, totals: int) -> tuple[Any, ...]:
        for name, at, shape, given in zip("qkv", (Q, K, V), (q, k, k), strides, strict=True):
            check_rows(name, at, shape, given)
        return np.uint64(V), numbers[0], np.uint64(transposed), *numbers[1:], np.uint64(totals)

    def arguments(Q: int, K: int, V: int, O: int, L: int, counter: int, totals: int) -> tuple[Any, ...]:
        each = zip(sides, (Q, K, V, O), strict=True)
        maps = (tensor_map(name, at, *rest) for (name, *rest), at in each)
        return (*maps, np.uint64(L), np.uint64(counter), by_value, np.uint64(totals))

    grid = min(attributes["MultiProcessorCount"], row_blocks)
    transpose = Launch(kernels[0], tiles, TRANSPOSES, 0, transposing)
    return transpose, Launch(kernels[1], grid, THREADS, SHARED, arguments), tiles * d * B_c


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
    prepare=prepare,
    counts=True,
    aligned=True,
    choose_blocks=choose_blocks,
    why_not=why_not,
)
