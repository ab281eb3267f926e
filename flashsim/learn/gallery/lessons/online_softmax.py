"""One pass over a row’s scores, with a running maximum and a running sum."""

import numpy as np

from flashsim import tracing
from flashsim.learn.gallery.one_row import one_row
from flashsim.learn.gallery.trace_queries import (
    find_steps,
    first_step,
    old_and_new,
    output,
    short,
    tile_value,
)
from flashsim.tracing import Trace

TITLE = "Online softmax"
ORDER = 10


def record() -> Trace:
    Q, K, V = (
        np.array(columns, np.float32).T for columns in ([[1]], [[2, 5, 1, 4]], [[10, 20, 30, 40]])
    )
    return tracing.trace(one_row, Q, K, V, scale=1.0, blocks=(1, 1), M=12)


def teach(trace: Trace) -> str:
    scores = [tile_value(trace, s, "S_ij").item() for s in find_steps(trace, "line 3")[1::2]]
    rise = first_step(trace, "rescale")
    still = first_step(trace, "maximum stays")
    total = first_step(trace, "line 5", rise.number)
    old, new = (m.item() for m in old_and_new(rise, "m"))
    before, after = (l.item() for l in old_and_new(total, "l"))
    _, l_last = old_and_new(find_steps(trace, "line 5")[-1], "l")
    l_end = l_last.item()
    O_end = output(trace).item()
    written = ", ".join(map(short, scores))
    return f"""
        The softmax of a row seems to need two passes: one for the largest score m, one for the sum
        ℓ of e^{{S − m}}. Online softmax takes one. It keeps the largest score so far and the sum so
        far, and when a larger score comes, what was summed before is multiplied by e^{{m − m^new}},
        as if the new maximum had been known from the start.

        Here one query meets the scores {written}, one in each turn. Watch m, ℓ, O, old → new, and
        the factor beside m.

        » The factor is 1 in every turn except one. There m rises from {short(old)} to {short(new)},
        and the old ℓ and O are multiplied by e^{{{short(old - new)}}} = {short(np.exp(old - new))}.
        At the end ℓ = {short(l_end)} is the sum of e^{{S − {short(max(scores))}}} over all of them.
        `flashsim example prefill` prints such steps in a terminal.

        [first maximum] m goes from −∞ to {short(scores[0])}; there is nothing to rescale yet.
        [rescale] m rises from {short(old)} to {short(new)}; the factor is e^{{{short(old - new)}}}
        = {short(np.exp(old - new))}.
        [line 5 @ {total.number}] ℓ = {short(np.exp(old - new))} · {short(before)} + 1 =
        {short(after)}: the old sum shrinks, and the new score is added.
        [maximum stays] {short(scores[dict(still.loops)["j"]])} is less than {short(new)}: the
        factor is 1.
        [line 9] Only now O is divided by ℓ = {short(l_end)}: {short(O_end)}, V’s mean, weighted.

        [asks @ rescale] m is {short(old)}, and the next score is {short(new)}. By what are ℓ and O
        multiplied?
        [choices] e^{{{short(old - new)}}} | 1 | e^{{{short(new - old)}}}
        [right] e^{{{short(old - new)}}}
        [because] A larger maximum makes all earlier terms smaller:
        e^{{{short(old)} − {short(new)}}} = {short(np.exp(old - new))}.
        """
