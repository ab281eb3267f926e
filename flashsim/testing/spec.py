"""`Spec`: what a kernel takes and promises. The kit tests only what the spec declares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flashsim.attention.arguments import LARGEST, check_flag, check_number, is_one_of, short_repr
from flashsim.attention.inputs import FLOATS, chip_dtype, float_dtype, stored_type

CHOICES: dict[str, tuple[Any, ...]] = {
    "layout": ("BHND", "BNHD"),
    "causal": (None, "bottom_right", "top_left"),
    "window": (None, "bottom_right", "top_left"),
    "empty_rows": ("zero", "nan", "mean", "undefined"),
    "lse": (None, "natural", "base2"),
    "strides": ("any", "last_contiguous", "contiguous"),
    "stores": ("output", "output_per_block", "scores"),
    "accumulate": (None, *FLOATS),
    "scales": (None, "head", "block"),
}
FP8 = ("float8_e4m3fn", "float8_e5m2")
DTYPES = (*FLOATS, *FP8)

LARGEST_BLOCK = 4096
WIDEST_HEAD = 2**16


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a kernel takes and promises.

    dtypes      of q, k, v, one for all three: of "float16", "bfloat16", "float32", "float64", and
                of ml_dtypes "float8_e4m3fn" and "float8_e5m2", in which nothing is asked of
                gradients
    scales      of 8-bit inputs, None: not taken. Else it takes q_descale=, k_descale=, v_descale=,
                float32, which q, k, v are to be multiplied by: "head", arrays (B, H); "block", (B,
                H, ⌈N / block⌉), for B_r rows of q each, and B_c of k and v
    layout      "BHND": q is (B, H_q, N_q, d); "BNHD": (B, N_q, H_q, d). O, and gradients, likewise;
                masks are always (B, H_q, N_q, N_k), and log-sum-exps (B, H_q, N_q)
    block       (B_r, B_c), the kernel's tile: lengths are drawn around its multiples. A guess will
                do. At most 4,096 each
    multiples   (n, m): N_q is always a multiple of n, and N_k of m, for kernels that take whole
                tiles only
    causal      None: not taken. "bottom_right": query i attends to keys j ≤ i + N_k − N_q;
                "top_left": to keys j ≤ i
    window      None: not taken. Else it takes window=(left, right): query i attends to keys from p
                − left to p + right, p being i + N_k − N_q at the "bottom_right" and i at the
                "top_left"; −1 means no limit on that side
    bias        whether it takes bias=, of the inputs' dtype, which broadcasts to (B, H_q, N_q, N_k)
                and is added to the scaled scores. Its own gradient is not asked for
    softcap     whether it takes softcap=: the scaled scores S become softcap · tanh(S / softcap),
                before all else
    alibi       whether it takes alibi_slopes=, float32 (H_q,): −slope · |i + N_k − N_q − j| is
                added to the scores
    sink        whether it takes sink=, float32 (H_q,), a logit for each head: a key more, whose
                value is 0. It is part of the log-sum-exp, and no row is empty that has it. The
                backward function then returns dsink, (H_q,), as well
    empty_rows  what O is where every key is masked: "zero", "nan", "mean" (of all values of the
                head), or "undefined"
    lse         None: the kernel returns O. "natural", "base2": it returns (O, lse), lse = log Σ
                exp(scores), or log₂; of an empty row −∞, unless empty_rows is "undefined"
    gqa         whether H_q may be a multiple of H_kv: query heads g·n … g·n + g − 1 share KV head n
    masks       whether it takes `mask`
    scale       whether it takes `scale`; without, and by default, it is 1/√d
    cross       whether N_q ≠ N_k is allowed
    d_v         whether V may have another width than Q and K
    head_dims   the widths d (and d_v) that it takes. None: any
    strides     which arrays it takes: "any", "last_contiguous" (the last axis has stride 1), or
                "contiguous" ones only
    deterministic  whether the same call gives the same bits again
    batch_invariant  whether a sequence gives the same bits alone and in a batch of others
    zero_keys   whether it takes N_k = 0, where every row is empty. "forward": its forward pass
                does, and not its backward pass
    accumulate  the type that sums are kept in. None: float32, and float64 for float64 inputs
    stores      what is rounded to the inputs' dtype on the way, besides the output and the weights
                as they enter a product: "output", nothing; "output_per_block", O after every
                block[1] keys, as Algorithms 1 and 2 do; "scores", the scores, as unfused attention
                does
    unchecked   names of its parameters that stay at their defaults on purpose, so that the verdict
                is not INCOMPLETE
    max_shapes  at most so many distinct shapes of (q, k, v), for backends that compile each. None:
                no bound
    C           all error budgets are multiplied by it. 1 is strict accumulation; 2 leaves room for
                second-order terms

    Raises ValueError for a value that makes no sense.
    """

    dtypes: tuple[str, ...] = ("float32",)
    layout: str = "BHND"
    block: tuple[int, int] = (16, 16)
    multiples: tuple[int, int] = (1, 1)
    causal: str | None = None
    window: str | None = None
    bias: bool = False
    softcap: bool = False
    alibi: bool = False
    sink: bool = False
    scales: str | None = None
    empty_rows: str = "zero"
    lse: str | None = None
    gqa: bool = False
    masks: bool = False
    scale: bool = False
    cross: bool = True
    d_v: bool = False
    head_dims: tuple[int, ...] | None = None
    strides: str = "any"
    deterministic: bool = True
    batch_invariant: bool = False
    zero_keys: bool | str = False
    accumulate: str | None = None
    stores: str = "output"
    unchecked: tuple[str, ...] = ()
    max_shapes: int | None = None
    C: float = 2.0

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if not (is_one_of(value, known) or (value is None and None in known)):
                raise ValueError(
                    f"Spec: {name} is {short_repr(value)}; expected one of "
                    f"{', '.join(map(repr, known))}"
                )
        flags = [field.name for field in fields(self) if field.type == "bool"]
        checked: dict[str, Any] = {
            name: check_flag(f"Spec: {name}", getattr(self, name)) for name in flags
        }
        if not is_one_of(self.zero_keys, ("forward",)):
            checked["zero_keys"] = check_flag("Spec: zero_keys", self.zero_keys)
        checked["dtypes"] = _check_dtypes(self.dtypes)
        checked["unchecked"] = _check_names(self.unchecked)
        for name in ("block", "multiples"):
            checked[name] = _check_whole(name, getattr(self, name), LARGEST_BLOCK, count=2)
        if self.head_dims is not None:
            checked["head_dims"] = _check_whole("head_dims", self.head_dims, WIDEST_HEAD)
        if self.max_shapes is not None:
            (checked["max_shapes"],) = _check_whole("max_shapes", self.max_shapes, LARGEST, count=1)
        checked["C"] = check_number(
            "Spec: C", self.C, "a positive number", lambda C: 0 < C < math.inf
        )
        for name, value in checked.items():
            # a frozen dataclass can replace what it was given by plain values only in this way
            object.__setattr__(self, name, value)

    def lengths(self, N_q: int, N_k: int) -> tuple[int, int]:
        """Return the smallest allowed lengths that are at least N_q and N_k."""
        n, m = self.multiples
        if not self.cross:
            n = m = math.lcm(n, m)
        return -(-N_q // n) * n, -(-N_k // m) * m

    def chip(self, dtype: str) -> np.dtype[Any]:
        """Return the type in which the kernel sums, for inputs of that dtype."""
        if self.accumulate is None:
            return chip_dtype(dtype_of(dtype))
        return float_dtype(self.accumulate)

    def __repr__(self) -> str:
        return call_of(self)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of that name, one of `DTYPES`. Raises ValueError where it needs a package
    that is not installed.
    """
    return stored_type(name) if name in FP8 else float_dtype(name)


def call_of(instance: Any) -> str:
    """Return Python that makes a dataclass's instance: a call with the fields that differ from
    their defaults.
    """
    arguments = []
    for field in fields(instance):
        value = getattr(instance, field.name)
        if value != field.default:
            arguments.append(f"{field.name}={value!r}")
    return f"{type(instance).__name__}({', '.join(arguments)})"


def check_spec(spec: Any) -> Spec:
    """Return the spec. Raises ValueError if it is not a Spec."""
    if not isinstance(spec, Spec):
        raise ValueError(f"spec is {short_repr(spec)}; expected a flashsim.testing.Spec")
    return spec


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Return a value as a tuple. A string, a type and an array without axes are single values."""
    is_iterable = isinstance(value, Iterable) and getattr(value, "ndim", True)
    if isinstance(value, str | type) or not is_iterable:
        return (value,)
    return tuple(value)


def _check_dtypes(value: Any) -> tuple[str, ...]:
    names = _as_tuple(value)
    choices = ", ".join(map(repr, DTYPES))
    if not names:
        raise ValueError(f"Spec: dtypes is empty; expected some of {choices}")
    for name in names:
        if not is_one_of(name, DTYPES):
            raise ValueError(f"Spec: dtypes has {short_repr(name)}; expected some of {choices}")
        dtype_of(name)  # some need a package
    return names


def _check_names(value: Any) -> tuple[str, ...]:
    names = _as_tuple(value)
    are_names = all(isinstance(name, str) and name.isidentifier() for name in names)
    if isinstance(value, str) or not are_names:
        raise ValueError(f"Spec: unchecked is {short_repr(value)}; expected names of parameters")
    return names


def _check_whole(name: str, value: Any, largest: int, count: int | None = None) -> tuple[int, ...]:
    """Return positive whole numbers as a tuple. Raises ValueError for other values, numbers above
    `largest`, and unless there are `count` numbers.
    """
    expected = "positive whole numbers"
    if count == 1:
        expected = "a positive whole number"
    elif count is not None:
        expected = f"{count} positive whole numbers"
    numbers = _as_tuple(value)
    are_whole = all(_is_whole(n) and 0 < n <= largest for n in numbers)
    if not numbers or not are_whole or (count is not None and len(numbers) != count):
        raise ValueError(
            f"Spec: {name} is {short_repr(value)}; expected {expected} of at most {largest:,}"
        )
    return tuple(int(n) for n in numbers)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
