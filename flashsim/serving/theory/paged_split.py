"""Paged attention in t splits: paged.py's, but Q and lengths are read by each split, and parts go
to HBM and back.

    reads   Q: t·R·d   lengths: t words a row block   parts: t·R(d_v + 2)
    writes  parts: t·R(d_v + 2)
    peak    that of paged.py; or merging, b(2d_v + 5)

All else is as in paged.py.
"""

from dataclasses import replace

from flashsim.serving.batch import Batch
from flashsim.serving.theory import paged
from flashsim.serving.theory.form import BatchForm, Moved


def traffic(p: Batch, page: int, tail: str, splits: int) -> dict[str, Moved]:
    arrays = paged.traffic(p, page, tail)
    R = p.group * sum(p.queries)
    again = {
        name: replace(arrays[name], reads=splits * arrays[name].reads) for name in ("Q", "lengths")
    }
    parts = {"O_parts": splits * p.d_v, "l_parts": splits, "m_parts": splits}
    return arrays | again | {X: Moved(w * R, w * R, ("Q", w), chip=True) for X, w in parts.items()}


def peak(p: Batch, page: int, tail: str, splits: int) -> int:
    """A split, or merging."""
    return max(paged.peak(p, page, tail), min(p.B_r, p.longest) * (2 * p.d_v + 5))


FORM = BatchForm(name="paged_split", traffic=traffic, peak=peak)
