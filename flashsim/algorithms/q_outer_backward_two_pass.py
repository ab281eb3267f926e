"""The backward pass of `q_outer` in two passes: one for dK and dV, one for dQ, and
nothing accumulated in HBM.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M,
             softmax scaling constant τ, masking function MASK, dropout probability
             p_drop, generator state R, and which tiles of S are live.
    1  Set the pseudo-random number generator state to R.
    2  Set block sizes B_r = B_c: as large as four blocks of B_c×d and the tile S_ij fit
       M together.
    3  Divide Q, O, dO, L into T_r blocks of B_r rows,
       K and V into T_c blocks of B_c rows.
    4  for 1 ≤ i ≤ T_r do
    5    Load O_i, dO_i from HBM to on-chip SRAM.
    6    Write D_i = rowsum(dO_i ∘ O_i) to HBM.
    7  end for
    8  for 1 ≤ j ≤ T_c do
    9    Load K_j, V_j from HBM to on-chip SRAM.
    10   Initialize dK̃_j = (0)_{B_c×d}, dṼ_j = (0)_{B_c×d} on SRAM.
    11   for 1 ≤ i ≤ T_r, where tile (i, j) is live, do
    12     Load Q_i, dO_i, L_i, D_i from HBM to on-chip SRAM.
    13     S_ij = τ Q_i K_jᵀ, masked; P_ij = exp(S_ij^masked − L_i).
    14     Z_ij: the forward pass's dropout mask. P_ij^dropped = P_ij ∘ Z_ij.
    15     dṼ_j ← dṼ_j + (P_ij^dropped)ᵀ dO_i.
    16     dP_ij = dO_i V_jᵀ ∘ Z_ij.
    17     dS_ij = P_ij ∘ (dP_ij − D_i).
    18     dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
    19   end for
    20   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
    21 end for
    22 for 1 ≤ i ≤ T_r do
    23   Load Q_i, dO_i, L_i, D_i from HBM to on-chip SRAM.
    24   Initialize dQ̃_i = (0)_{B_r×d} on SRAM.
    25   for 1 ≤ j ≤ T_c, where tile (i, j) is live, do
    26     Load K_j, V_j from HBM to on-chip SRAM.
    27     S_ij = τ Q_i K_jᵀ, masked; P_ij = exp(S_ij^masked − L_i).
    28     dP_ij = dO_i V_jᵀ ∘ Z_ij.
    29     dS_ij = P_ij ∘ (dP_ij − D_i).
    30     dQ̃_i ← dQ̃_i + τ dS_ij K_j.
    31   end for
    32   Write dQ_i ← dQ̃_i to HBM.
    33 end for
    34 Return dQ, dK, dV.

The listing is ours; the scheme is that of kernels without atomic additions, such as the
ones in Triton's tutorial on fused attention. S and dP are computed twice, seven
products in place of five, and K and V are read again by every block of queries; dQ is
written once, and the result is the same in every run. The passes cost T_c and T_r
sweeps, hence square tiles.
"""

from math import isqrt

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.parts import Dropout, Live, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def line_2(rows: int, d: int) -> tuple[int, int]:
    """Return B_r = B_c = b, the largest with b² + 4bd ≤ M, given `rows` for M/4d."""
    b = max(isqrt(4 * d * d + 4 * d * rows) - 2 * d, 1)
    return b, b


def q_outer_backward_two_pass(
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
    dQ = hbm.empty("dQ", Q.shape, Q.dtype, "output").divide(B_r)  # line 3
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c)  # line 3
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c)  # line 3
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
    for j in sram.loop(blocks.T_c, alike=live.alike):  # line 8
        K_j, V_j = sram.load(K[j], V[j])  # line 9
        dK_tilde_j = sram.full(K[j].shape, 0.0)  # line 10
        dV_tilde_j = sram.full(V[j].shape, 0.0)  # line 10
        for i in sram.loop(blocks.T_r, where=live.column(j)):  # line 11
            Q_i, dO_i, L_i, D_i = sram.load(Q[i], dO[i], L[i], D[i])  # line 12
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 13
            P_ij = on_chip(  # line 13
                exp(at_most_0(MASK(S_ij, i, j) - finite(L_i))), over=S_ij
            )
            Z_ij = on_chip(dropout(P_ij, i, j))  # line 14
            P_dropped_ij = on_chip(P_ij * Z_ij)  # line 14
            dV_tilde_j = on_chip(  # line 15
                dV_tilde_j + product(P_dropped_ij.T, dO_i), over=dV_tilde_j
            )
            dP_ij = on_chip(dO_i @ V_j.T * Z_ij)  # line 16
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 17
            MASK.gradient(dS_ij, i, j)  # line 17
            dS_ij = MASK.uncapped(dS_ij)  # line 17
            dK_tilde_j = on_chip(  # line 18
                dK_tilde_j + tau * product(dS_ij.T, Q_i), over=dK_tilde_j
            )
        # line 19: end for
        sram.store(dK[j], dK_tilde_j)  # line 20
        sram.store(dV[j], dV_tilde_j)  # line 20
    # line 21: end for
    for i in sram.loop(blocks.T_r, alike=live.rows_alike):  # line 22
        Q_i, dO_i, L_i, D_i = sram.load(Q[i], dO[i], L[i], D[i])  # line 23
        dQ_tilde_i = sram.full(Q[i].shape, 0.0)  # line 24
        for j in sram.loop(blocks.T_c, where=live.row(i)):  # line 25
            K_j, V_j = sram.load(K[j], V[j])  # line 26
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 27
            P_ij = on_chip(  # line 27
                exp(at_most_0(MASK(S_ij, i, j) - finite(L_i))), over=S_ij
            )
            dP_ij = on_chip(dO_i @ V_j.T * dropout(P_ij, i, j))  # line 28
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 29
            dS_ij = MASK.uncapped(dS_ij)  # line 29
            dQ_tilde_i = on_chip(  # line 30
                dQ_tilde_i + tau * product(dS_ij, K_j), over=dQ_tilde_i
            )
        # line 31: end for
        sram.store(dQ[i], dQ_tilde_i)  # line 32
    # line 33: end for
    return dQ, dK, dV  # line 34


ALGORITHM = Algorithm(
    name="q_outer_two_pass",
    direction="backward",
    title="FlashAttention, loops exchanged, backward in two passes",
    of="q_outer",
    run=q_outer_backward_two_pass,
    line_1=line_2,
    loops="two passes",
    rounds_logs=lambda T_c: 2,
    gives_dS=True,
)
