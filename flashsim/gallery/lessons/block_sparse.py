"""A block mask says which tiles count; the others are jumped over."""

from __future__ import annotations

from itertools import pairwise

import flashsim
from flashsim import patterns
from flashsim.gallery.looking import Said, end, every, largest_rise, moved, see, short, spot
from flashsim.tracing import Stop, Trace

TITLE, ORDER = "Block-sparse", 70
RUN = {"algorithm": "block_sparse", "N": 16, "d": 2, "blocks": (2, 2), "M": 32, "block_mask": patterns.butterfly}


def teach(trace: Trace) -> Said:
    about = trace.about
    blocks = about.blocks
    order = [(s, s.tile) for s in every(trace, "line 9") if s.tile is not None]
    jump, gap = next(
        (after, b[0] - a[0] - 1) for (_, a), (after, b) in pairwise(order) if a[1] == b[1] and b[0] - a[0] > 1
    )
    tiles = blocks.T_r * blocks.T_c
    share = len(order) / tiles
    dense = flashsim.count(
        "flash", N=about.shape.N_q, d=about.shape.d, blocks=(blocks.B_r, blocks.B_c), M=about.M, dtype=about.stored
    )
    made = moved(trace) / dense.hbm.accesses
    rise, row, old, new = largest_rise(trace)
    yield f"""
        Algorithm 5 is FlashAttention with one question before each tile (line 8): does it count? The butterfly mask
        here keeps {len(order)} of {tiles} tiles, s = {share:g}: those on the diagonal and those whose
        indices i and j differ in one bit. Watch the walk jump over the crossed tiles: for them no Q, O, ℓ or m is
        loaded and nothing is computed.

        {moved(trace):,} accesses are made, and {dense.hbm.accesses:,} with all tiles. That is not s times as many, as
        some do not depend on the mask: K and V are loaded once ({moved(trace, "K", "V")}), and O, ℓ, m are initialized.
        Rows are rescaled as ever; what is skipped does not count in their sums, so this is another function than dense
        attention, not a faster way to it.
        """
    yield see(
        jump,
        "tiles skipped",
        f"From tile row {jump.tile[0] - gap if jump.tile else 0} to {jump.tile[0] + 1 if jump.tile else 0}: "
        f"{gap} {'tile is' if gap == 1 else 'tiles are'} jumped over.",
    )
    yield spot(trace, "read K", "The next column of tiles: K and V are loaded whatever the mask says.", j=1)
    yield see(rise, "rescale", f"Row {row}’s maximum rises from {short(old)} to {short(new)}, the largest rise here.")
    yield end(
        trace,
        f"{len(order)} tiles done, {tiles - len(order)} skipped; "
        f"{moved(trace):,} accesses, {dense.hbm.accesses:,} with all tiles.",
    )
    yield Stop(
        trace.steps[-1].number,
        f"{len(order)} of {tiles} tiles were visited, {share:.0%}. How many of the accesses were made?",
        (f"fewer than {share:.0%}", f"{share:.0%}", f"more than {share:.0%}"),
        f"{'more' if made > share else 'fewer'} than {share:.0%}",
        f"{made:.0%}: K and V are loaded, and O, ℓ, m initialized, whatever is skipped.",
    )
