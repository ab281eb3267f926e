"""What is linear in N instead of attention, in plain NumPy, and how far rounding may lead from it,
element by element.

Linformer is attention to E K and F V. Performer is two attentions with its features w_f between:
those attend to the keys, the queries to them,

    O = softmax(c Q Wᵀ + A) softmax(c W Kᵀ − ‖c k‖²/2) V,
    c = √τ,  A_f = log Σ_j e^{c w_f · k_j − ‖c k_j‖²/2},

which is φ(Q) (φ(K)ᵀ V) divided by φ(Q) (φ(K)ᵀ 1), with φ(x)_f = e^{c w_f · x − ‖c x‖²/2}: what
belongs to a query cancels.

Reformer is attention to those keys that a query meets in any round, SMYRF to each as often as they
meet: a masked softmax, and one of S + log times.

Bounds. u is the chip's unit roundoff. A sum of n products in T parts is off by (n + T + 3)u of the
sum of their sizes. Where scores are off by δ, and values by ε, an average of n values in T blocks
is off by R Σ_j P_j|v_j| + (1 + R) Σ_j P_j ε_j, with R = e^{2 max δ + 8u max|S|} − 1 + (n + 8T +
8)u, and its log-sum-exp by max δ + (n + 3T + 8)u + 4u max|S|. What is stored in another type is off
by its roundoff. First-order terms are taken `C` times, 2 by default, for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashsim.attention.inputs import Array
from flashsim.reference.operands import (
    ResultsAndBounds,
    float_type,
    hash_rounds,
    oracle,
    placement,
    positive,
    roundoffs,
    scale_not_negative,
    softmax_scale,
    two_whole_numbers,
    whole_number,
)


class Approximate(NamedTuple):
    """O (N, e), and L (N,), the log-sum-exp of a row."""

    O: Array
    L: Array


QKV = {"Q": ("N", "d"), "K": ("N", "d"), "V": ("N", "e")}
LINFORMER = QKV | {"E": ("k", "N"), "F": ("k", "N")}
PERFORMER = {"Q": ("N", "d"), "K": ("n", "d"), "V": ("n", "e"), "W": ("k", "d")}


@oracle(LINFORMER, scale=softmax_scale)
def linformer(Q: Any, K: Any, V: Any, E: Any, F: Any, *, scale: float | None = None) -> Approximate:
    """Return softmax(τ Q (E K)ᵀ) F V and its log-sum-exps, in float64."""
    return _averages(_tau(scale, Q) * Q @ (E @ K).T, F @ V)


@oracle(LINFORMER, scale=softmax_scale, blocks=two_whole_numbers, stored=float_type, C=positive)
def linformer_bounds(
    Q: Any,
    K: Any,
    V: Any,
    E: Any,
    F: Any,
    *,
    scale: float | None = None,
    blocks: tuple[int, int] = (1, 1),
    stored: DTypeLike = "float64",
    C: float = 2.0,
) -> Approximate:
    """Return how far each of these may lie from exact arithmetic, where (N, k) come in so many
    `blocks`.
    """
    has = _Rounding(stored, C)
    tau, (N, d) = _tau(scale, Q), Q.shape
    K_low = E @ K
    V_low = F @ V
    terms = C * (N + blocks[0] + 3) * has.u
    E_K = has.stores(K_low, terms * (abs(E) @ abs(K)) + N * has.least)
    E_V = has.stores(V_low, terms * (abs(F) @ abs(V)) + N * has.least)
    delta = abs(tau) * abs(Q) @ (E_K + C * (d + 4) * has.u * (abs(K_low) + E_K)).T
    return has.averages(tau * Q @ K_low.T, delta, V_low, E_V, blocks[1])


@oracle(PERFORMER, scale=scale_not_negative)
def performer(Q: Any, K: Any, V: Any, W: Any, *, scale: float | None = None) -> Array:
    """Return φ(Q) (φ(K)ᵀ V), divided by φ(Q) (φ(K)ᵀ 1), in float64, (N, e)."""
    c = _tau(scale, Q) ** 0.5
    S, A = _averages(_features(c, K, W), V)
    return _averages(c * Q @ W.T + A, S).O


@oracle(
    PERFORMER,
    scale=scale_not_negative,
    blocks=two_whole_numbers,
    phi=placement,
    stored=float_type,
    C=positive,
)
def performer_bounds(
    Q: Any,
    K: Any,
    V: Any,
    W: Any,
    *,
    scale: float | None = None,
    blocks: tuple[int, int] = (1, 1),
    phi: str = "on_chip",
    stored: DTypeLike = "float64",
    C: float = 2.0,
) -> Array:
    """Return how far each element of O may lie from exact arithmetic, where (N, k) come in so many
    `blocks`.

    `phi`: "on_chip", or "in_hbm", where scores are stored too.
    """
    has = _Rounding(stored, C)
    c = _tau(scale, Q) ** 0.5
    d = Q.shape[1]
    G = _features(c, K, W)
    many = C * (d + 8) * has.u
    S, A = _averages(G, V)
    E_G = many * (c * abs(W) @ abs(K).T + (c * K * c * K).sum(1))
    E_Q = many * c * abs(Q) @ abs(W).T
    if phi == "in_hbm":
        E_G = has.stores(G, E_G)
        E_Q = has.stores(c * Q @ W.T, E_Q)
    E_S, E_A = has.averages(G, E_G, V, 0 * V, blocks[0])
    delta = E_Q + 2 * C * has.u * abs(A) + E_A
    return has.averages(c * Q @ W.T + A, delta, S, E_S, blocks[1]).O


@oracle(QKV, buckets=hash_rounds, C=whole_number, scale=softmax_scale)
def reformer(Q: Any, K: Any, V: Any, buckets: Any, *, C: int, scale: float | None = None) -> Array:
    """Return attention of each row to those that it meets in any of the rounds, in float64, (N, e).

    They meet in a round where they are in one bucket, and, sorted by bucket, in one cluster of C or
    the key in the one before.
    """
    return _averages(
        np.where(_meet_reformer(buckets, C).any(0), _tau(scale, Q) * Q @ K.T, -np.inf), V
    ).O


@oracle(
    QKV,
    buckets=hash_rounds,
    C=whole_number,
    scale=softmax_scale,
    stored=float_type,
    factor=positive,
)
def reformer_bounds(
    Q: Any,
    K: Any,
    V: Any,
    buckets: Any,
    *,
    C: int,
    scale: float | None = None,
    stored: DTypeLike = "float64",
    factor: float = 2.0,
) -> Array:
    """Return how far each element may lie from exact arithmetic; first-order terms are taken
    `factor` times.
    """
    meet = _meet_reformer(buckets, C)
    biases = np.where(meet, -np.log(np.maximum(meet.sum(0), 1)), -np.inf)
    return _rounds_bounds(Q, K, V, biases, scale, 2, _Rounding(stored, factor))


@oracle(QKV, hashes_Q=hash_rounds, hashes_K=hash_rounds, C=whole_number, scale=softmax_scale)
def smyrf(
    Q: Any, K: Any, V: Any, hashes_Q: Any, hashes_K: Any, *, C: int, scale: float | None = None
) -> Array:
    """Return attention of each query to each key as often as they meet, in float64, (N, e).

    They meet in a round where, each sorted by hash, they are in clusters of C of one number.
    """
    with np.errstate(divide="ignore"):
        return _averages(
            _tau(scale, Q) * Q @ K.T + np.log(_meet_smyrf(hashes_Q, hashes_K, C).sum(0)), V
        ).O


@oracle(
    QKV,
    hashes_Q=hash_rounds,
    hashes_K=hash_rounds,
    C=whole_number,
    scale=softmax_scale,
    stored=float_type,
    factor=positive,
)
def smyrf_bounds(
    Q: Any,
    K: Any,
    V: Any,
    hashes_Q: Any,
    hashes_K: Any,
    *,
    C: int,
    scale: float | None = None,
    stored: DTypeLike = "float64",
    factor: float = 2.0,
) -> Array:
    """Return how far each element may lie from exact arithmetic; first-order terms are taken
    `factor` times.
    """
    biases = np.where(_meet_smyrf(hashes_Q, hashes_K, C), 0.0, -np.inf)
    return _rounds_bounds(Q, K, V, biases, scale, 1, _Rounding(stored, factor))


def _meet_reformer(buckets: Any, C: int) -> Array:
    """Return which row looks at which in each round, (h, N, N)."""
    b = np.asarray(buckets)
    cluster = _clusters(buckets, C)
    back = cluster[:, :, None] - cluster[:, None, :]
    return np.asarray((b[:, :, None] == b[:, None, :]) & ((back == 0) | (back == 1)))


def _meet_smyrf(hashes_Q: Any, hashes_K: Any, C: int) -> Array:
    """Return which query meets which key in each round, (h, N, N)."""
    if len(hashes_Q) != len(hashes_K):
        raise ValueError(
            f"hashes_Q has {len(hashes_Q)} rounds, hashes_K {len(hashes_K)}; expected as many"
        )
    return np.asarray(_clusters(hashes_Q, C)[:, :, None] == _clusters(hashes_K, C)[:, None, :])


def _clusters(keys: Any, C: int) -> Array:
    """Return the number of each row's cluster in each round: how many come before it, of smaller
    keys or as large, over C.
    """
    return np.asarray(np.asarray(keys).argsort(1, kind="stable").argsort(1) // C)


def _rounds_bounds(
    Q: Any, K: Any, V: Any, biases: Array, scale: float | None, blocks: int, has: _Rounding
) -> Array:
    """Return how far rounds of attention under biases (h, N, N), merged by their log-sum-exps,
    are off, O stored each time.
    """
    tau = _tau(scale, Q)
    d = Q.shape[1]
    S = tau * Q @ K.T
    E_S = has.C * (d + 4) * has.u * abs(tau) * abs(Q) @ abs(K).T
    parts = []
    for bias in biases:
        met = np.isfinite(bias)
        off = np.where(met, E_S + has.C * has.u * (abs(S) + 3 * abs(np.where(met, bias, 0))), 0)
        parts.append((_averages(S + bias, V), has.averages(S + bias, off, V, 0 * V, blocks)))
    L, E_L = (np.stack([part.L for part in column], axis=1) for column in zip(*parts, strict=True))
    O, E_O = (np.stack([part.O for part in column], axis=1) for column in zip(*parts, strict=True))
    return has.averages(L, E_L, O, E_O, len(biases)).O


def _features(c: float, K: Array, W: Array) -> Array:
    """Return log φ(K)ᵀ, (k, N)."""
    return np.asarray(c * W @ K.T - (c * K * c * K).sum(1) / 2)


def _tau(scale: float | None, Q: Array) -> float:
    return 1 / float(np.sqrt(Q.shape[1])) if scale is None else scale


def _averages(S: Array, V: Array) -> Approximate:
    """Return softmax(S) V, and the log-sum-exp of each row of S."""
    top = S.max(1, keepdims=True)
    P = np.exp(S - top)
    return Approximate(_mixed(P / P.sum(1, keepdims=True), V), np.log(P.sum(1)) + top[:, 0])


def _mixed(P: Array, V: Array) -> Array:
    """Return P V, where V is one matrix (n, e) for all rows, or one for each, (N, n, e)."""
    return np.asarray(P @ V if V.ndim == 2 else (P[:, None, :] @ V)[:, 0])


class _Rounding:
    """The roundoffs of the chip and of what is stored, and what follows for each step."""

    def __init__(self, stored: DTypeLike, C: float) -> None:
        self.C = C
        self.u, self.u_s, self.least, self.step = roundoffs(stored)

    def stores(self, X: Array, off: Array) -> Array:
        """Return how far X is off, `off` before it is stored, when it has been."""
        return np.asarray(off + self.C * self.u_s * (abs(X) + off) + self.step)

    def averages(self, S: Array, delta: Array, V: Array, E_V: Array, blocks: int) -> Approximate:
        """Return how far softmax(S) V, stored, and the log-sum-exps are off, where S is off by
        delta and V by E_V.

        S may hold −∞, off by 0. V as in `_mixed`.
        """
        n = V.shape[-2]
        C = self.C
        u = self.u
        P = np.exp(S - S.max(1, keepdims=True))
        P /= P.sum(1, keepdims=True)
        sizes = np.where(np.isfinite(S), abs(S), 0)
        off = (delta + 4 * C * u * sizes).max(1, keepdims=True)
        size = sizes.max(1)
        R = np.expm1(2 * off) + C * (n + 8 * blocks + 8) * u
        most = abs(V) + E_V
        E_O = R * _mixed(P, abs(V)) + (1 + R) * _mixed(P, E_V) + n * self.least * (1 + most.max())
        right = _averages(S, V)
        E_L = (
            delta.max(1)
            + C * ((n + 3 * blocks + 8) * u + 4 * u * size + u * abs(right.L))
            + self.least
        )
        return Approximate(self.stores(right.O, E_O), E_L)


def _linformer(arguments: Mapping[str, Any], blocks: Mapping[str, int]) -> ResultsAndBounds:
    operands = [arguments[name] for name in "QKVEF"]
    scale = arguments["tau"]
    parts = -(-len(operands[0]) // blocks["B_c"]), -(-len(operands[3]) // blocks["B_k"])
    right = linformer(*operands, scale=scale)
    bounds = linformer_bounds(*operands, scale=scale, blocks=parts)
    return {"O": (right.O, bounds.O), "L": (right.L, bounds.L)}


def _performer(
    phi: str, arguments: Mapping[str, Any], blocks: Mapping[str, int]
) -> ResultsAndBounds:
    operands = [arguments[name] for name in "QKVW"]
    scale = arguments["c"] ** 2
    parts = -(-len(operands[1]) // blocks["B_c"]), -(-len(operands[3]) // blocks["B_g"])
    return {
        "O": (
            performer(*operands, scale=scale),
            performer_bounds(*operands, scale=scale, phi=phi, blocks=parts),
        )
    }


def _reformer(arguments: Mapping[str, Any], blocks: Mapping[str, int]) -> ResultsAndBounds:
    order = np.asarray(arguments["order"]).astype(np.int64)
    home = np.asarray(arguments["home"]).T.astype(np.int64)
    buckets = np.empty_like(order)
    # a step of 1 leads to the same bucket's next cluster
    steps = np.diff(np.take_along_axis(home, order, axis=1), axis=1, prepend=0)
    np.put_along_axis(buckets, order, np.cumsum(steps > 1, axis=1), axis=1)
    how = {"C": blocks["C"], "scale": arguments["tau"]}
    operands = [*(arguments[name] for name in "QKV"), buckets]
    return {"O": (reformer(*operands, **how), reformer_bounds(*operands, **how))}


def _smyrf(arguments: Mapping[str, Any], blocks: Mapping[str, int]) -> ResultsAndBounds:
    places = [np.argsort(arguments[name], axis=1) for name in ("order_Q", "order_K")]
    how = {"C": blocks["C"], "scale": arguments["tau"]}
    operands = [*(arguments[name] for name in "QKV"), *places]
    return {"O": (smyrf(*operands, **how), smyrf_bounds(*operands, **how))}


NAIVE = {
    "linformer": _linformer,
    "performer": partial(_performer, "on_chip"),
    "performer_materialised": partial(_performer, "in_hbm"),
    "reformer": _reformer,
    "smyrf": _smyrf,
}
