"""A prefix that sequences share is read once for all of them, and merged with the keys of each
sequence.
"""

from typing import Any

import numpy as np

from flashsim import serving, tracing
from flashsim.learn.gallery.trace_queries import accesses, find_steps, first_step, short, tile_value
from flashsim.tracing import Trace

TITLE = "A prefix, shared"
ORDER = 84


def record() -> Trace:
    rng = np.random.default_rng(5)
    Q = [rng.normal(size=(1, 1, 4)) for _ in range(3)]
    suffixes = [tuple(rng.normal(size=(2, 1, n, 4))) for n in (2, 1, 3)]
    return tracing.trace(
        serving.cascade, Q, suffixes, prefix=rng.normal(size=(2, 1, 6, 4)), M=100, blocks=(3, 3)
    )


def teach(trace: Trace) -> str:
    prefix = trace.about.shape.N_k
    lengths = [e.elements // 4 for e in trace.events if e.kind == "load" and e.array == "K"]
    shared = accesses(trace, "K_p") // 4
    merge = first_step(trace, "line 17")
    statistics = first_step(trace, "line 16")
    L = tile_value(trace, statistics, "L[0]")
    L_new = tile_value(trace, statistics, "L_new[0]")
    weight = 1 / (1 + np.exp(L_new - L))
    suffix_reads = find_steps(trace, "read K")
    alone = serving.count(
        "cascade", queries=1, keys=[prefix + n for n in lengths], d=4, M=100, blocks=(3, 3)
    )
    saved = {}
    b = 128
    for B_r in (16, 64):
        options: dict[str, Any] = {
            "queries": 1,
            "d": 128,
            "heads": 32,
            "dtype": "float16",
            "M": 10**6,
            "blocks": (B_r, 64),
        }
        separate = serving.count("cascade", keys=[32_768 + 128] * b, **options).hbm.accesses
        cascade = serving.count("cascade", keys=[128] * b, prefix=32_768, **options).hbm.accesses
        saved[B_r] = separate / cascade
    return f"""
        Three answers to one long question begin with the same keys: {prefix} here, and
        {", ".join(map(str, lengths))} of their own. Rows of all three are stacked, so one pass over
        the prefix serves them all. Each then attends to its own keys alone, and the two results are
        merged.

        » Merging needs no scores, only each side’s log-sum-exp L: it says how much weight the
        softmax gave to that side’s keys in all. For the first row the prefix has L =
        {short(L[0, 0])}, and its own keys {short(L_new[0, 0])}: so the prefix counts for
        {weight[0, 0]:.0%} of its O. This is why a kernel must return the right L, to the base of e,
        although nobody sees it in O.

        The prefix’s {prefix} keys are read {shared // prefix} time, {shared} rows of K, not
        {3 * prefix}. Merging costs O and L three times more. Here this is a loss, {accesses(trace)}
        accesses instead of {alone.hbm.accesses}, because the prefix is so short. With {b} sequences
        and a prefix of 32,768 it gains {saved[16]:.1f}-fold with row blocks of 16,
        {saved[64]:.1f}-fold with those of 64. It does not gain {b}-fold, because each row block
        reads the prefix again.

        [read K_p] The prefix’s first keys, for all {len(lengths)} rows at once.
        [write O] O and L of the prefix alone, as if there were nothing else.
        [read K @ {suffix_reads[0].number}] The first sequence’s own keys, {lengths[0]} of them, for its row
        alone.
        [write O_new] O^{{new}} and L^{{new}} of its own keys.
        [line 17] z: both sides’ weights, the larger of which is 1.
        [line 18 @ {first_step(trace, "line 18").number}] The weighted mean of two O’s.
        [last step] {accesses(trace)} accesses.

        [asks @ {merge.number}] A sequence has no key of its own yet: its L^{{new}} is −∞. What is
        its O?
        [choices] NaN | O of the prefix | half of it
        [right] O of the prefix
        [because] e^{{−∞}} is 0, so that side has no weight. Only if both sides are empty, −∞ − (−∞)
        needs care.
        """
