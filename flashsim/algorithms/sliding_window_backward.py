"""The backward pass of `sliding_window`: a block of keys meets only the row blocks whose windows reach it.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M, softmax scaling constant τ, window
             (w_left, w_right), masking function MASK, which allows keys in the window alone, dropout probability p_drop,
             generator state R.
    1  Set the pseudo-random number generator state to R.
    2  Set block sizes B_c = ⌈M/4d⌉, B_r = min(⌈M/4d⌉, d).
    3  Divide Q, O, dO, L into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    4  Initialize dQ = (0)_{N×d} in HBM.
    5  for 1 ≤ j ≤ T_c do
    6    Load K_j, V_j from HBM to on-chip SRAM.
    7    Initialize dK̃_j = (0)_{B_c×d}, dṼ_j = (0)_{B_c×d} on SRAM.
    8    for 1 ≤ i ≤ T_r, where block i has a position p with a key of block j from p − w_left to p + w_right, do
    9      Load Q_i, O_i, dO_i, L_i from HBM to on-chip SRAM.
    10     D_i = rowsum(dO_i ∘ O_i).
    11     S_ij = τ Q_i K_jᵀ.
    12     S_ij^masked = MASK(S_ij), unless tile (i, j) is full.
    13     P_ij = exp(S_ij^masked − L_i).
    14     Z_ij: the forward pass's dropout mask. P_ij^dropped = P_ij ∘ Z_ij.
    15     dṼ_j ← dṼ_j + (P_ij^dropped)ᵀ dO_i.
    16     dP_ij = dO_i V_jᵀ ∘ Z_ij.
    17     dS_ij = P_ij ∘ (dP_ij − D_i).
    18     Add τ dS_ij K_j to dQ_i in HBM.
    19     dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
    20   end for
    21   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
    22 end for
    23 Return dQ, dK, dV.

The listing is ours. A row block meets few blocks of keys, so D_i is computed anew each time, as in Algorithm 4, and takes no
room in HBM; `q_outer`'s backward pass, whose row blocks meet all blocks of keys, keeps it there.
"""

from __future__ import annotations

from flashsim.algorithms.blocks import by_keys
from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.parts import Dropout, Live, MaskFunction
from flashsim.algorithms.record import Algorithm, every_block
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.shapes import Blocks


def sliding_window_backward(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    O: Matrix,
    dO: Matrix,
    L: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
    live: Live,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run on the forward pass's operands, O, L (N_q, 1) and dO (N_q, d_v); return dQ, dK, dV, in HBM."""
    on_chip = sram.on_chip
    dropout.restore()  # line 1
    B_r, B_c = blocks.B_r, blocks.B_c  # line 2
    Q, O, dO, L = Q.divide(B_r), O.divide(B_r), dO.divide(B_r), L.divide(B_r)  # line 3
    K, V = K.divide(B_c), V.divide(B_c)  # line 3
    dQ = hbm.full("dQ", Q.shape, 0.0, Q.dtype, "output").divide(B_r)  # line 4
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c)  # line 4
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c)  # line 4
    for j in sram.loop(blocks.T_c, alike=live.alike):  # line 5
        K_j, V_j = sram.load(K[j], V[j])  # line 6
        dK_tilde_j = sram.full(K[j].shape, 0.0)  # line 7
        dV_tilde_j = sram.full(V[j].shape, 0.0)  # line 7
        for i in sram.loop(blocks.T_r, where=live.column(j)):  # line 8
            Q_i, O_i, dO_i, L_i = sram.load(Q[i], O[i], dO[i], L[i])  # line 9
            D_i = on_chip(rowsum(dO_i * O_i))  # line 10
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 11
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 12
            P_ij = on_chip(exp(at_most_0(S_masked_ij - finite(L_i))), over=S_masked_ij)  # line 13
            Z_ij = on_chip(dropout(P_ij, i, j))  # line 14
            P_dropped_ij = on_chip(P_ij * Z_ij)  # line 14
            dV_tilde_j = on_chip(dV_tilde_j + product(P_dropped_ij.T, dO_i), over=dV_tilde_j)  # line 15
            dP_ij = on_chip(dO_i @ V_j.T * Z_ij)  # line 16
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 17
            MASK.gradient(dS_ij, i, j)  # line 17
            dQ_i = sram.load(dQ[i])  # line 18
            dQ_i_new = on_chip(dQ_i + tau * product(dS_ij, K_j), over=dQ_i)  # line 18
            sram.store(dQ[i], dQ_i_new)  # line 18
            dK_tilde_j = on_chip(dK_tilde_j + tau * product(dS_ij.T, Q_i), over=dK_tilde_j)  # line 19
        # line 20: end for
        sram.store(dK[j], dK_tilde_j)  # line 21
        sram.store(dV[j], dV_tilde_j)  # line 21
    # line 22: end for
    return dQ, dK, dV  # line 23


ALGORITHM = Algorithm(
    name="sliding_window",
    direction="backward",
    title="Sliding window, backward",
    run=sliding_window_backward,
    line_1=by_keys,
    loops=None,
    rounds=every_block,
    rounds_logs=lambda T_c: 2,
    gives_dS=True,
)
