"""Algorithm 1: FlashAttention, forward.

    Require: Q, K, V in HBM, on-chip SRAM of size M.
    1  Set block sizes B_c = ⌈M/4d⌉, B_r = min(⌈M/4d⌉, d).
    2  Initialize O = (0)_{N×d}, ℓ = (0)_N, m = (−∞)_N in HBM.
    3  Divide Q into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    4  Divide O, ℓ, m into T_r blocks of B_r rows.
    5  for 1 ≤ j ≤ T_c do
    6    Load K_j, V_j from HBM to on-chip SRAM.
    7    for 1 ≤ i ≤ T_r do
    8      Load Q_i, O_i, ℓ_i, m_i from HBM to on-chip SRAM.
    9      S_ij = Q_i K_jᵀ.
    10     m̃_ij = rowmax(S_ij), P̃_ij = exp(S_ij − m̃_ij), ℓ̃_ij = rowsum(P̃_ij).
    11     m_i^new = max(m_i, m̃_ij), ℓ_i^new = e^{m_i − m_i^new} ℓ_i
           + e^{m̃_ij − m_i^new} ℓ̃_ij.
    12     Write O_i ← diag(ℓ_i^new)⁻¹ (diag(ℓ_i) e^{m_i − m_i^new} O_i
           + e^{m̃_ij − m_i^new} P̃_ij V_j) to HBM.
    13     Write ℓ_i ← ℓ_i^new, m_i ← m_i^new to HBM.
    14   end for
    15 end for
    16 Return O.

The softmax scale τ is folded into Q when it is placed in HBM, as the paper's Algorithm
1 has none.
"""

from flashsim.algorithms.blocks import kv_outer_blocks
from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum
from flashsim.algorithms.record import Algorithm, every_block
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def flash_basic(
    hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks
) -> tuple[Matrix, Matrix, Matrix]:
    """Run Algorithm 1 on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v), ℓ
    and m (N_q, 1), in HBM.
    """
    on_chip = sram.on_chip
    N = Q.shape[0]
    d_v = V.shape[1]
    B_r = blocks.B_r  # line 1
    B_c = blocks.B_c  # line 1
    O = hbm.full("O", (N, d_v), 0.0, V.dtype, "output")  # line 2
    l = hbm.full("l", (N, 1), 0.0, sram.dtype)  # line 2
    m = hbm.full("m", (N, 1), float("-inf"), sram.dtype)  # line 2
    Q = Q.divide(B_r)  # line 3
    K = K.divide(B_c)  # line 3
    V = V.divide(B_c)  # line 3
    O = O.divide(B_r)  # line 4
    l = l.divide(B_r)  # line 4
    m = m.divide(B_r)  # line 4
    for j in sram.loop(blocks.T_c):  # line 5
        K_j, V_j = sram.load(K[j], V[j])  # line 6
        for i in sram.loop(blocks.T_r):  # line 7
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])  # line 8
            S_ij = on_chip(Q_i @ K_j.T)  # line 9
            m_tilde_ij = on_chip(rowmax(S_ij))  # line 10
            P_tilde_ij = on_chip(exp(S_ij - m_tilde_ij), over=S_ij)  # line 10
            l_tilde_ij = on_chip(rowsum(P_tilde_ij))  # line 10
            m_i_new = on_chip(maximum(m_i, m_tilde_ij))  # line 11
            l_i_new = on_chip(  # line 11
                exp(m_i - m_i_new) * l_i + exp(m_tilde_ij - m_i_new) * l_tilde_ij
            )
            O_i_new = on_chip(  # line 12
                (
                    l_i * exp(m_i - m_i_new) * O_i
                    + exp(m_tilde_ij - m_i_new) * (P_tilde_ij @ V_j)
                )
                / l_i_new,
                over=O_i,
            )
            sram.store(O[i], O_i_new)  # line 12
            sram.store(l[i], l_i_new)  # line 13
            sram.store(m[i], m_i_new)  # line 13
        # line 14: end for
    # line 15: end for
    return O, l, m  # line 16


ALGORITHM = Algorithm(
    name="flash_basic",
    title="Algorithm 1, FlashAttention",
    short="Algorithm 1",
    run=flash_basic,
    line_1=kv_outer_blocks,
    returns=("O", "l", "m"),
    follows=("m", "l", "O"),
    rounds=every_block,
)
