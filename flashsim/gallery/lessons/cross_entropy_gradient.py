"""From one number a row, L, the softmax is made again tile by tile; dX and dE are two passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsim import cross_entropy
from flashsim.gallery.looking import does, end, first, moved, see, short, value
from flashsim.gallery.page import Said
from flashsim.tracing import Stop, Trace

TITLE, ORDER = "Cross-entropy, backward", 125


def record() -> tuple[Trace, ...]:
    """Record the gradient to X of the mean loss of four rows over a vocabulary of eight."""
    import numpy as np

    from flashsim import cross_entropy

    X = np.array([[1, 1], [0, 1], [2, 0], [1, -1]], np.float32)
    E = np.array([[1, 0], [0, 2], [-1, 1], [2, -1], [0, 0], [1, 3], [3, 1], [-2, 0]], np.float32)
    run = cross_entropy.loss(X, E, np.array([1, 3, 6, 0]), blocks=(2, 2), M=32)
    g = np.full(4, 1 / 4, np.float32)
    trace = cross_entropy.gradient(run, g, blocks=(2, 2), trace=True).trace
    return (trace,) if trace else ()


def teach(trace: Trace) -> Said:
    N, d, v = (size for _, size in trace.about.sizes)
    T_r, T_c = trace.about.blocks.T_r, trace.about.blocks.T_c
    rows = first(trace, does(trace, "load", "L"))
    label = int(value(trace, rows, "y[0]")[0, 0])
    P = first(trace, lambda s: s.label == "line 8")
    G = first(trace, lambda s: s.label == "line 9")
    p, less = (short(float(value(trace, step, name)[0, label])) for step, name in ((P, "P_ij"), (G, "G_ij")))
    last = [s for s in trace.steps if s.label == "line 9" and dict(s.loops)["i"] == 0][-1]
    written = first(trace, does(trace, "store", "dX"))
    dX = value(trace, written, "dX[0]")[0]
    again = first(trace, lambda s: does(trace, "load", "E")(s) and dict(s.loops)["i"] == 1)
    done = [s for s in trace.steps if s.label == "line 10"][-1]
    same: dict[str, Any] = {"N": N, "v": v, "d": d, "blocks": (2, 2), "M": trace.about.M}
    to_E = cross_entropy.exact(of="E", **same).hbm
    yield f"""
        The loss kept no logit, and its gradient needs all of them: ∂ loss_i / ∂ S_ij is P_ij, the softmax, less 1 in the
        column of the row’s label. P has as many elements as S, {N * v} here, and is not kept either. But the loss left
        L, one number a row, and e^{{S_ij − L_i}} is P_ij at once: no maximum is carried, and nothing is rescaled. So each
        tile of S is made again, as Algorithm 4 makes S again from Q and K.

        Rows of X stay, with their sum dX_i, and blocks of E pass. g is what comes from above, 1/{N} a row for the mean of
        {N} losses. The gradient to E is a second pass with the loops exchanged, `to="E"`: there dE_j stays, and the rows
        of X pass. One pass cannot keep both sums on chip.
        """
    yield see(rows, "read L", f"Two rows, with label, L and g. Row 0’s label is column {label}.")
    yield see(
        P,
        "line 8",
        f"Row 0’s P in columns 0 and 1: {_listed(value(trace, P, 'P_ij')[0])}. The division by the sum is in L.",
    )
    yield see(G, "line 9", f"Column {label} is row 0’s label: ({p} − 1)/{N} = {less}. It alone is below 0.")
    yield see(last, "line 9", f"The last tile of the first rows. {T_c} tiles of G were made, and none was kept.")
    yield see(written, "write dX", f"Row 0’s gradient is complete: {_listed(dX)}. It is written once.")
    yield see(again, "read E", f"The next rows read E anew: T_r = {T_r} times {v * d} elements in all.")
    yield see(done, "line 10", "The last product. dX_i has met all of E.")
    yield end(trace, f"{moved(trace)} accesses; the pass for dE, of the same blocks, makes {to_E.accesses}.")
    yield Stop(
        last.number,
        f"Row 0’s G in all {T_c} tiles: one element is below 0, at the label. What do the {v} add up to?",
        ("0", "1", f"1/{N}"),
        "0",
        "P adds up to 1, the label takes 1 away, and g scales both. So a step moves probability from the other words "
        "to the right one.",
    )
    yield Stop(
        done.number,
        "The loss made each tile of S once. How often is one made for the loss, dX and dE together?",
        ("once", "twice", "three times"),
        "three times",
        "Once in each pass. What is computed again need not be kept, nor moved.",
    )


def _listed(row: Any) -> str:
    return ", ".join(short(float(x)) for x in np.ravel(row))
