"""From a call's arguments to what runs on the GPU: checks them, chooses a kernel, prepares all but
addresses, and keeps that for the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import or_
from typing import Any, NamedTuple

from flashsim.attention.arguments import check_blocks, check_flag, check_p, check_scale, check_seed
from flashsim.attention.masks.rules import Causal, Mask, SlidingWindow
from flashsim.gpu import rungs
from flashsim.gpu.arrays import New, Taken, host
from flashsim.gpu.compiling import capability, import_cupy
from flashsim.gpu.counters import Counters
from flashsim.gpu.kernel import Kernel, Options
from flashsim.gpu.masking import Rule, as_array, rule_of
from flashsim.gpu.tensor_maps import contiguous

# rows and columns are counted in 32 bits, and tiles may reach beyond the end
LONGEST = 2**31 - 2**12


@dataclass(frozen=True)
class Plan:
    """What `forward` will run: a kernel's name, and why not a faster one. If this kernel will raise
    an error, the last reason says why.
    """

    kernel: str
    why: str


@dataclass(frozen=True)
class Described:
    """What a launch needs to know of an array, except its address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether elements follow each other without gaps; axes of length 1 may have any stride."""
        packed = contiguous(self.shape, self.itemsize)
        return all(
            n == 1 or a == b for n, a, b in zip(self.shape, self.strides, packed, strict=True)
        )

    @property
    def keys_contiguous(self) -> bool:
        """Whether the last axis but one has stride 1, and the last axis another stride."""
        return self.ndim == 4 and self.strides[-1] != self.itemsize == self.strides[-2]

    def copied(self) -> Described:
        """Return the description of a contiguous copy."""
        return replace(self, strides=contiguous(self.shape, self.itemsize))


def _described(library: Any, names: Sequence[str], layout: tuple[Any, ...]) -> dict[str, Described]:
    each = zip(names, layout[::3], layout[1::3], layout[2::3], strict=True)
    return {name: Described(*library.described(*rest)) for name, *rest in each}


def _aligned(names: Sequence[str], addresses: Sequence[int]) -> bool:
    """Say whether arrays start at multiples of 16 bytes."""
    return not reduce(or_, addresses) % 16 or not any(
        a % 16 for name, a in zip(names, addresses, strict=True) if name != "lse"
    )


def planned(
    direction: str, x: Taken, causal: bool, dropout_p: float, others: tuple[Any, ...]
) -> Plan:
    """Return which kernel will run. `others` are as in `settled`."""
    mask, block_mask, blocks, count = others
    arrays = _described(x.library, x.names, x.found)
    rule = rule_of(arrays["q"], arrays["k"], causal, mask, x.mask, host(block_mask))
    features = _features(rule, check_p(dropout_p), blocks, count)
    return _fastest(direction, arrays, _aligned(x.names, x.at), features, capability(x.device))


class Settled(NamedTuple):
    """What will run, and with what.

    run       what is prepared for addresses, or a function of the given arrays and those to be
              filled
    results   the arrays to be filled
    copied    which arrays it needs as contiguous copies, by place
    counters  where it counts, or None
    """

    run: Callable[..., None]
    results: tuple[New, ...]
    copied: tuple[int, ...]
    counters: Counters | None


_SIMPLE = frozenset((type(None), bool, int, float, str))


def settled(direction: str, x: Taken, plain: tuple[Any, ...], others: tuple[Any, ...]) -> Settled:
    """Return what will run, or raise ValueError.

    plain   kernel, causal, scale, dropout_p, seed, deterministic, whether lse is wanted
    others  mask, block_mask, blocks, count

    This takes longer than a launch. So the result is kept if it depends only on shapes, strides and
    dtypes, that is, if none of `others` but a window is used.
    """
    key = direction, x.names, x.library, x.found, _aligned(x.names, x.at), x.device
    mask, block_mask, blocks, count = others
    known = mask is None or (type(mask) in (SlidingWindow, Causal) and mask.offset is None)
    if (
        known
        and block_mask is blocks is None
        and count is False
        and _SIMPLE.issuperset(map(type, plain))
    ):
        return _settled_before(key, mask, *plain)
    x.enter()
    return _settle(key, plain, others, x.mask)


@lru_cache(maxsize=1024, typed=True)
def _settled_before(key: tuple[Any, ...], mask: Mask | None, *plain: Any) -> Settled:
    return _settle(key, plain, (mask, None, None, False), None)


def _settle(
    key: tuple[Any, ...], plain: tuple[Any, ...], others: tuple[Any, ...], masked: Any
) -> Settled:
    direction, names, library, layout, aligned, device = key
    kernel, causal, _, dropout_p, *_, wants_lse = plain
    mask, block_mask, blocks, count = others
    arrays = _described(library, names, layout)
    rule = rule_of(arrays["q"], arrays["k"], causal, mask, masked, host(block_mask))
    features = _features(rule, check_p(dropout_p), blocks, count)
    rung = rungs.kernel(
        kernel or _fastest(direction, arrays, aligned, features, capability(device)).kernel
    )
    _check_shapes(rung, arrays, direction)
    options = _options(rung, arrays, rule, plain, others, direction)
    q, k, v = (arrays[name] for name in "qkv")
    shapes = layout[::3]
    dtypes = layout[2::3]
    if direction == "forward":
        results: list[New] = [
            (None, shapes[0], library.dtype(rung.output))
            if rung.output
            else (0, shapes[0], dtypes[0])
        ]
        results += [(None, shapes[0][:3], library.dtype("float32"))] * wants_lse
        copied: tuple[int, ...] = ()
        if v.keys_contiguous and k.shape[2] % rung.keys_contiguous:
            copied = (names.index("v"),)
            v = v.copied()

        def forward(q: Any, k: Any, v: Any, o: Any, lse: Any = None) -> None:
            rung.forward(q, k, v, o, lse, _masked(rung, options, q, k))

        run = (rung.prepare and rung.prepare(device, q, k, v, wants_lse, options)) or forward
        return Settled(run, tuple(results), copied, options.counters)
    gradients = rung.backward
    assert gradients is not None
    copied = tuple(
        n for n, name in enumerate(names) if name in ("o", "lse") and not arrays[name].contiguous
    )
    run = rung.prepare_backward and rung.prepare_backward(device, q, k, v, arrays["do"], options)
    results = list(zip(range(3), shapes[:3], dtypes[:3], strict=True))

    def backward(q: Any, k: Any, *others: Any) -> None:
        gradients(q, k, *others, _masked(rung, options, q, k))

    return Settled(run or backward, tuple(results), copied, options.counters)


def _masked(rung: Kernel, options: Options, q: Any, k: Any) -> Options:
    """Return options with an array instead of a window, for a rung without windows. It is large,
    so it is not kept.
    """
    if options.window is None or "window" in rung.takes:
        return options
    N_q = q.shape[2]
    N_k = k.shape[2]
    mask = import_cupy().broadcast_to(as_array(options.window, N_q, N_k), (*q.shape[:3], N_k))
    return replace(options, mask=mask, window=None)


def _features(rule: Rule, dropout_p: float, blocks: Any, count: bool) -> tuple[str, ...]:
    """Return which options of `Kernel.takes` are asked for."""
    features = {
        "causal": rule.causal or None,
        "mask": rule.mask,
        "window": rule.window,
        "block_mask": rule.block_mask,
    }
    features |= {"dropout_p": dropout_p or None, "blocks": blocks, "count": count or None}
    return tuple(what for what, value in features.items() if value is not None)


def _lacks(rung: Kernel, features: Sequence[str], direction: str, d: int) -> list[str]:
    """Return which of them a kernel does not take in a direction. A rung with masks takes a
    window as a mask.
    """
    without = (*rung.forward_only, *rung.not_backward.get(d, ())) if direction == "backward" else ()
    takes = {*rung.takes} - {*without} | ({"window"} if "mask" in rung.takes else set())
    pairs = rung.not_together + (rung.not_together_backward if direction == "backward" else ())
    return [what for what in features if what not in takes] + [
        f"{b} with {a}" for a, b in pairs if a in features and b in features
    ]


def _fastest(
    direction: str, arrays: dict[str, Any], aligned: bool, features: tuple[str, ...], on: str
) -> Plan:
    q = arrays["q"]
    operands = [x for name, x in arrays.items() if name != "lse"]
    aligned &= not any(
        stride % 16
        for x in operands
        for n, stride in zip(x.shape[:-1], x.strides, strict=False)
        if n > 1
    )
    return _plan(direction, q.dtype, q.shape, arrays["k"].shape, aligned, features, on)


@lru_cache(maxsize=1024)
def _plan(
    direction: str,
    dtype: Any,
    q: tuple[int, ...],
    k: tuple[int, ...],
    aligned: bool,
    features: tuple[str, ...],
    capability: str,
) -> Plan:
    """Return the fastest rung that takes q and k of these shapes with what is asked, or the
    last.
    """
    skipped: list[str] = []
    d = q[-1] if q else 0
    shapes_known = len(q) == len(k) == 4
    for rung in rungs.fastest(direction, dtype.name):
        reason = ""
        if dtype.name not in rung.dtypes:
            reason = f"does not take {dtype.name}"
        elif d not in rung.head_dims:
            reason = f"does not take d = {d}"
        if not reason and rung.why_not:
            reason = rung.why_not(capability, d)
        if not reason and rung.unsuited and shapes_known:
            reason = rung.unsuited(q, k)
        if not reason and rung.aligned and not aligned:
            reason = "needs rows that start at multiples of 16 bytes"
        lacks = _lacks(rung, features, direction, d)
        if not reason and lacks:
            reason = f"does not take {' and '.join(lacks)}"
        if not reason:
            break
        skipped.append(f"{rung.name}: {reason}")
    return Plan(rung.name, "; ".join(skipped) or "the fastest of all")


def _check_shapes(rung: Kernel, arrays: dict[str, Described], direction: str) -> None:
    """Raise ValueError for shapes, dtypes or strides that the kernel does not take."""
    q = arrays["q"]
    k = arrays["k"]
    for name, array in arrays.items():
        axes = 3 if name == "lse" else 4
        if array.ndim != axes:
            expected = "(B, H, N)" if axes == 3 else "(B, H, N, d)"
            raise ValueError(f"{name} has shape {array.shape}; expected {axes} axes, {expected}")
        if 0 in array.shape:
            raise ValueError(f"{name} has shape {array.shape}; every axis must be at least 1")
        dtypes = ("float32",) if name == "lse" else rung.dtypes
        if array.dtype.name not in dtypes:
            raise ValueError(
                f"{name} has dtype {array.dtype.name}; {rung.name} takes {', '.join(dtypes)}"
            )
        if name != "lse" and array.dtype != q.dtype:
            raise ValueError(
                f"{name} has dtype {array.dtype.name}; expected {q.dtype.name}, as q has"
            )
    for name, array in arrays.items():
        shapes = {
            "q": q.shape,
            "k": (q.shape[0], *k.shape[1:3], q.shape[3]),
            "v": k.shape,
            "lse": q.shape[:3],
        }.get(name, q.shape)
        if array.shape != shapes:
            raise ValueError(
                f"{name} has shape {array.shape}; expected {shapes}, to go with q {q.shape} and k "
                f"{k.shape}"
            )
    d = q.shape[3]
    heads = q.shape[1]
    kv_heads = k.shape[1]
    if d not in rung.head_dims:
        raise ValueError(
            f"q has shape {q.shape}, d = {d}; {rung.name} takes d of "
            f"{', '.join(map(str, rung.head_dims))}"
        )
    if heads % kv_heads:
        raise ValueError(f"q has {heads} heads; expected a multiple of the {kv_heads} heads of k")
    if max(q.shape[2], k.shape[2]) > LONGEST or q.shape[0] * heads > LONGEST:
        raise ValueError(
            f"q has shape {q.shape}, k {k.shape}; expected N and B·H of {LONGEST:,} at most"
        )
    for name, array in arrays.items():
        is_taken = name == "v" and rung.keys_contiguous and array.keys_contiguous
        if name != "lse" and array.strides[-1] != array.itemsize and not is_taken:
            raise ValueError(
                f"{name} has strides {array.strides} bytes; expected {array.itemsize} for the last "
                "axis: contiguous rows"
            )
        if any(stride % array.itemsize for stride in array.strides):
            raise ValueError(
                f"{name} has strides {array.strides} bytes; expected multiples of its "
                f"{array.itemsize}-byte items"
            )


def _options(
    rung: Kernel,
    arrays: dict[str, Any],
    rule: Rule,
    plain: tuple[Any, ...],
    others: tuple[Any, ...],
    direction: str,
) -> Options:
    """Return the options of a call, or raise ValueError."""
    _, _, scale, dropout_p, seed, deterministic, _ = plain
    _, _, blocks, count = others
    q = arrays["q"]
    k = arrays["k"]
    for name, value in (("count", count), ("deterministic", deterministic)):
        check_flag(name, value)
    dropout_p = check_p(dropout_p)
    seed = check_seed(seed)
    for name in _lacks(rung, _features(rule, dropout_p, blocks, count), direction, q.shape[3]):
        what = "mask (a window)" if name == "window" else name
        raise ValueError(f"{what} is given; kernel {rung.name!r} does not take it")
    blocks = check_blocks(blocks)
    mask = rule.mask
    if mask is not None:
        onto = (*q.shape[:3], k.shape[2])
        if mask.dtype.name != "bool":
            raise ValueError(f"mask has dtype {mask.dtype.name}; expected bool, True = attend")
        try:
            mask = import_cupy().broadcast_to(mask, onto)
        except ValueError:
            raise ValueError(
                f"mask has shape {mask.shape}; expected one that broadcasts to (B, H_q, N_q, N_k) "
                f"= {onto}"
            ) from None
    drops = (dropout_p, seed)
    counters = Counters() if count else None
    tau = check_scale(scale, q.shape[3])
    block_mask = rule.block_mask
    return Options(
        tau, rule.causal, *drops, mask, rule.window, block_mask, blocks, deterministic, counters
    )
