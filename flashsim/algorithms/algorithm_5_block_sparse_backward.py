"""Algorithm 5's backward pass: Algorithm 4 with the same skip.

The paper gives no listing, so the lines are Algorithm 4's, with `where=` on line 9.
Tiles that the forward pass skipped have P_ij = 0 and add nothing.
"""

from __future__ import annotations

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, nonzero, product, rowsum
from flashsim.algorithms.parts import BlockMask, Dropout, MaskFunction
from flashsim.memory import HBM, SRAM, Matrix
from flashsim.records import Blocks


def line_2(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c) where a block of K may have `rows` rows: the paper says ⌈M/4d⌉."""
    return min(rows, d), rows


def block_sparse_backward(
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
    block_mask: BlockMask,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run Algorithm 4, skipping, on the forward pass's operands and dO (N_q, d_v); return dQ, dK, dV, in HBM."""
    on_chip = sram.on_chip
    dropout.restore()  # line 1
    B_r, B_c = blocks.B_r, blocks.B_c  # line 2
    Q, K, V = Q.divide(B_r), K.divide(B_c), V.divide(B_c)  # line 3
    O, dO, l, m = O.divide(B_r), dO.divide(B_r), l.divide(B_r), m.divide(B_r)  # line 4
    dQ = hbm.full("dQ", Q.shape, 0.0, Q.dtype, "output").divide(B_r)  # line 5
    dK = hbm.full("dK", K.shape, 0.0, K.dtype, "output").divide(B_c)  # line 5
    dV = hbm.full("dV", V.shape, 0.0, V.dtype, "output").divide(B_c)  # line 5
    for j in sram.loop(blocks.T_c, alike=block_mask.alike):  # line 6
        K_j, V_j = sram.load(K[j], V[j])  # line 7
        dK_tilde_j = sram.full(K[j].shape, 0.0)  # line 8
        dV_tilde_j = sram.full(V[j].shape, 0.0)  # line 8
        for i in sram.loop(blocks.T_r, where=block_mask.column(j)):  # line 9, if M_ij ≠ 0
            Q_i, O_i, dO_i, dQ_i, l_i, m_i = sram.load(Q[i], O[i], dO[i], dQ[i], l[i], m[i])  # line 10
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 11
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 12
            P_ij = on_chip(exp(at_most_0(S_masked_ij - finite(m_i))) / nonzero(l_i), over=S_masked_ij)  # line 13
            Z_ij = on_chip(dropout(P_ij, i, j))  # line 14
            P_dropped_ij = on_chip(P_ij * Z_ij)  # line 15
            dV_tilde_j = on_chip(dV_tilde_j + product(P_dropped_ij.T, dO_i), over=dV_tilde_j)  # line 16
            dP_dropped_ij = on_chip(dO_i @ V_j.T)  # line 17
            dP_ij = on_chip(dP_dropped_ij * Z_ij, over=dP_dropped_ij)  # line 18
            D_i = on_chip(rowsum(dO_i * O_i))  # line 19
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 20
            dQ_i_new = on_chip(dQ_i + tau * product(dS_ij, K_j), over=dQ_i)  # line 21
            sram.store(dQ[i], dQ_i_new)  # line 21
            dK_tilde_j = on_chip(dK_tilde_j + tau * product(dS_ij.T, Q_i), over=dK_tilde_j)  # line 22
        # line 23: end for
        sram.store(dK[j], dK_tilde_j)  # line 24
        sram.store(dV[j], dV_tilde_j)  # line 24
    # line 25: end for
    return dQ, dK, dV  # line 26
