"""Naive softmax attention in plain NumPy: the oracle of every test, and how far from it rounding may lead.

`attention` forms the whole N_q × N_k matrix, subtracts each row's maximum before the exponential (so no finite score
overflows), and divides once. In float64, its default, its own error against exact arithmetic on the given numbers is
within `error_bound(..., chip=float64, stored=float64)`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashsim.inputs import Array, chip_dtype, roundoff, smallest_step


class Attention(NamedTuple):
    """O (..., N_q, d_v) and the softmax statistics l, m (..., N_q)."""

    O: Array
    l: Array
    m: Array


def attention(Q: Any, K: Any, V: Any, *, scale: float | None = None, dtype: DTypeLike = np.float64) -> Array:
    """Return softmax(scale · QKᵀ) V, (..., N_q, d_v), computed in `dtype`. `scale=None` is 1/√d."""
    return attention_with_statistics(Q, K, V, scale=scale, dtype=dtype).O


def attention_with_statistics(
    Q: Any, K: Any, V: Any, *, scale: float | None = None, dtype: DTypeLike = np.float64
) -> Attention:
    """Return O with l = Σ exp(S − m) and m = max S of each row, for S = scale · QKᵀ."""
    Q, K, V = (np.asarray(a).astype(dtype) for a in (Q, K, V))
    tau = np.asarray(1 / math.sqrt(Q.shape[-1]) if scale is None else scale, dtype)
    S = (tau * Q) @ K.swapaxes(-1, -2)
    m = S.max(axis=-1, keepdims=True)
    P = np.exp(S - m)
    l = P.sum(axis=-1, keepdims=True)
    return Attention((P @ V) / l, l[..., 0], m[..., 0])


def score_reach(Q: Any, K: Any, *, scale: float) -> Array:
    """Return max_j |scale|·|q_i|ᵀ|k_j| of each row, (..., N_q, 1): rounding errors of its scores scale with it."""
    q, k = (np.abs(np.asarray(a).astype(np.float64)) for a in (Q, K))
    return np.asarray(abs(scale) * (q @ k.swapaxes(-1, -2)).max(axis=-1, keepdims=True))


def error_bound(
    Q: Any,
    K: Any,
    V: Any,
    *,
    scale: float | None = None,
    steps: int = 1,
    scores_stored: bool = False,
    chip: DTypeLike | None = None,
    stored: DTypeLike | None = None,
    C: float = 2.0,
) -> Array:
    """Return how far each element of O may lie from exact attention, (..., N_q, d_v), from the data's own condition.

    `chip` is what is computed in (unit roundoff u), `stored` what matrices are kept in (u_s); both default to what
    `forward` uses for Q's dtype. `steps` is how often O is rounded on its way (Algorithm 1: T_c times).

    A score is a sum of d products: it is off by at most δ = (d + 4)·u·max_j |τ|·|q|ᵀ|k_j|. The 4 covers the scale, the
    subtraction of the maximum and the exponential's argument; rescaling factors telescope, as the maximum only rises.
    Storing S adds u_s·max_j |S| to δ; storing P adds u_s relatively, and the smallest subnormal absolutely.
    A weight e^s is then off by a factor e^{±δ}, numerator and denominator alike: 2·expm1(δ).
    Sums over N_k keys add (N_k + 8)·u, each rescaling step of O and ℓ another 8u. All of it weighs on P|V|.
    Each rounding of O to `stored` adds u_s of what has been summed so far, at most P|V|.
    C = 2 leaves room for the second-order terms left out. Where scores are so large that rounding them decides the
    softmax, the bound is the trivial one: two averages of V's rows differ by at most 2·max|V|.
    """
    Q = np.asarray(Q)
    chip = chip_dtype(Q.dtype) if chip is None else np.dtype(chip)
    stored = Q.dtype if stored is None else np.dtype(stored)
    u, u_s = roundoff(chip), (0.0 if np.dtype(stored) == np.dtype(chip) else roundoff(stored))
    q, k, v = (np.asarray(a).astype(np.float64) for a in (Q, K, V))
    tau = abs(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    d, N_k = q.shape[-1], k.shape[-2]
    reach = score_reach(q, k, scale=tau)
    delta = (d + 4) * u * reach + (u_s * reach if scores_stored else 0.0)
    S = tau * (q @ k.swapaxes(-1, -2)) * (1.0 if scale is None else math.copysign(1, scale))
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    mass = (P @ np.abs(v)) / P.sum(axis=-1, keepdims=True)
    floor = np.full_like(mass, steps * smallest_step(stored))
    if scores_stored:
        floor = floor + smallest_step(stored) * np.abs(v).sum(axis=-2, keepdims=True)
    with np.errstate(over="ignore"):
        relative = 2 * np.expm1(delta) + (N_k + 8 * (steps + 1)) * u + (steps + scores_stored) * u_s
        rounding = np.where(mass > 0, C * relative * np.maximum(mass, smallest_step(np.float64)), 0.0)
    most = 2 * (1 + u_s) * np.abs(v).max(axis=-2, keepdims=True)
    return np.asarray(np.minimum(rounding, most) + floor)
