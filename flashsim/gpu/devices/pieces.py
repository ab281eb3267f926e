"""Which of a device's queries see which of another's keys, as problems that a kernel takes:
causal, or with no mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashsim.attention.masks.rules import Causal
from flashsim.devices.share import Share


@dataclass(frozen=True)
class Piece:
    """Own rows `first` … `end` − 1 against the first `keys` keys: all, or causally, so that the
    last row sees all of them.
    """

    first: int
    end: int
    keys: int
    causal: bool


def pieces(share: Share, rank: int, src: int) -> list[Piece]:
    """Return the pieces of rank's queries against src's keys, each row in one at most, for
    positions in rising order.

    A row sees as many of the keys as lie at its position or before. Where this number stays the
    same from row to row, a piece has all of them; where it grows by 1, it is causal. So a
    contiguous, a striped or a zigzag layout has one piece at most.
    """
    rows = share.queries[rank]
    keys = share.where[src]
    if not len(rows) or not len(keys):
        return []
    if not isinstance(share.problem.mask, Causal):
        return [Piece(0, len(rows), len(keys), causal=False)]
    ends = np.searchsorted(keys, rows, side="right")
    pieces_of_row = []
    first = int(np.searchsorted(ends, 1))
    while first < len(rows):
        slope = int(ends[first + 1] - ends[first]) if first + 1 < len(rows) else 0
        slope = slope if slope in (0, 1) else 0
        steps = np.diff(ends[first:]) != slope
        end = first + 1 + (int(np.argmax(steps)) if steps.any() else len(steps))
        pieces_of_row.append(Piece(first, end, int(ends[end - 1]), causal=slope == 1))
        first = end
    return pieces_of_row
