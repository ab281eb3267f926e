"""A block mask says which tiles count; the others are skipped."""

from itertools import pairwise

from flashsim.attention.masks import patterns
from flashsim.learn.gallery.trace_queries import (
    accesses,
    count_with,
    find_steps,
    largest_rise,
    short,
)
from flashsim.tracing import Trace

TITLE = "Block-sparse"
ORDER = 70
RUN = {
    "algorithm": "block_sparse",
    "N": 16,
    "d": 2,
    "blocks": (2, 2),
    "M": 32,
    "block_mask": patterns.butterfly,
}


def teach(trace: Trace) -> str:
    blocks = trace.about.blocks
    order = [(s, s.tile) for s in find_steps(trace, "line 9") if s.tile is not None]
    jump, gap = next(
        (after, b[0] - a[0] - 1)
        for (_, a), (after, b) in pairwise(order)
        if a[1] == b[1] and b[0] - a[0] > 1
    )
    tiles = blocks.T_r * blocks.T_c
    share = len(order) / tiles
    dense = count_with("flash", trace)
    share_of_dense = accesses(trace) / dense.hbm.accesses
    rise, row, old, new = largest_rise(trace)
    return f"""
        Algorithm 5 is FlashAttention with one question before each tile (line 8): does it count?
        The butterfly mask here keeps {len(order)} of {tiles} tiles, s = {share:g}: those on the
        diagonal and those whose indices i and j differ in one bit. Watch the walk jump over the
        crossed tiles: for them no Q, O, ℓ or m is loaded and nothing is computed.

        » This run makes {accesses(trace):,} accesses, and with all tiles it would make
        {dense.hbm.accesses:,}. The share is not s, because some accesses do not depend on the mask:
        K and V are loaded once ({accesses(trace, "K", "V")}), and O, ℓ, m are initialized. Rows are
        rescaled as before. Skipped tiles do not count in the sums, so this is another function than
        dense attention, and not a faster way to the same one.

        [tiles skipped @ {jump.number}] From tile row {jump.tile[0] - gap if jump.tile else 0} to
        {jump.tile[0] + 1 if jump.tile else 0}: {gap} {"tile is" if gap == 1 else "tiles are"}
        jumped over.
        [read K, j = 1] The next column of tiles: K and V are loaded whatever the mask says.
        [rescale @ {rise.number}] Row {row}’s maximum rises from {short(old)} to {short(new)}, the
        largest rise here.
        [last step] {len(order)} tiles done, {tiles - len(order)} skipped; {accesses(trace):,}
        accesses, {dense.hbm.accesses:,} with all tiles.

        [asks @ last step] {len(order)} of {tiles} tiles were visited, {share:.0%}. How many of the
        accesses were made?
        [choices] fewer than {share:.0%} | {share:.0%} | more than {share:.0%}
        [right] {"more" if share_of_dense > share else "fewer"} than {share:.0%}
        [because] {share_of_dense:.0%}: K and V are loaded, and O, ℓ, m initialized, for any mask.
        """
