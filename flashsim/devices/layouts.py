"""Which device has which rows: `where[p]` is the positions of device p's rows, in order."""

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
    zigzag      chunks p and 2P − 1 − p of ⌈N/2P⌉ rows: under a causal mask all devices then have
                equal work (ring-flash-attention, Zhu)

    Raises ValueError for another layout.
    """
    known = check_choice("layout", layout, LAYOUTS)
    rows = np.arange(N)
    if known == "striped":
        return [rows[p::P] for p in range(P)]
    if known == "contiguous":
        return _chunks(rows, P)
    chunks = _chunks(rows, 2 * P)
    pairs = zip(chunks[:P], reversed(chunks[P:]), strict=True)
    return [np.concatenate(pair) for pair in pairs]


def _chunks(rows: Positions, number: int) -> list[Positions]:
    """Return rows in so many chunks, all of one length but the last ones."""
    size = -(-len(rows) // number)
    return [rows[p * size : (p + 1) * size] for p in range(number)]


def blocks_of(where: Positions, size: int) -> Sequence[Positions]:
    """Return the positions of a device's rows by blocks of `size`; the last may be smaller."""
    return [where[first : first + size] for first in range(0, len(where), size)]
