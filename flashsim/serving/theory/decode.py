"""Decoding by a schedule. A problem is a row block of b rows and T = ⌈e/B_c⌉ tiles; it has P
segments, and parts if P > 1.

    reads   Q: d·Σ b·P   K: d·Σ cover(e, B_c)   V: d_v·Σ cover(e, B_c)
            parts: (d_v + 2)·Σ b·P where P > 1
    writes  O: R·d_v   L: R   parts: as they are read
    peak    q_outer's; or merging, b(2d_v + 5)

Fixed: P = t. Stream-K: workers' shares of ΣT tiles begin at w·⌊ΣT/G⌋ + min(w, ΣT mod G), and P is 1
+ the shares that begin inside the problem.
"""

import numpy as np

from flashsim.serving.batch import Batch
from flashsim.serving.theory.form import (
    BatchForm,
    Ints,
    Moved,
    moves,
    sequences,
    tile_peak,
    whole,
)


def segments(p: Batch, schedule: str, workers: int, splits: int) -> tuple[Ints, Ints]:
    """Return b and P of every problem."""
    every = [*sequences(p)]
    b = np.concatenate([s.b for s in every])
    T = np.concatenate([-(-s.e // p.B_c) for s in every])
    if schedule == "fixed":
        return b, np.full(len(b), splits)
    share, rest = divmod(whole(T), workers)
    w = np.arange(1, workers)
    begins = np.unique(w * share + np.minimum(w, rest))
    ends = np.cumsum(T)
    inside = np.searchsorted(begins, ends, "left") - np.searchsorted(begins, ends - T, "right")
    return b, 1 + np.maximum(inside, 0)


def traffic(p: Batch, schedule: str, workers: int, splits: int) -> dict[str, Moved]:
    b, P = segments(p, schedule, workers, splits)
    k = sum(whole(s.cover(p.B_c)) for s in sequences(p))
    parts = whole((b * P)[P > 1])
    arrays = moves(p, K=k * p.d, V=k * p.d_v) | {"Q": Moved(whole(b * P) * p.d)}
    sizes = {"O_parts": p.d_v * parts, "l_parts": parts, "m_parts": parts}
    return arrays | {name: Moved(size, size, size, chip=True) for name, size in sizes.items()}


def peak(p: Batch, schedule: str, workers: int, splits: int) -> int:
    """A segment, or merging. The first tile is a problem's largest, and has a segment, as empty
    ones are smaller.
    """
    b, P = segments(p, schedule, workers, splits)
    merging = int(b[P > 1].max(initial=0)) * (2 * p.d_v + 5)
    return max([merging, *(tile_peak(p, s.b, s.first(p.B_c)) for s in sequences(p))])


FORM = BatchForm(name="decode", traffic=traffic, peak=peak)
