"""What the passes of linear attention share: the chunk's size, and its causal mask."""

from math import isqrt
from typing import Any

import numpy as np

from flashsim.algorithms.program import QKV
from flashsim.machine.memory import Tile
from flashsim.machine.shape_only import ShapeOnly
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def chunk_rows(M: int, sizes: Sizes) -> int:
    """Return the most rows C with d·e + 2C(d + e) + C² ≤ M, at least 1."""
    width = sizes.d + sizes.e
    return max(isqrt(max(width * width + M - sizes.d * sizes.e, 0)) - width, 1)


def tril(A: Tile) -> Any:
    """Return A with 0 above its diagonal."""
    return A if isinstance(A, ShapeOnly) else np.tril(A)


CHUNKED: dict[str, Any] = {
    "source": "Yang et al. 2024, Section 2", "operands": QKV, "returns": {"O": Kind("N", "e")}, "blocks": {"C": "N"},
    "line_1": lambda rows, sizes: (rows,), "across": ("K", "V"), "words": ("queries", "keys"),
}
"""What the records of linear attention share."""
