"""Appendix B.5: Rabe and Staats' attention, as the paper describes it.

Each block of keys is summarised by a temporary output and its softmax statistics, all of which are kept until the end
and combined there: T_c copies where FlashAttention keeps one, so extra memory grows with the number of blocks. Their
backward pass checkpoints: it recomputes each block's P and its temporary output, and differentiates the combination.
FlashAttention simplifies that away (Appendix B.2) and recomputes P alone.

Steps are labelled `# summarise`, `# combine`, `# recompute` and `# differentiate`, as the paper gives no listing.
"""

from __future__ import annotations

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.memory import HBM, SRAM, Matrix
from flashsim.records import Blocks


def block_sizes(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c), FlashAttention's, so that the two can be compared."""
    return min(rows, d), rows


def rabe_staats(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
) -> tuple[Matrix, Matrix, Matrix]:
    """Summarise each block of keys, then combine; return O (N_q, d_v), ℓ and m (N_q, 1), in HBM."""
    on_chip = sram.on_chip
    N, d_v, B_r, B_c, T_c = Q.shape[0], V.shape[1], blocks.B_r, blocks.B_c, blocks.T_c
    dropout.save()
    O = hbm.empty("O", (N, d_v), V.dtype, "output").divide(B_r)
    l, m = hbm.empty("l", (N, 1), sram.dtype).divide(B_r), hbm.empty("m", (N, 1), sram.dtype).divide(B_r)
    O_parts = hbm.empty("O_parts", (N, T_c * d_v), V.dtype).divide(B_r, d_v)  # one temporary output per block of keys
    l_parts = hbm.empty("l_parts", (N, T_c), sram.dtype).divide(B_r, 1)
    m_parts = hbm.empty("m_parts", (N, T_c), sram.dtype).divide(B_r, 1)
    Q, K, V = Q.divide(B_r), K.divide(B_c), V.divide(B_c)

    for j in sram.loop(T_c):  # summarise
        K_j, V_j = sram.load(K[j], V[j])  # summarise
        for i in sram.loop(blocks.T_r):  # summarise
            Q_i = sram.load(Q[i])  # summarise
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # summarise
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # summarise
            m_ij = on_chip(rowmax(S_masked_ij))  # summarise
            P_tilde_ij = on_chip(exp(S_masked_ij - finite(m_ij)), over=S_masked_ij)  # summarise
            l_ij = on_chip(rowsum(P_tilde_ij))  # summarise
            P_dropped_ij = on_chip(P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij)  # summarise
            O_ij = on_chip(product(P_dropped_ij, V_j) / nonzero(l_ij))  # summarise
            sram.store(O_parts[i, j], O_ij)  # summarise
            sram.store(l_parts[i, j], l_ij)  # summarise
            sram.store(m_parts[i, j], m_ij)  # summarise

    for i in sram.loop(blocks.T_r):  # combine
        O_i = sram.full(O[i].shape, 0.0)  # combine
        l_i = sram.full(l[i].shape, 0.0)  # combine
        m_i = sram.full(m[i].shape, float("-inf"))  # combine
        for j in sram.loop(T_c):  # combine
            O_ij, l_ij, m_ij = sram.load(O_parts[i, j], l_parts[i, j], m_parts[i, j])  # combine
            m_i_new = on_chip(maximum(m_i, m_ij))  # combine
            O_i = on_chip(  # combine
                exp(m_i - finite(m_i_new)) * O_i + exp(m_ij - finite(m_i_new)) * l_ij * O_ij, over=O_i
            )
            l_i = on_chip(exp(m_i - finite(m_i_new)) * l_i + exp(m_ij - finite(m_i_new)) * l_ij, over=l_i)  # combine
            m_i = on_chip(m_i_new, over=m_i)  # combine
        O_i_new = on_chip(O_i / nonzero(l_i), over=O_i)  # combine
        sram.store(O[i], O_i_new)  # combine
        sram.store(l[i], l_i)  # combine
        sram.store(m[i], m_i)  # combine

    return O, l, m


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

    With O = Σ_j w_j O_j and w_j = e^{m_j − m} ℓ_j / ℓ: dO_j = w_j dO, and the block's log-sum-exp gets w_j dOᵀ (O_j − O).
    Within the block P_j = softmax(S_j), so dS_j = w_j P_j ∘ (dP_j − dOᵀ O_j) + P_j w_j dOᵀ (O_j − O).
    """
    on_chip = sram.on_chip
    B_r, B_c = blocks.B_r, blocks.B_c
    dropout.restore()
    dQ = hbm.full("dQ", Q.shape, 0.0, Q.dtype, "output").divide(B_r)
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c)
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c)
    Q, K, V = Q.divide(B_r), K.divide(B_c), V.divide(B_c)
    O, dO, l, m = O.divide(B_r), dO.divide(B_r), l.divide(B_r), m.divide(B_r)
    for j in sram.loop(blocks.T_c):
        K_j, V_j = sram.load(K[j], V[j])
        dK_j = sram.full(K[j].shape, 0.0)
        dV_j = sram.full(V[j].shape, 0.0)
        for i in sram.loop(blocks.T_r):
            Q_i, O_i, dO_i, dQ_i, l_i, m_i = sram.load(Q[i], O[i], dO[i], dQ[i], l[i], m[i])
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # recompute
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # recompute
            m_ij = on_chip(rowmax(S_masked_ij))  # recompute
            P_tilde_ij = on_chip(exp(S_masked_ij - finite(m_ij)), over=S_masked_ij)  # recompute
            l_ij = on_chip(rowsum(P_tilde_ij))  # recompute
            P_ij = on_chip(P_tilde_ij / nonzero(l_ij), over=P_tilde_ij)  # recompute
            Z_ij = on_chip(dropout(P_ij, i, j))  # recompute
            P_dropped_ij = on_chip(P_ij * Z_ij)  # recompute
            O_ij = on_chip(product(P_dropped_ij, V_j))  # recompute
            w_ij = on_chip(exp(at_most_0(m_ij - finite(m_i))) * l_ij / nonzero(l_i))  # differentiate
            dV_j = on_chip(dV_j + product(P_dropped_ij.T, w_ij * dO_i), over=dV_j)  # differentiate
            dP_dropped_ij = on_chip(dO_i @ V_j.T)  # differentiate
            dP_ij = on_chip(dP_dropped_ij * Z_ij, over=dP_dropped_ij)  # differentiate
            own_ij = on_chip(rowsum(dO_i * O_ij))  # differentiate
            whole_i = on_chip(rowsum(dO_i * O_i))  # differentiate
            dS_ij = on_chip(w_ij * gated(P_ij, (dP_ij - own_ij) + (own_ij - whole_i)), over=dP_ij)  # differentiate
            dQ_i_new = on_chip(dQ_i + tau * product(dS_ij, K_j), over=dQ_i)  # differentiate
            sram.store(dQ[i], dQ_i_new)  # differentiate
            dK_j = on_chip(dK_j + tau * product(dS_ij.T, Q_i), over=dK_j)  # differentiate
        sram.store(dK[j], dK_j)
        sram.store(dV[j], dV_j)
    return dQ, dK, dV
