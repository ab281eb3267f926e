"""`forward` and `backward` on a GPU: arrays looked at, results allocated, and a kernel of the ladder run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashsim.gpu import rungs
from flashsim.gpu.arrays import Taken
from flashsim.gpu.launching import Prepared
from flashsim.gpu.settling import Plan, planned, settled

GIVEN = ("q", "k", "v", "o", "lse", "do")  # to the backward pass


def plan(
    q: Any, k: Any, v: Any, *, direction: str = "forward", causal: bool = False, mask: Any = None, block_mask: Any = None,
    dropout_p: float = 0.0, blocks: tuple[int, int] | None = None, count: bool = False,
) -> Plan:  # fmt: skip
    """Return which rung `forward`, or `backward`, takes for these arguments where `kernel` is None. Errors as in `forward`."""
    with Taken("qkv", (q, k, v), mask) as x:
        return planned(direction, x, causal, dropout_p, (mask, block_mask, blocks, count))


def forward(
    q: Any, k: Any, v: Any, *, kernel: str | None = None, causal: bool = False, scale: float | None = None, mask: Any = None,
    block_mask: Any = None, dropout_p: float = 0.0, seed: int = 0, blocks: tuple[int, int] | None = None,
    return_lse: bool = False, count: bool = False,
) -> Any:  # fmt: skip
    """Return dropout(softmax(MASK(scale · q kᵀ))) v, (B, H_q, N_q, d), of the inputs' dtype.

    q is (B, H_q, N_q, d), k and v (B, H_kv, N_k, d): CuPy arrays, or anything on a GPU with DLPack, such as PyTorch tensors,
    which are not copied. Results are of the kind that q is, but float16 where that is float8_e4m3fn. H_q is a multiple of
    H_kv: query heads g·n … g·n + g − 1 share KV head n. The last axis has stride 1, the others any. Inputs are not modified.
    bfloat16 and float8_e4m3fn in CuPy are ml_dtypes' types; `to_fp8` rounds to the latter. Of these numbers, v's keys may have
    stride 1 instead, as in `vt.swapaxes(-1, -2)` of (B, H_kv, d, N_k): so "hopper_fp8" need not transpose it. Where N_k is no
    multiple of 4, such a v is copied.

    kernel     "algorithm_1", "algorithm_2", "q_outer" (float32, float16, bfloat16; all compute in float32), "tensor_core",
               "hopper", "hopper_decode", "hopper_fp8" (float8_e4m3fn alone), or "standard": unfused, S and P in HBM.
               None: the fastest that takes the arguments on this GPU; `plan` says which
    causal     key j is attended to if j ≤ i + N_k − N_q
    scale      None: 1/√d
    mask       booleans on the same GPU that broadcast to (B, H_q, N_q, N_k), True = attend, "hopper"'s best with rows at
               multiples of 16 bytes, since others are copied; or `flashsim.SlidingWindow`,
               whose dead tiles "hopper" skips, and of which kernels that take masks get an array. With `causal`, both must allow
    block_mask (T_r, T_c) booleans, True = computed, or a function of (T_r, T_c) that returns them, as in `flashsim.patterns`:
               "hopper" computes these tiles alone, of (B_r, B_c) = (128, 128), where d = 256 (128, 64)
    dropout_p, seed  the mask is `flashsim.dropout.keep_mask`, bit for bit
    blocks     (B_r, B_c), for kernels that are compiled for any; None: the kernel's own
    return_lse return also log Σ exp(scaled scores), (B, H_q, N_q), float32: −∞ for a query whose every key is masked,
               whose output is 0
    count      return also what was moved, by array, as {"Q": Moved(reads, writes), …}: a build of the kernel that counts
               each access to HBM. It waits for the kernel, and is slower

    Finite inputs give finite results as long as scaled scores, and sums of values, stay within float32. Masked keys and values
    have no part in the result, be they NaN, in "algorithm_1", "algorithm_2" and "q_outer"; to "tensor_core", "hopper" and
    "standard", whose products are tensor cores' and cuBLAS's, 0 · NaN is NaN.

    Returns O, or a tuple (O, lse), (O, moved), (O, lse, moved). Works on the current stream: CuPy's, or for tensors PyTorch's.

    Raises ValueError before anything is launched, for what the kernel does not take; `MissingGPU` where a GPU or a package
    is missing; `MemoryError` (CuPy's) where results do not fit.
    """
    if kernel is not None:
        rungs.kernel(kernel)
    plain = kernel, causal, scale, dropout_p, seed, False, bool(return_lse)
    results = _called("forward", "qkv", (q, k, v), plain, (mask, block_mask, blocks, count))
    return results[0] if len(results) == 1 else tuple(results)


def backward(
    q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, *, kernel: str | None = None, causal: bool = False,
    scale: float | None = None, mask: Any = None, block_mask: Any = None, dropout_p: float = 0.0, seed: int = 0,
    blocks: tuple[int, int] | None = None, deterministic: bool = False, count: bool = False,
) -> Any:  # fmt: skip
    """Return dq, dk, dv, shaped and typed as q, k, v, for o and lse of `forward` with the same arguments, and o's gradient do.

    Arrays as in `forward`; o and do (B, H_q, N_q, d), lse (B, H_q, N_q), float32. `deterministic` asks for the same bits in
    every run, of kernels that have the choice. With `count`, returns (dq, dk, dv, moved). Errors as in `forward`.
    """
    if kernel is not None and rungs.kernel(kernel).backward is None:
        raise ValueError(f"kernel {kernel!r} has no backward pass")
    plain = kernel, causal, scale, dropout_p, seed, deterministic, False
    return tuple(_called("backward", GIVEN, (q, k, v, o, lse, do), plain, (mask, block_mask, blocks, count)))


def _called(
    direction: str, names: Sequence[str], given: tuple[Any, ...], plain: tuple[Any, ...], others: tuple[Any, ...]
) -> list[Any]:
    """Return what a call returns; its arguments are as `settled`'s."""
    with Taken(names, given, others[0]) as x:
        run, wanted, copied, counters = settled(direction, x, plain, others)
        for n in copied:
            x.make_contiguous(n)
        if isinstance(run, Prepared):
            results = x.fill(run, wanted)
        else:
            results = x.library.new(wanted, x.given)
            run(*x.as_cupy(results))
        if counters is not None:
            results.append(counters.moved())
    return results
