"""Kernel products with the rows of Z outermost: Y_i = Σ_j k(x_i, z_j) v_j, where Y is added up in
HBM.

    Require: X (N×d), Z (n×d), V (n×e) in HBM, on-chip SRAM of size M, kernel function k.
    1  Set block sizes B_c = ⌈M/2w⌉, B_r = min(B_c, ⌈w/2⌉), where w = d + e.
    2  Divide X, Y into T_r blocks of B_r rows, Z, V into T_c blocks of B_c rows.
       Initialize Y = (0)_{N×e} in HBM.
    3  for 1 ≤ j ≤ T_c do
    4    Load Z_j, V_j from HBM to on-chip SRAM.
    5    for 1 ≤ i ≤ T_r do
    6      Load X_i, Y_i from HBM to on-chip SRAM.
    7      K_ij = k(X_i, Z_j).
    8      Y_i ← Y_i + K_ij V_j.
    9      Write Y_i to HBM.
    10   end for
    11 end for
    12 Return Y.

The listing is ours. It is the order of Algorithm 1: what is read of Z and V once is paid for with
Y, read and written T_c times.
"""

from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.kernel_functions import PRODUCT, KernelFunction, z_line_1
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def kernel_z_outer(
    hbm: HBM, sram: SRAM, X: Matrix, Z: Matrix, V: Matrix, blocks: Sizes, k: KernelFunction
) -> Matrix:
    """Run on X (N, d), Z (n, d), V (n, e); return Y (N, e), in HBM."""
    on_chip = sram.on_chip
    B_r = blocks.B_r  # line 1
    B_c = blocks.B_c  # line 1
    Y = hbm.full("Y", (X.shape[0], V.shape[1]), 0.0, V.dtype, "output")  # line 2
    X = X.divide(B_r)  # line 2
    Y = Y.divide(B_r)  # line 2
    Z = Z.divide(B_c)  # line 2
    V = V.divide(B_c)  # line 2
    for j in sram.loop(len(Z)):  # line 3
        Z_j, V_j = sram.load(Z[j], V[j])  # line 4
        for i in sram.loop(len(X)):  # line 5
            X_i, Y_i = sram.load(X[i], Y[i])  # line 6
            K_ij = on_chip(k(X_i, Z_j))  # line 7
            Y_i = on_chip(Y_i + K_ij @ V_j, over=Y_i)  # line 8
            sram.store(Y[i], Y_i)  # line 9
        # line 10: end for
    # line 11: end for
    return Y  # line 12


PROGRAM = MatrixProgram(
    **PRODUCT,
    title="Kernel product, rows of Z outermost",
    run=kernel_z_outer,
    line_1=z_line_1,
    bugs=(Bug("Y read, and not added to", "Y_i + K_ij @ V_j", "K_ij @ V_j"),),
)
