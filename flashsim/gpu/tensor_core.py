"""FlashAttention on tensor cores: launches kernels/tensor_core.cu. `tensor_core_backward` is the
backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from flashsim.gpu import launching, tensor_core_backward
from flashsim.gpu.compiling import import_cupy, load
from flashsim.gpu.kernel import Kernel, Options, Variant

FILE = "tensor_core.cu"
ELEMENTS = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
HEAD_DIMS = (32, 64, 128)
# as in the file
THREADS = 128
B_R = 128
GRID = 65535  # the most heads, and the largest batch: a grid's second and third axis
LOG2_E = math.log2(math.e)


def block_sizes(d: int, dropout: bool = False) -> tuple[int, int]:
    """Return (B_r, B_c): the most keys for which registers suffice, beside those of O_i and,
    with dropout, Z_ij's bits.
    """
    most = 64 if d == 128 else 128
    return B_R, most // 2 if dropout else most


def function(dtype: str, d: int, causal: bool, dropout: bool) -> str:
    """Return the kernel's name for one case."""
    switches = (str(on).lower() for on in (causal, dropout))
    return (
        f"tensor_core<{ELEMENTS[dtype]}, {d}, {block_sizes(d, dropout)[1]}, {', '.join(switches)}>"
    )


def factor_and_sign(scale: float) -> tuple[np.float32, np.float32]:
    """Return c = |τ| log₂e in fp32, finite, and τ's sign. If c would be 0, return (1, 0), as if
    Q were 0.
    """
    largest, smallest = (float(x) for x in (np.finfo(np.float32).max, np.finfo(np.float32).tiny))
    c = min(abs(scale) * LOG2_E, largest)
    return (
        (np.float32(c), np.float32(math.copysign(1, scale)))
        if c >= smallest
        else (np.float32(1), np.float32(0))
    )


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse.

    Raises ValueError for rows of q, k or v that do not start at multiples of 16 bytes, and for too
    many heads or batch entries.
    """
    cupy = import_cupy()
    (B, H, N_q, d), (_, H_kv, N_k, _) = q.shape, k.shape
    for name, array in (("q", q), ("k", k), ("v", v)):
        launching.check_rows(name, array.data.ptr, array.shape, array.strides)
    if max(B, H) > GRID:
        raise ValueError(
            f"q has shape {q.shape}; tensor_core takes at most {GRID:,} batch entries, and as many "
            "heads"
        )
    dropout = options.dropout_p > 0
    name = function(q.dtype.name, d, options.causal, dropout)
    B_r, B_c = block_sizes(d, dropout)
    shared = 2 * d * (B_r + 4 * B_c)  # Q_i, two K_j, two V_j
    kernel = _ready(cupy.cuda.runtime.getDevice(), name, shared)
    strides = (np.array([_elements(array)], launching.STRIDES) for array in (q, k, v))
    numbers = (np.int32(n) for n in (N_q, N_k, H // H_kv))
    drop = np.array([launching.dropout(options.dropout_p, options.seed)], launching.DROPOUT)
    arguments = (
        q,
        k,
        v,
        o,
        np.uint64(0) if lse is None else lse,
        *strides,
        *numbers,
        *factor_and_sign(options.scale),
        drop,
    )
    kernel((-(-N_q // B_r), H, B), (THREADS,), arguments, shared_mem=shared)


@cache
def _ready(device: int, name: str, shared: int) -> Any:
    """Return a loaded function that may use `shared` bytes of shared memory, on `device`, the
    current one.
    """
    room = import_cupy().cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"]
    if shared > room:
        raise ValueError(
            f"{name} needs {shared:,} bytes of shared memory; this GPU's blocks have {room:,}"
        )
    kernel = load(FILE, (name,), {})[name]
    if shared > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared
    return kernel


def _elements(array: Any) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides[:3])


def _functions(dtype: str) -> Iterator[str]:
    for d, causal, dropout in product(HEAD_DIMS, (False, True), (False, True)):
        if dtype == "float16" or causal == dropout:
            yield function(dtype, d, causal, dropout)


KERNEL = Kernel(
    name="tensor_core",
    about="loops exchanged, tensor cores: mma.sync, cp.async, swizzled shared memory; fp16 and bf16",  # noqa: E501
    short="tensor cores",
    look=("vermillion", "s", "-"),
    rung=4,
    fastest_in=("forward", "backward"),
    model="q_outer",
    tensor_cores=True,
    dtypes=tuple(ELEMENTS),
    head_dims=HEAD_DIMS,
    variants=(
        *(Variant(FILE, (), tuple(_functions(dtype)), ("sm_90a",)) for dtype in ELEMENTS),
        Variant(
            FILE,
            (),
            tuple(function(T, d, True, True) for T in ELEMENTS for d in HEAD_DIMS),
            ("sm_80",),
        ),
        *tensor_core_backward.VARIANTS,
    ),
    forward=forward,
    backward=tensor_core_backward.backward,
    takes=("causal", "dropout_p"),
    aligned=True,
)
