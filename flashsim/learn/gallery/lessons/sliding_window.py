"""A band of tiles: only the keys of the window."""

from flashsim.learn.gallery.trace_queries import accesses, count_with
from flashsim.tracing import Trace

TITLE = "Sliding window"
ORDER = 55
RUN = {"algorithm": "sliding_window", "N": 16, "d": 4, "blocks": (2, 2), "M": 64, "window": 4}


def teach(trace: Trace) -> str:
    blocks = trace.about.blocks
    visited = {s.tile for s in trace.steps if s.tile is not None}
    tiles = blocks.T_r * blocks.T_c
    longest_row = max(sum(i == row for row, _ in visited) for i in range(blocks.T_r))
    twice = count_with("sliding_window", trace, N=2 * trace.about.shape.N_q, window=4)
    KV = sum(twice.hbm.by_array[name].reads for name in "KV") / accesses(trace, "K", "V")
    return f"""
        Each query attends to its own key and the four before it. A row block visits only the blocks
        of keys that its windows reach. It visits {len(visited)} of {tiles} tiles, at most {longest_row} in
        a row of tiles, for a sequence of any length.

        » Twice the length costs {KV:.2f} times the accesses to K and V here; with all keys it would
        be 4 times.

        Watch the band of tiles go down the diagonal. Tiles on its two sides are partial: line 10
        puts −∞ where a key is outside of the window. Tiles inside are full, and left as they are.

        [partial tile] A tile on the side of the band: line 10 puts −∞ outside of the window.
        [tiles skipped @ line 19] Row block 1 is done after one tile: the {blocks.T_c - 1} to its
        right are skipped.
        [full tile] A tile inside the band: every key is in every query's window.
        [last step] {len(visited)} tiles done, {tiles - len(visited)} skipped; {accesses(trace):,}
        accesses.

        [asks @ last step] Twice as many queries and keys, the same window: how many times the
        accesses to K and V?
        [choices] 2 times | 4 times
        [right] {min((2, 4), key=lambda n: abs(n - KV))} times
        [because] {KV:.2f} times: each query still has one window.
        """
