"""`Problem`: the arrays and options of one call, the oracle's answer, and error budgets: how far a
kernel's answer may be from the oracle's.
"""

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
    """Exact O (B, H_q, N_q, d_v) and log-sum-exp (B, H_q, N_q), and the error budget of each
    element.
    """

    O: Array
    lse: Array
    O_budget: Array
    lse_budget: Array


class ExactGradients(NamedTuple):
    """Exact dq, dk, dv, shaped as q, k, v, and dsink (H_q,) if there is a sink; and the error
    budget of each element.
    """

    exact: tuple[Array, ...]
    budgets: tuple[Array, ...]


class Operands(NamedTuple):
    """The oracle's arrays: q, k, v in float64, with KV heads repeated. A sink is one more key,
    whose score is its bias.
    """

    q: Array
    k: Array
    v: Array
    mask: Array
    bias: Array | None


@dataclass(frozen=True, eq=False)
class Problem:
    """An attention problem: q (B, H_q, N_q, d), k (B, H_kv, N_k, d), v (B, H_kv, N_k, d_v) of one
    dtype.

    spec     how causal masks and windows are aligned, and what is expected of the kernel
    mask     booleans that broadcast to (B, H_q, N_q, N_k), True = attend, or None
    bias     broadcasts likewise
    slopes   and sink: (H_q,)
    scales   of q, k, v, if they have 8 bits
    dO_size  the size of a random output gradient
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
        options: dict[str, Any] = {
            "causal": self.causal or None,
            "scale": self.scale,
            "mask": self.mask,
            "window": self.window,
            "bias": self.bias,
            "softcap": self.softcap,
            "alibi_slopes": self.slopes,
            "sink": self.sink,
        }
        if self.scales is not None:
            options |= zip(DESCALES, self.scales, strict=True)
        if self.dropout_p:
            options["dropout_p"] = self.dropout_p
            options["seed"] = self.seed
        return {name: value for name, value in options.items() if value is not None}

    @property
    def group(self) -> int:
        """Query heads per KV head."""
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
        """Which keys each query may attend to, by causal, window and mask together: booleans (B,
        H_q, N_q, N_k).
        """
        return self.causally(self.shift if self.causal else self.score_shape[3])

    def within(self, window: tuple[int, int] | None, shift: int) -> Array:
        """Return which keys are in a window, (N_q, N_k). `shift` moves the window to the right."""
        _, _, N_q, N_k = self.score_shape
        left, right = (-1, -1) if window is None else window
        offset = np.arange(N_k)[None, :] - np.arange(N_q)[:, None] - shift
        inside_left = (offset >= -left) | (left < 0)
        inside_right = (offset <= right) | (right < 0)
        return np.asarray(inside_left & inside_right)

    @property
    def window_shift(self) -> int:
        """How many keys the window is moved to the right."""
        _, _, N_q, N_k = self.score_shape
        return N_k - N_q if self.spec.window == "bottom_right" else 0

    @property
    def shift(self) -> int:
        """How many keys the causal diagonal is moved to the right."""
        _, _, N_q, N_k = self.score_shape
        return N_k - N_q if self.spec.causal == "bottom_right" else 0

    def causally(self, shift: int) -> Array:
        """Return which keys each query may attend to under the mask, the window, and a causal mask
        that `shift` moves to the right: booleans (B, H_q, N_q, N_k).
        """
        _, _, N_q, N_k = self.score_shape
        allowed = np.arange(N_k)[None, :] <= np.arange(N_q)[:, None] + shift
        if self.window is not None:
            allowed = allowed & self.within(self.window, self.window_shift)
        if self.mask is not None:
            allowed = allowed & self.mask
        return np.broadcast_to(allowed, self.score_shape)

    @cached_property
    def empty(self) -> Array:
        """Rows that may attend to no key and to no sink: booleans (B, H_q, N_q)."""
        has_keys = self.allowed.any(axis=-1)
        if self.sink is None:
            return np.logical_not(has_keys)
        has_sink = (self.sink > -np.inf)[None, :, None]
        return np.logical_not(has_keys | has_sink)

    @cached_property
    def dead(self) -> Array:
        """Keys that no query may attend to: booleans (B, H_kv, N_k)."""
        B, H_q, N_q, N_k = self.score_shape
        by_kv_head = self.allowed.reshape(B, H_q // self.group, self.group * N_q, N_k)
        return np.logical_not(by_kv_head.any(axis=2))

    @cached_property
    def heads(self) -> tuple[Array, Array, Array]:
        """q, k, v in float64, multiplied by their scales; k and v of a KV head are repeated for
        the query heads that share it.
        """
        q = self.q.astype(np.float64)
        k = self.k.astype(np.float64)
        v = self.v.astype(np.float64)
        if self.scales is not None:
            B_r, B_c = self.spec.block
            q_scale, k_scale, v_scale = self.scales
            q = q * _by_row(q_scale, q, B_r)
            k = k * _by_row(k_scale, k, B_c)
            v = v * _by_row(v_scale, v, B_c)
        return q, np.repeat(k, self.group, axis=1), np.repeat(v, self.group, axis=1)

    @cached_property
    def operands(self) -> Operands:
        """The oracle's arrays."""
        q, k, v = self.heads
        bias = self._bias_with_slopes()
        if self.sink is None:
            return Operands(q, k, v, self.allowed, bias)
        return self._with_sink(q, k, v, self.sink, bias)

    def _bias_with_slopes(self) -> Array | None:
        """Return what is added to the scaled scores, (B, H_q, N_q, N_k) or broadcastable to it, or
        None.
        """
        bias = None
        if self.bias is not None:
            bias = np.broadcast_to(self.bias.astype(np.float64), self.score_shape)
        if self.slopes is None:
            return bias
        _, _, N_q, N_k = self.score_shape
        distance = np.abs(np.arange(N_q)[:, None] + N_k - N_q - np.arange(N_k))
        slopes = self.slopes.astype(np.float64)[None, :, None, None]
        return np.asarray((0 if bias is None else bias) - slopes * distance)

    def _with_sink(self, q: Array, k: Array, v: Array, sink: Array, bias: Array | None) -> Operands:
        """Return the oracle's arrays with one more key of zeros, whose bias is the sink."""
        mask = self.allowed
        bias = np.broadcast_to(0.0 if bias is None else bias, mask.shape)
        column = sink.astype(np.float64)[None, :, None, None]
        column = np.broadcast_to(column, (*mask.shape[:3], 1))
        counts = column > -np.inf
        # a sink e²⁰⁰ times smaller than any score adds nothing, and would widen the budget
        if mask.shape[-1]:
            reach = reference.score_reach(q, k, scale=self.tau, mask=mask, bias=bias)
            counts = counts & ((column > -reach - 200) | ~mask.any(axis=-1, keepdims=True))
        return Operands(
            q,
            np.concatenate([k, np.zeros((*k.shape[:2], 1, k.shape[3]))], axis=2),
            np.concatenate([v, np.zeros((*v.shape[:2], 1, v.shape[3]))], axis=2),
            np.concatenate([mask, counts], axis=-1),
            np.concatenate([bias, np.where(counts, column, 0)], axis=-1),
        )

    @cached_property
    def solution(self) -> Solution:
        """The oracle's answer, in float64 on the arrays as they are, times their scales; and the
        error budgets.

        A score is off by δ_i = (d + 4)·u₃₂·max_j |τ|·|q_i|ᵀ|k_j| at most, over the keys that row i
        may attend to; u₃₂ is the roundoff of the accumulation type. A bias adds |b_ij| to the
        product, and 2 to the 4. Slopes do, too, and a sink, which is a key whose score is its bias.
        A soft cap adds 12 to the 4 (flashsim/reference/rounding.py). Scales add 2, for two
        products.

        |O − O*| ≤ C·{[expm1(2δ) + (N_k + 8)·u₃₂ + 2u]·(P|V|) + u·|O*|}. u is the roundoff of the
        inputs' dtype, in which the weights are multiplied by V, and O is stored. If scores are
        stored, too, 3u·max|τ||q|ᵀ|k| is added to δ; if O is stored after every block, u·(P|V|) each
        time. Weights below the dtype's smallest number are lost, as are numbers below the
        accumulation type's smallest normal number; storing O loses as much each time. Two averages
        of the same values differ by 2·max|v| at most. Stored scores that may overflow have the
        budget ∞.

        |lse − lse*| ≤ C·{δ + (N_k + 8)·u₃₂ + 4u₃₂·(1 + |lse*|)}.
        """
        B, H_q, N_q, _ = self.score_shape
        q, k, v, mask, bias = self.operands
        N_k = k.shape[2]
        if N_k == 0:
            zero = np.zeros((B, H_q, N_q, v.shape[-1]))
            no_keys = np.full((B, H_q, N_q), -np.inf)
            exact_zero = Solution(zero, no_keys, zero, np.zeros((B, H_q, N_q)))
            return self._as_spec_says(exact_zero, self.heads[2])
        options: dict[str, Any] = {"scale": self.tau, "mask": mask, "bias": bias}
        reach = reference.score_reach(q, k, **options)
        options["softcap"] = self.softcap
        exact = reference.attention_with_statistics(q, k, v, **options)
        with np.errstate(divide="ignore"):
            lse = np.where(self.empty, -np.inf, exact.m + np.log(exact.l))
        chip = self.spec.chip(self.q.dtype.name)
        u_32 = roundoff(chip)
        delta = self._score_error(reach, has_bias=bias is not None)
        abs_v = np.abs(np.where(np.isfinite(v), v, 0.0))
        mass = reference.attention(q, k, abs_v, **options)
        O_budget = self._O_budget(delta, mass, abs_v, exact.O)
        lse_size = 1 + np.where(self.empty, 0, np.abs(lse))
        lse_error = delta[..., 0] + (N_k + 8) * u_32 + 4 * u_32 * lse_size
        lse_budget = np.where(self.overflowing, np.inf, self.spec.C * lse_error)
        solution = Solution(exact.O, lse, O_budget, lse_budget)
        return self._as_spec_says(solution, self.heads[2])

    def _score_error(self, reach: Array, has_bias: bool) -> Array:
        """Return δ of `solution`, (B, H_q, N_q, 1). `reach` bounds the scores' products."""
        chip = self.spec.chip(self.q.dtype.name)
        roundings = self.q.shape[-1] + 4
        if has_bias:
            roundings += 2
        if self.scales is not None:
            roundings += 2
        if self.softcap is not None:
            roundings += 12
        delta = roundings * roundoff(chip) * reach
        if self.spec.stores == "scores":
            delta = delta + 3 * roundoff(self.q.dtype) * reach
        if self.softcap is not None:
            delta = delta + (1 + self.softcap) * smallest_normal(chip)
        return np.asarray(delta)

    def _O_budget(self, delta: Array, mass: Array, abs_v: Array, O: Array) -> Array:
        """Return the error budget of O, (B, H_q, N_q, d_v). `mass` is P|V|."""
        dtype = self.q.dtype
        chip = self.spec.chip(dtype.name)
        u = roundoff(dtype)
        N_k = abs_v.shape[2]
        stores = 0
        if self.spec.stores == "output_per_block":
            stores = -(-N_k // self.spec.block[1])
        with np.errstate(over="ignore", invalid="ignore"):
            relative = np.expm1(2 * delta) + (N_k + 8) * roundoff(chip) + 2 * u
            relative = relative + stores * u
            error = np.where(mass > 0, relative * mass, 0.0) + u * np.abs(O)
            budget = self.spec.C * error
        sum_v = abs_v.sum(axis=-2, keepdims=True)
        lost = max(smallest_step(dtype), smallest_normal(chip)) * (1 + stores + sum_v)
        largest_difference = 2 * abs_v.max(axis=-2, keepdims=True) * (1 + u)
        budget = np.minimum(budget, largest_difference) + lost
        return np.where(self.overflowing[..., None], np.inf, budget)

    @cached_property
    def overflowing(self) -> Array:
        """Rows whose scores may overflow the inputs' dtype, if the spec says that scores are stored
        in it: booleans (B, H_q, N_q).

        float16 ends at 65,504. The budget of such a row is ∞.
        """
        if self.spec.stores != "scores":
            return np.zeros(self.score_shape[:3], bool)
        q, k, _, mask, bias = self.operands
        scale = max(abs(self.tau), 1.0)
        reach = reference.score_reach(q, k, scale=scale, mask=mask, bias=bias)[..., 0]
        return np.asarray(reach * (1 + 8 * roundoff(self.q.dtype)) >= largest(self.q.dtype))

    def _as_spec_says(self, solution: Solution, v: Array) -> Solution:
        """Return the solution with the spec's values in empty rows, and its base of the
        logarithm.
        """
        O, lse, O_budget, lse_budget = solution
        rows = self.empty[..., None]
        if self.spec.empty_rows == "mean" and v.shape[2]:
            mean = v.mean(axis=-2, keepdims=True)
            u_32 = roundoff(self.spec.chip(self.q.dtype.name))
            u = roundoff(self.q.dtype) + (v.shape[2] + 8) * u_32
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
        """A random output gradient of size `dO_size`, (B, H_q, N_q, d_v)."""
        rng = np.random.default_rng((self.seed, 2))
        dO = self.dO_size * rng.normal(size=(*self.q.shape[:3], self.v.shape[-1]))
        return np.asarray(dO.astype(self.q.dtype))

    def gradients(self, keep: Array | None = None) -> ExactGradients:
        """Return the exact gradients of Σ dO ∘ O and their budgets. Gradients of a KV head are
        summed over the query heads that share it.
        """
        N_k = self.score_shape[-1]
        if N_k == 0:
            shapes = [self.q.shape, self.k.shape, self.v.shape]
            if self.sink is not None:
                shapes.append(self.sink.shape)
            zeros = tuple(map(np.zeros, shapes))
            return ExactGradients(zeros, zeros)
        q, k, v, _, _ = self.operands
        options = self._oracle_options(keep)
        dQ, dK, dV = reference.gradients(q, k, v, self.dO, **options)
        rounding = self._rounding_options
        bound = {**options, **rounding, "dQ_stores": rounding["stores"]}
        dQ_budget, dK_budget, dV_budget = reference.gradient_bounds(q, k, v, self.dO, **bound)
        unbounded = self.overflowing[..., None]
        unbounded_head = unbounded.any(axis=2, keepdims=True)
        dQ_budget = np.where(unbounded, np.inf, dQ_budget)
        dK_budget = np.where(unbounded_head, np.inf, dK_budget)
        dV_budget = np.where(unbounded_head, np.inf, dV_budget)
        u_32 = roundoff(rounding["chip"])
        u = roundoff(rounding["stored"])
        sum_error = self.spec.C * (u + self.group * u_32)  # of the sum over a group
        exact = [dQ, self._sum_of_groups(dK)[:, :, :N_k], self._sum_of_groups(dV)[:, :, :N_k]]
        budgets = [dQ_budget]
        for gradient, budget in ((dK, dK_budget), (dV, dV_budget)):
            total = self._sum_of_groups(budget)
            total = total + sum_error * self._sum_of_groups(np.abs(gradient))
            budgets.append(total[:, :, :N_k])
        if self.sink is not None:
            dS = reference.bias_gradient(q, k, v, self.dO, **options)[..., -1]
            dS_budget = reference.bias_gradient_bound(q, k, v, self.dO, **bound)[..., -1]
            dS_budget = np.where(unbounded[..., 0], np.inf, dS_budget)
            sum_error = self.spec.C * (u + dS[:, 0].size * u_32)  # of the sum over batch and rows
            exact.append(dS.sum(axis=(0, 2)))
            budgets.append((dS_budget + sum_error * np.abs(dS)).sum(axis=(0, 2)))
        return ExactGradients(tuple(exact), tuple(budgets))

    def dropped(self, keep: Array) -> tuple[Array, Array]:
        """Return O under dropout with that keep mask, and its budget."""
        if self.score_shape[-1] == 0:
            zero = np.zeros((*self.q.shape[:3], self.v.shape[-1]))
            return zero, zero
        q, k, v, _, _ = self.operands
        options = self._oracle_options(keep)
        O = reference.attention(q, k, v, **options)
        budget = reference.error_bound(q, k, v, **options, **self._rounding_options)
        return O, np.where(self.overflowing[..., None], np.inf, budget)

    def _oracle_options(self, keep: Array | None) -> dict[str, Any]:
        """Return the options with which `flashsim.reference` computes this problem."""
        _, _, _, mask, bias = self.operands
        if keep is not None and keep.shape[-1] < mask.shape[-1]:  # a sink is one more key
            keep = np.concatenate([keep, np.ones((*keep.shape[:3], 1), bool)], axis=-1)
        return {
            "scale": self.tau,
            "mask": mask,
            "bias": bias,
            "softcap": self.softcap,
            "keep": keep,
            "dropout_p": self.dropout_p,
        }

    @property
    def _rounding_options(self) -> dict[str, Any]:
        """The options with which `flashsim.reference` bounds the errors of a kernel that keeps to
        the spec.
        """
        T_c = -(-self.score_shape[-1] // self.spec.block[1])
        return {
            "chip": self.spec.chip(self.q.dtype.name),
            "stored": self.q.dtype,
            "C": self.spec.C,
            "stores": T_c if self.spec.stores == "output_per_block" else 1,
            "scores_stored": self.spec.stores == "scores",
            "operands_stored": True,
            "flushed": True,
        }

    def _sum_of_groups(self, a: Array) -> Array:
        """Return an array (B, H_q, N, width) summed over the query heads of each KV head."""
        B, H_q, N, width = a.shape
        return np.asarray(a.reshape(B, H_q // self.group, self.group, N, width).sum(axis=2))


def _by_row(scale: Array, a: Array, block: int) -> Array:
    """Return the scale of each row of an array (B, H, N, d). `scale` has one for each head, or for
    each block of rows.
    """
    if scale.ndim == 2:
        return np.asarray(scale[:, :, None, None], np.float64)
    rows = np.repeat(scale, block, axis=2)
    return np.asarray(rows[:, :, : a.shape[2], None], np.float64)
