"""What a kernel under test promises: only what it declares is asked of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flashsim.attention.arguments import LARGEST, check_flag, check_number, is_one_of, shown
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
                    f"Spec: {name} is {shown(value)}; expected one of {', '.join(map(repr, known))}"
                )
        flags = [field.name for field in fields(self) if field.type == "bool"]
        checked: dict[str, Any] = {
            name: check_flag(f"Spec: {name}", getattr(self, name)) for name in flags
        }
        if not is_one_of(self.zero_keys, ("forward",)):
            checked["zero_keys"] = check_flag("Spec: zero_keys", self.zero_keys)
        checked["dtypes"], checked["unchecked"] = _dtypes(self.dtypes), _names(self.unchecked)
        for name in ("block", "multiples"):
            checked[name] = _whole(name, getattr(self, name), LARGEST_BLOCK, count=2)
        if self.head_dims is not None:
            checked["head_dims"] = _whole("head_dims", self.head_dims, WIDEST_HEAD)
        if self.max_shapes is not None:
            (checked["max_shapes"],) = _whole("max_shapes", self.max_shapes, LARGEST, count=1)
        checked["C"] = check_number(
            "Spec: C", self.C, "a positive number", lambda C: 0 < C < math.inf
        )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def lengths(self, N_q: int, N_k: int) -> tuple[int, int]:
        """Return the least lengths, from these up, that are allowed."""
        n, m = self.multiples
        if not self.cross:
            n = m = math.lcm(n, m)
        return -(-N_q // n) * n, -(-N_k // m) * m

    def chip(self, dtype: str) -> np.dtype[Any]:
        """Return the type that sums are kept in, for inputs of that dtype."""
        return (
            chip_dtype(dtype_of(dtype)) if self.accumulate is None else float_dtype(self.accumulate)
        )

    def __repr__(self) -> str:
        return call_of(self)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of that name, one of `DTYPES`. Raises ValueError where it needs a package
    that is not installed.
    """
    return stored_type(name) if name in FP8 else float_dtype(name)


def call_of(made: Any) -> str:
    """Return the call that makes a dataclass's instance again, without what is its default."""
    given = {
        f.name: getattr(made, f.name) for f in fields(made) if getattr(made, f.name) != f.default
    }
    return (
        f"{type(made).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
    )


def check_spec(spec: Any) -> Spec:
    """Return it, or ValueError where it is something else."""
    if not isinstance(spec, Spec):
        raise ValueError(f"spec is {shown(spec)}; expected a flashsim.testing.Spec")
    return spec


def _several(given: Any) -> tuple[Any, ...]:
    """Return what is given as a tuple: a word, a type, or an array of no axes is one thing."""
    one = (
        isinstance(given, str | type)
        or not isinstance(given, Iterable)
        or not getattr(given, "ndim", True)
    )
    return (given,) if one else tuple(given)


def _dtypes(given: Any) -> tuple[str, ...]:
    names = _several(given)
    if not names:
        raise ValueError(f"Spec: dtypes is empty; expected some of {', '.join(map(repr, DTYPES))}")
    for name in names:
        if not is_one_of(name, DTYPES):
            raise ValueError(
                f"Spec: dtypes has {shown(name)}; expected some of {', '.join(map(repr, DTYPES))}"
            )
        dtype_of(name)  # some need a package
    return names


def _names(given: Any) -> tuple[str, ...]:
    names = _several(given)
    if isinstance(given, str) or not all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        raise ValueError(f"Spec: unchecked is {shown(given)}; expected names of parameters")
    return names


def _whole(name: str, given: Any, most: int, count: int | None = None) -> tuple[int, ...]:
    what = {None: "positive whole numbers", 1: "a positive whole number"}.get(
        count, f"{count} positive whole numbers"
    )
    what += f" of at most {most:,}"
    values = _several(given)
    good = all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and 0 < n <= most
        for n in values
    )
    if not good or not values or (count is not None and len(values) != count):
        raise ValueError(f"Spec: {name} is {shown(given)}; expected {what}")
    return tuple(int(n) for n in values)
