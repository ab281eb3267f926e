"""Tiles above the diagonal are not loaded."""

from flashsim.learn.gallery.trace_queries import accesses, count_with
from flashsim.tracing import Trace

TITLE = "Causal skipping"
ORDER = 31
RUN = {"algorithm": "q_outer", "N": 12, "d": 4, "blocks": (3, 3), "M": 72, "causal": True}


def teach(trace: Trace) -> str:
    blocks = trace.about.blocks
    tiles = trace.about.tiles
    assert tiles is not None
    visited = {s.tile for s in trace.steps if s.tile is not None}
    all_tiles = blocks.T_r * blocks.T_c
    partly = sum(kind == 2 for row in tiles for kind in row)
    plain = count_with("q_outer", trace)
    KV = sum(plain.hbm.by_array[name].reads for name in "KV")
    return f"""
        Under a causal mask query i attends to keys up to i, and the tiles above the diagonal are
        empty.

        » With the rows outermost the algorithm can leave these tiles out. It visits {len(visited)}
        of {all_tiles} tiles, and never loads the {all_tiles - len(visited)} crossed ones. K and V
        cost {accesses(trace, "K", "V")} accesses; without the mask they would cost {KV}. For long
        sequences this approaches one half.

        » Watch each row of tiles end at the diagonal. The mask changes something only there, in
        {partly} tiles: line 10 puts −∞ above the diagonal. Tiles below it are full, and line 10
        leaves them as they are. (Algorithm 2 as printed visits all tiles, with `--algorithm
        flash`.)

        [partial tile] A tile on the diagonal: line 10 puts −∞ where the key is after the query.
        [tiles skipped @ line 18] Row block 1 is done after one tile: the {blocks.T_c - 1} to its
        right are skipped.
        [full tile] Below the diagonal: everything is allowed, and nothing is masked.
        [last step] {len(visited)} tiles done, {all_tiles - len(visited)} skipped; {accesses(trace):,}
        accesses of {plain.hbm.accesses:,} without a mask.

        [asks @ line 18] The first block of queries has met its own keys. How many of the
        {blocks.T_c - 1} tiles to the right does it need?
        [choices] none | one | all
        [right] { {1: "none", 2: "one", blocks.T_c: "all"}[sum((i == 0 for i, _ in visited))] }
        [because] Their keys come after all of its queries, so the mask forbids all of them, and
        they are not even loaded.
        """
