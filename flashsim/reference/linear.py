"""Causal linear attention in plain NumPy, and how far rounding may lead from it, element by element.

Bounds. Each term q_ic k_jc v_je is rounded d + N + T + 3 times at most on its way into O_i, in T chunks: by two products, and by
sums over c, over j, and over chunks. So O is off by (d + N + T + 3)u of Σ_j Σ_c |q_ic k_jc v_je|, u the unit roundoff, plus
what its own type rounds. A product that vanishes is off by the chip's smallest step, and goes into O times an element of V,
or of Q. First-order terms are taken `C` times, 2 by default, for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flashsim.problem.inputs import Array
from flashsim.reference.operands import Found, oracle, roundoffs


@oracle("Q (N, d), K (N, d), V (N, e)")
def linear_attention(Q: Any, K: Any, V: Any) -> Array:
    """Return tril(Q Kᵀ) V in float64, (N, e)."""
    return np.asarray(np.tril(Q @ K.T) @ V)


@oracle("Q (N, d), K (N, d), V (N, e)")
def linear_attention_bounds(Q: Any, K: Any, V: Any, *, chunks: int = 1, stored: DTypeLike = "float64", C: float = 2.0) -> Array:
    """Return how far each element of O may lie from exact arithmetic, (N, e), where it is computed in so many chunks."""
    (u, u_s, least, step), (N, d) = roundoffs(stored), np.shape(Q)
    sizes = linear_attention(np.abs(Q), np.abs(K), np.abs(V))
    O = np.abs(linear_attention(Q, K, V))
    factors = np.abs(Q).max() + np.abs(V).max()  # of what is too small for full precision
    tiny = (N * d + N + d) * least * (1 + factors)
    return np.asarray(C * ((d + N + chunks + 3) * u * sizes + u_s * O + tiny + step))


def _of_program(given: Mapping[str, Any], blocks: Mapping[str, int]) -> Found:
    operands = [given[name] for name in "QKV"]
    bound = linear_attention_bounds(*operands, chunks=-(-len(operands[0]) // blocks["C"]))
    return {"O": (linear_attention(*operands), bound)}


NAIVE = dict.fromkeys(("linear_attention", "linear_attention_two_pass", "linear_attention_buffered"), _of_program)
