"""Log-sum-exp under a kernel, rows of Z outermost: Y_i = log Σ_j k(x_i, z_j) v_j, where Y is added up in HBM.

    Require: X (N×d), Z (n×d), weights V (n×1), not negative, in HBM, on-chip SRAM of size M, kernel function k.
    1  Set block sizes B_c = ⌈M/2w⌉, B_r = min(B_c, ⌈w/2⌉), where w = d + 1.
    2  Divide X, Y into T_r blocks of B_r rows, Z, V into T_c blocks of B_c rows. Initialize Y = (−∞)_N in HBM.
    3  for 1 ≤ j ≤ T_c do
    4    Load Z_j, V_j from HBM to on-chip SRAM.
    5    for 1 ≤ i ≤ T_r do
    6      Load X_i, Y_i from HBM to on-chip SRAM.
    7      S_ij = log k(X_i, Z_j) + log V_jᵀ.
    8      Y_i ← log(e^{Y_i} + rowsum(e^{S_ij})).
    9      Write Y_i to HBM.
    10   end for
    11 end for
    12 Return Y.

The listing is ours.
"""

from flashsim.algorithms.notation import log, logaddexp, logsumexp
from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.kernel_functions import LOG_SUM_EXP, KernelFunction, z_line_1
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.shapes import Sizes


def kernel_logsumexp_z_outer(hbm: HBM, sram: SRAM, X: Matrix, Z: Matrix, V: Matrix, blocks: Sizes, k: KernelFunction) -> Matrix:
    """Run on X (N, d), Z (n, d), V (n, 1); return Y (N, 1), in HBM."""
    on_chip = sram.on_chip
    B_r, B_c = blocks.B_r, blocks.B_c  # line 1
    Y = hbm.full("Y", (X.shape[0], 1), float("-inf"), sram.dtype, "output")  # line 2
    X, Y, Z, V = X.divide(B_r), Y.divide(B_r), Z.divide(B_c), V.divide(B_c)  # line 2
    for j in sram.loop(len(Z)):  # line 3
        Z_j, V_j = sram.load(Z[j], V[j])  # line 4
        for i in sram.loop(len(X)):  # line 5
            X_i, Y_i = sram.load(X[i], Y[i])  # line 6
            S_ij = on_chip(k.log(X_i, Z_j) + log(V_j.T))  # line 7
            Y_i = on_chip(logaddexp(Y_i, logsumexp(S_ij)), over=Y_i)  # line 8
            sram.store(Y[i], Y_i)  # line 9
        # line 10: end for
    # line 11: end for
    return Y  # line 12


PROGRAM = Program(
    **LOG_SUM_EXP, title="Log-sum-exp under a kernel, rows of Z outermost", run=kernel_logsumexp_z_outer,
    line_1=z_line_1,
    bugs=(Bug("log V left out", "k.log(X_i, Z_j) + log(V_j.T)", "k.log(X_i, Z_j) + 0 * V_j.T"),),
)
