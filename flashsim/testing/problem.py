"""An attention problem, and the oracle's answer to it, with how far a kernel's may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flashsim import reference
from flashsim.attention.inputs import Array, largest, roundoff, smallest_normal, smallest_step
from flashsim.testing.spec import Spec

DESCALES = ("q_descale", "k_descale", "v_descale")


class Solution(NamedTuple):
    """Exact O (B, H_q, N_q, d_v) and log-sum-exp (B, H_q, N_q), and how far a kernel's may be
    off.
    """

    O: Array
    lse: Array
    O_budget: Array
    lse_budget: Array


class ExactGradients(NamedTuple):
    """Exact dq, dk, dv, and budgets, each shaped as q, k, v; and, where there is a sink, dsink
    (H_q,).
    """

    exact: tuple[Array, ...]
    budgets: tuple[Array, ...]


class Operands(NamedTuple):
    """What the oracle takes: q, k, v in float64, KV heads repeated, and a sink as one more key,
    whose score is its bias.
    """

    q: Array
    k: Array
    v: Array
    mask: Array
    bias: Array | None


@dataclass(frozen=True, eq=False)
class Problem:
    """Attention to be computed: q (B, H_q, N_q, d), k (B, H_kv, N_k, d), v (B, H_kv, N_k, d_v) of
    one dtype.

    `mask` is boolean and broadcastable to (B, H_q, N_q, N_k), True = attend, or None; `bias` is as
    broadcastable. `causal` and `window` are aligned as the spec says. `slopes` and `sink` are
    (H_q,). `scales` are those of q, k, v, if they have 8 bits.
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
    softcap: float | None = None
    slopes: Array | None = None
    sink: Array | None = None
    scales: tuple[Array, ...] | None = None

    def but(self, **changes: Any) -> Problem:
        """Return the problem with these fields changed."""
        return replace(self, **changes)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of the call: only what is used."""
        used: dict[str, Any] = {
            "causal": self.causal or None,
            "scale": self.scale,
            "mask": self.mask,
        }
        used |= {"window": self.window, "bias": self.bias, "softcap": self.softcap}
        used |= {"alibi_slopes": self.slopes, "sink": self.sink}
        used |= {} if self.scales is None else dict(zip(DESCALES, self.scales, strict=True))
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
        """What may be attended to, by causal, window and mask together: booleans (B, H_q, N_q,
        N_k).
        """
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
        """Return what is allowed under the mask and the window, if there are, and causal masking
        with that shift.
        """
        _, _, N_q, N_k = self.score_shape
        allowed = np.arange(N_k)[None, :] <= np.arange(N_q)[:, None] + shift
        if self.window is not None:
            allowed = allowed & self.within(self.window, self.window_shift)
        return np.broadcast_to(
            allowed if self.mask is None else allowed & self.mask, self.score_shape
        )

    @cached_property
    def empty(self) -> Array:
        """Rows that may attend to nothing, nor to a sink: booleans (B, H_q, N_q)."""
        sunk = False if self.sink is None else (self.sink > -np.inf)[None, :, None]
        return np.logical_not(self.allowed.any(axis=-1) | sunk)

    @cached_property
    def dead(self) -> Array:
        """Keys that no query may attend to: booleans (B, H_kv, N_k)."""
        B, H_q, N_q, N_k = self.score_shape
        return np.logical_not(
            self.allowed.reshape(B, H_q // self.group, self.group * N_q, N_k).any(axis=2)
        )

    @cached_property
    def heads(self) -> tuple[Array, Array, Array]:
        """q, k, v in float64, times their scales, with KV heads repeated for the query heads
        that share them.
        """
        q, k, v = (a.astype(np.float64) for a in (self.q, self.k, self.v))
        if self.scales is not None:
            B_r, B_c = self.spec.block
            q, k, v = (
                a * _by_row(s, a, B)
                for a, s, B in zip((q, k, v), self.scales, (B_r, B_c, B_c), strict=True)
            )
        return q, np.repeat(k, self.group, axis=1), np.repeat(v, self.group, axis=1)

    @cached_property
    def operands(self) -> Operands:
        """What the oracle takes."""
        (q, k, v), mask, bias = self.heads, self.allowed, None
        if self.bias is not None:
            bias = np.broadcast_to(self.bias.astype(np.float64), mask.shape)
        if self.slopes is not None:
            _, _, N_q, N_k = self.score_shape
            apart = np.abs(np.arange(N_q)[:, None] + N_k - N_q - np.arange(N_k))
            bias = (0 if bias is None else bias) - self.slopes.astype(np.float64)[
                None, :, None, None
            ] * apart
        if self.sink is not None:
            column = np.broadcast_to(
                self.sink.astype(np.float64)[None, :, None, None], (*mask.shape[:3], 1)
            )
            k, v = (
                np.concatenate(
                    [a, np.zeros_like(a[:, :, :1], shape=(*a.shape[:2], 1, a.shape[3]))], 2
                )
                for a in (k, v)
            )
            bias = np.broadcast_to(0.0 if bias is None else bias, mask.shape)
            live = column > -np.inf
            # one that is e²⁰⁰ times smaller than any score's is nothing, and would widen the budget
            if mask.shape[-1]:
                reach = reference.score_reach(q, k[:, :, :-1], scale=self.tau, mask=mask, bias=bias)
                live = live & ((column > -reach - 200) | ~mask.any(axis=-1, keepdims=True))
            bias = np.concatenate([bias, np.where(live, column, 0)], axis=-1)
            mask = np.concatenate([mask, live], axis=-1)
        return Operands(q, k, v, mask, bias)

    @cached_property
    def solution(self) -> Solution:
        """The oracle's answer, in float64 on the arrays as they are, times their scales, and the
        budgets.

        δ_i = (d + 4)·u₃₂·max_j |τ|·|q_i|ᵀ|k_j| over the keys that row i may attend to: how far a
        score is off, u₃₂ being the roundoff of the accumulation type. A bias adds |b_ij| to what δ
        is of, and two to the 4; so do slopes and a sink, which is a key whose score is its bias. A
        soft cap adds 12 to the 4 (flashsim/reference/rounding.py), scales 2, for two products. |O −
        O*| ≤ C·{[expm1(2δ) + (N_k + 8)·u₃₂ + 2u]·(P|V|) + u·|O*|}, u being the roundoff of the
        inputs' dtype, in which the weights enter the product with V and O is stored. Scores that
        are themselves stored add 3u·max|τ||q|ᵀ|k| to δ, and O stored after every block u·(P|V|)
        each time. Weights below the dtype's smallest number are lost, as are numbers below the
        accumulation type's smallest normal one; storing O loses as much, each time. Two averages of
        the same values differ by 2·max|v| at most. Stored scores that may overflow have no budget:
        ∞. |lse − lse*| ≤ C·{δ + (N_k + 8)·u₃₂ + 4u₃₂·(1 + |lse*|)}.
        """
        B, H_q, N_q, _ = self.score_shape
        q, k, v, mask, bias = self.operands
        if (N_k := k.shape[2]) == 0:
            zero = np.zeros((B, H_q, N_q, v.shape[-1]))
            return self._fill(
                Solution(zero, np.full((B, H_q, N_q), -np.inf), zero, np.zeros((B, H_q, N_q))),
                self.heads[2],
            )
        given: dict[str, Any] = {"scale": self.tau, "mask": mask, "bias": bias}
        reach = reference.score_reach(q, k, **given)
        given["softcap"] = self.softcap
        exact = reference.attention_with_statistics(q, k, v, **given)
        with np.errstate(divide="ignore"):
            lse = np.where(self.empty, -np.inf, exact.m + np.log(exact.l))
        stored = self.q.dtype
        chip = self.spec.chip(self.q.dtype.name)
        u = roundoff(stored)
        u_32 = roundoff(chip)
        v_ = np.abs(np.where(np.isfinite(v), v, 0.0))
        factors = (
            4
            + 2 * (bias is not None)
            + 2 * (self.scales is not None)
            + 12 * (self.softcap is not None)
        )
        delta = (self.q.shape[-1] + factors) * u_32 * reach
        delta = delta + (3 * u * reach if self.spec.stores == "scores" else 0)
        delta = delta + (0 if self.softcap is None else (1 + self.softcap) * smallest_normal(chip))
        mass = reference.attention(q, k, v_, **given)
        with np.errstate(over="ignore", invalid="ignore"):
            relative = np.expm1(2 * delta) + (N_k + 8) * u_32 + 2 * u
            stores = -(-N_k // self.spec.block[1]) if self.spec.stores == "output_per_block" else 0
            relative = relative + stores * u
            O_budget = self.spec.C * (
                np.where(mass > 0, relative * mass, 0.0) + u * np.abs(exact.O)
            )
        lost = max(smallest_step(stored), smallest_normal(chip)) * (
            1 + stores + v_.sum(axis=-2, keepdims=True)
        )
        O_budget = np.minimum(O_budget, 2 * v_.max(axis=-2, keepdims=True) * (1 + u)) + lost
        O_budget = np.where(self.overflowing[..., None], np.inf, O_budget)
        lse_budget = self.spec.C * (
            delta[..., 0] + (N_k + 8) * u_32 + 4 * u_32 * (1 + np.where(self.empty, 0, np.abs(lse)))
        )
        lse_budget = np.where(self.overflowing, np.inf, lse_budget)
        return self._fill(Solution(exact.O, lse, O_budget, lse_budget), self.heads[2])

    @cached_property
    def overflowing(self) -> Array:
        """Rows whose scores may pass the end of the inputs' dtype, where the spec says that they
        are stored: (B, H_q, N_q).

        float16 ends at 65,504. There is no budget for such a row.
        """
        if self.spec.stores != "scores":
            return np.zeros(self.score_shape[:3], bool)
        q, k, _, mask, bias = self.operands
        reach = reference.score_reach(q, k, scale=max(abs(self.tau), 1.0), mask=mask, bias=bias)[
            ..., 0
        ]
        return np.asarray(reach * (1 + 8 * roundoff(self.q.dtype)) >= largest(self.q.dtype))

    def _fill(self, solution: Solution, v: Array) -> Solution:
        """Set what the spec says of empty rows, and the base of the logarithm."""
        O, lse, O_budget, lse_budget = solution
        rows = self.empty[..., None]
        if self.spec.empty_rows == "mean" and v.shape[2]:
            mean = v.mean(axis=-2, keepdims=True)
            u = roundoff(self.q.dtype) + (v.shape[2] + 8) * roundoff(
                self.spec.chip(self.q.dtype.name)
            )
            budget = self.spec.C * 2 * u * np.abs(v).mean(axis=-2, keepdims=True)
            O = np.where(rows, mean, O)
            O_budget = np.where(rows, budget, O_budget)
        else:
            O = np.where(rows, np.nan if self.spec.empty_rows == "nan" else 0.0, O)
            O_budget = np.where(rows, 0.0, O_budget)
        if self.spec.lse == "base2":
            lse = lse / math.log(2)
            lse_budget = lse_budget / math.log(2)
        return Solution(O, lse, O_budget, lse_budget)

    @cached_property
    def dO(self) -> Array:
        """A random output gradient, as large as `dO_size`."""
        rng = np.random.default_rng((self.seed, 2))
        return np.asarray(
            (self.dO_size * rng.normal(size=(*self.q.shape[:3], self.v.shape[-1]))).astype(
                self.q.dtype
            )
        )

    def gradients(self, keep: Array | None = None) -> ExactGradients:
        """Return the exact gradients of Σ dO ∘ O and their budgets, those of shared KV heads
        summed over their group.
        """
        if self.score_shape[-1] == 0:
            shapes = [
                self.q.shape,
                self.k.shape,
                self.v.shape,
                *([] if self.sink is None else [self.sink.shape]),
            ]
            return ExactGradients(*[tuple(map(np.zeros, shapes))] * 2)
        q, k, v, _, _ = self.operands
        how = self._how(keep)
        exact = reference.gradients(q, k, v, self.dO, **how)
        rounded = self._rounded
        bound = {**how, **rounded, "dQ_stores": rounded["stores"]}
        budgets = reference.gradient_bounds(q, k, v, self.dO, **bound)
        lost = self.overflowing[..., None]
        whole = lost.any(axis=2, keepdims=True)
        budgets = reference.Three(
            *(np.where(b, np.inf, a) for a, b in zip(budgets, (lost, whole, whole), strict=True))
        )
        u = roundoff(rounded["stored"]) + self.group * roundoff(rounded["chip"])
        N_k = self.score_shape[-1]
        dk, dv = (self._over_groups(a)[:, :, :N_k] for a in exact[1:])
        more = [self.spec.C * u * self._over_groups(np.abs(a)) for a in exact[1:]]
        dk_budget, dv_budget = (
            (self._over_groups(a) + b)[:, :, :N_k] for a, b in zip(budgets[1:], more, strict=True)
        )
        three = (exact.dQ, dk, dv)
        off = (budgets.dQ, dk_budget, dv_budget)
        if self.sink is None:
            return ExactGradients(three, off)
        dS = reference.bias_gradient(q, k, v, self.dO, **how)[..., -1]
        E_dS = np.where(
            lost[..., 0], np.inf, reference.bias_gradient_bound(q, k, v, self.dO, **bound)[..., -1]
        )
        rounds = self.spec.C * (
            roundoff(rounded["stored"]) + dS[:, 0].size * roundoff(rounded["chip"])
        )
        rows = (0, 2)
        return ExactGradients(
            (*three, dS.sum(rows)), (*off, (E_dS + rounds * np.abs(dS)).sum(rows))
        )

    def dropped(self, keep: Array) -> tuple[Array, Array]:
        """Return O under dropout with that keep mask, and its budget."""
        if self.score_shape[-1] == 0:
            zero = np.zeros((*self.q.shape[:3], self.v.shape[-1]))
            return zero, zero
        (q, k, v, _, _), how = self.operands, self._how(keep)
        O = reference.attention(q, k, v, **how)
        return O, np.where(
            self.overflowing[..., None],
            np.inf,
            reference.error_bound(q, k, v, **how, **self._rounded),
        )

    def _how(self, keep: Array | None) -> dict[str, Any]:
        """Return what `flashsim.reference` takes besides q, k and v to compute the same."""
        _, _, _, mask, bias = self.operands
        if keep is not None and keep.shape[-1] < mask.shape[-1]:
            keep = np.concatenate([keep, np.ones((*keep.shape[:3], 1), bool)], axis=-1)
        how = {"scale": self.tau, "mask": mask, "bias": bias, "softcap": self.softcap}
        return {**how, "keep": keep, "dropout_p": self.dropout_p}

    @property
    def _rounded(self) -> dict[str, Any]:
        """What `flashsim.reference` takes besides to bound how far a kernel is off that keeps to
        the spec.
        """
        per_block = self.spec.stores == "output_per_block"
        T_c = -(-self.score_shape[-1] // self.spec.block[1])
        return {
            "chip": self.spec.chip(self.q.dtype.name),
            "stored": self.q.dtype,
            "C": self.spec.C,
            "stores": T_c if per_block else 1,
            "scores_stored": self.spec.stores == "scores",
            "operands_stored": True,
            "flushed": True,
        }

    def _over_groups(self, a: Array) -> Array:
        B, H_q, N, width = a.shape
        return np.asarray(a.reshape(B, H_q // self.group, self.group, N, width).sum(axis=2))


def _by_row(scale: Array, a: Array, block: int) -> Array:
    """Return the scale of each row of an array (B, H, N, d), from those of its heads, or of
    blocks of its rows.
    """
    if scale.ndim == 2:
        return np.asarray(scale[:, :, None, None], np.float64)
    return np.asarray(np.repeat(scale, block, axis=2)[:, :, : a.shape[2], None], np.float64)
