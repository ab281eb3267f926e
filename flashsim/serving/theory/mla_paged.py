"""Latents in pages: paged.py's, or in splits paged_split.py's, of which C is K, and nothing is V; a
tile holds C alone.

reads   C: w·Σ k_i in place of K and V
peak    paged.py's, with w columns for a key in place of d + d_v; or merging

In a batch w is d, and u is d_v.
"""

from flashsim.serving.batch import Batch
from flashsim.serving.theory import paged, paged_split
from flashsim.serving.theory.form import BatchForm, Moved


def traffic(p: Batch, page: int, tail: str, splits: int) -> dict[str, Moved]:
    arrays = (
        paged_split.traffic(p, page, tail, splits) if splits > 1 else paged.traffic(p, page, tail)
    )
    return {"C" if name == "K" else name: of for name, of in arrays.items() if name != "V"}


def peak(p: Batch, page: int, tail: str, splits: int) -> int:
    """A row block, or merging."""
    merging = min(p.B_r, p.longest) * (2 * p.d_v + 5) if splits > 1 else 0
    return max(paged.peak(p, page, tail, columns=p.d), merging)


FORM = BatchForm(name="mla_paged", traffic=traffic, peak=peak)
