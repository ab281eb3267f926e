"""Attention step by step, forward and backward, as a kernel may have understood the problem.
Suspects change these steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.problem import Problem

Arrays = tuple[Array, ...]


class Answer(NamedTuple):
    """O (B, H_q, N_q, d_v), the natural log-sum-exp (B, H_q, N_q), and the column of row sums ℓ if
    O was divided by them.

    O is NaN where it is 0/0. Kernels may have 0 there.
    """

    O: Array
    lse: Array
    l: Array | float = 1.0


@dataclass(frozen=True, eq=False)
class Reading:
    """A problem as a kernel understands it, in float64: q, k, v by head, the allowed keys, the
    scale, and the following.

    owner  the KV head that each query head reads
    Z      what dropout multiplies the weights by
    bias   what is added to the scaled scores
    """

    q: Array
    k: Array
    v: Array
    allowed: Array
    tau: float
    owner: Array
    Z: Array | float = 1.0
    bias: Array | float = 0.0

    @cached_property
    def S(self) -> Array:
        """The scores, −∞ where masked."""
        scores = self.tau * (self.q @ self.k[:, self.owner].swapaxes(-1, -2)) + self.bias
        return np.asarray(np.where(self.allowed, scores, -np.inf))

    @cached_property
    def V(self) -> Array:
        """The values by query head."""
        return np.asarray(self.v[:, self.owner])

    @cached_property
    def m(self) -> Array:
        """The column of row maxima; −∞ in an empty row."""
        return np.asarray(self.S.max(axis=-1, keepdims=True, initial=-np.inf))

    @cached_property
    def answer(self) -> Answer:
        """O, which is NaN in an empty row, and the log-sum-exp."""
        P = np.exp(self.S - np.where(self.m == -np.inf, 0, self.m))
        l = P.sum(axis=-1, keepdims=True)
        return Answer((P * self.Z) @ self.V / l, (self.m + np.log(l))[..., 0], l)


class Question:
    """A problem for models of bugs to answer: for O, for the log-sum-exp ("lse") or for the
    gradients.
    """

    def __init__(self, problem: Problem, keep: Array | None, aspect: str, got: Arrays) -> None:
        self.problem = problem
        self.keep = keep
        self.aspect = aspect
        self.got = got
        self.spec = problem.spec
        self.chip = self.spec.chip(problem.q.dtype.name)

    @cached_property
    def reading(self) -> Reading:
        """The right reading."""
        p = self.problem
        q, k, v = (a.astype(np.float64) for a in (p.q, p.k, p.v))
        Z = 1.0 if self.keep is None else self.keep / (1 - p.dropout_p)
        bias = 0.0 if p.bias is None else p.bias.astype(np.float64)
        return Reading(q, k, v, p.allowed, p.tau, np.arange(q.shape[1]) // p.group, Z, bias)

    @property
    def parts(self) -> tuple[Array, Array, Array, Array | Any]:
        """The scores, the column of their maxima, the values and Z, in the type that the kernel
        computes in.
        """
        r = self.reading
        Z = r.Z if isinstance(r.Z, float) else r.Z.astype(self.chip)
        return r.S.astype(self.chip), r.m.astype(self.chip), r.V.astype(self.chip), Z

    def forward(self, answer: Answer, literally: bool = False) -> list[Arrays]:
        """Return the possible answers. Where the model has 0/0, O may be 0 or NaN, or right if the
        row is empty.

        With `literally`, a NaN of the model stays NaN.
        """
        if self.aspect == "lse":
            return [(answer.lse / math.log(2) if self.spec.lse == "base2" else answer.lse,)]
        # as the spec wants it
        empty = self.problem.empty[..., None]
        right = self.problem.solution.O
        O = answer.O if literally else np.where(empty & (answer.l == 0), right, answer.O)
        stored = np.asarray(O.astype(self.problem.q.dtype).astype(np.float64))
        if literally or not np.isnan(stored).any():
            return [(stored,)]
        nothing = np.isnan(stored) & (answer.l == 0) & ~empty
        return [
            (np.where(nothing, 0.0, stored),),
            (stored,),
            (np.nan_to_num(stored, nan=0.0, posinf=np.inf),),
        ]

    def backward(self, three: Arrays) -> Arrays:
        """Return dq, dk, dv, cut to the problem's size and rounded to its dtype."""
        shapes = [a.shape for a in (self.problem.q, self.problem.k, self.problem.v)]
        cut = [a[:, :, : shape[2]] for a, shape in zip(three, shapes, strict=True)]
        return tuple(a.astype(self.problem.q.dtype).astype(np.float64) for a in cut)


class Backward:
    """The right backward pass of a reading, step by step. `done` finishes it from other
    intermediate results.

    O and the log-sum-exp are of the reading `forward`, if given.
    """

    def __init__(
        self, reading: Reading, question: Question, forward: Reading | None = None
    ) -> None:
        self.reading, self.problem = reading, question.problem
        self.keep = 1.0 if question.keep is None else question.keep
        of = (reading if forward is None else forward).answer
        self.tau, self.Z = reading.tau, reading.Z
        self.dO = self.problem.dO.astype(np.float64)
        self.O = np.nan_to_num(of.O, nan=0.0)
        self.P = np.exp(reading.S - np.where(of.lse == -np.inf, np.inf, of.lse)[..., None])
        self.undropped = self.dO @ reading.V.swapaxes(-1, -2)
        self.dP = self.undropped * self.Z
        self.D = (self.dO * self.O).sum(axis=-1, keepdims=True)
        self.dS = self.P * (self.dP - self.D)

    def done(
        self,
        dS: Array | None = None,
        weights: Array | None = None,
        tau_q: float | None = None,
        tau_k: float | None = None,
        share: Callable[[list[Array]], Array] = sum,  # type: ignore[assignment]
    ) -> Arrays:
        """Return dq, dk, dv. `weights` are those of dv. `share` combines the gradients of a
        group's heads.
        """
        r = self.reading
        dS = self.dS if dS is None else dS
        weights = self.P * self.Z if weights is None else weights
        dq = (self.tau if tau_q is None else tau_q) * (dS @ r.k[:, r.owner])
        dk = (self.tau if tau_k is None else tau_k) * (dS.swapaxes(-1, -2) @ r.q)
        dv = weights.swapaxes(-1, -2) @ self.dO
        return dq, *(self._shared(a, r.k.shape[1], share) for a in (dk, dv))

    def _shared(self, by_head: Array, H_kv: int, share: Callable[[list[Array]], Array]) -> Array:
        owners = self.reading.owner
        groups = [[by_head[:, h] for h in np.flatnonzero(owners == n)] for n in range(H_kv)]
        nothing = np.zeros_like(by_head[:, 0])
        return np.stack(
            [np.asarray(share(group)) if group else nothing for group in groups], axis=1
        )
