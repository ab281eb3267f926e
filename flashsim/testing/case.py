"""`Case`: a test case, which fits in a line of text. `Case.problem` makes its arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.attention.arguments import (
    check_choice,
    check_count,
    check_flag,
    check_number,
    short_repr,
)
from flashsim.attention.inputs import Array
from flashsim.testing.problem import Problem
from flashsim.testing.regimes import BIASES, MASKS, REGIMES, SINKS, in_8_bits, sinks, slopes, values
from flashsim.testing.spec import DTYPES, FP8, Spec, call_of, dtype_of

MOST_ELEMENTS = 2**28
LENGTHS = ("B", "H_kv", "group", "N_q", "d")
STRIDES = ("contiguous", "heads_last", "rows", "padded", "mixed", "columns")  # the simplest first
CHOICES: dict[str, Collection[str]] = {
    "dtype": DTYPES,
    "regime": REGIMES,
    "strides": STRIDES,
    "mask": MASKS,
    "bias": BIASES,
    "sink": SINKS,
}
FEATURES = (
    "strides",
    "mask",
    "window",
    "bias",
    "sink",
    "alibi",
    "softcap",
    "scale",
    "causal",
    "dropout_p",
)
"""What a case may lack: in this order they are taken from a failing case, to make it simpler."""
# keep(shape, dropout_p, seed) -> booleans (B, H_q, N_q, N_k), True = the weight is kept
Keep = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test case: the few values from which the arrays and the options of a call are made. The
    defaults are the simplest case.

    group    query heads to a KV head: H_q = group · H_kv
    d_v      None: d
    regime   a key of `flashsim.testing.regimes.REGIMES`
    mask     a key of `flashsim.testing.regimes.MASKS`, or None
    window   (left, right), −1 being no limit, or None
    bias     a key of `flashsim.testing.regimes.BIASES`, or None
    softcap  a number, or None
    alibi    whether heads have slopes
    sink     a key of `flashsim.testing.regimes.SINKS`, for the first head, or None
    strides  how the arrays lie in memory: one of `STRIDES`
    block    (B_r, B_c), on which some masks depend
    seed     of all random numbers, and of dropout

    Raises ValueError for a value that makes no sense.
    """

    B: int = 1
    H_kv: int = 1
    group: int = 1
    N_q: int = 1
    N_k: int = 1
    d: int = 1
    d_v: int | None = None
    dtype: str = "float32"
    causal: bool = False
    mask: str | None = None
    window: tuple[int, int] | None = None
    bias: str | None = None
    softcap: float | None = None
    alibi: bool = False
    sink: str | None = None
    scale: float | None = None
    dropout_p: float = 0.0
    strides: str = "contiguous"
    regime: str = "gaussian"
    block: tuple[int, int] = (16, 16)
    seed: int = 0

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            name: check_count(f"Case: {name}", getattr(self, name)) for name in LENGTHS
        }
        checked["N_k"] = check_count("Case: N_k", self.N_k, 0)
        checked["seed"] = check_count("Case: seed", self.seed, 0, 2**64 - 1)
        if self.d_v is not None:
            checked["d_v"] = check_count("Case: d_v", self.d_v)
        for name, known in CHOICES.items():
            default = getattr(Case, name)
            if getattr(self, name) is not None or default is not None:
                check_choice(f"Case: {name}", getattr(self, name), known)
        for name in ("causal", "alibi"):
            checked[name] = check_flag(f"Case: {name}", getattr(self, name))
        if self.softcap is not None:
            expected = "a positive number, or None"
            checked["softcap"] = check_number(
                "Case: softcap", self.softcap, expected, lambda cap: 0 < cap < math.inf
            )
        if self.scale is not None:
            expected = "a finite number, or None for 1/√d"
            checked["scale"] = check_number("Case: scale", self.scale, expected, math.isfinite)
        checked["dropout_p"] = check_number(
            "Case: dropout_p", self.dropout_p, "a number in [0, 1)", lambda p: 0 <= p < 1
        )
        if not isinstance(self.block, tuple) or len(self.block) != 2:
            raise ValueError(f"Case: block is {short_repr(self.block)}; expected a pair (B_r, B_c)")
        checked["block"] = tuple(check_count("Case: block", side) for side in self.block)
        if self.window is not None:
            if not isinstance(self.window, tuple) or len(self.window) != 2:
                raise ValueError(
                    f"Case: window is {short_repr(self.window)}; expected a pair (left, right), "
                    "or None"
                )
            checked["window"] = tuple(check_count("Case: window", side, -1) for side in self.window)
        for name, value in checked.items():
            # a frozen dataclass can replace what it was given by plain numbers only in this way
            object.__setattr__(self, name, value)
        longest = max(self.N_q, self.N_k)
        widest = max(self.N_k, self.d, self.d_v or 0)
        elements = self.B * self.H_kv * self.group * longest * widest
        if elements > MOST_ELEMENTS:
            raise ValueError(
                "Case: B, H_kv, group, N_q, N_k, d, d_v make an array of up to "
                f"{short_repr(elements)} elements; "
                f"expected at most {MOST_ELEMENTS:,}, because a float64 oracle checks each of them"
            )

    def problem(self, spec: Spec) -> Problem:
        """Return the problem of this case, with its arrays. `spec` says how causal masks and
        windows are aligned, and what is expected of the kernel.
        """
        q, k, v = self._floats()
        dtype = dtype_of(self.dtype)
        B, H_q, N_q, _ = q.shape
        score_shape = (B, H_q, N_q, self.N_k)
        mask = None
        if self.mask is not None:
            mask = MASKS[self.mask](self._rng(1), score_shape, self.block)
        bias = None
        if self.bias is not None:
            bias_dtype = np.dtype(np.float32) if self.dtype in FP8 else dtype
            bias = BIASES[self.bias](self._rng(4), score_shape).astype(bias_dtype)
        large = max(float(np.abs(a).max(initial=0)) for a in (q, k, v)) > 100
        # or float16's gradients would overflow
        dO_size = 2.0**-10 if self.dtype == "float16" and large else 1.0
        scales = None
        if self.dtype in FP8:
            rng = self._rng(5)
            B_r, B_c = spec.block
            q, q_scale = in_8_bits(rng, q, dtype, spec.scales, B_r)
            k, k_scale = in_8_bits(rng, k, dtype, spec.scales, B_c)
            v, v_scale = in_8_bits(rng, v, dtype, spec.scales, B_c)
            if q_scale is not None and k_scale is not None and v_scale is not None:
                scales = (q_scale, k_scale, v_scale)
        return Problem(
            q.astype(dtype),
            k.astype(dtype),
            v.astype(dtype),
            spec,
            causal=self.causal,
            scale=self.scale,
            mask=mask,
            dropout_p=self.dropout_p,
            seed=self.seed,
            dO_size=dO_size,
            window=self.window,
            bias=bias,
            softcap=self.softcap,
            slopes=slopes(self._rng(6), H_q) if self.alibi else None,
            sink=None if self.sink is None else sinks(self._rng(7), H_q, self.sink),
            scales=scales,
        )

    def _floats(self) -> tuple[Array, Array, Array]:
        """Return q, k, v in float64."""
        rng = np.random.default_rng(self.seed)
        d_v = self.d if self.d_v is None else self.d_v
        q = rng.normal(size=(self.B, self.group * self.H_kv, self.N_q, self.d))
        k = rng.normal(size=(self.B, self.H_kv, self.N_k, self.d))
        if self.N_k:
            q, k = REGIMES[self.regime](rng, q, k)
        v = values(rng, (self.B, self.H_kv, self.N_k, d_v), self.regime)
        return q, k, v

    def _rng(self, stream: int) -> np.random.Generator:
        """Return random numbers that depend on the case's seed and on `stream` alone."""
        return np.random.default_rng((self.seed, stream))

    @property
    def scores(self) -> int:
        """How many scores the problem has."""
        return self.B * self.H_kv * self.group * self.N_q * self.N_k

    def arrays(self, spec: Spec | None = None) -> tuple[Array, Array, Array, dict[str, Any]]:
        """Return q, k, v (contiguous, in `spec`'s layout) and the keyword arguments of the call."""
        problem = self.problem(Spec() if spec is None else spec)
        arrays = [problem.q, problem.k, problem.v]
        if problem.spec.layout == "BNHD":
            arrays = [np.ascontiguousarray(a.swapaxes(1, 2)) for a in arrays]
        q, k, v = arrays
        return q, k, v, problem.options

    def __repr__(self) -> str:
        return call_of(self)
