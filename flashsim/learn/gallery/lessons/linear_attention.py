"""Without a softmax the past is one small matrix, and each array moves once."""

from typing import Any

import numpy as np

import flashsim
from flashsim.beyond import linear
from flashsim.learn.gallery.looking import every, moved, value
from flashsim.masks.rules import Causal
from flashsim.theory import exact
from flashsim.tracing import Trace

TITLE, ORDER = "Linear attention", 130


def record() -> Trace:
    Q, K, V = np.random.default_rng(53).integers(-2, 4, size=(3, 12, 2)) + 0.0
    return flashsim.trace(linear.attention, Q, K, V, chunk=3, M=64)


def teach(trace: Trace) -> str:
    (N, d, e), (C,) = (size for _, size in trace.about.sizes), (size for _, size in trace.about.cuts)
    last = every(trace, "line 9")[-1]
    size = value(trace, last, "S").size
    long: dict[str, Any] = {"N": 65_536, "d": 64, "M": 25_600}
    one, two = (linear.exact(**long, state=state).hbm.accesses for state in ("on_chip", "in_hbm"))
    softmax = exact("q_outer", **long, sizing="fit", mask=Causal()).accesses
    return f"""
        Without the softmax, attention is a product of three matrices, (QKᵀ)V = Q(KᵀV), causal or not. Then one matrix, S = Σ_j
        k_jᵀ v_j, holds all past keys and values. Softmax has no such state, because e^{{q·k}} is not a product of a part of q
        and a part of k.

        Queries come in chunks of {C}. Keys in the same chunk are treated as before, with a tile A_i and a mask. Keys before the
        chunk come in through S: O_i = Q_i S + A_i V_i. Then line 9 adds the chunk to S.

        » So only the tiles on the diagonal are visited, and each array moves once: {moved(trace)} elements, which is the least
        possible. At N = 65,536, d = 64 and M = 25,600 that is {one:,} accesses, where causal softmax attention makes
        {softmax / one:.0f} times as many.

        The chunks wait for each other, though. `linear.attention(…, state="in_hbm")` writes the state before each chunk to HBM
        first; then all can run side by side, for {two / one:.1f} times the accesses.

        [line 6] A_i: {C} × {C} products, and zeros above the diagonal, where keys lie ahead.
        [line 7] The first chunk: S is still 0, so O_i is A_i V_i alone.
        [line 9] S takes the chunk’s keys and values in.
        [read Q, i = 1] The next chunk: queries, keys and values of its own rows, and no others.
        [line 7, i = 1] O_i = Q_i S + A_i V_i. S stands for the {C} keys that are past.
        [last step] S holds all {N} keys and values in {size} numbers. {moved(trace)} accesses: each array once.

        [asks @ read Q, i = 1] The next {C} queries attend to their own keys and to the {C} before. How many of those are read
        again?
        [choices] none | {C} | {2 * C}
        [right] none
        [because] S has their sum of k_jᵀ v_j, and without a softmax nothing else of them is needed.

        [asks @ {last.number}] {N - C} keys and values are in S, {C} more will be. How many numbers has S then?
        [choices] {size} | {size * N // C} | {N * (d + e)}
        [right] {size}
        [because] d × e = {d} × {e}, whatever N is: a sum does not grow.
        """
