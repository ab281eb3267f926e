"""One test case in a line of text, and the attention problem that it stands for, with the oracle's answer and budgets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flashsim import reference
from flashsim.problem.arguments import check_choice, check_count, check_flag, check_number, shown
from flashsim.problem.inputs import FLOATS, Array, float_dtype, largest, roundoff, smallest_normal, smallest_step
from flashsim.testing.regimes import BIASES, MASKS, REGIMES, values
from flashsim.testing.spec import Spec, call_of

MOST_ELEMENTS = 2**28
LENGTHS = ("B", "H_kv", "group", "N_q", "d")
STRIDES = ("contiguous", "heads_last", "rows", "padded", "mixed", "columns")  # the simplest first
Keep = Callable[..., Any]  # keep(shape, dropout_p, seed) -> booleans (B, H_q, N_q, N_k), True = kept


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to call a kernel with. Everything is made from these few values; the defaults are the simplest case.

    group    query heads to a KV head: H_q = group · H_kv
    d_v      None: d
    regime   a key of `flashsim.testing.regimes.REGIMES`
    mask     a key of `flashsim.testing.regimes.MASKS`, or None
    window   (left, right), −1 being no limit, or None
    bias     a key of `flashsim.testing.regimes.BIASES`, or None
    strides  how the arrays lie in memory: one of `STRIDES`
    block    (B_r, B_c), which some masks follow
    seed     of all the numbers, and of dropout

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
    scale: float | None = None
    dropout_p: float = 0.0
    strides: str = "contiguous"
    regime: str = "gaussian"
    block: tuple[int, int] = (16, 16)
    seed: int = 0

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {name: check_count(f"Case: {name}", getattr(self, name)) for name in LENGTHS}
        checked["N_k"] = check_count("Case: N_k", self.N_k, 0)
        checked["seed"] = check_count("Case: seed", self.seed, 0, 2**64 - 1)
        if self.d_v is not None:
            checked["d_v"] = check_count("Case: d_v", self.d_v)
        for name, known in (
            ("dtype", FLOATS),
            ("regime", REGIMES),
            ("strides", STRIDES),
            ("mask", MASKS),
            ("bias", BIASES),
        ):
            if name not in ("mask", "bias") or getattr(self, name) is not None:
                check_choice(f"Case: {name}", getattr(self, name), known)
        checked["causal"] = check_flag("Case: causal", self.causal)
        if self.scale is not None:
            expected = "a finite number, or None for 1/√d"
            checked["scale"] = check_number("Case: scale", self.scale, expected, math.isfinite)
        checked["dropout_p"] = check_number(
            "Case: dropout_p", self.dropout_p, "a number in [0, 1)", lambda p: 0 <= p < 1
        )
        if not isinstance(self.block, tuple) or len(self.block) != 2:
            raise ValueError(f"Case: block is {shown(self.block)}; expected a pair (B_r, B_c)")
        checked["block"] = tuple(check_count("Case: block", side) for side in self.block)
        if self.window is not None:
            if not isinstance(self.window, tuple) or len(self.window) != 2:
                raise ValueError(f"Case: window is {shown(self.window)}; expected a pair (left, right), or None")
            checked["window"] = tuple(check_count("Case: window", side, -1) for side in self.window)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        longest = max(self.N_q, self.N_k)
        elements = self.B * self.H_kv * self.group * longest * max(self.N_k, self.d, self.d_v or 0)
        if elements > MOST_ELEMENTS:
            raise ValueError(
                f"Case: B, H_kv, group, N_q, N_k, d, d_v make an array of up to {shown(elements)} elements; "
                f"expected at most {MOST_ELEMENTS:,}, as each is checked against a float64 oracle"
            )

    def problem(self, spec: Spec) -> Problem:
        """Return the arrays that this case stands for. `spec` says how causal is aligned, and what to expect."""
        rng = np.random.default_rng(self.seed)
        width = self.d if self.d_v is None else self.d_v
        q = rng.normal(size=(self.B, self.group * self.H_kv, self.N_q, self.d))
        k = rng.normal(size=(self.B, self.H_kv, self.N_k, self.d))
        if self.N_k:
            q, k = REGIMES[self.regime](rng, q, k)
        v = values(rng, (self.B, self.H_kv, self.N_k, width), self.regime)
        dtype = float_dtype(self.dtype)
        allowed = None
        if self.mask is not None:
            allowed = MASKS[self.mask](np.random.default_rng((self.seed, 1)), (*q.shape[:3], self.N_k), self.block)
        bias = None
        if self.bias is not None:
            shape = (*q.shape[:3], self.N_k)
            bias = BIASES[self.bias](np.random.default_rng((self.seed, 4)), shape).astype(dtype)
        large = max(float(np.abs(a).max(initial=0)) for a in (q, k, v)) > 100
        dO_size = 2.0**-10 if self.dtype == "float16" and large else 1.0  # or float16's gradients would overflow
        return Problem(
            q.astype(dtype), k.astype(dtype), v.astype(dtype), spec, self.causal, self.scale, allowed,
            self.dropout_p, self.seed, dO_size, self.window, bias,
        )  # fmt: skip

    @property
    def scores(self) -> int:
        """How many scores there are."""
        return self.B * self.H_kv * self.group * self.N_q * self.N_k

    def arrays(self, spec: Spec | None = None) -> tuple[Array, Array, Array, dict[str, Any]]:
        """Return q, k, v (contiguous, in `spec`'s layout) and the keyword arguments of the call."""
        problem = self.problem(Spec() if spec is None else spec)
        swap = spec is not None and spec.layout == "BNHD"
        q, k, v = (np.ascontiguousarray(a.swapaxes(1, 2)) if swap else a for a in (problem.q, problem.k, problem.v))
        return q, k, v, problem.options

    def __repr__(self) -> str:
        return call_of(self)


class Solution(NamedTuple):
    """Exact O (B, H_q, N_q, d_v) and log-sum-exp (B, H_q, N_q), and how far a kernel's may be off."""

    O: Array
    lse: Array
    O_budget: Array
    lse_budget: Array


class ExactGradients(NamedTuple):
    """Exact dq, dk, dv, and budgets, each shaped as q, k, v."""

    exact: tuple[Array, Array, Array]
    budgets: tuple[Array, Array, Array]


@dataclass(frozen=True, eq=False)
class Problem:
    """Attention to be computed: q (B, H_q, N_q, d), k (B, H_kv, N_k, d), v (B, H_kv, N_k, d_v) of one dtype.

    `mask` is boolean and broadcastable to (B, H_q, N_q, N_k), True = attend, or None; `bias` is as broadcastable. `causal` and
    `window` are aligned as the spec says.
    """

    q: Array
    k: Array
    v: Array
    spec: Spec
    causal: bool = False
    scale: float | None = None
    mask: Array | None = None
    dropout_p: float = 0.0
    seed: int = 0
    dO_size: float = 1.0
    window: tuple[int, int] | None = None
    bias: Array | None = None

    def but(self, **changes: Any) -> Problem:
        """Return the problem with these fields changed."""
        return replace(self, **changes)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of the call: only what is used."""
        used: dict[str, Any] = {"causal": self.causal or None, "scale": self.scale, "mask": self.mask}
        used |= {"window": self.window, "bias": self.bias}
        used |= {"dropout_p": self.dropout_p, "seed": self.seed} if self.dropout_p else {}
        return {name: value for name, value in used.items() if value is not None}

    @property
    def group(self) -> int:
        """Query heads to a KV head."""
        return int(self.q.shape[1] // self.k.shape[1])

    @property
    def tau(self) -> float:
        """The scale in use."""
        return 1 / math.sqrt(self.q.shape[-1]) if self.scale is None else float(self.scale)

    @property
    def score_shape(self) -> tuple[int, int, int, int]:
        """(B, H_q, N_q, N_k)."""
        B, H_q, N_q, _ = self.q.shape
        return B, H_q, N_q, self.k.shape[2]

    @cached_property
    def allowed(self) -> Array:
        """What may be attended to, by causal, window and mask together: booleans (B, H_q, N_q, N_k)."""
        return self.causally(self.shift if self.causal else self.score_shape[3])

    def within(self, window: tuple[int, int] | None, shift: int) -> Array:
        """Return which keys are in a window, moved to the right by that shift: (N_q, N_k)."""
        _, _, N_q, N_k = self.score_shape
        left, right = (-1, -1) if window is None else window
        apart = np.arange(N_k)[None, :] - np.arange(N_q)[:, None] - shift
        return np.asarray(((apart >= -left) | (left < 0)) & ((apart <= right) | (right < 0)))

    @property
    def window_shift(self) -> int:
        """By which the window is moved to the right."""
        _, _, N_q, N_k = self.score_shape
        return N_k - N_q if self.spec.window == "bottom_right" else 0

    @property
    def shift(self) -> int:
        """By which the causal diagonal is moved to the right."""
        _, _, N_q, N_k = self.score_shape
        return N_k - N_q if self.spec.causal == "bottom_right" else 0

    def causally(self, shift: int) -> Array:
        """Return what is allowed under the mask and the window, if there are, and causal masking with that shift."""
        _, _, N_q, N_k = self.score_shape
        allowed = np.arange(N_k)[None, :] <= np.arange(N_q)[:, None] + shift
        if self.window is not None:
            allowed = allowed & self.within(self.window, self.window_shift)
        return np.broadcast_to(allowed if self.mask is None else allowed & self.mask, self.score_shape)

    @cached_property
    def empty(self) -> Array:
        """Rows that may attend to nothing: booleans (B, H_q, N_q)."""
        return np.logical_not(self.allowed.any(axis=-1))

    @cached_property
    def dead(self) -> Array:
        """Keys that no query may attend to: booleans (B, H_kv, N_k)."""
        B, H_q, N_q, N_k = self.score_shape
        return np.logical_not(self.allowed.reshape(B, H_q // self.group, self.group * N_q, N_k).any(axis=2))

    @cached_property
    def heads(self) -> tuple[Array, Array, Array]:
        """q, k, v in float64, with KV heads repeated for the query heads that share them."""
        k, v = (np.repeat(a.astype(np.float64), self.group, axis=1) for a in (self.k, self.v))
        return self.q.astype(np.float64), k, v

    @cached_property
    def solution(self) -> Solution:
        """The oracle's answer, in float64 on the arrays as they are, and the budgets.

        δ_i = (d + 4)·u₃₂·max_j |τ|·|q_i|ᵀ|k_j| over the keys that row i may attend to: how far a score is off, u₃₂ being the
        roundoff of the accumulation type. A bias adds |b_ij| to what δ is of, and two to the 4.
        |O − O*| ≤ C·{[expm1(2δ) + (N_k + 8)·u₃₂ + 2u]·(P|V|) + u·|O*|}, u being the roundoff of the inputs' dtype, in which the
        weights enter the product with V and O is stored. Scores that are themselves stored add 3u·max|τ||q|ᵀ|k| to δ, and O
        stored after every block u·(P|V|) each time. Weights below the dtype's smallest number are lost, as are numbers below
        the accumulation type's smallest normal one; storing O loses as much, each time.
        Two averages of the same values differ by 2·max|v| at most. Stored scores that may overflow have no budget: ∞.
        |lse − lse*| ≤ C·{δ + (N_k + 8)·u₃₂ + 4u₃₂·(1 + |lse*|)}.
        """
        B, H_q, N_q, N_k = self.score_shape
        q, k, v = self.heads
        if N_k == 0:
            zero = np.zeros((B, H_q, N_q, v.shape[-1]))
            return self._fill(Solution(zero, np.full((B, H_q, N_q), -np.inf), zero, np.zeros((B, H_q, N_q))), v)
        given: dict[str, Any] = {"scale": self.tau, "mask": self.allowed, "bias": self.bias}
        exact = reference.attention_with_statistics(q, k, v, **given)
        with np.errstate(divide="ignore"):
            lse = np.where(self.empty, -np.inf, exact.m + np.log(exact.l))
        stored, chip = float_dtype(self.q.dtype), self.spec.chip(self.q.dtype.name)
        u, u_32 = roundoff(stored), roundoff(chip)
        v_ = np.abs(np.where(np.isfinite(v), v, 0.0))
        reach = reference.score_reach(q, k, **given)
        delta = (self.q.shape[-1] + (4 if self.bias is None else 6)) * u_32 * reach + (
            3 * u * reach if self.spec.stores == "scores" else 0
        )
        mass = reference.attention(q, k, v_, **given)
        with np.errstate(over="ignore", invalid="ignore"):
            relative = np.expm1(2 * delta) + (N_k + 8) * u_32 + 2 * u
            stores = -(-N_k // self.spec.block[1]) if self.spec.stores == "output_per_block" else 0
            relative = relative + stores * u
            O_budget = self.spec.C * (np.where(mass > 0, relative * mass, 0.0) + u * np.abs(exact.O))
        lost = max(smallest_step(stored), smallest_normal(chip)) * (1 + stores + v_.sum(axis=-2, keepdims=True))
        O_budget = np.minimum(O_budget, 2 * v_.max(axis=-2, keepdims=True) * (1 + u)) + lost
        O_budget = np.where(self.overflowing[..., None], np.inf, O_budget)
        lse_budget = self.spec.C * (
            delta[..., 0] + (N_k + 8) * u_32 + 4 * u_32 * (1 + np.where(self.empty, 0, np.abs(lse)))
        )
        lse_budget = np.where(self.overflowing, np.inf, lse_budget)
        return self._fill(Solution(exact.O, lse, O_budget, lse_budget), v)

    @cached_property
    def overflowing(self) -> Array:
        """Rows whose scores may pass the end of the inputs' dtype, where the spec says that they are stored: (B, H_q, N_q).

        float16 ends at 65,504. There is no budget for such a row.
        """
        if self.spec.stores != "scores":
            return np.zeros(self.score_shape[:3], bool)
        q, k, _ = self.heads
        given = {"mask": self.allowed, "bias": self.bias}
        reach = reference.score_reach(q, k, scale=max(abs(self.tau), 1.0), **given)[..., 0]
        return np.asarray(reach * (1 + 8 * roundoff(self.q.dtype)) >= largest(self.q.dtype))

    def _fill(self, solution: Solution, v: Array) -> Solution:
        """Set what the spec says of empty rows, and the base of the logarithm."""
        O, lse, O_budget, lse_budget = solution
        rows = self.empty[..., None]
        if self.spec.empty_rows == "mean" and v.shape[2]:
            mean = v.mean(axis=-2, keepdims=True)
            u = roundoff(float_dtype(self.q.dtype)) + (v.shape[2] + 8) * roundoff(self.spec.chip(self.q.dtype.name))
            budget = self.spec.C * 2 * u * np.abs(v).mean(axis=-2, keepdims=True)
            O, O_budget = np.where(rows, mean, O), np.where(rows, budget, O_budget)
        else:
            O = np.where(rows, np.nan if self.spec.empty_rows == "nan" else 0.0, O)
            O_budget = np.where(rows, 0.0, O_budget)
        if self.spec.lse == "base2":
            lse, lse_budget = lse / math.log(2), lse_budget / math.log(2)
        return Solution(O, lse, O_budget, lse_budget)

    @cached_property
    def dO(self) -> Array:
        """A random output gradient, as large as `dO_size`."""
        rng = np.random.default_rng((self.seed, 2))
        shape = (*self.q.shape[:3], self.v.shape[-1])
        return np.asarray((self.dO_size * rng.normal(size=shape)).astype(self.q.dtype))

    def gradients(self, keep: Array | None = None) -> ExactGradients:
        """Return the exact gradients of Σ dO ∘ O and their budgets, those of shared KV heads summed over their group."""
        if self.score_shape[-1] == 0:
            zeros = tuple(np.zeros(a.shape) for a in (self.q, self.k, self.v))
            return ExactGradients(zeros, zeros)  # type: ignore[arg-type]
        q, k, v = self.heads
        how = self._how(keep)
        exact = reference.gradients(q, k, v, self.dO, **how)
        rounded = self._rounded
        budgets = reference.gradient_bounds(q, k, v, self.dO, **how, **rounded, dQ_stores=rounded["stores"])
        lost = self.overflowing[..., None]
        whole = lost.any(axis=2, keepdims=True)
        budgets = reference.Three(*(np.where(b, np.inf, a) for a, b in zip(budgets, (lost, whole, whole), strict=True)))
        u = roundoff(rounded["stored"]) + self.group * roundoff(rounded["chip"])
        dk, dv = (self._over_groups(a) for a in exact[1:])
        more = [self.spec.C * u * self._over_groups(np.abs(a)) for a in exact[1:]]
        dk_budget, dv_budget = (self._over_groups(a) + b for a, b in zip(budgets[1:], more, strict=True))
        return ExactGradients((exact.dQ, dk, dv), (budgets.dQ, dk_budget, dv_budget))

    def dropped(self, keep: Array) -> tuple[Array, Array]:
        """Return O under dropout with that keep mask, and its budget."""
        if self.score_shape[-1] == 0:
            zero = np.zeros((*self.q.shape[:3], self.v.shape[-1]))
            return zero, zero
        (q, k, v), how = self.heads, self._how(keep)
        O = reference.attention(q, k, v, **how)
        budget = reference.error_bound(q, k, v, **how, **self._rounded)
        return O, np.where(self.overflowing[..., None], np.inf, budget)

    def _how(self, keep: Array | None) -> dict[str, Any]:
        """Return what `flashsim.reference` takes besides q, k and v to compute the same."""
        return {"scale": self.tau, "mask": self.allowed, "bias": self.bias, "keep": keep, "dropout_p": self.dropout_p}

    @property
    def _rounded(self) -> dict[str, Any]:
        """What `flashsim.reference` takes besides to bound how far a kernel is off that keeps to the spec."""
        per_block, T_c = self.spec.stores == "output_per_block", -(-self.score_shape[-1] // self.spec.block[1])
        return {
            "chip": self.spec.chip(self.q.dtype.name), "stored": float_dtype(self.q.dtype), "C": self.spec.C,
            "stores": T_c if per_block else 1, "scores_stored": self.spec.stores == "scores", "operands_stored": True,
            "flushed": True,
        }  # fmt: skip

    def _over_groups(self, a: Array) -> Array:
        B, H_q, N, width = a.shape
        return np.asarray(a.reshape(B, H_q // self.group, self.group, N, width).sum(axis=2))
