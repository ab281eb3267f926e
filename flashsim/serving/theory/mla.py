"""Latent attention, absorbed: q_outer's, but keys and values are one row of w columns, of which u
are the value.

    reads   Q: R·w   C: w·Σ cover(e_i, B_c)
    writes  O: R·u   L: R
    peak    b(w + u) + c·w + b·c + 3b; without a tile b(w + u + 2)

In a batch w is d, and u is d_v.
"""

from flashsim.serving.batch import Batch
from flashsim.serving.theory.form import BatchForm, Moved, moves, sequences, tile_peak, whole


def traffic(p: Batch) -> dict[str, Moved]:
    return moves(p, C=p.d * sum(whole(blocks.cover(p.B_c)) for blocks in sequences(p)))


def peak(p: Batch) -> int:
    """The first tile is the largest."""
    return max(tile_peak(p, blocks.b, blocks.first(p.B_c), columns=p.d) for blocks in sequences(p))


FORM = BatchForm(name="mla", traffic=traffic, peak=peak)
