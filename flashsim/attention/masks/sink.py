"""A learnable sink: one logit a head that has a part in the softmax's denominator, and none in
what is averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_real
from flashsim.attention.inputs import Array
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.rules import All, BandMask, Head, Mask, check_broadcast, head_of
from flashsim.attention.shapes import Shape
from flashsim.support.records import set_fields

MOST_LOGIT = 1e30


@dataclass(frozen=True, repr=False)
class Sink(BandMask):
    """A key of score s and value 0, which every query attends to: P_ij = e^{S_ij} / (e^s + Σ_l
    e^{S_il}). It combines with &.

    `logits` is s, a number, or an array that broadcasts to the leading axes (one for each query
    head); −∞ is not a sink. It joins after all that changes scores, τ included, and no mask forbids
    it. L = m + log ℓ has it: a row without a key has O = 0 and L = s. In HBM it is "sink", a number
    a query head, in the type that is computed in, and read once for each row block where statistics
    begin on chip, once in all where they begin in HBM. `Gradients.dsink` has a gradient for each
    query head; heads that share a logit have theirs to add up.

    Forward passes that take a sink have a variant with it, in `flashsim.algorithms.with_sink`;
    every backward pass of theirs has it, too. Source: gpt-oss (OpenAI, 2025), whose `sinks` it is;
    "Efficient Streaming Language Models with Attention Sinks" (Xiao et al.), section 3.3. Sink
    tokens that are kept beside a window are a mask, `flashsim.Streaming`.

    Raises ValueError for what is not a real number, NaN, and beyond 1e30 in absolute value, but −∞.
    """

    logits: Any

    def __post_init__(self) -> None:
        logits = check_real("Sink's logits", self.logits).astype(np.float64)
        if not ((np.abs(logits) <= MOST_LOGIT) | (logits == -np.inf)).all():
            raise ValueError(
                f"Sink's logits are {logits.tolist()}; expected −∞, or numbers up to {MOST_LOGIT:g}"
            )
        set_fields(self, logits=logits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sink) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def sink(self) -> Sink:
        return self

    @property
    def per_head(self) -> bool:
        return bool(self.logits.ndim)

    def check(self, shape: Shape, leading: Head) -> None:
        check_broadcast("Sink's logits array", self.logits.shape, leading, "the leading axes")

    def band(self, shape: Shape, head: Head) -> Band:
        return Band(None, None, shape.N_k, is_exact=False)

    def of(self, head: Head, group: int) -> Array:
        """Return the logits of the query heads of a launch, (1, group): of `head`, or of the
        group whose KV head that is.
        """
        heads = [
            (*head[:-1], head[-1] * group + member) if head else head for member in range(group)
        ]
        return np.array([[self.logits[head_of(each, self.logits.shape)] for each in heads]])

    def without_sink(self) -> Mask:
        return All()

    def __repr__(self) -> str:
        return f"Sink({self.logits.tolist()})"
