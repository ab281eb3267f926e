"""If M is about d², writing S to HBM moves less than keeping it on chip."""

from flashsim import tracing
from flashsim.learn.gallery.trace_queries import accesses, first_step, tile_value
from flashsim.tracing import Trace
from flashsim.tracing.sample import operands

TITLE = "Small memories: S through HBM"
ORDER = 48  # after what is optimal among schedules that keep S


def record() -> tuple[Trace, ...]:
    Q, K, V = operands(6, 4)
    trace = tracing.trace("small_cache_hybrid", Q, K, V, M=22, blocks=(2, 1))
    versus = tracing.trace("q_outer", Q, K, V, M=22, blocks=(1, 1))
    return trace, versus


def teach(trace: Trace, fused: Trace) -> str:
    about = trace.about
    N = trace.about.shape.N_q
    d = trace.about.shape.d
    (S,) = (a for a in about.arrays if a.name == "S")
    b_r, b_c = tile_value(trace, first_step(trace, "write O"), "O[0, 0]").shape
    sides = {"fewer": accesses(trace) < accesses(fused), "more": accesses(trace) > accesses(fused)}
    return f"""
        FlashAttention keeps S on chip. So a row of Q needs its row of O beside it, and both have d
        elements. For a small M this is a lot: with M = {about.M} and d = {d} one row of each fits,
        and K and V are loaded once for each of {N} rows. This is `q_outer`, on the other side:
        {accesses(fused)} accesses.

        `small_cache_hybrid` separates the two products. For S = QKᵀ it holds {about.blocks.B_r}
        rows of Q and none of O, so K is loaded {accesses(trace, "K") // (N * d)} times instead of {N}.
        S goes to HBM. For O = PV it holds {b_r} × {b_c} tiles of O and none of Q; each product
        takes a column of S and a piece of V.

        » S costs {S.writes} writes and {S.reads} reads, and the whole run makes {accesses(trace)}
        accesses.

        » This saves accesses if M is about d², but not if M is several d². Then many rows of Q and
        O fit, and writing N × N elements costs the most; FlashAttention is better there.

        [read K] Rows of K pass by {about.blocks.B_r} rows of Q: no O is on chip.
        [write S] S goes to HBM, which never happens in FlashAttention.
        [read S] The second half: a column of S comes back, and is exponentiated on the way.
        [write O] A {b_r} × {b_c} tile of O is done, and written once.
        [last step] {accesses(trace)} accesses, {accesses(trace, "S")} of them to S; `q_outer`,
        {accesses(fused)}.

        [asks @ write S] S is {N} × {N}, written and read again. Will this run move more or fewer
        elements than `q_outer`?
        [choices] more | fewer
        [right] {next((word for word, holds in sides.items() if holds))}
        [because] {accesses(trace)} against {accesses(fused)}: K and V cost {accesses(trace, "K", "V")} here,
        and {accesses(fused, "K", "V")} there, and S costs {accesses(trace, "S")}.
        """
