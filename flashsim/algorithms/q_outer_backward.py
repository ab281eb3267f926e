"""The backward pass of `q_outer`, dQ accumulated in HBM: what FlashAttention-2 does
with atomic additions.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M,
             softmax scaling constant τ, masking function MASK, dropout probability
             p_drop, generator state R, and which tiles of S are live.
    1  Set the pseudo-random number generator state to R.
    2  Set block sizes B_c = ⌈M/4d⌉, B_r = min(⌈M/4d⌉, d).
    3  Divide Q, O, dO, L into T_r blocks of B_r rows,
       K and V into T_c blocks of B_c rows.
    4  for 1 ≤ i ≤ T_r do
    5    Load O_i, dO_i from HBM to on-chip SRAM.
    6    Write D_i = rowsum(dO_i ∘ O_i) to HBM.
    7  end for
    8  Initialize dQ = (0)_{N×d} in HBM.
    9  for 1 ≤ j ≤ T_c do
    10   Load K_j, V_j from HBM to on-chip SRAM.
    11   Initialize dK̃_j = (0)_{B_c×d}, dṼ_j = (0)_{B_c×d} on SRAM.
    12   for 1 ≤ i ≤ T_r, where tile (i, j) is live, do
    13     Load Q_i, dO_i, L_i, D_i from HBM to on-chip SRAM.
    14     S_ij = τ Q_i K_jᵀ.
    15     S_ij^masked = MASK(S_ij), unless tile (i, j) is full.
    16     P_ij = exp(S_ij^masked − L_i).
    17     Z_ij: the forward pass's dropout mask. P_ij^dropped = P_ij ∘ Z_ij.
    18     dṼ_j ← dṼ_j + (P_ij^dropped)ᵀ dO_i.
    19     dP_ij = dO_i V_jᵀ ∘ Z_ij.
    20     dS_ij = P_ij ∘ (dP_ij − D_i).
    21     Add τ dS_ij K_j to dQ_i in HBM.
    22     dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
    23   end for
    24   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
    25 end for
    26 Return dQ, dK, dV.

The listing is ours. K and V are the outer loop again, so that dK and dV stay on chip;
what that costs is dQ, which every block of keys adds to. An addition is counted as a
read and a write of its operand, as Algorithm 4's are: on a GPU the additions of blocks
that run at once must be atomic, happen in L2, and come in any order, so dQ differs from
run to run. dQ is kept in Q's type here; FlashAttention-2 adds in float32 and converts
at the end, another pass over dQ. `q_outer_backward_two_pass` does without the
additions. D_i is computed once a row, where Algorithm 4 computes it T_c times and reads
O to do so.
"""

from flashsim.algorithms.blocks import kv_outer_blocks
from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.parts import Dropout, Live, MaskFunction
from flashsim.algorithms.record import Algorithm, every_block
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def q_outer_backward(
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
    """Run on the forward pass's operands, O, L (N_q, 1) and dO (N_q, d_v); return dQ,
    dK, dV, in HBM.
    """
    on_chip = sram.on_chip
    dropout.restore()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    D = hbm.empty("D", L.shape, sram.dtype).divide(B_r)  # line 3
    Q = Q.divide(B_r)  # line 3
    O = O.divide(B_r)  # line 3
    dO = dO.divide(B_r)  # line 3
    L = L.divide(B_r)  # line 3
    K = K.divide(B_c)  # line 3
    V = V.divide(B_c)  # line 3
    for i in sram.loop(blocks.T_r):  # line 4
        O_i, dO_i = sram.load(O[i], dO[i])  # line 5
        D_i = on_chip(rowsum(dO_i * O_i))  # line 6
        sram.store(D[i], D_i)  # line 6
    # line 7: end for
    dQ = hbm.full("dQ", Q.shape, 0.0, Q.dtype, "output").divide(B_r)  # line 8
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c)  # line 8
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c)  # line 8
    for j in sram.loop(blocks.T_c, alike=live.alike):  # line 9
        K_j, V_j = sram.load(K[j], V[j])  # line 10
        dK_tilde_j = sram.full(K[j].shape, 0.0)  # line 11
        dV_tilde_j = sram.full(V[j].shape, 0.0)  # line 11
        for i in sram.loop(blocks.T_r, where=live.column(j)):  # line 12
            Q_i, dO_i, L_i, D_i = sram.load(Q[i], dO[i], L[i], D[i])  # line 13
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 14
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 15
            P_ij = on_chip(  # line 16
                exp(at_most_0(S_masked_ij - finite(L_i))), over=S_masked_ij
            )
            Z_ij = on_chip(dropout(P_ij, i, j))  # line 17
            P_dropped_ij = on_chip(P_ij * Z_ij)  # line 17
            dV_tilde_j = on_chip(  # line 18
                dV_tilde_j + product(P_dropped_ij.T, dO_i), over=dV_tilde_j
            )
            dP_ij = on_chip(dO_i @ V_j.T * Z_ij)  # line 19
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 20
            MASK.gradient(dS_ij, i, j)  # line 20
            dS_ij = MASK.uncapped(dS_ij)  # line 20
            dQ_i = sram.load(dQ[i])  # line 21
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
    name="q_outer",
    direction="backward",
    title="FlashAttention, loops exchanged, backward, dQ accumulated",
    run=q_outer_backward,
    line_1=kv_outer_blocks,
    loops="K, V outermost, L and D",
    rounds=every_block,
    rounds_logs=lambda T_c: 2,
    gives_dS=True,
)
