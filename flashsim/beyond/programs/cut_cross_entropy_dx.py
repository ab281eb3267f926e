"""Cut cross-entropy's gradient to X: dX_i = Σ_j g_i (P_ij − 1[j = y_i]) E_j, with P = e^{S − L} computed anew.

    Require: X (N×d), E (v×d), y, L and the loss's gradient g (N×1) in HBM, on-chip SRAM of size M.
    1  Set block sizes B_r = ⌈M/4d⌉, B_c = min(⌈M/4d⌉, d).
    2  Divide X, y, L, g, dX into T_r blocks of B_r rows, E into T_c blocks of B_c rows.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_i, y_i, L_i, g_i from HBM to on-chip SRAM.
    5    Initialize dX_i = (0)_{B_r×d} on SRAM.
    6    for 1 ≤ j ≤ T_c do
    7      Load E_j from HBM to on-chip SRAM.
    8      P_ij = exp(X_i E_jᵀ − L_i).
    9      G_ij = g_i (P_ij − 1 where its column is y_i), 0 where y_i says "none".
    10     dX_i ← dX_i + G_ij E_j.
    11   end for
    12   Write dX_i to HBM.
    13 end for
    14 Return dX.

The listing is ours, after Wijmans et al., as in `cut_cross_entropy`. They leave out tiles of E whose P is below the rounding of
the sum, which is a block mask made of data, and not done here.
"""

from flashsim.algorithms.notation import at_most_0, exp
from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.labels import GRADIENT, minus_label, x_line_1
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def cut_cross_entropy_dx(hbm: HBM, sram: SRAM, X: Matrix, E: Matrix, y: Matrix, L: Matrix, g: Matrix, blocks: Sizes) -> Matrix:
    """Run on X (N, d), E (v, d), y, L, g (N, 1); return dX (N, d), in HBM."""
    on_chip = sram.on_chip
    B_r, B_c = blocks.B_r, blocks.B_c  # line 1
    dX = hbm.empty("dX", X.shape, X.dtype, "output")  # line 2
    X, y, L, g = X.divide(B_r), y.divide(B_r), L.divide(B_r), g.divide(B_r)  # line 2
    dX, E = dX.divide(B_r), E.divide(B_c)  # line 2
    for i in sram.loop(len(X)):  # line 3
        X_i, y_i, L_i, g_i = sram.load(X[i], y[i], L[i], g[i])  # line 4
        dX_i = sram.full(dX[i].shape, 0.0)  # line 5
        for j in sram.loop(len(E)):  # line 6
            E_j = sram.load(E[j])  # line 7
            P_ij = on_chip(exp(at_most_0(X_i @ E_j.T - L_i)))  # line 8
            G_ij = on_chip(g_i * minus_label(P_ij, y_i, j * B_c), over=P_ij)  # line 9
            dX_i = on_chip(dX_i + G_ij @ E_j, over=dX_i)  # line 10
        # line 11: end for
        sram.store(dX[i], dX_i)  # line 12
    # line 13: end for
    return dX  # line 14


PROGRAM = Program(
    **GRADIENT, title="Cut cross-entropy, gradient to X", run=cut_cross_entropy_dx,
    returns={"dX": Kind("N", "d")},
    line_1=x_line_1,
    bugs=(
        Bug("the label's 1 left out", "minus_label(P_ij, y_i, j * B_c)", "P_ij"),
        Bug("labels counted from the tile", "j * B_c", "0"),
        Bug("g left out", "g_i * minus_label", "minus_label"),
    ),
)
