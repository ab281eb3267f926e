"""States in HBM: more elements move, but chunks need not wait for each other."""

from typing import Any

import numpy as np

import flashsim
from flashsim.beyond import linear
from flashsim.learn.gallery.looking import every, moved
from flashsim.tracing import Trace

TITLE, ORDER = "Linear attention, side by side", 135


def record() -> Trace:
    Q, K, V = np.random.default_rng(53).integers(-2, 4, size=(3, 12, 2)) + 0.0
    return flashsim.trace(linear.attention, Q, K, V, chunk=3, M=64, state="in_hbm")


def teach(trace: Trace) -> str:
    (N, d, e), (C,) = (size for _, size in trace.about.sizes), (size for _, size in trace.about.cuts)
    T = trace.about.blocks.T_r
    written = every(trace, "write S")
    one = linear.exact(N=N, d=d, e=e, M=trace.about.M, chunk=C, dtype=trace.about.stored).hbm.accesses
    long: dict[str, Any] = {"N": 65_536, "d": 64, "M": 25_600}
    ways = {state: linear.exact(**long, state=state) for state in linear.STATES}
    times = ways["in_hbm"].hbm.accesses / ways["on_chip"].hbm.accesses
    return f"""
        In the lesson `linear_attention`, S goes from chunk to chunk on the chip, so a chunk cannot begin before the last has
        ended. A GPU has more than a hundred multiprocessors, and with one sequence of one head all except one would wait.

        So this program makes two passes. The first pass, lines 4 to 8, reads only K and V, and writes S as it is before each
        chunk.

        » The second pass, lines 9 to 14, loads a chunk with its own S, and lines 10 to 13 need nothing from another chunk, so
        all chunks could run at once. Only the first pass is still sequential, and it has one of a chunk’s four products.

        The price is traffic: K and V twice, and each state there and back, 2 · {T} · {d * e} elements. Here that is
        {moved(trace)} accesses where one pass makes {one}; at N = 65,536, d = 64 and M = 25,600, {times:.1f} times as many.

        » The longer the chunks, the fewer the states.

        [write S] Before the first chunk nothing is past: S_1 is zeros, and written all the same.
        [line 7] The first {C} keys and values go into S. No query is on the chip.
        [write S @ {written[1].number}] S_2, what the second chunk will need. It stays on chip too, to grow on.
        [read S] The second pass. {len(written)} states lie in HBM; this chunk takes its own.
        [line 12, i = 2] The third chunk: S_3 stands for {2 * C} keys. The chunks before need not be done yet.
        [write O, i = 2] Its rows are complete, and written once.
        [last step] {moved(trace)} accesses: Q and O once, K and V twice, {T} states there and back.

        [asks @ read S] {T} states are in HBM. In which order may the second pass do the {T} chunks?
        [choices] in any, or all at once | from the first to the last | from the last to the first
        [right] in any, or all at once
        [because] A chunk’s S holds all of its past, and no chunk writes what another reads.

        [asks @ write O, i = 2] Chunks of twice as many rows, of the same sequence: what becomes of the accesses to S?
        [choices] half | the same | twice
        [right] half
        [because] There are N/C states of {d} × {e}, whatever C is. But a chunk’s tile A has C² elements, so M bounds C.
        """
