"""Algorithm 2 with a sink: a logit s, whose e^s is in the sum ℓ, but brings no value.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop, the sink's logit s in HBM.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_c = ⌈M/4d⌉, B_r = min(⌈M/4d⌉, d).
    3  Load s from HBM. Initialize O = (0)_{N×d}, ℓ = (1)_N, m = (s)_N in HBM.
    4  Divide Q into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    5  Divide O, ℓ, m into T_r blocks of B_r rows.
    6  for 1 ≤ j ≤ T_c do
    7    Load K_j, V_j from HBM to on-chip SRAM.
    8    for 1 ≤ i ≤ T_r do
    9      Load Q_i, O_i, ℓ_i, m_i from HBM to on-chip SRAM.
    10     S_ij = τ Q_i K_jᵀ.
    11     S_ij^masked = MASK(S_ij).
    12     m̃_ij = rowmax(S_ij^masked), P̃_ij = exp(S_ij^masked − m̃_ij),
           ℓ̃_ij = rowsum(P̃_ij).
    13     m_i^new = max(m_i, m̃_ij), ℓ_i^new = e^{m_i − m_i^new} ℓ_i
           + e^{m̃_ij − m_i^new} ℓ̃_ij.
    14     P̃_ij^dropped = dropout(P̃_ij, p_drop).
    15     Write O_i ← diag(ℓ_i^new)⁻¹ (diag(ℓ_i) e^{m_i − m_i^new} O_i
           + e^{m̃_ij − m_i^new} P̃_ij^dropped V_j) to HBM.
    16     Write ℓ_i ← ℓ_i^new, m_i ← m_i^new to HBM.
    17   end for
    18 end for
    19 Return O, ℓ, m, R.

The paper has no sink. Only line 3 differs from Algorithm 2: ℓ and m are what a key of
score s and value 0 leaves, ℓ = e^{s − s} = 1 and m = s, as if it had been read first.
"""

from dataclasses import replace

from flashsim.algorithms import algorithm_2_flash
from flashsim.algorithms.notation import (
    exp,
    finite,
    maximum,
    nonzero,
    product,
    rowmax,
    rowsum,
)
from flashsim.algorithms.parts import Dropout, MaskFunction, Sink
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def flash_with_sink(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
    sink: Sink,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run Algorithm 2 on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v), ℓ
    and m (N_q, 1), in HBM.
    """
    on_chip = sram.on_chip
    N = Q.shape[0]
    d_v = V.shape[1]
    dropout.save()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    O = hbm.full("O", (N, d_v), 0.0, V.dtype, "output")  # line 3
    l = hbm.full("l", (N, 1), sink.l, sram.dtype)  # line 3
    m = hbm.full("m", (N, 1), sink.m(Q), sram.dtype)  # line 3
    Q = Q.divide(B_r)  # line 4
    K = K.divide(B_c)  # line 4
    V = V.divide(B_c)  # line 4
    O = O.divide(B_r)  # line 5
    l = l.divide(B_r)  # line 5
    m = m.divide(B_r)  # line 5
    for j in sram.loop(blocks.T_c):  # line 6
        K_j, V_j = sram.load(K[j], V[j])  # line 7
        for i in sram.loop(blocks.T_r):  # line 8
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])  # line 9
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 10
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 11
            m_tilde_ij = on_chip(rowmax(S_masked_ij))  # line 12
            P_tilde_ij = on_chip(  # line 12
                exp(S_masked_ij - finite(m_tilde_ij)), over=S_masked_ij
            )
            l_tilde_ij = on_chip(rowsum(P_tilde_ij))  # line 12
            m_i_new = on_chip(maximum(m_i, m_tilde_ij))  # line 13
            l_i_new = on_chip(  # line 13
                exp(m_i - finite(m_i_new)) * l_i
                + exp(m_tilde_ij - finite(m_i_new)) * l_tilde_ij
            )
            P_dropped_ij = on_chip(  # line 14
                P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij
            )
            O_i_new = on_chip(  # line 15
                (
                    l_i * exp(m_i - finite(m_i_new)) * O_i
                    + exp(m_tilde_ij - finite(m_i_new)) * product(P_dropped_ij, V_j)
                )
                / nonzero(l_i_new),
                over=O_i,
            )
            sram.store(O[i], O_i_new)  # line 15
            sram.store(l[i], l_i_new)  # line 16
            sram.store(m[i], m_i_new)  # line 16
        # line 17: end for
    # line 18: end for
    return O, l, m  # line 19


ALGORITHM = replace(
    algorithm_2_flash.ALGORITHM,
    title=f"{algorithm_2_flash.ALGORITHM.title}, with a sink",
    run=flash_with_sink,
    parts=(*algorithm_2_flash.ALGORITHM.parts, "sink"),
)
