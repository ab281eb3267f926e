"""A key whose value is 0: a query gives it the weight that no other key should have."""

from typing import Any

import numpy as np

from flashsim import tracing
from flashsim.attention.masks.rules import Causal
from flashsim.attention.masks.sink import Sink
from flashsim.learn.gallery.trace_queries import (
    accesses,
    find_steps,
    first_step,
    old_and_new,
    short,
    tile_value,
)
from flashsim.simulate.api import count
from flashsim.tracing import Trace

TITLE = "A sink: weight that goes nowhere"
ORDER = 57


def record() -> Trace:
    Q, K, V = np.random.default_rng(3).normal(size=(3, 6, 4))
    return tracing.trace("q_outer", Q, K, V, mask=Causal() & Sink(1.0), M=64, blocks=(3, 2))


def teach(trace: Trace) -> str:
    s = tile_value(trace, first_step(trace, "read sink"), "sink[0]").item()
    words = accesses(trace, "sink")
    blocks = trace.about.blocks
    L = tile_value(trace, first_step(trace, "write L"), "L[0]")
    shares = np.exp(s - L[:, 0])
    old, new = old_and_new(first_step(trace, "line 11"), "m")
    stays = int((new == old).sum())
    sizes: dict[str, Any] = {"N": 4096, "d": 64, "M": 25_600, "direction": "backward"}
    plain = count("q_outer", **sizes).hbm.accesses
    sunk = count("q_outer", **sizes, mask=Sink(s)).hbm.accesses
    return f"""
        Softmax weights sum to 1, so a query must attend to something, even if no key is relevant.
        Trained models then put this weight on the first token, whatever it is. A learnable sink is
        a better place for it: a logit s for each head, here s = {short(s)}, which is added to the
        sum that divides the weights. It acts as one more key, whose value is 0.

        » Nothing is added to the loop. Statistics begin with ℓ = 1 and m = s (line 6) instead of ℓ
        = 0 and m = −∞, as if the sink’s key had been read first. All other lines are unchanged, and
        rescaling treats the sink like any key.

        The first query sees one key only. Without a sink that key has weight 1, whatever its score;
        here the sink takes {shares[0]:.0%} of it. L = m + log ℓ includes the sink, so its weight is
        e^{{s − L}} in every row: {", ".join(f"{share:.0%}" for share in shares)} in the first row
        block. The backward pass takes this L, and is unchanged, too. The sink’s own gradient needs
        a last pass over O, dO and L, {sunk / plain - 1:.1%} more accesses at N = {sizes["N"]:,}.
        Forward, it costs {words} words here, one for each of the {blocks.T_r} row blocks.

        [read Q] The first row block.
        [read sink] The sink’s logit, one word: it becomes m of every row.
        [line 11] The first tile’s maxima meet m = {short(s)}, not −∞: {stays} of {len(old)} rows
        keep it.
        [line 13] ℓ began as 1, which is the sink’s own e^{{s − m}}.
        [write L] L has the sink in it.
        [read sink @ {find_steps(trace, "read sink")[1].number}] The next row block reads the word again.
        [last step] {words} words of {accesses(trace):,} accesses.

        [asks @ write O] All keys of a query have scores far below s. What is its O?
        [choices] about 0 | about the mean of the values | NaN
        [right] about 0
        [because] The sink takes all the weight, and its value is 0. Without a sink the weights
        would have to sum to 1 over these keys.
        """
