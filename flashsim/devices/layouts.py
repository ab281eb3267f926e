"""Which device holds which rows: `where[p]`, the positions of device p's rows, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_choice

Positions = NDArray[np.int64]
LAYOUTS = ("contiguous", "striped", "zigzag")


def positions(layout: Any, N: int, P: int) -> list[Positions]:
    """Return `where` for N rows on P devices. Some devices have fewer rows than others, or none,
    where P does not divide N.

    contiguous  ⌈N/P⌉ rows each
    striped     p, p + P, p + 2P, … ("Striped Attention", Brandon et al.)
    zigzag      chunks p and 2P − 1 − p of ⌈N/2P⌉ rows: what a causal mask leaves is then equal
                (ring-flash-attention, Zhu)

    Raises ValueError for another layout.
    """
    known = check_choice("layout", layout, LAYOUTS)
    rows = np.arange(N)
    if known == "striped":
        return [rows[p::P] for p in range(P)]
    chunk = -(-N // P) if known == "contiguous" else -(-N // (2 * P))
    if known == "contiguous":
        return [rows[p * chunk : (p + 1) * chunk] for p in range(P)]
    return [
        np.concatenate([rows[c * chunk : (c + 1) * chunk] for c in (p, 2 * P - 1 - p)])
        for p in range(P)
    ]


def blocks_of(where: Positions, size: int) -> Sequence[Positions]:
    """Return the positions of a device's rows by blocks of `size`; the last may be smaller."""
    return [where[first : first + size] for first in range(0, len(where), size)]
