"""Kernel products with the rows of X outermost: Y_i = Σ_j k(x_i, z_j) v_j, and K = k(X, Z) never
leaves the chip.

    Require: X (N×d), Z (n×d), V (n×e) in HBM, on-chip SRAM of size M, kernel function k.
    1  Set block sizes B_r = ⌈M/2w⌉, B_c = min(B_r, ⌈w/2⌉), where w = d + e.
    2  Divide X, Y into T_r blocks of B_r rows, Z, V into T_c blocks of B_c rows.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_i from HBM to on-chip SRAM.
    5    Initialize Y_i = (0)_{B_r×e} on SRAM.
    6    for 1 ≤ j ≤ T_c do
    7      Load Z_j, V_j from HBM to on-chip SRAM.
    8      K_ij = k(X_i, Z_j).
    9      Y_i ← Y_i + K_ij V_j.
    10   end for
    11   Write Y_i to HBM.
    12 end for
    13 Return Y.

The listing is ours; the paper's Appendix D.2 names kernel products, and KeOps (B. Charlier et al.,
JMLR 22(74), 2021), as what its tiling extends to. Without a softmax nothing is rescaled. Line 8 is
one element-wise pass over the tile: k takes differences x − z, which lose nothing where clouds lie
far from the origin; ‖x‖² + ‖z‖² − 2x·z would cancel.
"""

from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.kernel_functions import PRODUCT, KernelFunction, x_line_1
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def kernel_x_outer(
    hbm: HBM, sram: SRAM, X: Matrix, Z: Matrix, V: Matrix, blocks: Sizes, k: KernelFunction
) -> Matrix:
    """Run on X (N, d), Z (n, d), V (n, e); return Y (N, e), in HBM."""
    on_chip = sram.on_chip
    B_r = blocks.B_r  # line 1
    B_c = blocks.B_c  # line 1
    Y = hbm.empty("Y", (X.shape[0], V.shape[1]), V.dtype, "output")  # line 2
    X = X.divide(B_r)  # line 2
    Y = Y.divide(B_r)  # line 2
    Z = Z.divide(B_c)  # line 2
    V = V.divide(B_c)  # line 2
    for i in sram.loop(len(X)):  # line 3
        X_i = sram.load(X[i])  # line 4
        Y_i = sram.full(Y[i].shape, 0.0)  # line 5
        for j in sram.loop(len(Z)):  # line 6
            Z_j, V_j = sram.load(Z[j], V[j])  # line 7
            K_ij = on_chip(k(X_i, Z_j))  # line 8
            Y_i = on_chip(Y_i + K_ij @ V_j, over=Y_i)  # line 9
        # line 10: end for
        sram.store(Y[i], Y_i)  # line 11
    # line 12: end for
    return Y  # line 13


PROGRAM = MatrixProgram(
    **PRODUCT,
    title="Kernel product, rows outermost",
    run=kernel_x_outer,
    line_1=x_line_1,
    bugs=(
        Bug("Y of the last block alone", "Y_i + K_ij @ V_j", "K_ij @ V_j"),
        Bug("Z of the first block", "sram.load(Z[j], V[j])", "sram.load(Z[0], V[j])"),
    ),
)
