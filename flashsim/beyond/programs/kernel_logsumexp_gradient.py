"""The gradient of a log-sum-exp under a kernel to X: dX_i = dY_i Σ_j P_ij ∂ log k(x_i, z_j)/∂x_i, with P_ij = e^{S_ij − Y_i}.

    Require: X (N×d), Z (n×d), weights V (n×1), Y (N×1), dY (N×1) in HBM, on-chip SRAM of size M, kernel function k.
    1  Set block sizes B_r = ⌈M/2w⌉, B_c = min(B_r, ⌈w/2⌉), where w = d + 1.
    2  Divide X, Y, dY, dX into T_r blocks of B_r rows, Z, V into T_c blocks of B_c rows.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_i, Y_i, dY_i from HBM to on-chip SRAM.
    5    Initialize dX_i = (0)_{B_r×d} on SRAM.
    6    for 1 ≤ j ≤ T_c do
    7      Load Z_j, V_j from HBM to on-chip SRAM.
    8      S_ij = log k(X_i, Z_j) + log V_jᵀ.
    9      P_ij = exp(S_ij − Y_i).
    10     dX_i ← dX_i + Σ_j dY_i P_ij ∂ log k(X_i, Z_j)/∂X_i.
    11   end for
    12   Write dX_i to HBM.
    13 end for
    14 Return dX.

The listing is ours. P is computed from Y as Algorithm 4 computes it from ℓ and m. A row with Y = −∞ has no gradient: dX = 0.
"""

from flashsim.algorithms.notation import at_most_0, exp, finite, log
from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.kernel_functions import LOG_SUM_EXP, KernelFunction, gradient_example, x_line_1
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def kernel_logsumexp_gradient(
    hbm: HBM, sram: SRAM, X: Matrix, Z: Matrix, V: Matrix, Y: Matrix, dY: Matrix, blocks: Sizes, k: KernelFunction
) -> Matrix:
    """Run on X (N, d), Z (n, d), V (n, 1), Y (N, 1), dY (N, 1); return dX (N, d), in HBM."""
    on_chip = sram.on_chip
    B_r, B_c = blocks.B_r, blocks.B_c  # line 1
    dX = hbm.empty("dX", X.shape, V.dtype, "output")  # line 2
    X, Y, dY, dX = X.divide(B_r), Y.divide(B_r), dY.divide(B_r), dX.divide(B_r)  # line 2
    Z, V = Z.divide(B_c), V.divide(B_c)  # line 2
    for i in sram.loop(len(X)):  # line 3
        X_i, Y_i, dY_i = sram.load(X[i], Y[i], dY[i])  # line 4
        dX_i = sram.full(dX[i].shape, 0.0)  # line 5
        for j in sram.loop(len(Z)):  # line 6
            Z_j, V_j = sram.load(Z[j], V[j])  # line 7
            S_ij = on_chip(k.log(X_i, Z_j) + log(V_j.T))  # line 8
            P_ij = on_chip(exp(at_most_0(S_ij - finite(Y_i))), over=S_ij)  # line 9
            dX_i = on_chip(dX_i + k.pull_log(dY_i * P_ij, X_i, Z_j), over=dX_i)  # line 10
        # line 11: end for
        sram.store(dX[i], dX_i)  # line 12
    # line 13: end for
    return dX  # line 14


PROGRAM = Program(
    **LOG_SUM_EXP
    | {
        "operands": {**LOG_SUM_EXP["operands"], "Y": Kind("N", "1", "chip"), "dY": Kind("N", "1")},
        "returns": {"dX": Kind("N", "d")}, "example": gradient_example,
    },
    title="Gradient of a log-sum-exp under a kernel", run=kernel_logsumexp_gradient, line_1=x_line_1, direction="backward",
    bugs=(
        Bug("dY of a whole block", "dY_i * P_ij", "P_ij * dY_i * dY_i.size"),
        Bug("the slope of k", "k.pull_log(", "k.pull("),
    ),
)
