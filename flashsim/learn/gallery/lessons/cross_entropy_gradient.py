"""From one number a row, L, the softmax is computed again tile by tile; dX and dE take two passes."""

from typing import Any

import numpy as np

import flashsim
from flashsim.beyond import cross_entropy
from flashsim.learn.gallery.looking import every, first, moved, short, value
from flashsim.tracing import Trace

TITLE, ORDER = "Cross-entropy, backward", 125


def record() -> Trace:
    X = np.array([[1, 1], [0, 1], [2, 0], [1, -1]], np.float32)
    E = np.array([[1, 0], [0, 2], [-1, 1], [2, -1], [0, 0], [1, 3], [3, 1], [-2, 0]], np.float32)
    run = cross_entropy.loss(X, E, np.array([1, 3, 6, 0]), blocks=(2, 2), M=32)
    g = np.full(4, 1 / 4, np.float32)
    return flashsim.trace(cross_entropy.gradient, run, g, blocks=(2, 2))


def teach(trace: Trace) -> str:
    N, d, v = (size for _, size in trace.about.sizes)
    T_r, T_c = trace.about.blocks.T_r, trace.about.blocks.T_c
    label = int(value(trace, first(trace, "read L"), "y[0]")[0, 0])
    P, G = (value(trace, first(trace, line), name)[0] for line, name in (("line 8", "P_ij"), ("line 9", "G_ij")))
    last, done = every(trace, "line 9", i=0)[-1], every(trace, "line 10")[-1]
    dX = value(trace, first(trace, "write dX"), "dX[0]")[0]
    same: dict[str, Any] = {"N": N, "v": v, "d": d, "blocks": (2, 2), "M": trace.about.M}
    to_E = cross_entropy.exact(of="E", **same).hbm
    p, less = short(P[label]), short(G[label])
    return f"""
        The loss kept no logit, but its gradient needs all of them: ∂ loss_i / ∂ S_ij is P_ij, the softmax, minus 1 in the
        column of the row’s label. P has as many elements as S, {N * v} here, and is not kept either. But the loss left L, one
        number a row, and e^{{S_ij − L_i}} is P_ij directly, without a maximum or rescaling. So each tile of S is computed
        again, as Algorithm 4 computes S again from Q and K.

        Rows of X stay, with their sum dX_i, and blocks of E pass. g is the gradient from above, 1/{N} a row for the mean of {N}
        losses. The gradient to E is a second pass with the loops exchanged, `to="E"`: there dE_j stays, and the rows of X pass.
        One pass cannot keep both sums on chip.

        [read L] Two rows, with label, L and g. Row 0’s label is column {label}.
        [line 8] Row 0’s P in columns 0 and 1: {_listed(P)}. The division by the sum is in L.
        [line 9] Column {label} is row 0’s label: ({p} − 1)/{N} = {less}. It alone is below 0.
        [line 9 @ {last.number}] The last tile of the first rows. {T_c} tiles of G were made, and none was kept.
        [write dX] Row 0’s gradient is complete: {_listed(dX)}. It is written once.
        [read E, i = 1] The next rows read E again: T_r = {T_r} times {v * d} elements in all.
        [line 10 @ {done.number}] The last product. dX_i has met all of E.
        [last step] {moved(trace)} accesses; the pass for dE, of the same blocks, makes {to_E.accesses}.

        [asks @ {last.number}] Row 0’s G in all {T_c} tiles: one element is below 0, at the label. What do the {v} add up to?
        [choices] 0 | 1 | 1/{N}
        [right] 0
        [because] P adds up to 1, the label takes 1 away, and g scales both. So a step moves probability from the other words to
        the right one.

        [asks @ {done.number}] The loss made each tile of S once. How often is one made for the loss, dX and dE together?
        [choices] once | twice | three times
        [right] three times
        [because] Once in each pass. A tile that is computed again need not be kept or moved.
        """


def _listed(row: Any) -> str:
    return ", ".join(map(short, row))
