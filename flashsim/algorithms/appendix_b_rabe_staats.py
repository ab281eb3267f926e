"""Appendix B.5: Rabe and Staats' attention, as the paper describes it.

Each block of keys is summarised by a temporary output and its softmax statistics, all
of which are kept until the end and combined there: T_c copies where FlashAttention
keeps one, so extra memory grows with the number of blocks.

Steps are labelled `# summarise` and `# combine`, as the paper gives no listing.
"""

from flashsim.algorithms.blocks import kv_outer_blocks
from flashsim.algorithms.notation import (
    exp,
    finite,
    maximum,
    nonzero,
    product,
    rowmax,
    rowsum,
)
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


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
    """Summarise each block of keys, then combine; return O (N_q, d_v), ℓ and m (N_q,
    1), in HBM.
    """
    on_chip = sram.on_chip
    N = Q.shape[0]
    d_v = V.shape[1]
    B_r = blocks.B_r
    B_c = blocks.B_c
    T_c = blocks.T_c
    dropout.save()
    O = hbm.empty("O", (N, d_v), V.dtype, "output").divide(B_r)
    l = hbm.empty("l", (N, 1), sram.dtype).divide(B_r)
    m = hbm.empty("m", (N, 1), sram.dtype).divide(B_r)
    # one temporary output per block of keys
    O_parts = hbm.empty("O_parts", (N, T_c * d_v), V.dtype).divide(B_r, d_v)
    l_parts = hbm.empty("l_parts", (N, T_c), sram.dtype).divide(B_r, 1)
    m_parts = hbm.empty("m_parts", (N, T_c), sram.dtype).divide(B_r, 1)
    Q = Q.divide(B_r)
    K = K.divide(B_c)
    V = V.divide(B_c)

    for j in sram.loop(T_c):  # summarise
        K_j, V_j = sram.load(K[j], V[j])  # summarise
        for i in sram.loop(blocks.T_r):  # summarise
            Q_i = sram.load(Q[i])  # summarise
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # summarise
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # summarise
            m_ij = on_chip(rowmax(S_masked_ij))  # summarise
            P_tilde_ij = on_chip(  # summarise
                exp(S_masked_ij - finite(m_ij)), over=S_masked_ij
            )
            l_ij = on_chip(rowsum(P_tilde_ij))  # summarise
            P_dropped_ij = on_chip(  # summarise
                P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij
            )
            O_ij = on_chip(product(P_dropped_ij, V_j) / nonzero(l_ij))  # summarise
            sram.store(O_parts[i, j], O_ij)  # summarise
            sram.store(l_parts[i, j], l_ij)  # summarise
            sram.store(m_parts[i, j], m_ij)  # summarise

    for i in sram.loop(blocks.T_r):  # combine
        O_i = sram.full(O[i].shape, 0.0)  # combine
        l_i = sram.full(l[i].shape, 0.0)  # combine
        m_i = sram.full(m[i].shape, float("-inf"))  # combine
        for j in sram.loop(T_c):  # combine
            O_ij, l_ij, m_ij = sram.load(  # combine
                O_parts[i, j], l_parts[i, j], m_parts[i, j]
            )
            m_i_new = on_chip(maximum(m_i, m_ij))  # combine
            O_i = on_chip(  # combine
                exp(m_i - finite(m_i_new)) * O_i
                + exp(m_ij - finite(m_i_new)) * l_ij * O_ij,
                over=O_i,
            )
            l_i = on_chip(  # combine
                exp(m_i - finite(m_i_new)) * l_i + exp(m_ij - finite(m_i_new)) * l_ij,
                over=l_i,
            )
            m_i = on_chip(m_i_new, over=m_i)  # combine
        O_i_new = on_chip(O_i / nonzero(l_i), over=O_i)  # combine
        sram.store(O[i], O_i_new)  # combine
        sram.store(l[i], l_i)  # combine
        sram.store(m[i], m_i)  # combine

    return O, l, m


ALGORITHM = Algorithm(
    name="rabe_staats",
    title="Appendix B.5, Rabe and Staats",
    short="Rabe & Staats",
    look=("purple", "D", "-"),
    run=rabe_staats,
    line_1=kv_outer_blocks,  # FlashAttention's, so that the two can be compared
    returns=("O", "l", "m"),
    saves=("R",),
    follows=("m", "l", "O"),
    matrices={
        "O_parts": Kind("N_q", "T_c d_v"),
        "l_parts": Kind("N_q", "T_c", "chip"),
        "m_parts": Kind("N_q", "T_c", "chip"),
    },
    rounds=lambda T_c: 2,  # as a part, and combined
)
