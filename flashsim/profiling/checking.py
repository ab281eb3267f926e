"""Whether a call's first result is attention: naive attention in float64 of the same arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.attention.masks.rules import All
from flashsim.attention.problem import Problem
from flashsim.reference import attention

LARGEST = 2**24
"""Numbers of S, over all heads, up to which results are compared: some seconds."""
ROUNDINGS = 8
"""A result may be off by so many roundings of its type, times the largest number of V, times 1 plus
the largest score: an error of a score is one of its weight's exponent.
"""


@dataclass(frozen=True)
class Difference:
    """How far a result is from attention.

    error      the largest |O − attention|
    allowance  what rounding explains
    """

    error: float
    allowance: float

    @property
    def is_wrong(self) -> bool:
        """Whether the result is not attention."""
        return not self.error <= self.allowance


def difference(
    operands: Mapping[str, Any], result: Any, problem: Problem, layout: str, scale: float | None
) -> Difference | None:
    """Return how far a result is from attention of Q, K and V; None where the problem is too large
    to compute it naively, or where the result has another size.
    """
    shape = problem.shape
    if problem.heads * shape.N_q * shape.N_k > LARGEST:
        return None
    Q = _heads_first(operands["Q"], layout)
    K = np.repeat(_heads_first(operands["K"], layout), problem.group, axis=0)
    V = np.repeat(_heads_first(operands["V"], layout), problem.group, axis=0)
    O = _heads_first(result, layout)
    if O.shape != (*Q.shape[:2], V.shape[2]):
        return None
    mask = None
    if not isinstance(problem.mask, All):
        mask = problem.mask.whole(shape, (0,) * len(problem.leading))
    expected = attention(Q, K, V, mask=mask, scale=scale)
    factor = problem.scale if scale is None else scale
    largest_score = abs(factor) * float(np.abs(Q @ K.swapaxes(1, 2)).max(initial=0))
    rounding = float(np.finfo(problem.dtype).eps) if problem.dtype.kind == "f" else 2.0**-8
    largest_value = float(np.abs(V).max(initial=0))
    allowance = ROUNDINGS * rounding * largest_value * (1 + largest_score)
    return Difference(float(np.abs(O - expected).max(initial=0)), allowance)


def _heads_first(array: Any, layout: str) -> np.ndarray:
    """Return an array of any library as (heads, N, width), in float64."""
    if hasattr(array, "detach"):  # PyTorch's
        array = array.detach().double()
    values = np.asarray(array).astype(np.float64)
    if values.ndim == 4:
        if layout == "BNHD":
            values = values.swapaxes(1, 2)
        return values.reshape(-1, *values.shape[2:])
    return values.reshape(-1, *values.shape[-2:])
