"""Cut cross-entropy's gradient to E: dE_j = Σ_i g_i (P_ij − 1[j = y_i]) X_i, with the rows of E outermost.

    Require: X (N×d), E (v×d), y, L and the loss's gradient g (N×1) in HBM, on-chip SRAM of size M.
    1  Set block sizes B_c = ⌈M/4d⌉, B_r = min(⌈M/4d⌉, d).
    2  Divide X, y, L, g into T_r blocks of B_r rows, E, dE into T_c blocks of B_c rows.
    3  for 1 ≤ j ≤ T_c do
    4    Load E_j from HBM to on-chip SRAM.
    5    Initialize dE_j = (0)_{B_c×d} on SRAM.
    6    for 1 ≤ i ≤ T_r do
    7      Load X_i, y_i, L_i, g_i from HBM to on-chip SRAM.
    8      P_ij = exp(X_i E_jᵀ − L_i).
    9      G_ij = g_i (P_ij − 1 where its column is y_i), 0 where y_i says "none".
    10     dE_j ← dE_j + G_ijᵀ X_i.
    11   end for
    12   Write dE_j to HBM.
    13 end for
    14 Return dE.

The listing is ours, as that of `cut_cross_entropy_dx`. The two gradients are two passes, as each keeps its own sum on chip.
"""

from flashsim.algorithms.notation import at_most_0, exp
from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.labels import GRADIENT, e_line_1, minus_label
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def cut_cross_entropy_de(hbm: HBM, sram: SRAM, X: Matrix, E: Matrix, y: Matrix, L: Matrix, g: Matrix, blocks: Sizes) -> Matrix:
    """Run on X (N, d), E (v, d), y, L, g (N, 1); return dE (v, d), in HBM."""
    on_chip = sram.on_chip
    B_r, B_c = blocks.B_r, blocks.B_c  # line 1
    dE = hbm.empty("dE", E.shape, E.dtype, "output")  # line 2
    X, y, L, g = X.divide(B_r), y.divide(B_r), L.divide(B_r), g.divide(B_r)  # line 2
    E, returned, dE = E.divide(B_c), dE, dE.divide(B_c)  # line 2
    for j in sram.loop(len(E)):  # line 3
        E_j = sram.load(E[j])  # line 4
        dE_j = sram.full(dE[j].shape, 0.0)  # line 5
        for i in sram.loop(len(X)):  # line 6
            X_i, y_i, L_i, g_i = sram.load(X[i], y[i], L[i], g[i])  # line 7
            P_ij = on_chip(exp(at_most_0(X_i @ E_j.T - L_i)))  # line 8
            G_ij = on_chip(g_i * minus_label(P_ij, y_i, j * B_c), over=P_ij)  # line 9
            dE_j = on_chip(dE_j + G_ij.T @ X_i, over=dE_j)  # line 10
        # line 11: end for
        sram.store(dE[j], dE_j)  # line 12
    # line 13: end for
    return returned  # line 14


PROGRAM = Program(
    **GRADIENT, title="Cut cross-entropy, gradient to E", run=cut_cross_entropy_de,
    returns={"dE": Kind("v", "d")},
    line_1=e_line_1,
    bugs=(
        Bug("labels counted by the other loop", "j * B_c", "i * B_c"),
        Bug("dE of the last block alone", "dE_j + G_ij.T @ X_i", "G_ij.T @ X_i"),
    ),
)
