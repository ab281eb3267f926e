"""Log-sum-exp under a kernel the standard way: S = log k(X, Z) + log Vᵀ is written to HBM, then reduced.

    Require: X (N×d), Z (n×d), weights V (n×1), not negative, in HBM, on-chip SRAM of size M, kernel function k.
    1  Set block sizes B_r = ⌈M/2w⌉, B_c = min(B_r, ⌈w/2⌉), where w = d + 1.
    2  Divide X, Y into T_r blocks of B_r rows, Z, V into T_c blocks of B_c rows, S into T_r × T_c tiles.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_i from HBM to on-chip SRAM.
    5    for 1 ≤ j ≤ T_c do
    6      Load Z_j, V_j from HBM to on-chip SRAM.
    7      S_ij = log k(X_i, Z_j) + log V_jᵀ.
    8      Write S_ij to HBM.
    9    end for
    10 end for
    11 for 1 ≤ i ≤ T_r do
    12   Initialize Y_i = (−∞)_{B_r} on SRAM.
    13   for 1 ≤ j ≤ T_c do
    14     Load S_ij from HBM to on-chip SRAM.
    15     Y_i ← log(e^{Y_i} + rowsum(e^{S_ij})).
    16   end for
    17   Write Y_i to HBM.
    18 end for
    19 Return Y.

The listing is ours.
"""

from flashsim.algorithms.notation import log, logaddexp, logsumexp
from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.kernel_functions import LOG_SUM_EXP, KernelFunction, x_line_1
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def kernel_logsumexp_materialised(
    hbm: HBM, sram: SRAM, X: Matrix, Z: Matrix, V: Matrix, blocks: Sizes, k: KernelFunction
) -> Matrix:
    """Run on X (N, d), Z (n, d), V (n, 1); return Y (N, 1), in HBM."""
    on_chip = sram.on_chip
    B_r, B_c = blocks.B_r, blocks.B_c  # line 1
    Y = hbm.empty("Y", (X.shape[0], 1), sram.dtype, "output")  # line 2
    S = hbm.empty("S", (X.shape[0], Z.shape[0]), V.dtype)  # line 2
    X, Y, Z, V, S = X.divide(B_r), Y.divide(B_r), Z.divide(B_c), V.divide(B_c), S.divide(B_r, B_c)  # line 2
    for i in sram.loop(len(X)):  # line 3
        X_i = sram.load(X[i])  # line 4
        for j in sram.loop(len(Z)):  # line 5
            Z_j, V_j = sram.load(Z[j], V[j])  # line 6
            S_ij = on_chip(k.log(X_i, Z_j) + log(V_j.T))  # line 7
            sram.store(S[i, j], S_ij)  # line 8
        # line 9: end for
    # line 10: end for
    for i in sram.loop(len(X)):  # line 11
        Y_i = sram.full(Y[i].shape, float("-inf"))  # line 12
        for j in sram.loop(len(Z)):  # line 13
            S_ij = sram.load(S[i, j])  # line 14
            Y_i = on_chip(logaddexp(Y_i, logsumexp(S_ij)), over=Y_i)  # line 15
        # line 16: end for
        sram.store(Y[i], Y_i)  # line 17
    # line 18: end for
    return Y  # line 19


PROGRAM = Program(
    **LOG_SUM_EXP, title="Log-sum-exp under a kernel, its matrix in HBM", run=kernel_logsumexp_materialised,
    extras={"S": Kind("N", "n")},
    line_1=x_line_1,
    bugs=(Bug("k in place of log k", "k.log(X_i, Z_j)", "k(X_i, Z_j)"),),
)
