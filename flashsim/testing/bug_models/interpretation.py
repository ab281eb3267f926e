"""Attention step by step, forward and backward, on the inputs as a kernel interprets them. Models
of bugs change single steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.problem import Problem

Arrays = tuple[Array, ...]


class Answer(NamedTuple):
    """The result of a model's forward pass.

    O    (B, H_q, N_q, d_v). NaN where it is 0/0; kernels may have 0 there
    lse  the natural log-sum-exp, (B, H_q, N_q)
    l    the column of row sums if O was divided by them, else 1
    """

    O: Array
    lse: Array
    l: Array | float = 1.0


@dataclass(frozen=True, eq=False)
class Interpretation:
    """The inputs as a kernel interprets them, in float64.

    q, k, v  (B, H_q, N_q, d), (B, H_kv, N_k, d), (B, H_kv, N_k, d_v)
    allowed  which keys each query attends to: booleans (B, H_q, N_q, N_k)
    tau      the scale
    owner    the KV head that each query head reads
    Z        what dropout multiplies the weights by
    bias     what is added to the scaled scores
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
        K = self.k[:, self.owner]
        scores = self.tau * (self.q @ K.swapaxes(-1, -2)) + self.bias
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
        """The right answer to these inputs. O is NaN in an empty row."""
        P = np.exp(self.S - finite_maximum(self.m))
        l = P.sum(axis=-1, keepdims=True)
        O = (P * self.Z) @ self.V / l
        lse = (self.m + np.log(l))[..., 0]
        return Answer(O, lse, l)


def finite_maximum(m: Array) -> Array:
    """Return the row maxima, with 0 for −∞, because −∞ − (−∞) is NaN."""
    return np.asarray(np.where(m == -np.inf, 0, m))


class SoftmaxOperands(NamedTuple):
    """What the softmax is computed from, in the type in which the kernel computes: the scores S,
    the column m of their maxima, the values V by query head, and dropout's factors Z.
    """

    S: Array
    m: Array
    V: Array
    Z: Array | float


class Inputs:
    """The inputs of a model of a bug, and the result of the kernel that it is compared with.

    problem  the problem that the kernel was given
    keep     the keep mask of dropout, or None
    aspect   what the model computes: "O", "lse" or "gradients"
    actual   the kernel's result: (O,), (lse,) or (dq, dk, dv)
    """

    def __init__(self, problem: Problem, keep: Array | None, aspect: str, actual: Arrays) -> None:
        self.problem = problem
        self.keep = keep
        self.aspect = aspect
        self.actual = actual
        self.spec = problem.spec
        self.dtype = problem.q.dtype
        self.chip = self.spec.chip(self.dtype.name)

    @cached_property
    def interpretation(self) -> Interpretation:
        """The right interpretation."""
        p = self.problem
        return Interpretation(
            q=p.q.astype(np.float64),
            k=p.k.astype(np.float64),
            v=p.v.astype(np.float64),
            allowed=p.allowed,
            tau=p.tau,
            owner=np.arange(p.q.shape[1]) // p.group,
            Z=1.0 if self.keep is None else self.keep / (1 - p.dropout_p),
            bias=0.0 if p.bias is None else p.bias.astype(np.float64),
        )

    @property
    def softmax_operands(self) -> SoftmaxOperands:
        """What the softmax is computed from, in the type in which the kernel computes."""
        right = self.interpretation
        return SoftmaxOperands(
            right.S.astype(self.chip),
            right.m.astype(self.chip),
            right.V.astype(self.chip),
            right.Z if isinstance(right.Z, float) else right.Z.astype(self.chip),
        )

    def forward(self, answer: Answer, keep_nan: bool = False) -> list[Arrays]:
        """Return the results that a kernel with the model's answer may have. Where the model has
        0/0, O may be 0 or NaN; in an empty row it may also be right.

        With `keep_nan`, a NaN of the model stays NaN.
        """
        if self.aspect == "lse":
            lse = answer.lse / math.log(2) if self.spec.lse == "base2" else answer.lse
            return [(lse,)]
        O = answer.O
        empty = self.problem.empty[..., None]
        if not keep_nan:
            O = np.where(empty & (answer.l == 0), self.problem.solution.O, O)
        stored = np.asarray(O.astype(self.dtype).astype(np.float64))
        if keep_nan or not np.isnan(stored).any():
            return [(stored,)]
        zero_by_zero = np.isnan(stored) & (answer.l == 0) & ~empty
        return [
            (np.where(zero_by_zero, 0.0, stored),),
            (stored,),
            (np.nan_to_num(stored, nan=0.0, posinf=np.inf),),
        ]

    def backward(self, gradients: Arrays) -> Arrays:
        """Return dq, dk, dv, cut to the problem's size and rounded to its dtype."""
        arrays = (self.problem.q, self.problem.k, self.problem.v)
        results = []
        for gradient, a in zip(gradients, arrays, strict=True):
            cut = gradient[:, :, : a.shape[2]]
            results.append(cut.astype(self.dtype).astype(np.float64))
        return tuple(results)


class Backward:
    """The right backward pass of an interpretation, step by step. `gradients` finishes it from
    other intermediate results.

    O and the log-sum-exp are those of the interpretation `forward`, if it is not None.
    """

    def __init__(
        self,
        interpretation: Interpretation,
        inputs: Inputs,
        forward: Interpretation | None = None,
    ) -> None:
        self.interpretation = interpretation
        self.problem = inputs.problem
        self.keep = 1.0 if inputs.keep is None else inputs.keep
        self.tau = interpretation.tau
        self.Z = interpretation.Z
        answer = (interpretation if forward is None else forward).answer
        lse = np.where(answer.lse == -np.inf, np.inf, answer.lse)  # so that P = 0 in an empty row
        self.dO = self.problem.dO.astype(np.float64)
        self.O = np.nan_to_num(answer.O, nan=0.0)
        self.P = np.exp(interpretation.S - lse[..., None])
        self.dP_before_dropout = self.dO @ interpretation.V.swapaxes(-1, -2)
        self.dP = self.dP_before_dropout * self.Z
        self.D = (self.dO * self.O).sum(axis=-1, keepdims=True)
        self.dS = self.P * (self.dP - self.D)

    def gradients(
        self,
        dS: Array | None = None,
        weights: Array | None = None,
        tau_q: float | None = None,
        tau_k: float | None = None,
        combine: Callable[[list[Array]], Array] = sum,  # type: ignore[assignment]
    ) -> Arrays:
        """Return dq, dk, dv. `weights` are those of dv; `tau_q` and `tau_k` are the scales of dq
        and dk. `combine` makes one gradient of those of a group's heads.
        """
        dS = self.dS if dS is None else dS
        weights = self.P * self.Z if weights is None else weights
        tau_q = self.tau if tau_q is None else tau_q
        tau_k = self.tau if tau_k is None else tau_k
        q = self.interpretation.q
        K = self.interpretation.k[:, self.interpretation.owner]
        dq = tau_q * (dS @ K)
        dk = tau_k * (dS.swapaxes(-1, -2) @ q)
        dv = weights.swapaxes(-1, -2) @ self.dO
        return dq, self._by_kv_head(dk, combine), self._by_kv_head(dv, combine)

    def _by_kv_head(self, by_query_head: Array, combine: Callable[[list[Array]], Array]) -> Array:
        """Return a gradient by KV head, (B, H_kv, N_k, width), from one by query head."""
        H_kv = self.interpretation.k.shape[1]
        by_kv_head = []
        for n in range(H_kv):
            heads = np.flatnonzero(self.interpretation.owner == n)
            group = [by_query_head[:, h] for h in heads]
            zero = np.zeros_like(by_query_head[:, 0])
            by_kv_head.append(np.asarray(combine(group)) if group else zero)
        return np.stack(by_kv_head, axis=1)
