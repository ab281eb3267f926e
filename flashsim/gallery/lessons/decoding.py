"""FlashDecoding: keys in splits, each attended to alone, then merged."""

from __future__ import annotations

import numpy as np

from flashsim.gallery.looking import Said, end, every, first, moved, pair, see, short, spot
from flashsim.tracing import Stop, Trace

TITLE, ORDER = "Decoding: one query, many keys", 80
RUN = {"algorithm": "split_kv", "N": 1, "N_k": 16, "d": 4, "blocks": (1, 4), "M": 64}


def teach(trace: Trace) -> Said:
    splits = 1 + max(dict(s.loops).get("s", 0) for s in trace.steps)
    store, merge, rise = (first(trace, event) for event in ("write O_parts", "read O_parts", "rescale"))
    parts = moved(trace, "O_parts", "l_parts", "m_parts")
    maxima = [pair(s, "m")[1].item() for s in every(trace, "line 12") if s.moved]
    (old,), (new,) = (x[0] for x in pair(rise, "m"))
    yield f"""
        To decode one token is one query against all keys so far: one row of tiles, walked one after another, with
        nothing to do at once. FlashDecoding cuts the keys into splits instead, {splits} here. Each split is attended to
        as if it were alone, with a maximum of its own that starts at −∞, and leaves a part, (O, ℓ, m), in HBM. On a GPU
        the splits run at once; the page plays them one after another.

        Watch the maxima: {", ".join(map(short, maxima))}. No split is rescaled, as each is one tile. That comes when
        the parts are merged (line 22): a part with a larger maximum scales down what was merged before it, just as a
        tile would. K and V are read once, {moved(trace, "K", "V")} of {moved(trace):,} accesses; the parts cost
        {parts}.
        """
    yield spot(trace, "read K", "The first split’s keys and values.")
    yield see(store, "write O_parts", "Its part, not yet divided by ℓ, is written.")
    alone = f"The second split starts at −∞ again, and knows nothing of {short(maxima[0])}."
    yield spot(trace, "first maximum", alone, store.number)
    yield see(merge, "read O_parts", "Merging: the first part comes back.")
    yield see(
        rise,
        "rescale",
        f"The part of split {dict(rise.loops)['s'] + 1} has the largest maximum: from {short(old)} to {short(new)}, "
        f"what was merged counts for {short(np.exp(old - new))}.",
    )
    yield end(trace, "O is divided by ℓ and written.")
    yield Stop(
        merge.number,
        f"{splits} splits are done, each of one tile. How often was a row rescaled so far?",
        ("never", "once", f"{splits} times"),
        {0: "never", 1: "once", splits: f"{splits} times"}[sum(s.rescaled for s in trace.steps[: merge.number])],
        "Each split starts at −∞ and knows only its own maximum. Merging has to rescale.",
    )
