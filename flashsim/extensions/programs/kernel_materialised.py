"""Kernel products the standard way: K = k(X, Z) is written to HBM, then multiplied with V.

    Require: X (N×d), Z (n×d), V (n×e) in HBM, on-chip SRAM of size M, kernel function k.
    1  Set block sizes B_r = ⌈M/2w⌉, B_c = min(B_r, ⌈w/2⌉), where w = d + e.
    2  Divide X, Y into T_r blocks of B_r rows, Z, V into T_c blocks of B_c rows,
       K into T_r × T_c tiles.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_i from HBM to on-chip SRAM.
    5    for 1 ≤ j ≤ T_c do
    6      Load Z_j from HBM to on-chip SRAM.
    7      K_ij = k(X_i, Z_j).
    8      Write K_ij to HBM.
    9    end for
    10 end for
    11 for 1 ≤ i ≤ T_r do
    12   Initialize Y_i = (0)_{B_r×e} on SRAM.
    13   for 1 ≤ j ≤ T_c do
    14     Load K_ij, V_j from HBM to on-chip SRAM.
    15     Y_i ← Y_i + K_ij V_j.
    16   end for
    17   Write Y_i to HBM.
    18 end for
    19 Return Y.

The listing is ours, after Algorithm 0: it is what a program does that forms the matrix.
"""

from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.kernel_functions import PRODUCT, KernelFunction, x_line_1
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def kernel_materialised(
    hbm: HBM, sram: SRAM, X: Matrix, Z: Matrix, V: Matrix, blocks: Sizes, k: KernelFunction
) -> Matrix:
    """Run on X (N, d), Z (n, d), V (n, e); return Y (N, e), in HBM."""
    on_chip = sram.on_chip
    B_r = blocks.B_r  # line 1
    B_c = blocks.B_c  # line 1
    Y = hbm.empty("Y", (X.shape[0], V.shape[1]), V.dtype, "output")  # line 2
    K = hbm.empty("K", (X.shape[0], Z.shape[0]), V.dtype)  # line 2
    X = X.divide(B_r)  # line 2
    Y = Y.divide(B_r)  # line 2
    Z = Z.divide(B_c)  # line 2
    V = V.divide(B_c)  # line 2
    K = K.divide(B_r, B_c)  # line 2
    for i in sram.loop(len(X)):  # line 3
        X_i = sram.load(X[i])  # line 4
        for j in sram.loop(len(Z)):  # line 5
            Z_j = sram.load(Z[j])  # line 6
            K_ij = on_chip(k(X_i, Z_j))  # line 7
            sram.store(K[i, j], K_ij)  # line 8
        # line 9: end for
    # line 10: end for
    for i in sram.loop(len(X)):  # line 11
        Y_i = sram.full(Y[i].shape, 0.0)  # line 12
        for j in sram.loop(len(Z)):  # line 13
            K_ij, V_j = sram.load(K[i, j], V[j])  # line 14
            Y_i = on_chip(Y_i + K_ij @ V_j, over=Y_i)  # line 15
        # line 16: end for
        sram.store(Y[i], Y_i)  # line 17
    # line 18: end for
    return Y  # line 19


PROGRAM = MatrixProgram(
    **PRODUCT,
    title="Kernel product, its matrix in HBM",
    run=kernel_materialised,
    extras={"K": Kind("N", "n")},
    line_1=x_line_1,
    bugs=(Bug("K of another tile", "sram.load(K[i, j], V[j])", "sram.load(K[i, 0], V[j])"),),
)
