"""The unfused baseline, pass by pass as in Algorithms 0 and 3: cuBLAS for the products,
kernels/standard.cu between them.

S, P, and with dropout P^dropped, are matrices in HBM, (B, H_q, N_q, N_k), in the inputs' dtype. So
memory grows with N_q·N_k, until CuPy raises OutOfMemoryError. τ is part of the product τ QKᵀ.
Products use cuBLAS's gemmStridedBatchedEx with fp32 sums for every dtype and without TF32, since
CuPy's matmul has no bfloat16. Operands that are not contiguous are copied for it, and so are K and
V of groups of query heads.

Kernels keep only O, so `backward` computes P again before Algorithm 3 begins. `forward_saving` and
`backward_from` are the two halves, for measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.gpu.compiling import MissingGPU, import_cupy, load
from flashsim.gpu.kernel import Kernel, Options, Variant
from flashsim.gpu.launching import ELEMENTS, THREADS, problem, variant_types
from flashsim.support.install import OTHERS

FILE = "standard.cu"
CUDA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
COMPUTE_32F = 68  # CUBLAS_COMPUTE_32F
GEMM_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT
HEAD_DIMS = tuple(range(8, 257, 8))
MASKS = ("Causal", "Dense", "CausalDense")
PASSES = ("softmax_rows", "drop", "softmax_backward_rows")


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs: P and P^dropped, which are the same array without dropout."""

    P: Any
    P_dropped: Any


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse."""
    _product(forward_saving(q, k, v, lse, options).P_dropped, _shared(q, v), o, "NN")


def forward_saving(q: Any, k: Any, v: Any, lse: Any, options: Options) -> Saved:
    """Run Algorithm 0's lines 1 and 2, and dropout. Return P, and fill lse unless None."""
    cupy = import_cupy()
    S = cupy.empty((*q.shape[:3], k.shape[2]), q.dtype)
    _product(q, _shared(q, k), S, "NT", options.scale)
    if options.causal or options.mask is not None:
        mask, _ = variant_types(options)
        _launch(f"mask_scores<{{T}}, {mask}>", q, (S, problem(q, k, v, options)), S)
    P = S
    _launch(
        "softmax_rows<{T}>",
        q,
        (S, P, np.uint64(0) if lse is None else lse, np.int32(k.shape[2])),
        S,
    )
    if not options.dropout_p:
        return Saved(P, P)
    P_dropped = cupy.empty_like(P)
    _launch("drop<{T}>", q, (P, P_dropped, problem(q, k, v, options)), P)
    return Saved(P, P_dropped)


def backward(
    q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options
) -> None:
    """Fill dq, dk, dv."""
    backward_from(forward_saving(q, k, v, None, options), q, k, v, do, dq, dk, dv, options)


def backward_from(
    saved: Saved, q: Any, k: Any, v: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options
) -> None:
    """Run Algorithm 3 and fill dq, dk, dv. One more pass sums a group's dk and dv over its query
    heads.
    """
    cupy = import_cupy()
    group = q.shape[1] // k.shape[1]
    parts = [
        (x if group == 1 else cupy.empty((*q.shape[:2], *k.shape[2:]), q.dtype)) for x in (dk, dv)
    ]
    _product(saved.P_dropped, do, parts[1], "TN")  # line 1
    dP = cupy.empty_like(saved.P)
    _product(do, _shared(q, v), dP, "NT")  # line 2
    if options.dropout_p:
        _launch("drop<{T}>", q, (dP, dP, problem(q, k, v, options)), dP)  # line 3
    _launch(  # line 3: dS replaces dP
        "softmax_backward_rows<{T}>", q, (saved.P, dP, np.int32(k.shape[2])), dP
    )
    _product(dP, _shared(q, k), dq, "NN", options.scale)  # line 4
    _product(dP, q, parts[0], "TN", options.scale)  # line 5
    if group > 1:
        for part, total in zip(parts, (dk, dv), strict=True):
            total[...] = (
                part.reshape(*k.shape[:2], group, *k.shape[2:])
                .astype("float32")
                .sum(axis=2)
                .astype(q.dtype)
            )


@dataclass(frozen=True)
class Step:
    """One pass: the matrices that it reads and writes, each "N·d" or "N·N", and how to run it."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    run: Callable[[], None]


def steps(q: Any, k: Any, v: Any, do: Any, scale: float) -> list[Step]:
    """Return the passes of Algorithms 0 and 3 without mask, dropout or groups, to be run in order
    and measured one by one.

    P replaces S, and dS replaces dP.
    """
    cupy = import_cupy()
    o, dq, dk, dv = (cupy.empty_like(x) for x in (q, q, k, v))
    P, dP = (cupy.empty((*q.shape[:3], k.shape[2]), q.dtype) for _ in range(2))
    N_k = np.int32(k.shape[2])
    thin = "N·d"
    wide = "N·N"
    return [
        Step("0.1 S = τQKᵀ", (thin, thin), (wide,), lambda: _product(q, k, P, "NT", scale)),
        Step(
            "0.2 P = softmax(S)",
            (wide,),
            (wide,),
            lambda: _launch("softmax_rows<{T}>", q, (P, P, np.uint64(0), N_k), P),
        ),
        Step("0.3 O = PV", (wide, thin), (thin,), lambda: _product(P, v, o, "NN")),
        Step("3.1 dV = PᵀdO", (wide, thin), (thin,), lambda: _product(P, do, dv, "TN")),
        Step("3.2 dP = dOVᵀ", (thin, thin), (wide,), lambda: _product(do, v, dP, "NT")),
        Step(
            "3.3 dS",
            (wide, wide),
            (wide,),
            lambda: _launch("softmax_backward_rows<{T}>", q, (P, dP, N_k), dP),
        ),
        Step("3.4 dQ = τdSK", (wide, thin), (thin,), lambda: _product(dP, k, dq, "NN", scale)),
        Step("3.5 dK = τdSᵀQ", (wide, thin), (thin,), lambda: _product(dP, q, dk, "TN", scale)),
    ]


def _shared(q: Any, k: Any) -> Any:
    """Return k with one head for each of q's heads: a view without groups, else a copy."""
    group = q.shape[1] // k.shape[1]
    return k if group == 1 else import_cupy().repeat(k, group, axis=1)


def _product(A: Any, B: Any, out: Any, form: str, factor: float = 1.0) -> None:
    """Write factor · op(A) op(B) to `out`, head by head. `form` has N (as is) or T (transposed) for
    A and for B.

    cuBLAS stores matrices by columns, so it computes outᵀ = op(B)ᵀ op(A)ᵀ.
    """
    cupy = import_cupy()
    cublas = _cublas()
    handle = cupy.cuda.device.get_cublas_handle()
    A = cupy.ascontiguousarray(A)
    B = cupy.ascontiguousarray(B)
    m, n = out.shape[-2:]
    k = A.shape[-1] if form[0] == "N" else A.shape[-2]
    one = np.float32(factor).reshape(1)
    zero = np.zeros(1, np.float32)
    kind = CUDA_TYPES[out.dtype.name]
    operands = [(X.data.ptr, kind, X.shape[-1], X.shape[-2] * X.shape[-1]) for X in (B, A, out)]
    transposed = [int(which == "T") for which in (form[1], form[0])]
    heads = out.shape[0] * out.shape[1]
    cublas.gemmStridedBatchedEx(
        handle,
        *transposed,
        n,
        m,
        k,
        one.ctypes.data,
        *operands[0],
        *operands[1],
        zero.ctypes.data,
        *operands[2],
        heads,
        COMPUTE_32F,
        GEMM_DEFAULT,
    )


def _cublas() -> Any:
    try:
        cublas = import_cupy().cuda.cublas
        cublas.gemmStridedBatchedEx  # noqa: B018  (CuPy loads the library at first use)
    except (ImportError, AttributeError) as error:
        raise MissingGPU(f"cuBLAS is missing ({error}): {OTHERS['cublas']}") from None
    return cublas


def _launch(function: str, q: Any, arguments: Sequence[Any], matrix: Any) -> None:
    """Launch a pass over the rows of `matrix`."""
    name = function.format(T=ELEMENTS[q.dtype.name])
    rows = matrix.size // matrix.shape[-1]
    kernel = load(FILE, (name,), {"COUNT": 0})[name]
    kernel((min(rows, 2**20),), (THREADS,), (*arguments, np.int64(rows)))


KERNEL = Kernel(
    name="standard",
    about="unfused: S and P in HBM, cuBLAS for products, and a kernel for each pass",
    short="standard, CuPy",
    look=("black", "x", ":"),
    rung=0,
    fastest_in=(),
    model="standard",
    longest=16_384,
    dtypes=tuple(ELEMENTS),
    head_dims=HEAD_DIMS,
    variants=tuple(
        Variant(
            FILE,
            (("COUNT", 0),),
            (
                *(f"mask_scores<{T}, {mask}>" for mask in MASKS),
                *(f"{name}<{T}>" for name in PASSES),
            ),
        )
        for T in ELEMENTS.values()
    ),
    forward=forward,
    backward=backward,
    takes=("causal", "mask", "dropout_p"),
)
