"""Log-sum-exp under a kernel, rows of X outermost: Y_i = log Σ_j k(x_i, z_j) v_j, by online softmax.

    Require: X (N×d), Z (n×d), weights V (n×1), not negative, in HBM, on-chip SRAM of size M, kernel function k.
    1  Set block sizes B_r = ⌈M/2w⌉, B_c = min(B_r, ⌈w/2⌉), where w = d + 1.
    2  Divide X, Y into T_r blocks of B_r rows, Z, V into T_c blocks of B_c rows.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_i from HBM to on-chip SRAM.
    5    Initialize ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    6    for 1 ≤ j ≤ T_c do
    7      Load Z_j, V_j from HBM to on-chip SRAM.
    8      S_ij = log k(X_i, Z_j) + log V_jᵀ.
    9      m_i^new = max(m_i, rowmax(S_ij)).
    10     P̃_ij = exp(S_ij − m_i^new).
    11     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    12     m_i ← m_i^new.
    13   end for
    14   Y_i = m_i + log ℓ_i.
    15   Write Y_i to HBM.
    16 end for
    17 Return Y.

The listing is ours: FlashAttention's softmax without its values, as Sinkhorn's algorithm and mixtures of densities take it. A
row whose weights are all 0 has Y = −∞.
"""

from flashsim.algorithms.notation import exp, finite, log, maximum, rowmax, rowsum
from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.kernel_functions import LOG_SUM_EXP, KernelFunction, x_line_1
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def kernel_logsumexp(hbm: HBM, sram: SRAM, X: Matrix, Z: Matrix, V: Matrix, blocks: Sizes, k: KernelFunction) -> Matrix:
    """Run on X (N, d), Z (n, d), V (n, 1); return Y (N, 1), in HBM."""
    on_chip = sram.on_chip
    B_r, B_c = blocks.B_r, blocks.B_c  # line 1
    Y = hbm.empty("Y", (X.shape[0], 1), sram.dtype, "output")  # line 2
    X, Y, Z, V = X.divide(B_r), Y.divide(B_r), Z.divide(B_c), V.divide(B_c)  # line 2
    for i in sram.loop(len(X)):  # line 3
        X_i = sram.load(X[i])  # line 4
        l_i = sram.full(Y[i].shape, 0.0)  # line 5
        m_i = sram.full(Y[i].shape, float("-inf"))  # line 5
        for j in sram.loop(len(Z)):  # line 6
            Z_j, V_j = sram.load(Z[j], V[j])  # line 7
            S_ij = on_chip(k.log(X_i, Z_j) + log(V_j.T))  # line 8
            m_i_new = on_chip(maximum(m_i, rowmax(S_ij)))  # line 9
            P_tilde_ij = on_chip(exp(S_ij - finite(m_i_new)), over=S_ij)  # line 10
            l_i = on_chip(exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i)  # line 11
            m_i = on_chip(m_i_new, over=m_i)  # line 12
        # line 13: end for
        Y_i = on_chip(m_i + log(l_i), over=l_i)  # line 14
        sram.store(Y[i], Y_i)  # line 15
    # line 16: end for
    return Y  # line 17


PROGRAM = Program(
    **LOG_SUM_EXP, title="Log-sum-exp under a kernel, rows outermost", run=kernel_logsumexp,
    extras={"l": Kind("N", "1", "chip"), "m": Kind("N", "1", "chip")}, follows=("m", "l"),
    line_1=x_line_1,
    bugs=(Bug("ℓ is not rescaled", "exp(m_i - finite(m_i_new)) * l_i", "l_i"),),
)
