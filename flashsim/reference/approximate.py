"""What is linear in N instead of attention, in plain NumPy, and how far rounding may lead from it, element by element.

Linformer is attention to E K and F V. Performer is two attentions with its features w_f between: those attend to the keys, the
queries to them,

    O = softmax(c Q Wᵀ + A) softmax(c W Kᵀ − ‖c k‖²/2) V,  c = √τ,  A_f = log Σ_j e^{c w_f · k_j − ‖c k_j‖²/2},

which is φ(Q) (φ(K)ᵀ V) divided by φ(Q) (φ(K)ᵀ 1), with φ(x)_f = e^{c w_f · x − ‖c x‖²/2}: what belongs to a query cancels.

Bounds. u is the chip's unit roundoff. A sum of n products in T parts is off by (n + T + 3)u of the sum of their sizes. Where
scores are off by δ, and values by ε, an average of n values in T blocks is off by R Σ_j P_j|v_j| + (1 + R) Σ_j P_j ε_j, with
R = e^{2 max δ + 8u max|S|} − 1 + (n + 8T + 8)u, and its log-sum-exp by max δ + (n + 3T + 8)u + 4u max|S|. What is stored in
another type is off by its roundoff. First-order terms are taken `C` times, 2 by default, for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashsim.inputs import Array, chip_dtype, float_dtype, roundoff, smallest_step


class Approximate(NamedTuple):
    """O (N, e), and L (N,), the log-sum-exp of a row."""

    O: Array
    L: Array


def linformer(Q: Any, K: Any, V: Any, E: Any, F: Any, *, scale: float | None = None) -> Approximate:
    """Return softmax(τ Q (E K)ᵀ) F V and its log-sum-exps, in float64."""
    Q, K, V, E, F = _wide(Q, K, V, E, F)
    return _averages(_tau(scale, Q) * Q @ (E @ K).T, F @ V)


def linformer_bounds(
    Q: Any, K: Any, V: Any, E: Any, F: Any, *, scale: float | None = None, blocks: tuple[int, int] = (1, 1),
    stored: DTypeLike = "float64", C: float = 2.0,
) -> Approximate:  # fmt: skip
    """Return how far each of these may lie from exact arithmetic, where (N, k) come in so many `blocks`."""
    has = _Rounding(stored, C)
    Q, K, V, E, F = _wide(Q, K, V, E, F)
    tau, (N, d) = _tau(scale, Q), Q.shape
    K_low, V_low = E @ K, F @ V
    E_K = has.stores(K_low, C * (N + blocks[0] + 3) * has.u * (abs(E) @ abs(K)))
    E_V = has.stores(V_low, C * (N + blocks[0] + 3) * has.u * (abs(F) @ abs(V)))
    delta = abs(tau) * abs(Q) @ (E_K + C * (d + 4) * has.u * (abs(K_low) + E_K)).T
    return has.averages(tau * Q @ K_low.T, delta, V_low, E_V, blocks[1])


def performer(Q: Any, K: Any, V: Any, W: Any, *, scale: float | None = None) -> Array:
    """Return φ(Q) (φ(K)ᵀ V), divided by φ(Q) (φ(K)ᵀ 1), in float64, (N, e)."""
    Q, K, V, W = _wide(Q, K, V, W)
    c = _tau(scale, Q) ** 0.5
    S, A = _averages(_features(c, K, W), V)
    return _averages(c * Q @ W.T + A, S).O


def performer_bounds(
    Q: Any, K: Any, V: Any, W: Any, *, scale: float | None = None, blocks: tuple[int, int] = (1, 1),
    phi: str = "on_chip", stored: DTypeLike = "float64", C: float = 2.0,
) -> Array:  # fmt: skip
    """Return how far each element of O may lie from exact arithmetic, where (N, k) come in so many `blocks`.

    `phi`: "on_chip", or "in_hbm", where scores are stored too.
    """
    has = _Rounding(stored, C)
    Q, K, V, W = _wide(Q, K, V, W)
    c, d = _tau(scale, Q) ** 0.5, Q.shape[1]
    G, many = _features(c, K, W), C * (d + 8) * has.u
    S, A = _averages(G, V)
    E_G, E_Q = many * (c * abs(W) @ abs(K).T + (c * K * c * K).sum(1)), many * c * abs(Q) @ abs(W).T
    if phi == "in_hbm":
        E_G, E_Q = has.stores(G, E_G), has.stores(c * Q @ W.T, E_Q)
    E_S, E_A = has.averages(G, E_G, V, 0 * V, blocks[0])
    delta = E_Q + 2 * C * has.u * abs(A) + E_A
    return has.averages(c * Q @ W.T + A, delta, S, E_S, blocks[1]).O


def _features(c: float, K: Array, W: Array) -> Array:
    """Return log φ(K)ᵀ, (k, N)."""
    G: Array = c * W @ K.T - (c * K * c * K).sum(1) / 2
    return G


def _wide(*arrays: Any) -> list[Array]:
    return [np.asarray(array).astype(np.float64) for array in arrays]


def _tau(scale: float | None, Q: Array) -> float:
    return 1 / float(np.sqrt(Q.shape[1])) if scale is None else scale


def _averages(S: Array, V: Array) -> Approximate:
    """Return softmax(S) V, and the log-sum-exp of each row of S."""
    top = S.max(1, keepdims=True)
    P = np.exp(S - top)
    return Approximate(P / P.sum(1, keepdims=True) @ V, np.log(P.sum(1)) + top[:, 0])


class _Rounding:
    """The roundoffs of the chip and of what is stored, and what follows for each step."""

    def __init__(self, stored: DTypeLike, C: float) -> None:
        chip = chip_dtype(float_dtype(stored))
        self.u, self.u_s, self.C = roundoff(chip), roundoff(stored), C
        self.least, self.step = smallest_step(chip), smallest_step(stored)

    def stores(self, X: Array, off: Array) -> Array:
        """Return how far X is off, `off` before it is stored, when it has been."""
        result: Array = off + self.C * self.u_s * (abs(X) + off) + self.step
        return result

    def averages(self, S: Array, delta: Array, V: Array, E_V: Array, blocks: int) -> Approximate:
        """Return how far softmax(S) V, stored, and the log-sum-exps are off, where S is off by delta and V by E_V."""
        n, C, u = len(V), self.C, self.u
        P = np.exp(S - S.max(1, keepdims=True))
        P /= P.sum(1, keepdims=True)
        off, size = (delta + 4 * C * u * abs(S)).max(1, keepdims=True), abs(S).max(1)
        R = np.expm1(2 * off) + C * (n + 8 * blocks + 8) * u
        most = abs(V) + E_V
        E_O = R * (P @ abs(V)) + (1 + R) * (P @ E_V) + n * self.least * (1 + most.max())
        right = _averages(S, V)
        E_L = delta.max(1) + C * ((n + 3 * blocks + 8) * u + 4 * u * size + u * abs(right.L)) + self.least
        return Approximate(self.stores(right.O, E_O), E_L)


def _linformer(given: Mapping[str, Any], blocks: Mapping[str, int]) -> dict[str, tuple[Array, Array]]:
    operands, scale = [given[name] for name in "QKVEF"], given["tau"]
    parts = -(-len(operands[0]) // blocks["B_c"]), -(-len(operands[3]) // blocks["B_k"])
    right, bounds = linformer(*operands, scale=scale), linformer_bounds(*operands, scale=scale, blocks=parts)
    return {"O": (right.O, bounds.O), "L": (right.L, bounds.L)}


def _performer(phi: str, given: Mapping[str, Any], blocks: Mapping[str, int]) -> dict[str, tuple[Array, Array]]:
    operands, scale = [given[name] for name in "QKVW"], given["c"] ** 2
    parts = -(-len(operands[0]) // blocks["B_c"]), -(-len(operands[3]) // blocks["B_g"])
    return {"O": (performer(*operands, scale=scale), performer_bounds(*operands, scale=scale, phi=phi, blocks=parts))}


NAIVE = {
    "linformer": _linformer,
    "performer": partial(_performer, "on_chip"),
    "performer_materialised": partial(_performer, "in_hbm"),
}
