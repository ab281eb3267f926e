"""Decoding several tokens at once: heads that share keys, and drafted tokens, are rows of one
block.
"""

import numpy as np

from flashsim import tracing
from flashsim.learn.gallery.trace_queries import accesses, first_step
from flashsim.simulate.api import count, forward
from flashsim.tracing import Trace

TITLE = "Several tokens at once"
ORDER = 81


def record() -> Trace:
    rng = np.random.default_rng(7)
    Q = rng.normal(size=(2, 2, 4))
    K = rng.normal(size=(1, 9, 4))
    V = rng.normal(size=(1, 9, 4))
    return tracing.trace(
        forward, "q_outer", Q, K, V, gqa="grouped", causal=True, M=120, blocks=(4, 3)
    )


def teach(trace: Trace) -> str:
    alone = count(
        "q_outer",
        N_q=2,
        N_k=9,
        d=4,
        heads=2,
        kv_heads=1,
        causal=True,
        M=120,
        blocks=(4, 3),
        dtype="float64",
    ).hbm
    rows = trace.about.shape.N_q
    n = trace.about.shape.N_k
    real = {}
    for tokens in (1, 4):
        for gqa in ("separate", "grouped"):
            tally = count(
                "q_outer",
                N_q=tokens,
                N_k=4096,
                d=128,
                heads=8,
                kv_heads=1,
                M=10**6,
                blocks=(64, 64),
                gqa=gqa,
            )
            real[tokens, gqa] = tally.hbm.accesses
    dearer = real[4, "grouped"] / real[1, "grouped"] - 1
    return f"""
        A draft of a few tokens is checked at once: {rows // 2} queries here, of 2 heads that share
        keys. A decoding step spends its time on reading keys, so the number of passes over the keys
        is important.

        » Rows of both heads and of all tokens are stacked, {rows} rows: row r is token r // 2 of
        head r % 2. One pass over {n} keys serves them all, {accesses(trace, "K")} elements of K. Each
        head alone reads K again: {alone.by_array["K"].reads} elements in all.

        With 8 heads in a group and 4,096 keys, packed rows move
        {real[1, "separate"] / real[1, "grouped"]:.1f} times less for one token, and four tokens
        cost {dearer:.1%} more than one. This is why speculative decoding is cheap: the keys are
        read anyway.

        The mask must know that rows are not positions. Token t sees keys up to its own, whichever
        head’s row it is: rows 0 and 1 have the same mask.

        [read Q] All {rows} rows: {rows // 2} tokens of 2 heads.
        [read K] The first keys, for all of them.
        [line 10 @ {first_step(trace, "partial tile").number}] Only the last tile is masked: the first
        token does not see the last key.
        [last step] O of both heads is written: {accesses(trace)} accesses here, {alone.accesses} for
        two heads alone.

        [asks @ read K] A third head joins the group, and the row block still fits. How much more of
        K is read?
        [choices] half as much again | nothing | a third
        [right] nothing
        [because] Its rows are on chip as well while the same keys pass. Only Q, O and L grow.
        """
