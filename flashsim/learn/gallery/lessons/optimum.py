"""The fewest accesses of all schedules of four rows, beside the best tiles."""

from flashsim import tracing
from flashsim.analysis.optima import optimum
from flashsim.learn.gallery.trace_queries import accesses, count_with, find_steps, first_step
from flashsim.tracing import Trace
from flashsim.tracing.sample import operands

TITLE = "What is optimal"
ORDER = 45  # after the lessons on the algorithms, as it is compared with one


def record() -> tuple[Trace, ...]:
    Q, K, V = operands(4, 2)
    trace = tracing.trace(optimum(N=4, d=2, M=15).replay, Q, K, V)
    versus = tracing.trace("q_outer", Q, K, V, M=15, blocks=(1, 1))
    return trace, versus


def teach(trace: Trace, tiles: Trace) -> str:
    N = trace.about.shape.N_q
    d = trace.about.shape.d
    loads = {
        name: sum(e.kind == "load" and e.array == name for e in trace.events) for name in "QKV"
    }
    multiplied = find_steps(trace, "line 11")
    second = multiplied[N]  # the second row's first product
    before = multiplied[N - 1].tile
    assert second.tile is not None
    assert before is not None
    row, column = second.tile
    between = [
        e for s in trace.steps[multiplied[N - 1].number : second.number] for e in trace.of(s)
    ]
    assert not any(e.kind == "load" and e.array in ("K", "V") for e in between)
    dropped = next(e for e in trace.events if e.kind == "evict" and e.name[0] in "KV")
    reload = next(
        step
        for step in trace.steps
        if trace.events[step.first].reads > 0 and step.first > trace.events.index(dropped)
    )
    snake = count_with("snake", trace, blocks=(1, 1)).hbm.accesses
    gone = f"{dropped.name[0]}_{dropped.indices[0] + 1}"
    least = N * (3 * d + d + 1)
    return f"""
        What is the least that any schedule can move? For a small problem a search can find it: N =
        {N}, d = {d}, and M = {trace.about.M}, in which two rows of K and V fit beside one of Q and
        O. Whole rows move, and S stays on chip. The search goes through all schedules of this kind,
        with or without loops. It finds {accesses(trace)} elements: no schedule moves fewer. Beside it
        are the best tiles of `q_outer`, which move {accesses(tiles)}.

        » The optimum turns around. When a row of Q is done, the last rows of K and V are still on
        chip, and the next row of Q begins with them. `q_outer` begins again with K_1, which was
        evicted long ago. So K is loaded {loads["K"]} times instead of {N * N}, and V {loads["V"]}
        times. {least} elements are compulsory: each row of Q, K and V once, O and L.

        `snake` does this, and moves {snake}. The optimum also fills the room that is left, with
        rows of K or V.

        Nobody told the search to turn around. `flashsim prove --exact` prints the schedule, turn by
        turn, and writes a certificate that a short program checks without searching.

        [line 11] The first product: four rows are on chip, and one element for S_ij.
        [{reload.label} @ {reload.number}] {gone} had to go first: no room is left. It will have to be
        loaded again.
        [line 11 @ {second.number}] Q_{row + 1} begins with K_{column + 1} and V_{column + 1}, which
        Q_{before[0] + 1} has just used: nothing of K and V is loaded.
        [write O @ {first_step(trace, "write O", second.number).number}] The second row of O is done.
        [last step] {accesses(trace)} accesses; the tiles beside it made {accesses(tiles)}, with the same
        M.

        [asks @ {second.number}] Which rows of K and V does the second row of Q meet first?
        [choices] the first | the last that were used | any: it makes no difference
        [right] the last that were used
        [because] They are still on chip. What was used longest ago has been evicted.
        """
