"""States through HBM: more is moved, and chunks need not wait for each other."""

from __future__ import annotations

from typing import Any

from flashsim import linear
from flashsim.gallery.looking import Said, end, every, first, moved, see, spot
from flashsim.tracing import Stop, Trace

TITLE, ORDER = "Linear attention, side by side", 135


def record() -> tuple[Trace, ...]:
    """Record the twelve queries and keys of the lesson before, in the same chunks."""
    import numpy as np

    from flashsim import linear

    Q, K, V = np.random.default_rng(53).integers(-2, 4, size=(3, 12, 2)) + 0.0
    trace = linear.attention(Q, K, V, chunk=3, M=64, state="in_hbm", trace=True).trace
    return (trace,) if trace else ()


def teach(trace: Trace) -> Said:
    (N, d, e), (C,) = (size for _, size in trace.about.sizes), (size for _, size in trace.about.cuts)
    T = trace.about.blocks.T_r
    written, turn, out = every(trace, "write S"), first(trace, "read S"), first(trace, "write O", i=2)
    one = linear.exact(N=N, d=d, e=e, M=trace.about.M, chunk=C, dtype=trace.about.stored).hbm.accesses
    long: dict[str, Any] = {"N": 65_536, "d": 64, "M": 25_600}
    ways = {state: linear.exact(**long, state=state) for state in linear.STATES}
    times = ways["in_hbm"].hbm.accesses / ways["on_chip"].hbm.accesses
    yield f"""
        In the lesson before, S went from chunk to chunk on the chip: a chunk could not begin before the last had ended. A
        GPU has a hundred multiprocessors and more, and with one sequence of one head all but one would wait.

        So do it twice. The first pass, lines 4 to 8, reads K and V alone and writes S as it is before each chunk. The second,
        lines 9 to 14, loads a chunk with its own S, and lines 10 to 13 ask nothing of another chunk: they could all run at
        once. Only the first pass is still one after the other, and it has one of a chunk’s four products.

        The price is traffic: K and V twice, and each state there and back, 2 · {T} · {d * e} elements. Here that is
        {moved(trace)} accesses where one pass makes {one}; at N = 65,536, d = 64 and M = 25,600, {times:.1f} times as
        many. The longer the chunks, the fewer the states.
        """
    yield see(written[0], "write S", "Before the first chunk nothing is past: S_1 is zeros, and written all the same.")
    yield spot(trace, "line 7", f"The first {C} keys and values go into S. No query is on the chip.")
    yield see(written[1], "write S", "S_2, what the second chunk will need. It stays on chip too, to grow on.")
    yield see(turn, "read S", f"The second pass. {len(written)} states lie in HBM; this chunk takes its own.")
    yield spot(
        trace, "line 12", f"The third chunk: S_3 stands for {2 * C} keys. The chunks before need not be done yet.", i=2
    )
    yield see(out, "write O", "Its rows are complete, and written once.")
    yield end(trace, f"{moved(trace)} accesses: Q and O once, K and V twice, {T} states there and back.")
    yield Stop(
        turn.number,
        f"{T} states are in HBM. In which order may the second pass do the {T} chunks?",
        ("in any, or all at once", "from the first to the last", "from the last to the first"),
        "in any, or all at once",
        "A chunk’s S says all of its past, and no chunk writes what another reads.",
    )
    yield Stop(
        out.number,
        "Chunks of twice as many rows, of the same sequence: what becomes of the accesses to S?",
        ("half", "the same", "twice"),
        "half",
        f"There are N/C states of {d} × {e}, whatever C is. But a chunk’s tile A has C² elements, so M bounds C.",
    )
