"""FlashDecoding: keys in splits, each attended to alone, then merged."""

import numpy as np

from flashsim.learn.gallery.trace_queries import (
    accesses,
    find_steps,
    first_step,
    old_and_new,
    short,
)
from flashsim.tracing import Trace

TITLE = "Decoding: one query, many keys"
ORDER = 80
RUN = {"algorithm": "split_kv", "N": 1, "N_k": 16, "d": 4, "blocks": (1, 4), "M": 64}


def teach(trace: Trace) -> str:
    splits = 1 + max(dict(s.loops).get("s", 0) for s in trace.steps)
    store = first_step(trace, "write O_parts")
    merge = first_step(trace, "read O_parts")
    rise = first_step(trace, "rescale")
    parts = accesses(trace, "O_parts", "l_parts", "m_parts")
    maxima = [old_and_new(s, "m")[1].item() for s in find_steps(trace, "line 12") if s.moved]
    old, new = (m.item() for m in old_and_new(rise, "m"))
    return f"""
        Decoding a token has one query and all keys so far: one row of tiles, one after another,
        with nothing in parallel. FlashDecoding cuts the keys into splits instead, {splits} here.
        The query attends to each split as if it were alone, with a separate maximum that starts at
        −∞. Each split leaves a part, (O, ℓ, m), in HBM. On a GPU the splits run at the same time;
        the page plays them one after another.

        Watch the maxima: {", ".join(map(short, maxima))}.

        » No split is rescaled, because each is one tile. Rescaling comes when the parts are merged
        (line 22): a part with a larger maximum scales down the parts merged before it, just as a
        tile would. K and V are read once, {accesses(trace, "K", "V")} of {accesses(trace):,} accesses;
        the parts cost {parts}.

        [read K] The first split’s keys and values.
        [write O_parts] Its part, not yet divided by ℓ, is written.
        [first maximum @ {first_step(trace, "first maximum", store.number).number}] The second split
        starts at −∞ again, and knows nothing of {short(maxima[0])}.
        [read O_parts] Merging: the first part comes back.
        [rescale] The part of split {dict(rise.loops)["s"] + 1} has the largest maximum: from
        {short(old)} to {short(new)}, what was merged counts for {short(np.exp(old - new))}.
        [last step] O is divided by ℓ and written.

        [asks @ read O_parts] {splits} splits are done, each of one tile. How often was a row
        rescaled so far?
        [choices] never | once | {splits} times
        [right]
        { {0: "never", 1: "once", splits: f"{splits} times"}[sum(s.rescaled for s in trace.steps[: merge.number])] }
        [because] Each split starts at −∞ and knows only its own maximum. Merging has to rescale.
        """
