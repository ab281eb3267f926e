"""Dropout: in both passes, and in the forward pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flashsim.inputs import Array
from flashsim.testing.suspects.family import Changes, computes, reads
from flashsim.testing.suspects.reading import Answer, Question, Reading


def _factor(q: Question, factor: Callable[[Array, float], Array]) -> Changes:
    return None if q.keep is None else {"Z": factor(q.keep, q.problem.dropout_p)}


@reads("Dropout: kept weights are not divided by 1 − p.", "NVIDIA/apex#816")
def dropout_undivided(q: Question, r: Reading) -> Changes:
    return _factor(q, lambda keep, p: keep * 1.0)


@reads("Dropout: kept weights are {0}, not divided by 1 − p.", "NVIDIA/apex#816",
       over=lambda spec: ["divided by p", "multiplied by p", "multiplied by 1 − p"])  # fmt: skip
def dropout_factor(q: Question, r: Reading, says: str) -> Changes:
    return _factor(q, lambda keep, p: keep * {"divided by p": 1 / p, "multiplied by p": p}.get(says, 1 - p))


@reads("Dropout: the keep mask is inverted, what it keeps is dropped.")
def dropout_inverted(q: Question, r: Reading) -> Changes:
    return _factor(q, lambda keep, p: ~keep / (1 - p))


@reads("`dropout_p` is ignored: nothing is dropped.")
def dropout_ignored(q: Question, r: Reading) -> Changes:
    return _factor(q, lambda keep, p: np.ones(keep.shape))


@reads("Dropout: all heads use the keep mask of the first.")
def dropout_of_first_head(q: Question, r: Reading) -> Changes:
    return _factor(q, lambda keep, p: np.broadcast_to(keep[:1, :1], keep.shape) / (1 - p))


@computes("Dropout: ℓ is summed after dropping, so that the kept weights sum to {0}.",
          over=lambda spec: [("1", 1), ("1/(1 − p)", 0)])  # fmt: skip
def dropout_renormalised(q: Question, says: str, undone: int) -> Answer | None:
    if q.keep is None:
        return None
    S, m, V, _ = q.parts
    P = np.exp(S - np.where(m == -np.inf, 0, m)) * q.keep
    l = P.sum(axis=-1, keepdims=True)
    return Answer(P @ V / (l * (1 - q.problem.dropout_p) ** (1 - undone)), (m + np.log(l))[..., 0])
