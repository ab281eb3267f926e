"""The gradient of a kernel product to X: dX_i = Σ_j (dY_i · v_j) ∂k(x_i, z_j)/∂x_i, in one more
pass.

    Require: X (N×d), Z (n×d), V (n×e), dY (N×e) in HBM, on-chip SRAM of size M, kernel function k.
    1  Set block sizes B_r = ⌈M/2w⌉, B_c = min(B_r, ⌈w/2⌉), where w = d + e.
    2  Divide X, dY, dX into T_r blocks of B_r rows, Z, V into T_c blocks of B_c rows.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_i, dY_i from HBM to on-chip SRAM.
    5    Initialize dX_i = (0)_{B_r×d} on SRAM.
    6    for 1 ≤ j ≤ T_c do
    7      Load Z_j, V_j from HBM to on-chip SRAM.
    8      dK_ij = dY_i V_jᵀ.
    9      dX_i ← dX_i + Σ_j dK_ij ∂k(X_i, Z_j)/∂X_i.
    10   end for
    11   Write dX_i to HBM.
    12 end for
    13 Return dX.

The listing is ours. K is not kept: line 9 computes its slopes anew, as Algorithm 4 computes S.
"""

from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.kernel_functions import PRODUCT, KernelFunction, x_line_1
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def kernel_gradient(
    hbm: HBM,
    sram: SRAM,
    X: Matrix,
    Z: Matrix,
    V: Matrix,
    dY: Matrix,
    blocks: Sizes,
    k: KernelFunction,
) -> Matrix:
    """Run on X (N, d), Z (n, d), V (n, e), dY (N, e); return dX (N, d), in HBM."""
    on_chip = sram.on_chip
    B_r = blocks.B_r  # line 1
    B_c = blocks.B_c  # line 1
    dX = hbm.empty("dX", X.shape, V.dtype, "output")  # line 2
    X = X.divide(B_r)  # line 2
    dY = dY.divide(B_r)  # line 2
    dX = dX.divide(B_r)  # line 2
    Z = Z.divide(B_c)  # line 2
    V = V.divide(B_c)  # line 2
    for i in sram.loop(len(X)):  # line 3
        X_i, dY_i = sram.load(X[i], dY[i])  # line 4
        dX_i = sram.full(dX[i].shape, 0.0)  # line 5
        for j in sram.loop(len(Z)):  # line 6
            Z_j, V_j = sram.load(Z[j], V[j])  # line 7
            dK_ij = on_chip(dY_i @ V_j.T)  # line 8
            dX_i = on_chip(dX_i + k.pull(dK_ij, X_i, Z_j), over=dX_i)  # line 9
        # line 10: end for
        sram.store(dX[i], dX_i)  # line 11
    # line 12: end for
    return dX  # line 13


PROGRAM = MatrixProgram(
    **PRODUCT
    | {
        "operands": {**PRODUCT["operands"], "dY": Kind("N", "e")},
        "returns": {"dX": Kind("N", "d")},
    },
    title="Gradient of a kernel product",
    run=kernel_gradient,
    line_1=x_line_1,
    direction="backward",
    bugs=(
        Bug("dX of the last block alone", "dX_i + k.pull", "k.pull"),
        Bug("the slope of log k", "k.pull(dK_ij", "k.pull(dK_ij / k(X_i, Z_j)"),
    ),
)
