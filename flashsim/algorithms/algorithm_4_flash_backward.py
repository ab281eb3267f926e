"""Algorithm 4: FlashAttention, backward.

    Require: Q, K, V, O, dO in HBM, ℓ, m in HBM, on-chip SRAM of size M, softmax scaling
             constant τ, masking function MASK, dropout probability p_drop, generator
             state R from the forward pass.
    1  Set the pseudo-random number generator state to R.
    2  Set block sizes B_c = ⌈M/4d⌉, B_r = min(⌈M/4d⌉, d).
    3  Divide Q into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    4  Divide O, dO, ℓ, m into T_r blocks of B_r rows.
    5  Initialize dQ = (0)_{N×d} in HBM, in T_r blocks, and dK = (0)_{N×d},
       dV = (0)_{N×d}, in T_c blocks.
    6  for 1 ≤ j ≤ T_c do
    7    Load K_j, V_j from HBM to on-chip SRAM.
    8    Initialize dK̃_j = (0)_{B_c×d}, dṼ_j = (0)_{B_c×d} on SRAM.
    9    for 1 ≤ i ≤ T_r do
    10     Load Q_i, O_i, dO_i, dQ_i, ℓ_i, m_i from HBM to on-chip SRAM.
    11     S_ij = τ Q_i K_jᵀ.
    12     S_ij^masked = MASK(S_ij).
    13     P_ij = diag(ℓ_i)⁻¹ exp(S_ij^masked − m_i).
    14     Z_ij: the forward pass's dropout mask,
           each entry 1/(1 − p_drop) with probability 1 − p_drop, else 0.
    15     P_ij^dropped = P_ij ∘ Z_ij.
    16     dṼ_j ← dṼ_j + (P_ij^dropped)ᵀ dO_i.
    17     dP_ij^dropped = dO_i V_jᵀ.
    18     dP_ij = dP_ij^dropped ∘ Z_ij.
    19     D_i = rowsum(dO_i ∘ O_i).
    20     dS_ij = P_ij ∘ (dP_ij − D_i).
    21     Write dQ_i ← dQ_i + τ dS_ij K_j to HBM.
    22     dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
    23   end for
    24   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
    25 end for
    26 Return dQ, dK, dV.

P, not P^dropped, enters dS, as equation 4's D_i = P_i:ᵀ dP_i: = dO_iᵀ O_i holds under
dropout too. Rows in which every key is masked (ℓ = 0, m = −∞) have P = 0 and so
gradients 0. Line 13 computes S anew, and rounding can lift its exponent above 0. Here
`at_most_0` (notation.py) keeps it at most 0. The paper does not.
"""

from flashsim.algorithms.blocks import kv_outer_blocks
from flashsim.algorithms.notation import (
    at_most_0,
    exp,
    finite,
    gated,
    nonzero,
    product,
    rowsum,
)
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm, every_block
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def flash_backward(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    O: Matrix,
    dO: Matrix,
    l: Matrix,
    m: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run Algorithm 4 on the forward pass's operands and dO (N_q, d_v); return dQ, dK,
    dV, in HBM.
    """
    on_chip = sram.on_chip
    dropout.restore()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    Q = Q.divide(B_r)  # line 3
    K = K.divide(B_c)  # line 3
    V = V.divide(B_c)  # line 3
    O = O.divide(B_r)  # line 4
    dO = dO.divide(B_r)  # line 4
    l = l.divide(B_r)  # line 4
    m = m.divide(B_r)  # line 4
    dQ = hbm.full("dQ", Q.shape, 0.0, Q.dtype, "output").divide(B_r)  # line 5
    dK = hbm.full("dK", K.shape, 0.0, K.dtype, "output").divide(B_c)  # line 5
    dV = hbm.full("dV", V.shape, 0.0, V.dtype, "output").divide(B_c)  # line 5
    for j in sram.loop(blocks.T_c):  # line 6
        K_j, V_j = sram.load(K[j], V[j])  # line 7
        dK_tilde_j = sram.full(K[j].shape, 0.0)  # line 8
        dV_tilde_j = sram.full(V[j].shape, 0.0)  # line 8
        for i in sram.loop(blocks.T_r):  # line 9
            Q_i, O_i, dO_i, dQ_i, l_i, m_i = sram.load(  # line 10
                Q[i], O[i], dO[i], dQ[i], l[i], m[i]
            )
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 11
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 12
            P_ij = on_chip(  # line 13
                exp(at_most_0(S_masked_ij - finite(m_i))) / nonzero(l_i),
                over=S_masked_ij,
            )
            Z_ij = on_chip(dropout(P_ij, i, j))  # line 14
            P_dropped_ij = on_chip(P_ij * Z_ij)  # line 15
            dV_tilde_j = on_chip(  # line 16
                dV_tilde_j + product(P_dropped_ij.T, dO_i), over=dV_tilde_j
            )
            dP_dropped_ij = on_chip(dO_i @ V_j.T)  # line 17
            dP_ij = on_chip(dP_dropped_ij * Z_ij, over=dP_dropped_ij)  # line 18
            D_i = on_chip(rowsum(dO_i * O_i))  # line 19
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 20
            MASK.gradient(dS_ij, i, j)  # line 20
            dS_ij = MASK.uncapped(dS_ij)  # line 20
            dQ_i_new = on_chip(dQ_i + tau * product(dS_ij, K_j), over=dQ_i)  # line 21
            sram.store(dQ[i], dQ_i_new)  # line 21
            dK_tilde_j = on_chip(  # line 22
                dK_tilde_j + tau * product(dS_ij.T, Q_i), over=dK_tilde_j
            )
        # line 23: end for
        sram.store(dK[j], dK_tilde_j)  # line 24
        sram.store(dV[j], dV_tilde_j)  # line 24
    # line 25: end for
    return dQ, dK, dV  # line 26


ALGORITHM = Algorithm(
    name="flash",
    direction="backward",
    title="Algorithm 4, FlashAttention, backward",
    run=flash_backward,
    line_1=kv_outer_blocks,
    loops="K, V outermost, Algorithm 4",
    skips_as="block_sparse",
    rounds=every_block,
    gives_dS=True,
)
