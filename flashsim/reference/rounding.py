"""How far rounding may lead from the oracle, element by element, derived from the data's own
condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np
from numpy.typing import DTypeLike

from flashsim.algorithms import Algorithm
from flashsim.algorithms.own import forward_of, resolve
from flashsim.attention.arguments import (
    check_blocks_of_run,
    check_count,
    check_number,
    check_p,
    check_scale,
)
from flashsim.attention.inputs import (
    Array,
    check_attention,
    chip_dtype,
    float_dtype,
    largest,
    roundoff,
    smallest_normal,
    smallest_step,
)
from flashsim.attention.shapes import Blocks
from flashsim.reference.oracle import Three, Z_of, column_of, softmax, summed_to, tau_of


class Rounding(TypedDict):
    """What the bounds need to know of an algorithm, besides the data. See `error_bound` and
    `gradient_bounds`.
    """

    steps: int
    stores: int
    scores_stored: bool
    logs_rounded: int


class BackwardRounding(Rounding):
    """What the bounds of gradients need to know of a backward pass. See `gradient_bounds`."""

    dQ_stores: int
    recombined: bool


def rounding(name: str | Algorithm | Callable[..., Any], blocks: Blocks) -> Rounding:
    """Return what `error_bound` needs to know of the algorithm: `error_bound(Q, K, V,
    **rounding(name, run.blocks))`.

    Raises ValueError for an unknown name.
    """
    algorithm = resolve(name, "forward")
    T_c = check_blocks_of_run(blocks).T_c
    return Rounding(
        steps=algorithm.rescales(T_c),
        stores=algorithm.rounds(T_c),
        scores_stored=algorithm.stores_scores,
        logs_rounded=algorithm.rounds_logs(T_c),
    )


def backward_rounding(
    name: str | Algorithm, blocks: Blocks, backward_blocks: Blocks | None = None
) -> BackwardRounding:
    """Return what `gradient_bounds` needs to know, for a backward pass with its own blocks or the
    forward pass's.

    Raises ValueError for an unknown name.
    """
    algorithm = resolve(name, "backward")
    before = rounding(forward_of(algorithm), blocks)
    before["logs_rounded"] = algorithm.rounds_logs(blocks.T_c)
    own = blocks if backward_blocks is None else check_blocks_of_run(backward_blocks)
    return BackwardRounding(
        **before, dQ_stores=algorithm.rounds(own.T_c), recombined=algorithm.recombines
    )


def score_reach(Q: Any, K: Any, *, scale: float, mask: Any = None, bias: Any = None) -> Array:
    """Return max_j |scale|·|q_i|ᵀ|k_j| + |b_ij| of each row, (..., N_q, 1): rounding errors of its
    scores scale with it.

    Over the keys that the mask allows; 0 for a row that has none.
    """
    q, k = (np.abs(_numbers(a)) for a in check_attention(Q=Q, K=K, mask=mask, bias=bias))
    tau = abs(check_scale(scale, q.shape[-1]))
    reach = max(tau, 1.0) * (min(tau, 1.0) * q @ k.swapaxes(-1, -2))
    reach = reach if bias is None else reach + np.abs(_numbers(bias))
    return np.asarray(
        (reach if mask is None else np.where(mask, reach, 0.0)).max(axis=-1, keepdims=True)
    )


def error_bound(
    Q: Any,
    K: Any,
    V: Any,
    *,
    scale: float | None = None,
    steps: int = 1,
    stores: int | None = None,
    scores_stored: bool = False,
    operands_stored: bool = False,
    flushed: bool = False,
    logs_rounded: int = 0,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    keep: Any = None,
    dropout_p: float = 0.0,
    chip: DTypeLike | None = None,
    stored: DTypeLike | None = None,
    C: float = 2.0,
) -> Array:
    """Return how far each element of O may lie from exact attention, (..., N_q, d_v), from the
    data's own condition.

    `chip` is what is computed in (unit roundoff u), `stored` what matrices are kept in (u_s); both
    default to what `forward` uses for Q's dtype. `steps` is how often ℓ is rescaled, `stores` how
    often O is rounded on its way (by default as often; both T_c for Algorithm 1). `rounding` says
    all that of an algorithm.

    A score is a sum of d products: it is off by at most δ = (d + 4)·u·max_j |τ|·|q|ᵀ|k_j|, over the
    keys that the mask allows. The 4 covers the scale, the subtraction of the maximum and the
    exponential's argument; rescaling factors telescope, as the maximum only rises. A masked score
    is −∞, and exact. A bias adds |b_ij| to what δ is of, and to the 4 two: for its loading, perhaps
    from a wider type, and for its sum with the score; where S is stored, it is once more. ALiBi
    counts as one; the bound knows nothing of two that cancel. A soft cap c·tanh(S/c) changes no
    score's error for the worse, as its slope is at most 1. It adds 12 to the 4: one for the
    division, 8 for tanh (four units in the last place, as vector units have), one for the product,
    two for c; an S/c that underflows loses the chip's smallest subnormal, times c; and where S is
    stored, it is once more, as with a bias. A sink is one more term of the sum, and its score s is
    exact. Where it is the largest, by s − max_j |S| > 0 at least, that times u is added to δ:
    scores that it is subtracted from are rounded beside it. Storing S adds u_s·max_j |S| to δ;
    storing P adds u_s relatively, and the smallest subnormal absolutely. `operands_stored` is the
    latter alone: for kernels that round P (and backward dS) as it enters a product, as tensor cores
    need it. `flushed`: what is below the chip's smallest normal number may be flushed to 0, as
    vector units and GPUs do. Keeping log L in place of ℓ and m rounds max_j |S| + log N_k: that
    times u is added to δ, `logs_rounded` times. What underflows loses the chip's smallest subnormal
    at most, be it τ, a scaled Q or a product of Q and K: that times d·max(1, |τ|) + max_j Σ_c (1 +
    |q_c|)|k_jc| is added to δ. For the sums, N_k + steps times it is added to O's bound. A weight
    e^s is then off by a factor e^{±δ}, and so is the sum that divides it: together expm1(2δ). Sums
    over N_k keys add (N_k + 8)·u, each rescaling step of O and ℓ another 8u. All of it weighs on
    P|V|. Dropout turns P into PZ, Z being 0 or 1/(1 − p) (rounded, and multiplied by: 3u), and
    where P is stored, PZ is too. Each rounding of O to `stored` adds u_s of what has been summed so
    far, at most PZ|V|. C = 2 leaves room for the second-order terms left out. Where scores are so
    large that rounding them decides the softmax, the bound is the trivial one: two averages of V's
    rows differ by at most 2·max|V| / (1 − p). Weights by way of log L are at most 1 each, but their
    sum is 1 only as far as log L is exact: there, (N_k + 1)·max|V| / (1 − p). A row whose every key
    is masked is 0, exactly. Where PZ|V| passes the end of `stored`, as it may with dropout: ∞.
    """
    return _Bounds(
        Q,
        K,
        V,
        scale=scale,
        steps=steps,
        stores=stores,
        scores_stored=scores_stored,
        operands_stored=operands_stored,
        flushed=flushed,
        logs_rounded=logs_rounded,
        mask=mask,
        bias=bias,
        softcap=softcap,
        sink=sink,
        keep=keep,
        dropout_p=dropout_p,
        chip=chip,
        stored=stored,
        C=C,
    ).of_O(C)


def gradient_bounds(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    *,
    scale: float | None = None,
    steps: int = 1,
    stores: int | None = None,
    scores_stored: bool = False,
    operands_stored: bool = False,
    flushed: bool = False,
    logs_rounded: int = 0,
    dQ_stores: int | None = None,
    recombined: bool = False,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    keep: Any = None,
    dropout_p: float = 0.0,
    chip: DTypeLike | None = None,
    stored: DTypeLike | None = None,
    C: float = 2.0,
) -> Three:
    """Return how far each element of dQ, dK, dV may lie from the exact gradients, as arrays of
    their shapes.

    Arguments as for `error_bound`, those of the forward pass included, whose O, ℓ and m the
    backward pass inherits. `dQ_stores` is how often dQ is rounded on its way (Algorithm 4: T_c
    times, the default), `recombined` whether P ∘ (dP − D) is summed up by way of a block's own D
    (Appendix B.5). `backward_rounding` says all that of an algorithm.

    E(X) is how far the computed X may be off, |dO||V|ᵀ is written A, and A∘Z is A_Z ≥ |dP|. P is
    e^{S − m}/ℓ with S off by δ now and in ℓ: E(P) = P·(expm1(2δ) + (N_k + 8·steps + 8)·u), as in
    `error_bound`. It is at most 1, since P is between 0 and 1 and the computed one too: kept by
    Algorithm 3, and else by `at_most_0` (notation.py). P^dropped = P∘Z: E = Z·(E(P) + 3uP), and
    once more u_s where it is stored. dV = (P^dropped)ᵀdO, N_q terms: E = E(P^dropped)ᵀ|dO| + (N_q +
    4)·u·(P^dropped)ᵀ|dO|, and u_s of that sum to store it. dP = dO Vᵀ ∘ Z, d_v terms: E = (d_v +
    4)·u·A_Z; where it is stored, u_s·A_Z, twice with dropout. D = rowsum(dO∘O), d_v terms: O brings
    its own rounding: E = |dO|·E(O) + (d_v + 2)·u·|dO|·(P^dropped|V|). Standard attention sums P∘dP
    instead, N_k terms: E = Σ_j ((P + E(P))·E(dP) + E(P)·A_Z) + (N_k + 2)·u·Σ_j P·A_Z. dS = P∘(dP −
    D): E = E(P)·|dP − D| + (P + E(P))·(E(dP) + E(D) + 2u·(A_Z + |D|)), and u_s where it is stored.
    Before a soft cap it is dS·g, g = 1 − t², t = tanh(S/c): t is off by E(t) = min(δ/c, 2) + 2u, g
    by E(g) = 2E(t) + E(t)² + 4u or 1, if that is less, and dS·g by E(dS)·(g + E(g)) + |dS|·(E(g) +
    2u). A bias's gradient is that of scores after the cap. By way of a block's own D_j, which is an
    average of dP: 4u·max_j A_Z more inside the last bracket. dQ = τ dS K, N_k terms: E =
    |τ|·(E(dS)|K| + (N_k + 4)·u·|dS||K|) and dQ_stores·u_s of that sum. dK likewise: N_q, one store.
    Each rounding to `stored` may lose its smallest subnormal; each term of D, dQ, dK, dV the
    chip's, which dQ and dK scale by τ; τ the chip's, times |dS||K|. C = 2 leaves room for
    second-order terms, as before. Where a sum may pass the end of `stored` there is no bound: ∞.
    float16 ends at 65504, which dQ and dK may well pass.
    """
    has = _Bounds(
        Q,
        K,
        V,
        scale=scale,
        steps=steps,
        stores=stores,
        scores_stored=scores_stored,
        operands_stored=operands_stored,
        flushed=flushed,
        logs_rounded=logs_rounded,
        mask=mask,
        bias=bias,
        softcap=softcap,
        sink=sink,
        keep=keep,
        dropout_p=dropout_p,
        chip=chip,
        stored=stored,
        C=C,
    )
    return has.of_gradients(dO, dQ_stores, recombined)[0]


def bias_gradient_bound(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    *,
    bias: Any,
    scale: float | None = None,
    steps: int = 1,
    stores: int | None = None,
    scores_stored: bool = False,
    operands_stored: bool = False,
    flushed: bool = False,
    logs_rounded: int = 0,
    dQ_stores: int | None = None,
    recombined: bool = False,
    mask: Any = None,
    softcap: float | None = None,
    keep: Any = None,
    dropout_p: float = 0.0,
    chip: DTypeLike | None = None,
    stored: DTypeLike | None = None,
    C: float = 2.0,
) -> Array:
    """Return how far each element of a bias's gradient may lie from the exact one. Arguments as for
    `gradient_bounds`.

    It is dS, added up on the chip over the n elements that share an entry: C·(E(dS) + n·u·(|dS| +
    E(dS))), summed likewise.
    """
    has = _Bounds(
        Q,
        K,
        V,
        scale=scale,
        steps=steps,
        stores=stores,
        scores_stored=scores_stored,
        operands_stored=operands_stored,
        flushed=flushed,
        logs_rounded=logs_rounded,
        mask=mask,
        bias=bias,
        softcap=softcap,
        keep=keep,
        dropout_p=dropout_p,
        chip=chip,
        stored=stored,
        C=C,
    )
    _, dS, E_dS = has.of_gradients(dO, dQ_stores, recombined)
    with np.errstate(over="ignore", invalid="ignore"):
        own = summed_to(E_dS, np.shape(bias))
        most = summed_to(dS + E_dS, np.shape(bias))
        return np.asarray(has.C * (own + dS.size // max(own.size, 1) * has.u * most))


def sink_gradient_bound(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    *,
    sink: Any,
    scale: float | None = None,
    steps: int = 1,
    stores: int | None = None,
    scores_stored: bool = False,
    operands_stored: bool = False,
    flushed: bool = False,
    logs_rounded: int = 0,
    dQ_stores: int | None = None,
    recombined: bool = False,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    keep: Any = None,
    dropout_p: float = 0.0,
    chip: DTypeLike | None = None,
    stored: DTypeLike | None = None,
    C: float = 2.0,
) -> Array:
    """Return how far the gradient of each head's sink may lie from the exact one. Arguments as for
    `gradient_bounds`.

    `dQ_stores` and `recombined` make no difference. The gradient is −Σ_i P_sink,i D_i, and stays in
    the chip's type. P_sink is e^{s − m}/ℓ or e^{s − L}: it is off as P is, but s is exact; what it
    is subtracted from differs from s by at most |log P_sink|: E(P_sink) = P_sink·(expm1(2δ) + (N_k
    + 8·steps + 8)·u + u·|log P_sink|), and the chip's smallest subnormal. It is at most 1. D =
    rowsum(dO∘O), whatever the algorithm: E(D) as in `gradient_bounds`. N_q terms: E = Σ_i
    (E(P_sink)·(|D| + E(D)) + P_sink·E(D)) + (N_q + 2)·u·Σ_i (P_sink + E(P_sink))·(|D| + E(D)),
    taken C times.
    """
    has = _Bounds(
        Q,
        K,
        V,
        scale=scale,
        steps=steps,
        stores=stores,
        scores_stored=scores_stored,
        operands_stored=operands_stored,
        flushed=flushed,
        logs_rounded=logs_rounded,
        mask=mask,
        bias=bias,
        softcap=softcap,
        sink=sink,
        keep=keep,
        dropout_p=dropout_p,
        chip=chip,
        stored=stored,
        C=C,
    )
    return has.of_sink(dO)


def group_bound(
    parts: Any, bounds: Any, *, stored: DTypeLike, chip: DTypeLike | None = None, axis: int = -3
) -> Array:
    """Return how far dK (or dV) of a KV head may lie from the exact one where each of g query heads
    stored a part of it.

    `parts` are the exact parts and `bounds` what `gradient_bounds` says of each, their storing
    included, both with the g heads on `axis`, which is summed over. Of what they sum to in absolute
    value, Σ(|part| + bound), g − 1 additions on `chip` lose (g − 1)·u, and storing the sum u_s and
    at most the smallest subnormal; so, with C = 2 as before: Σ bound + 2((g − 1)·u + u_s)·Σ(|part|
    + bound) + that subnormal. ∞ where the sum may pass the end of `stored`.
    """
    stored = np.dtype(stored)
    chip = chip_dtype(stored) if chip is None else np.dtype(chip)
    u = roundoff(chip)
    u_s = 0.0 if stored == chip else roundoff(stored)
    own = np.asarray(bounds).sum(axis=axis)
    most = np.abs(parts).sum(axis=axis) + own
    with np.errstate(invalid="ignore"):
        bound = own + 2 * ((np.shape(parts)[axis] - 1) * u + u_s) * most + smallest_step(stored)
    return np.where(most + bound < largest(stored), bound, np.inf)


def parts_of_bound(result: Any, want: Array, bound: Array) -> Array:
    """Return each error as a part of its bound: at most 1 if all is well, ∞ where one alone is NaN,
    or the bound is 0.

    What may overflow the type that it is kept in has a bound of ∞: any number is allowed there.
    """
    result = np.asarray(result).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.where(
            (result == want) | (np.isnan(result) & np.isnan(want)), 0.0, np.abs(result - want)
        )
        part = np.divide(error, bound, out=np.where(error == 0, 0.0, np.inf), where=bound > 0)
    return np.where(bound == np.inf, 0.0, np.where(np.isnan(part), np.inf, part))


def of_bound(result: Any, want: Any, bound: Any) -> float:
    """Return the largest of these parts; 0 for no element, and ∞ for NaN."""
    parts = parts_of_bound(result, np.asarray(want), np.asarray(bound))
    return float(np.where(np.isnan(result), np.inf, parts).max(initial=0.0))


class _Bounds:
    """What all bounds start from, in float64: the weights P, Z, |τ|·|q|ᵀ|k|'s row maxima, PZ|V|;
    and the roundoffs.

    The arguments are `error_bound`'s.
    """

    def __init__(
        self,
        Q: Any,
        K: Any,
        V: Any,
        *,
        scale: float | None,
        steps: int,
        stores: int | None,
        scores_stored: bool,
        operands_stored: bool,
        flushed: bool,
        logs_rounded: int,
        mask: Any,
        bias: Any,
        softcap: Any,
        keep: Any,
        dropout_p: float,
        chip: DTypeLike | None,
        stored: DTypeLike | None,
        C: float,
        sink: Any = None,
    ) -> None:
        Q, K, V = check_attention(Q=Q, K=K, V=V, mask=mask, keep=keep, bias=bias)
        self.dropout_p = check_p(dropout_p)
        self.C = check_number("C", C, "a number above 0", lambda C: 0 < C < math.inf)
        self.steps, self.logs_rounded = (
            check_count("steps", steps),
            check_count("logs_rounded", logs_rounded, 0),
        )
        self.stores = self.steps if stores is None else check_count("stores", stores, 0)
        stored = float_dtype(Q.dtype if stored is None else stored)
        chip = chip_dtype(stored) if chip is None else float_dtype(chip)
        self.u, self.u_s = roundoff(chip), (0.0 if stored == chip else roundoff(stored))
        self.least = smallest_normal(chip) if flushed else smallest_step(chip)
        self.step, self.end = max(self.least, smallest_step(stored)), largest(stored)
        self.Q, self.K, self.V = (_numbers(a) for a in (Q, K, V))
        self.tau = float(tau_of(scale, self.Q))
        P, l, m, self.slope = softmax(
            self.Q, self.K, np.asarray(self.tau), mask, bias, softcap, sink
        )
        self.softcap = softcap
        self.any_key = l > 0
        self.P = P / np.where(self.any_key, l, 1)
        self.allowed = np.broadcast_to(True if mask is None else np.asarray(mask), P.shape)
        self.Z = (
            np.ones_like(P)
            if keep is None
            else np.broadcast_to(Z_of(keep, dropout_p, np.float64), P.shape)
        )
        self.mass = (self.P * self.Z) @ np.abs(self.V)
        self.scores_stored = scores_stored
        self.dropped = keep is not None
        self.kept = scores_stored or operands_stored

        # of a row's weights, their sum and their products with V, without O's own storing
        (d, N_k), biased, capped = (
            (self.Q.shape[-1], self.K.shape[-2]),
            bias is not None,
            softcap is not None,
        )
        reach = score_reach(self.Q, self.K, scale=self.tau, mask=mask, bias=bias)
        delta = (
            (d + 4 + 2 * biased + 12 * capped) * self.u
            + scores_stored * (1 + (biased or capped)) * self.u_s
        ) * reach
        s = np.asarray(-np.inf) if sink is None else column_of(sink)
        size = np.where(s == -np.inf, 0.0, np.abs(s))
        delta = delta + self.logs_rounded * self.u * (
            np.maximum(reach, size) + math.log(N_k + (sink is not None))
        )
        delta = delta + self.u * np.maximum(s - reach, 0.0)
        self.P_sink = np.exp(s - np.where(m == -np.inf, 0.0, m)) / np.where(self.any_key, l, 1)
        delta = delta + self.least * d * max(1.0, abs(self.tau))
        delta = delta + self.least * (1 + (softcap or 0.0)) * capped
        delta = delta + score_reach(1 + np.abs(self.Q), self.K, scale=self.least, mask=mask)
        self.delta = delta
        with np.errstate(over="ignore"):
            self.undropped = np.expm1(2 * delta) + (N_k + 8 * (self.steps + 1)) * self.u
        self.relative = (
            self.undropped + 3 * self.dropped * self.u + self.kept * (1 + self.dropped) * self.u_s
        )

    def of_O(self, C: float) -> Array:
        """Return how far O may be off, first-order terms taken C times."""
        gain = 1 / (1 - self.dropout_p)
        size = np.abs(self.V)
        floor = self.stores * self.step + self.least * (self.K.shape[-2] + self.steps)
        floor = floor + self.least * gain * size.sum(axis=-2, keepdims=True)
        if self.kept:
            floor = floor + self.step * (gain + self.dropped) * size.sum(axis=-2, keepdims=True)
        with np.errstate(over="ignore"):
            off = (
                C
                * (self.relative + self.stores * self.u_s)
                * np.maximum(self.mass, smallest_step(np.float64))
            )
        weights = self.K.shape[-2] if self.logs_rounded else 1
        most = (weights + 1) * gain * (1 + self.u_s) * size.max(axis=-2, keepdims=True)
        return self._within_range(
            np.where(self.any_key, np.minimum(off, most) + floor, 0.0), self.mass
        )

    def of_gradients(
        self, dO: Any, dQ_stores: int | None, recombined: bool
    ) -> tuple[Three, Array, Array]:
        """Return how far dQ, dK and dV may be off; and |dS| and E(dS) after any cap, of which a
        bias's gradient is made.
        """
        dQ_stores = self.steps if dQ_stores is None else check_count("dQ_stores", dQ_stores, 0)
        u = self.u
        u_s = self.u_s
        step = self.step
        least = self.least
        P = self.P
        Z = self.Z
        dropped = self.dropped
        u_p, step_p = (u_s, step) if self.kept else (0.0, 0.0)  # what storing P, dP and dS adds
        N_q = self.Q.shape[-2]
        N_k = self.K.shape[-2]
        d_v = self.V.shape[-1]
        dO = _numbers(check_attention(Q=self.Q, K=self.K, V=self.V, dO=dO)[-1])

        with np.errstate(over="ignore", invalid="ignore"):
            E_P = self.relative * np.maximum(P, smallest_step(np.float64)) + least + step_p
            E_P = np.where(self.allowed, np.minimum(E_P, 1.0), 0.0)
            E_P_dropped = Z * (E_P + 3 * u * P) + (u_p * Z * P + step_p) * dropped
            dV_sum = (P * Z).swapaxes(-1, -2) @ np.abs(dO)
            E_dV = E_P_dropped.swapaxes(-1, -2) @ np.abs(dO) + ((N_q + 4) * u + u_s) * dV_sum + step

            A_Z = Z * (np.abs(dO) @ np.abs(self.V).swapaxes(-1, -2))
            E_dP = ((d_v + 4) * u + (1 + dropped) * u_p) * A_Z
            E_dP = E_dP + (d_v * least + step_p) * np.maximum(Z, 1) + step_p * dropped
            D_sum = (P * A_Z).sum(axis=-1, keepdims=True)
            if self.scores_stored:
                E_D = (
                    ((P + E_P) * E_dP + E_P * A_Z).sum(axis=-1, keepdims=True)
                    + (N_k + 2) * u * D_sum
                    + N_k * least
                )
            else:
                E_D = self._of_D(dO)
            dP = Z * (dO @ self.V.swapaxes(-1, -2))
            dP_less_D = np.abs(dP - (P * dP).sum(axis=-1, keepdims=True))
            detour = np.where(self.allowed, A_Z, 0.0).max(axis=-1, keepdims=True) * recombined
            E_dS = E_P * dP_less_D + (P + E_P) * (
                E_dP + E_D + 2 * u * (A_Z + D_sum) + 4 * u * detour
            )
            E_dS = np.where(self.allowed, E_dS + u_p * P * dP_less_D + least + step_p, 0.0)

            tau = abs(self.tau)
            after = P * dP_less_D
            E_after = E_dS
            dS, E_dS = self._uncapped(after, E_after, least + step_p)
            dS_T = dS.swapaxes(-1, -2)
            E_dS_T = E_dS.swapaxes(-1, -2)
            dQ_plain = (dS + E_dS) @ np.abs(self.K)
            dK_plain = (dS_T + E_dS_T) @ np.abs(self.Q)
            dQ_sum = tau * dQ_plain
            dK_sum = tau * dK_plain
            E_dQ = (
                tau * (E_dS @ np.abs(self.K))
                + ((N_k + 4) * u + dQ_stores * u_s) * dQ_sum
                + dQ_stores * step
            )
            E_dK = tau * (E_dS_T @ np.abs(self.Q)) + ((N_q + 4) * u + u_s) * dK_sum + step
            E_dQ = np.where(self.any_key, E_dQ + ((1 + tau) * N_k + dQ_plain) * least, 0.0)
            E_dK = E_dK + ((1 + tau) * N_q + dK_plain) * least
            E_dV = E_dV + N_q * least
            pairs = ((E_dQ, dQ_sum), (E_dK, dK_sum), (E_dV, dV_sum))
            return (
                Three(*(self._within_range(self.C * bound, most) for bound, most in pairs)),
                after,
                E_after,
            )

    def of_sink(self, dO: Any) -> Array:
        """Return how far the gradient of a sink may be off."""
        dO = _numbers(check_attention(Q=self.Q, K=self.K, V=self.V, dO=dO)[-1])
        P = self.P_sink
        u = self.u
        with np.errstate(over="ignore", invalid="ignore"):
            E_D = self._of_D(dO)
            D = np.abs((dO * ((self.P * self.Z) @ self.V)).sum(axis=-1, keepdims=True)) + E_D
            apart = np.abs(np.log(P, where=P > 0, out=np.zeros_like(P)))
            E_P = np.minimum(P * (self.undropped + u * apart) + self.least, 1.0)
            off = E_P * D + P * E_D + (self.Q.shape[-2] + 2) * u * (P + E_P) * D + self.least
            return np.asarray(
                np.nan_to_num(self.C * off.sum(axis=(-2, -1)), nan=np.inf, posinf=np.inf)
            )

    def _of_D(self, dO: Array) -> Array:
        """Return how far rowsum(dO ∘ O) may be off."""
        off = self.of_O(1.0) + (dO.shape[-1] + 2) * self.u * self.mass + self.least
        return np.asarray(
            (np.abs(dO) * off).sum(axis=-1, keepdims=True) + dO.shape[-1] * self.least
        )

    def _uncapped(self, dS: Array, E_dS: Array, vanished: float) -> tuple[Array, Array]:
        """Return |dS| and E(dS) of scores before their soft cap."""
        if self.softcap is None:
            return dS, E_dS
        E_t = np.minimum(self.delta / self.softcap, 2) + 2 * self.u
        E_slope = np.minimum(2 * E_t + E_t * E_t + 4 * self.u, 1)
        most = np.minimum(self.slope + E_slope, 1)
        off = E_dS * most + dS * (E_slope + 2 * self.u) + vanished
        return dS * self.slope, np.where(self.allowed, off, 0.0)

    def _within_range(self, bound: Array, most: Array) -> Array:
        """Return the bound, and ∞ where a sum of that size, with its error, may overflow what it
        is stored in.
        """
        return np.where(most + bound < self.end, bound, np.inf)


def _numbers(a: Any) -> Array:
    """Return `a` in float64, with 0 for NaN and ∞: a bound is for results that do not depend on
    those.
    """
    wide = np.asarray(a).astype(np.float64)
    return np.where(np.isfinite(wide), wide, 0.0)
