"""K and V pinned on chip where blocks of Q leave room."""

from flashsim import tracing
from flashsim.learn.gallery.trace_queries import accesses, find_steps
from flashsim.tracing import Trace
from flashsim.tracing.sample import operands

TITLE = "Spare room: rows that stay"
ORDER = 44


def record() -> tuple[Trace, ...]:
    Q, K, V = operands(6, 2)
    trace = tracing.trace("q_outer_pinned", Q, K, V, M=24, blocks=(2, 1))
    versus = tracing.trace("q_outer", Q, K, V, M=24, blocks=(2, 1))
    return trace, versus


def loads(trace: Trace, name: str) -> int:
    """Return how often a block is loaded."""
    return sum(e.kind == "load" and e.name == name for e in trace.events)


def teach(trace: Trace, plain: Trace) -> str:
    about = trace.about
    T_r = loads(plain, "K[0]")
    rows = about.blocks.B_r
    d = about.shape.d
    N = about.shape.N_q
    pinned = [n for n in range(N) if loads(trace, f"K[{n}]") == 1]
    pinning = next(s for s in find_steps(trace, "line 4") if s.first < s.last)
    again = next(s for s in find_steps(trace, "line 9") if s.tile is not None and s.tile[0] == 1)
    saved = accesses(plain) - accesses(trace)
    assert saved == (T_r - 1) * len(pinned) * 2 * d
    return f"""
        With Q outermost each block of Q meets all keys, so each row of K and V is loaded as often
        as there are blocks of Q: {T_r} times here. Larger blocks of Q would help, as long as they
        fit. With M = {about.M} elements {rows} rows fit, and a third row, which needs a row of O
        too, does not. But some room is left over.

        `q_outer_pinned` fills this room with rows of K and V before the loops (line 4): here with
        {len(pinned)} of each.

        » This saves {T_r - 1} of {T_r} loads of K_1 and V_1, {saved} elements: {accesses(trace)}
        instead of {accesses(plain)}. Beside it is `q_outer`, with the same M and the same blocks.

        The pinned rows are only a part of K and V. So pinning helps if K and V are short, and
        hardly if they are long.

        [line 4 @ {pinning.number}] K_1 and V_1 come on chip before the loop over blocks of Q.
        [line 9] The first block of Q meets K_1: pinned rows come first, and nothing is loaded.
        [line 16] The other keys are loaded, and evicted at the end of their turn, as ever.
        [line 9 @ {again.number}] The second block of Q: K_1 and V_1 are still there. `q_outer`
        loads them again.
        [last step] {accesses(trace)} accesses; without the pinned row, {accesses(plain)}.

        [asks @ {again.number}] In the whole run, how often is K_1 loaded?
        [choices] once | {T_r} times | {N} times
        [right] { {1: "once", T_r: f"{T_r} times", N: f"{N} times"}[loads(trace, "K[0]")] }
        [because] Once, before the loops. The other rows of K are loaded for each of the {T_r}
        blocks of Q.
        """
