"""Appendix B.5: the backward pass of Rabe and Staats' attention, by checkpointing, as
the paper describes it.

It recomputes each block's P and its temporary output, and differentiates the
combination. FlashAttention simplifies that away (Appendix B.2) and recomputes P alone.

Steps are labelled `# recompute` and `# differentiate`, as the paper gives no listing.
"""

from flashsim.algorithms.blocks import kv_outer_blocks
from flashsim.algorithms.notation import (
    at_most_0,
    exp,
    finite,
    gated,
    nonzero,
    product,
    rowmax,
    rowsum,
)
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import GRADIENTS, Algorithm, every_block
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def rabe_staats_backward(
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
    """Recompute each block's summary and differentiate it; return dQ, dK, dV, in HBM.

    With O = Σ_j w_j O_j and w_j = e^{m_j − m} ℓ_j / ℓ: dO_j = w_j dO, and the block's
    log-sum-exp gets w_j dOᵀ (O_j − O). Within the block P_j = softmax(S_j), so dS_j =
    w_j P_j ∘ (dP_j − dOᵀ O_j) + P_j w_j dOᵀ (O_j − O).
    """
    on_chip = sram.on_chip
    B_r = blocks.B_r
    B_c = blocks.B_c
    dropout.restore()
    dQ = hbm.full("dQ", Q.shape, 0.0, Q.dtype, "output").divide(B_r)
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c)
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c)
    Q = Q.divide(B_r)
    K = K.divide(B_c)
    V = V.divide(B_c)
    O = O.divide(B_r)
    dO = dO.divide(B_r)
    l = l.divide(B_r)
    m = m.divide(B_r)
    for j in sram.loop(blocks.T_c):  # recompute
        K_j, V_j = sram.load(K[j], V[j])  # recompute
        dK_j = sram.full(K[j].shape, 0.0)  # differentiate
        dV_j = sram.full(V[j].shape, 0.0)  # differentiate
        for i in sram.loop(blocks.T_r):  # recompute
            Q_i, O_i, dO_i, dQ_i, l_i, m_i = sram.load(  # recompute
                Q[i], O[i], dO[i], dQ[i], l[i], m[i]
            )
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # recompute
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # recompute
            m_ij = on_chip(rowmax(S_masked_ij))  # recompute
            P_tilde_ij = on_chip(  # recompute
                exp(S_masked_ij - finite(m_ij)), over=S_masked_ij
            )
            l_ij = on_chip(rowsum(P_tilde_ij))  # recompute
            P_ij = on_chip(P_tilde_ij / nonzero(l_ij), over=P_tilde_ij)  # recompute
            Z_ij = on_chip(dropout(P_ij, i, j))  # recompute
            P_dropped_ij = on_chip(P_ij * Z_ij)  # recompute
            O_ij = on_chip(product(P_dropped_ij, V_j))  # recompute
            w_ij = on_chip(  # differentiate
                exp(at_most_0(m_ij - finite(m_i))) * l_ij / nonzero(l_i)
            )
            dV_j = on_chip(  # differentiate
                dV_j + product(P_dropped_ij.T, w_ij * dO_i), over=dV_j
            )
            dP_dropped_ij = on_chip(dO_i @ V_j.T)  # differentiate
            dP_ij = on_chip(dP_dropped_ij * Z_ij, over=dP_dropped_ij)  # differentiate
            own_ij = on_chip(rowsum(dO_i * O_ij))  # differentiate
            whole_i = on_chip(rowsum(dO_i * O_i))  # differentiate
            dS_ij = on_chip(  # differentiate
                w_ij * gated(P_ij, (dP_ij - own_ij) + (own_ij - whole_i)), over=dP_ij
            )
            MASK.gradient(dS_ij, i, j)  # differentiate
            dS_ij = MASK.uncapped(dS_ij)  # differentiate
            dQ_i_new = on_chip(  # differentiate
                dQ_i + tau * product(dS_ij, K_j), over=dQ_i
            )
            sram.store(dQ[i], dQ_i_new)  # differentiate
            dK_j = on_chip(  # differentiate
                dK_j + tau * product(dS_ij.T, Q_i), over=dK_j
            )
        sram.store(dK[j], dK_j)  # differentiate
        sram.store(dV[j], dV_j)  # differentiate
    return dQ, dK, dV


ALGORITHM = Algorithm(
    name="rabe_staats",
    direction="backward",
    title="Appendix B.5, Rabe and Staats, backward",
    run=rabe_staats_backward,
    line_1=kv_outer_blocks,
    follows=GRADIENTS,
    rounds=every_block,
    recombines=True,
    gives_dS=True,
)
