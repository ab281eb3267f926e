"""K and V loaded element by element, so that more rows of Q fit."""

from flashsim import tracing
from flashsim.analysis import tune
from flashsim.learn.gallery.trace_queries import accesses, find_steps
from flashsim.tracing import Trace
from flashsim.tracing.sample import operands

TITLE = "Streams: K and V by elements"
ORDER = 46  # after rows that stay, as what is left is pinned here, too


def record() -> tuple[Trace, ...]:
    Q, K, V = operands(6, 4)
    trace = tracing.trace("streamed", Q, K, V, M=34, blocks=(3, 1))
    versus = tracing.trace("q_outer", Q, K, V, M=34, blocks=(2, 1))
    return trace, versus


def teach(trace: Trace, whole: Trace) -> str:
    about = trace.about
    d = trace.about.shape.d
    N = trace.about.shape.N_k
    rows = about.blocks.B_r
    fewer = whole.about.blocks.B_r
    sweeps = accesses(trace, "K") // (N * d)
    more = accesses(whole, "K") // (N * d)
    second = find_steps(trace, "line 19")[1]
    saved = accesses(whole) - accesses(trace)
    assert saved == accesses(whole, "K", "V") - accesses(trace, "K", "V")
    assert saved == 2 * (more - sweeps) * N * d
    peak = max(event.occupancy for event in trace.events)
    whole_peak = max(event.occupancy for event in whole.events)
    assert max(peak, whole_peak) <= about.M
    long = {
        name: tune.tune(N=4096, d=64, M=25_600).by_loops[name] for name in ("streamed", "q_outer")
    }
    return f"""
        Each block of Q meets all keys, so K and V are loaded once for each block of Q. So M should
        hold as many rows of Q as possible. `q_outer`, on the other side, also holds a row of K and
        one of V, 2d = {2 * d} elements, and three statistics for each row of Q: m, its new value,
        and ℓ. With M = {about.M} it has room for {fewer} rows of Q and O.

        `streamed` loads K_j and V_j one element at a time. The contribution of an element of K_j is
        added to S_ij, and that of an element of V_j to O_i, before the next comes; so one element
        of room is enough for both. O_i stays divided by its sum, so that L_i, the sum's logarithm,
        is the only statistic. A row of Q takes d + d_v + 2 = {2 * d + 2} elements, with O_i, S_ij
        and L_i, and {rows} rows fit.

        » K and V are loaded {sweeps} times instead of {more}: {accesses(trace)} accesses, and
        `q_outer` makes {accesses(whole)} with its best blocks. At most {peak} elements are on chip
        here, and {whole_peak} there.

        » At N = 4,096, d = 64, M = 25,600 that is {long["streamed"].accesses:,} accesses against
        {long["q_outer"].accesses:,}: {1 - long["streamed"].accesses / long["q_outer"].accesses:.1%}
        fewer. If M is much larger than d, a row of K and one of V matter less.

        [line 16] S_ij begins as zeros: it will be the sum of {d} products, one for each element of
        K_j.
        [read K] One element of K_1, not its row.
        [line 19] S_ij takes up its product with a column of Q_i, for all {rows} rows.
        [line 19 @ {second.number}] The second element has come in the place of the first. S_ij is
        the sum of 2 of {d} products, and cannot be used yet.
        [line 22] S_ij is whole: O_i is rescaled once for the key, and L_i takes the sum's place.
        [line 26] An element of V_1 adds to one column of O_i, and goes.
        [last step] {accesses(trace)} accesses; `q_outer`, {accesses(whole)}.

        [asks @ {second.number}] K_j comes in {d} loads here, and in one at `q_outer`. Are more
        elements moved?
        [choices] more, as there are more loads | as many | fewer
        [right] { {True: "fewer", False: "more, as there are more loads"}[saved > 0] }
        [because] Fewer, {accesses(trace)} against {accesses(whole)}. Accesses are counted in elements,
        and a row has as many whether it comes whole or in pieces. What counts is how many rows of Q
        it meets: {rows}, and {fewer} there.
        """
