"""`forward` and `backward` on a GPU: arrays checked and taken by DLPack, results allocated, and a kernel of the ladder run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

from flashsim.checking import check_blocks, check_flag, check_p, check_scale, check_seed
from flashsim.gpu import rungs
from flashsim.gpu.compiling import capability, current_device, import_cupy
from flashsim.gpu.counters import Counters
from flashsim.gpu.dlpack import host, taken
from flashsim.gpu.kernel import Kernel, Options
from flashsim.gpu.masking import Rule, as_array, rule_of

TAKES = {
    "causal": "causal",
    "mask": "masks",
    "window": "windows",
    "block_mask": "block_masks",
    "dropout_p": "dropout",
    "blocks": "blocks",
    "count": "counts",
}
LONGEST = 2**31 - 2**12  # rows and columns are counted in 32 bits, of tiles that may reach beyond the end


@dataclass(frozen=True)
class Plan:
    """What `forward` is to run: a rung's name, and why none that is faster."""

    kernel: str
    why: str


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
    """Return which rung `forward`, or `backward`, takes for these arguments where `kernel` is None. Errors as in `forward`."""
    with taken({"q": q, "k": k, "v": v}, mask) as (arrays, masked, _):
        rule = rule_of(arrays["q"], arrays["k"], causal, mask, masked, host(block_mask))
        asked = _asked(rule, check_p(dropout_p), blocks, count)
        return _fastest(direction, arrays, _aligned(arrays), asked, capability(current_device()))


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
    """Return dropout(softmax(MASK(scale · q kᵀ))) v, (B, H_q, N_q, d), of the inputs' dtype.

    q is (B, H_q, N_q, d), k and v (B, H_kv, N_k, d): CuPy arrays, or anything on a GPU with DLPack, such as PyTorch tensors,
    which are not copied. Results are of the kind that q is, but float16 where that is float8_e4m3fn. H_q is a multiple of
    H_kv: query heads g·n … g·n + g − 1 share KV head n. The last axis has stride 1, the others any. Inputs are not modified.
    bfloat16 and float8_e4m3fn in CuPy are ml_dtypes' types; `to_fp8` rounds to the latter.

    kernel     "algorithm_1", "algorithm_2", "q_outer" (float32, float16, bfloat16; all compute in float32), "tensor_core",
               "hopper", "hopper_decode", "hopper_fp8" (float8_e4m3fn alone), or "standard": unfused, S and P in HBM.
               None: the fastest that takes the arguments on this GPU; `plan` says which
    causal     key j is attended to if j ≤ i + N_k − N_q
    scale      None: 1/√d
    mask       booleans on the same GPU that broadcast to (B, H_q, N_q, N_k), True = attend; or `flashsim.SlidingWindow`,
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
    with taken({"q": q, "k": k, "v": v}, mask) as (arrays, masked, hand_back):
        plain = kernel, causal, scale, dropout_p, seed, False, bool(return_lse)
        rung, counters, run = _settled("forward", arrays, plain, (mask, masked, block_mask, blocks, count))
        ndarray, first = import_cupy().ndarray, arrays["q"]
        o = ndarray(first.shape, rung.output or first.dtype)
        lse = ndarray(first.shape[:3], "float32") if return_lse else None
        run(*arrays.values(), o, lse)
        results = [hand_back(o)] + ([hand_back(lse)] if return_lse else [])
        if counters is not None:
            results.append(counters.moved())
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
    dropout_p: float = 0.0,
    seed: int = 0,
    blocks: tuple[int, int] | None = None,
    deterministic: bool = False,
    count: bool = False,
) -> Any:
    """Return dq, dk, dv, shaped and typed as q, k, v, for o and lse of `forward` with the same arguments, and o's gradient do.

    Arrays as in `forward`; o and do (B, H_q, N_q, d), lse (B, H_q, N_q), float32. `deterministic` asks for the same bits in
    every run, of kernels that have the choice. With `count`, returns (dq, dk, dv, moved). Errors as in `forward`.
    """
    if kernel is not None and rungs.kernel(kernel).backward is None:
        raise ValueError(f"kernel {kernel!r} has no backward pass")
    with taken({"q": q, "k": k, "v": v, "o": o, "lse": lse, "do": do}, mask) as (arrays, masked, hand_back):
        plain = kernel, causal, scale, dropout_p, seed, deterministic, False
        _, counters, run = _settled("backward", arrays, plain, (mask, masked, None, blocks, count))
        cupy = import_cupy()
        for name in ("o", "lse"):
            if not arrays[name].flags.c_contiguous:
                arrays[name] = cupy.ascontiguousarray(arrays[name])
        gradients = [cupy.ndarray(arrays[name].shape, arrays[name].dtype) for name in ("q", "k", "v")]
        run(*arrays.values(), *gradients)
        results: list[Any] = [hand_back(gradient) for gradient in gradients]
        if counters is not None:
            results.append(counters.moved())
    return tuple(results)


# -------------------------------------------------------------------------------------------------------------- settling


@dataclass(frozen=True)
class _Described:
    """What is to be known of an array before a kernel is launched, but for where it is."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)


def _aligned(arrays: dict[str, Any]) -> bool:
    """Say whether arrays start at multiples of 16 bytes."""
    together = 0
    for name, x in arrays.items():
        together |= 0 if name == "lse" else x.data.ptr
    return not together % 16


class _Settled(NamedTuple):
    """Which rung is to run; where it counts, if it does; and what runs it, given arrays and those that it is to fill."""

    rung: Kernel
    counters: Counters | None
    run: Callable[..., None]


_SIMPLE = frozenset((type(None), bool, int, float, str))


def _settled(direction: str, arrays: dict[str, Any], plain: tuple[Any, ...], others: tuple[Any, ...]) -> _Settled:
    """Return what is to run, or raise ValueError.

    plain   kernel, causal, scale, dropout_p, seed, deterministic, whether lse is wanted
    others  mask, the array that it is, block_mask, blocks, count

    Where no others are asked for, this depends on shapes, strides and dtypes alone, and is kept: it takes longer than a launch.
    """
    found = tuple([(name, x.shape, x.strides, x.dtype) for name, x in arrays.items()])
    aligned, device = _aligned(arrays), current_device()
    mask, _, block_mask, blocks, count = others
    if (
        mask is None
        and block_mask is None
        and blocks is None
        and count is False
        and _SIMPLE.issuperset(map(type, plain))
    ):
        return _settled_before(direction, found, aligned, device, *plain)
    return _settle(direction, found, aligned, device, plain, others)


@lru_cache(maxsize=1024, typed=True)
def _settled_before(direction: str, found: Any, aligned: bool, device: int, *plain: Any) -> _Settled:
    return _settle(direction, found, aligned, device, plain, (None, None, None, None, False))


def _settle(
    direction: str, found: Any, aligned: bool, device: int, plain: tuple[Any, ...], others: tuple[Any, ...]
) -> _Settled:
    kernel, causal, scale, dropout_p, seed, deterministic, wants_lse = plain
    mask, masked, block_mask, blocks, count = others
    arrays = {name: _Described(*rest) for name, *rest in found}
    dropout_p = check_p(dropout_p)
    rule = rule_of(arrays["q"], arrays["k"], causal, mask, masked, host(block_mask))
    asked = _asked(rule, dropout_p, blocks, count)
    rung = rungs.kernel(kernel or _fastest(direction, arrays, aligned, asked, capability(device)).kernel)
    _check_shapes(rung, arrays, direction)
    options = _options(rung, arrays, rule, scale, dropout_p, seed, blocks, count, deterministic, direction)
    q, k, v = (arrays[name] for name in "qkv")
    if direction == "forward":
        run = rung.prepare and rung.prepare(device, q, k, v, wants_lse, options)
        return _Settled(rung, options.counters, run or partial(rung.forward, options=options))
    assert rung.backward is not None
    run = rung.prepare_backward and rung.prepare_backward(device, q, k, v, arrays["do"], options)
    return _Settled(rung, options.counters, run or partial(rung.backward, options=options))


def _asked(rule: Rule, dropout_p: float, blocks: Any, count: bool) -> tuple[bool, ...]:
    """Return which of a Kernel's `TAKES` are asked for."""
    masks = rule.mask is not None, rule.window is not None, rule.block_mask is not None
    return rule.causal, *masks, dropout_p > 0, blocks is not None, count


def _takes(rung: Kernel, what: str, direction: str) -> bool:
    """Say whether a kernel takes one of `TAKES` in a direction. A window it may get as a mask."""
    takes = getattr(rung, TAKES[what]) and not (direction == "backward" and what in rung.forward_only)
    return bool(takes) or (what == "window" and rung.masks)


def _fastest(direction: str, arrays: dict[str, Any], aligned: bool, asked: tuple[bool, ...], on: str) -> Plan:
    q = arrays["q"]
    aligned &= not any(stride % 16 for name, x in arrays.items() if name != "lse" for stride in x.strides[:-1])
    return _plan(direction, q.dtype, q.shape, arrays["k"].shape, aligned, asked, on)


@lru_cache(maxsize=1024)
def _plan(
    direction: str,
    dtype: Any,
    q: tuple[int, ...],
    k: tuple[int, ...],
    aligned: bool,
    asked: tuple[bool, ...],
    capability: str,
) -> Plan:
    """Return the fastest rung that takes what is asked, for q and k of these shapes, or the last."""
    skipped: list[str] = []
    d, shapes_known = q[-1] if q else 0, len(q) == len(k) == 4
    known = rungs.fastest(direction, dtype.name)
    for rung in known:
        wants = [what for what, wanted in zip(TAKES, asked, strict=True) if wanted]
        lacks = [what for what in wants if not _takes(rung, what, direction)]
        reason = (
            f"does not take {dtype.name}" * (dtype.name not in rung.dtypes)
            or f"does not take d = {d}" * (d not in rung.widths(direction))
            or (rung.why_not(capability, d) if rung.why_not else "")
            or (rung.unsuited(q, k) if rung.unsuited and shapes_known else "")
            or "needs rows that start at multiples of 16 bytes" * (rung.aligned and not aligned)
            or f"does not take {' and '.join(lacks)}" * bool(lacks)
            or (rung.unmade(d, wants) if rung.unmade else "")
        )
        if not reason or rung is known[-1]:
            break
        skipped.append(f"{rung.name}: {reason}")
    return Plan(rung.name, "; ".join(skipped) or "the fastest that there is")


def _check_shapes(rung: Kernel, arrays: dict[str, _Described], direction: str) -> None:
    """Raise ValueError for shapes, dtypes or strides that the kernel does not take."""
    q, k = arrays["q"], arrays["k"]
    for name, array in arrays.items():
        axes = 3 if name == "lse" else 4
        if array.ndim != axes:
            expected = "(B, H, N)" if axes == 3 else "(B, H, N, d)"
            raise ValueError(f"{name} has shape {array.shape}; expected {axes} axes, {expected}")
        if 0 in array.shape:
            raise ValueError(f"{name} has shape {array.shape}; every axis must be at least 1")
        dtypes = ("float32",) if name == "lse" else rung.dtypes
        if array.dtype.name not in dtypes:
            raise ValueError(f"{name} has dtype {array.dtype.name}; {rung.name} takes {', '.join(dtypes)}")
        if name != "lse" and array.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {array.dtype.name}; expected {q.dtype.name}, as q has")
    for name, array in arrays.items():
        wanted = {"q": q.shape, "k": (q.shape[0], *k.shape[1:3], q.shape[3]), "v": k.shape, "lse": q.shape[:3]}.get(
            name, q.shape
        )
        if array.shape != wanted:
            raise ValueError(
                f"{name} has shape {array.shape}; expected {wanted}, to go with q {q.shape} and k {k.shape}"
            )
    d, heads, kv_heads = q.shape[3], q.shape[1], k.shape[1]
    widths = rung.widths(direction)
    if d not in widths:
        raise ValueError(
            f"q has shape {q.shape}, d = {d}; {rung.name} takes d of {', '.join(map(str, widths))} {direction}"
        )
    if heads % kv_heads or (heads != kv_heads and not rung.gqa):
        expected = "a multiple of" if rung.gqa else "as many as"
        raise ValueError(f"q has {heads} heads; expected {expected} the {kv_heads} heads of k")
    if max(q.shape[2], k.shape[2]) > LONGEST or q.shape[0] * heads > LONGEST:
        raise ValueError(f"q has shape {q.shape}, k {k.shape}; expected N and B·H of {LONGEST:,} at most")
    for name, array in arrays.items():
        if name != "lse" and array.strides[-1] != array.itemsize:
            raise ValueError(
                f"{name} has strides {array.strides} bytes; expected {array.itemsize} for the last axis: contiguous rows"
            )
        if any(stride % array.itemsize for stride in array.strides):
            raise ValueError(
                f"{name} has strides {array.strides} bytes; expected multiples of its {array.itemsize}-byte items"
            )


def _options(
    rung: Kernel,
    arrays: dict[str, Any],
    rule: Rule,
    scale: float | None,
    dropout_p: float,
    seed: int,
    blocks: tuple[int, int] | None,
    count: bool,
    deterministic: bool = False,
    direction: str = "forward",
) -> Options:
    q, k = arrays["q"], arrays["k"]
    for name, value in (("count", count), ("deterministic", deterministic)):
        check_flag(name, value)
    dropout_p, seed = check_p(dropout_p), check_seed(seed)
    for name, wanted in zip(TAKES, _asked(rule, dropout_p, blocks, count), strict=True):
        if wanted and not _takes(rung, name, direction):
            raise ValueError(
                f"{'mask, a window,' if name == 'window' else name} is given; kernel {rung.name!r} does not take it"
            )
    blocks, mask, window = check_blocks(blocks), rule.mask, rule.window
    if window is not None and not rung.windows:
        mask, window = as_array(window, q.shape[2], k.shape[2]), None
    if mask is not None:
        onto = (*q.shape[:3], k.shape[2])
        if mask.dtype.name != "bool":
            raise ValueError(f"mask has dtype {mask.dtype.name}; expected bool, True = attend")
        try:
            mask = import_cupy().broadcast_to(mask, onto)
        except ValueError:
            raise ValueError(
                f"mask has shape {mask.shape}; expected one that broadcasts to (B, H_q, N_q, N_k) = {onto}"
            ) from None
    tau = check_scale(scale, q.shape[3])
    return Options(
        tau,
        rule.causal,
        dropout_p,
        seed,
        mask,
        window,
        rule.block_mask,
        blocks,
        deterministic,
        Counters() if count else None,
    )
