"""`forward` and `backward` on a GPU: they check arrays, allocate results and run a kernel of the
ladder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashsim.gpu import rungs
from flashsim.gpu.arrays import Taken
from flashsim.gpu.launching import Prepared, temporaries
from flashsim.gpu.settling import Plan, planned, settled

GIVEN = ("q", "k", "v", "o", "lse", "do")  # what the backward pass is given


def plan(
    q: Any,
    k: Any,
    v: Any,
    *,
    direction: str = "forward",
    causal: bool = False,
    mask: Any = None,
    block_mask: Any = None,
    dropout_p: float = 0.0,
    blocks: tuple[int, int] | None = None,
    count: bool = False,
) -> Plan:
    """Return which kernel `forward` or `backward` chooses for these arguments if `kernel` is None.
    Errors as in `forward`.
    """
    with Taken("qkv", (q, k, v), mask) as x:
        return planned(direction, x, causal, dropout_p, (mask, block_mask, blocks, count))


def forward(
    q: Any,
    k: Any,
    v: Any,
    *,
    kernel: str | None = None,
    causal: bool = False,
    scale: float | None = None,
    mask: Any = None,
    block_mask: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    blocks: tuple[int, int] | None = None,
    return_lse: bool = False,
    count: bool = False,
) -> Any:
    """Return dropout(softmax(MASK(scale · q kᵀ))) v, of shape (B, H_q, N_q, d) and the inputs'
    dtype.

    q is (B, H_q, N_q, d), k and v are (B, H_kv, N_k, d). They are CuPy arrays, or any arrays on a
    GPU with DLPack, such as PyTorch tensors, and are not copied. Results are of the same library as
    q. H_q is a multiple of H_kv: query heads g·n … g·n + g − 1 share KV head n. The last axis must
    have stride 1, the others may have any. Inputs are not modified.

    bfloat16 and float8_e4m3fn in CuPy are ml_dtypes' types. `to_fp8` rounds to float8_e4m3fn;
    results of such inputs are float16. An 8-bit v may have stride 1 along its keys instead, as
    `vt.swapaxes(-1, -2)` of (B, H_kv, d, N_k) has. Then "hopper_fp8" need not transpose it. Such a
    v is copied if N_k is not a multiple of 4.

    kernel     "algorithm_1", "algorithm_2", "q_outer" (float32, float16, bfloat16; all compute in
               float32), "tensor_core", "hopper", "hopper_decode", "hopper_fp8" (float8_e4m3fn
               only), or "standard" (unfused, S and P in HBM). None: the fastest that takes the
               arguments on this GPU; `plan` says which
    causal     key j is attended to if j ≤ i + N_k − N_q
    scale      None: 1/√d
    mask       booleans on the same GPU that broadcast to (B, H_q, N_q, N_k), True = attend.
               "hopper" copies them unless rows start at multiples of 16 bytes. Or a
               `flashsim.SlidingWindow`: "hopper" skips its dead tiles, and other kernels that take
               masks get it as an array. With `causal`, a key must be allowed by both
    block_mask (T_r, T_c) booleans, True = computed, or a function of (T_r, T_c) that returns them,
               as in `flashsim.patterns`. "hopper" computes only these tiles, of (B_r, B_c) =
               (128, 128), or (128, 64) if d = 256
    dropout_p, seed  the mask is `flashsim.dropout.keep_mask`, bit for bit
    blocks     (B_r, B_c), for kernels that can be compiled for any; None: the kernel's own
    return_lse also return log Σ exp(scaled scores), (B, H_q, N_q), float32. A query whose keys are
               all masked has −∞ there, and output 0
    count      also return what was moved, by array, as {"Q": Moved(reads, writes), …}. This runs a
               slower build of the kernel that counts each access to HBM, and waits for it

    Finite inputs give finite results as long as scaled scores, and sums of values, stay within
    float32. In "algorithm_1", "algorithm_2" and "q_outer", masked keys and values never reach the
    result, not even NaN. The other kernels multiply on tensor cores or by cuBLAS, where 0 · NaN is
    NaN.

    Returns O, or a tuple (O, lse), (O, moved), (O, lse, moved). Runs on the current stream:
    PyTorch's for tensors, else CuPy's.

    Raises ValueError before any launch for what the kernel does not take, `MissingGPU` if a GPU or
    a package is missing, and `MemoryError` (CuPy's) if results do not fit.
    """
    if kernel is not None:
        rungs.kernel(kernel)
    plain = kernel, causal, scale, dropout_p, seed, False, bool(return_lse)
    results = _called("forward", "qkv", (q, k, v), plain, (mask, block_mask, blocks, count))
    return results[0] if len(results) == 1 else tuple(results)


def backward(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    do: Any,
    *,
    kernel: str | None = None,
    causal: bool = False,
    scale: float | None = None,
    mask: Any = None,
    block_mask: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    blocks: tuple[int, int] | None = None,
    deterministic: bool = False,
    count: bool = False,
) -> Any:
    """Return dq, dk, dv, with shapes and dtypes of q, k, v. `do` is the gradient of o.

    o and lse are what `forward` returned for the same arguments: o and do are (B, H_q, N_q, d), lse
    is (B, H_q, N_q), float32. With `deterministic`, results have the same bits in every run, if the
    kernel can do this. With `count`, returns (dq, dk, dv, moved). Other arguments and errors are as
    in `forward`.
    """
    if kernel is not None and rungs.kernel(kernel).backward is None:
        raise ValueError(f"kernel {kernel!r} has no backward pass")
    plain = kernel, causal, scale, dropout_p, seed, deterministic, False
    return tuple(
        _called("backward", GIVEN, (q, k, v, o, lse, do), plain, (mask, block_mask, blocks, count))
    )


def _called(
    direction: str,
    names: Sequence[str],
    operands: tuple[Any, ...],
    plain: tuple[Any, ...],
    others: tuple[Any, ...],
) -> list[Any]:
    """Return a call's results as a list. Arguments are as `settled`'s."""
    with Taken(names, operands, others[0]) as x:
        run, results_wanted, copied, counters = settled(direction, x, plain, others)
        for n in copied:
            x.make_contiguous(n)
        if isinstance(run, Prepared):
            results = x.fill(run, results_wanted)
        else:
            results = x.library.new(results_wanted, x.given)
            arrays = x.as_cupy(results)
            with temporaries():
                run(*arrays)
        if counters is not None:
            results.append(counters.moved())
    return results
