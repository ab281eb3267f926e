"""Online softmax over one row, one key a turn: attention without blocks, masks and dropout.

    1  m = −∞, ℓ = 0, O = 0
    2  for each key j do
    3    S = q k_jᵀ
    4    m^new = max(m, S)
    5    ℓ = e^{m − m^new} ℓ + e^{S − m^new}
    6    O = e^{m − m^new} O + e^{S − m^new} v_j
    7    m = m^new
    8  end for
    9  Write O/ℓ to HBM.

The algorithms of `flashsim.algorithms` do this with blocks of queries and keys.
"""

from flashsim.algorithms.notation import exp, maximum
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def one_row(hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks) -> tuple[Matrix]:
    """Online softmax."""
    on_chip = sram.on_chip
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q = Q.divide(blocks.B_r)
    K = K.divide(blocks.B_c)
    V = V.divide(blocks.B_c)
    Q_i = sram.load(Q[0])  # line 1
    m_i = sram.full((1, 1), float("-inf"))  # line 1
    l_i = sram.full((1, 1), 0.0)  # line 1
    O_i = sram.full(O[0].shape, 0.0)  # line 1
    for j in sram.loop(blocks.T_c):  # line 2
        K_j, V_j = sram.load(K[j], V[j])  # line 3
        S_ij = on_chip(Q_i @ K_j.T)  # line 3
        m_i_new = on_chip(maximum(m_i, S_ij))  # line 4
        l_i = on_chip(exp(m_i - m_i_new) * l_i + exp(S_ij - m_i_new), over=l_i)  # line 5
        O_i = on_chip(exp(m_i - m_i_new) * O_i + exp(S_ij - m_i_new) * V_j, over=O_i)  # line 6
        m_i = on_chip(m_i_new, over=m_i)  # line 7
    # line 8: end for
    O_i = on_chip(O_i / l_i, over=O_i)  # line 9
    sram.store(O[0], O_i)  # line 9
    return (O,)
