"""Cross-entropy over a classifier's rows in plain NumPy, its gradients, and how far rounding may lead, element by element.

Bounds. u is the chip's unit roundoff. A logit of d terms is off by δ = (d + 2)u·Σ|x||e|. So L, a log-sum-exp of v terms in T
blocks, is off by Λ = max δ + (v + 3T + 8)u + 4u·max|S|, the loss by Λ + δ at the label, and u of its size. P is off by
e^{δ + Λ + 4u} − 1 relatively. Gradients are off by that, and by (n + 2T + 8)u of the n rows that they sum. What is stored in
another type is off by its roundoff. P, or g P, may vanish: off by the chip's smallest step, times what it is multiplied with.
First-order terms are taken `C` times, 2 by default, for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashsim.problem.inputs import Array
from flashsim.reference.operands import Found, for_each_row, labels, oracle, roundoffs


class CrossEntropy(NamedTuple):
    """The loss and the log-sum-exp of each row, (N,); the gradients of Σ g_i · loss_i, (N, d) and (v, d)."""

    loss: Array
    L: Array
    dX: Array
    dE: Array


@oracle("X (N, d), E (v, d)", y=labels, g=for_each_row)
def cross_entropy(X: Any, E: Any, y: Any, g: Any = 1.0) -> CrossEntropy:
    """Return them in float64. A label below 0 leaves its row out."""
    S, P, label, g = _forward(X, E, y, g)
    L = np.log(np.exp(S - S.max(1, keepdims=True)).sum(1)) + S.max(1)
    loss = np.where(y < 0, 0.0, L - (S * label).sum(1))
    G = g[:, None] * np.where((y < 0)[:, None], 0.0, P - label)
    return CrossEntropy(loss, L, G @ E, G.T @ X)


@oracle("X (N, d), E (v, d)", y=labels, g=for_each_row)
def cross_entropy_bounds(
    X: Any, E: Any, y: Any, g: Any = 1.0, *, blocks: int = 1, stored: DTypeLike = "float64", C: float = 2.0
) -> CrossEntropy:
    """Return how far each of these may lie from exact arithmetic, where they come in so many blocks."""
    u, u_s, least, step = roundoffs(stored)
    S, P, label, g = _forward(X, E, y, g)
    (N, d), v = X.shape, len(E)
    delta = C * (d + 2) * u * (np.abs(X) @ np.abs(E).T)
    Lambda = delta.max(1) + C * ((v + 3 * blocks + 8) * u + 4 * u * np.abs(S).max(1))
    right = cross_entropy(X, E, y, g)
    loss = Lambda + (delta * label).sum(1) + C * u * (np.abs(right.loss) + np.abs(S).max(1))
    off = np.abs(g)[:, None] * (P * np.expm1(delta + Lambda[:, None] + 4 * C * u) + 2 * C * u * label)
    G = np.abs(g)[:, None] * np.where((y < 0)[:, None], 0.0, np.abs(P - label) + 2 * u)

    def summed(to: Array, off: Array, G: Array, terms: int, exact: Array) -> Array:
        vanished = C * terms * least * (1 + np.abs(g).max()) * (1 + to.max())
        rounded = C * (terms + 2 * blocks + 8) * u * (G @ to) + u_s * np.abs(exact)
        return np.asarray(off @ to + rounded + vanished + step)

    dX = summed(np.abs(E), off, G, v, right.dX)
    dE = summed(np.abs(X), off.T, G.T, N, right.dE)
    return CrossEntropy(loss + step, Lambda + C * u * np.abs(right.L), dX, dE)


def _forward(X: Any, E: Any, y: Any, g: Any) -> tuple[Array, Array, Array, Array]:
    """Return the logits, the softmax, the labels one-hot, and g, (N,)."""
    S = X @ E.T
    P = np.exp(S - S.max(1, keepdims=True))
    label = y[:, None] == np.arange(S.shape[1])
    return S, P / P.sum(1, keepdims=True), label, np.broadcast_to(g.ravel(), len(S))


def _of_program(results: tuple[str, ...], given: Mapping[str, Any], blocks: Mapping[str, int]) -> Found:
    X, E, y = given["X"], given["E"], np.asarray(given["y"])[:, 0].astype(np.int64)
    operands = X, E, np.where(y < len(E), y, -1), given.get("g", np.ones((1, 1)))[:, 0]
    many = max(-(-len(X) // blocks["B_r"]), -(-len(E) // blocks["B_c"]))
    right, bounds = cross_entropy(*operands), cross_entropy_bounds(*operands, blocks=many)
    return {name: (getattr(right, name), getattr(bounds, name)) for name in results}


NAIVE = {
    "cut_cross_entropy": partial(_of_program, ("loss", "L")),
    "cut_cross_entropy_dx": partial(_of_program, ("dX",)),
    "cut_cross_entropy_de": partial(_of_program, ("dE",)),
}
