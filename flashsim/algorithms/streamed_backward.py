"""The backward pass of `streamed`: blocks of keys stay, rows of Q, dO and dQ pass; the
first block makes D and begins dQ.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M,
             softmax scaling constant τ, masking function MASK, dropout probability
             p_drop, generator state R.
    1  Set the pseudo-random number generator state to R.
    2  Set block size B_c: as large as four blocks of B_c×d, three rows, S_nj,
       L_n and D_n fit M together; B_r = 1.
    3  Divide Q, dO, dQ, L, D into rows, index n; K, V, dK,
       dV into T_c blocks of B_c rows; O into elements.
    4  for j = 1 do
    5    Load K_1, V_1 from HBM to on-chip SRAM. Initialize dK̃_1 = (0)_{B_c×d},
         dṼ_1 = (0)_{B_c×d_v} on SRAM.
    6    for 1 ≤ n ≤ N_q do
    7      Load Q_n, dO_n from HBM to on-chip SRAM.
    8      On chip, D_n = 0; for 1 ≤ k ≤ d_v: load O_nk, D_n ← D_n + dO_nk O_nk.
           Write D_n to HBM.
    9      Load L_n. S_n1 = τ Q_n K_1ᵀ, masked; P_n1 = exp(S_n1^masked − L_n).
    10     Z_n1: the forward pass's dropout mask. P_n1^dropped = P_n1 ∘ Z_n1.
    11     dṼ_1 ← dṼ_1 + (P_n1^dropped)ᵀ dO_n.
    12     dS_n1 = P_n1 ∘ (dO_n V_1ᵀ ∘ Z_n1 − D_n).
    13     dK̃_1 ← dK̃_1 + τ dS_n1ᵀ Q_n.
    14     Write dQ_n ← τ dS_n1 K_1 to HBM.
    15   end for
    16   Write dK_1 ← dK̃_1, dV_1 ← dṼ_1 to HBM.
    17 end for
    18 for 2 ≤ j ≤ T_c do
    19   Load K_j, V_j from HBM to on-chip SRAM. Initialize dK̃_j = (0)_{B_c×d},
         dṼ_j = (0)_{B_c×d_v} on SRAM.
    20   for 1 ≤ n ≤ N_q do
    21     Load Q_n, dO_n, D_n from HBM to on-chip SRAM.
    22     Load L_n. S_nj = τ Q_n K_jᵀ, masked; P_nj = exp(S_nj^masked − L_n).
    23     Z_nj: the forward pass's dropout mask. P_nj^dropped = P_nj ∘ Z_nj.
    24     dṼ_j ← dṼ_j + (P_nj^dropped)ᵀ dO_n.
    25     dS_nj = P_nj ∘ (dO_n V_jᵀ ∘ Z_nj − D_n).
    26     dK̃_j ← dK̃_j + τ dS_njᵀ Q_n.
    27     Load dQ_n. Write dQ_n ← dQ_n + τ dS_nj K_j to HBM.
    28   end for
    29   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
    30 end for
    31 Return dQ, dK, dV.

The listing is ours. `q_outer` reads dO once more, to make D, and writes zeros to dQ,
which its first block of keys reads. Here that block has dO on chip, and begins dQ
itself: 2N_q·d + N_q·d_v accesses fewer. As N grows both move 16 N²d²/M. But where K, V,
dK and dV fit M, T_c = 1: each operand is read once, each gradient written once, and D,
N_q elements, is all that is more. Every tile is computed: empty tiles are not skipped.
"""

from flashsim.algorithms.blocks import by_one_query
from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm, every_block
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def rows(M: int, d: int, d_v: int) -> int:
    """Return the largest B_c, at least 1, with B_c(2(d + d_v) + 1) + 2d + d_v + 2 ≤
    M.
    """
    return max((M - 2 * d - d_v - 2) // (2 * (d + d_v) + 1), 1)


def line_3(blocks: Blocks, N_q: int, N_k: int) -> tuple[Blocks]:
    """Return the tiles of S: of one row."""
    return (Blocks(1, blocks.B_c, N_q=N_q, N_k=N_k),)


def streamed_backward(
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
) -> tuple[Matrix, Matrix, Matrix]:
    """Run on the forward pass's operands, O, L (N_q, 1) and dO (N_q, d_v); return dQ,
    dK, dV, in HBM.
    """
    on_chip = sram.on_chip
    N_q, N_k, d_v = Q.shape[0], *V.shape
    dropout.restore()  # line 1
    B_c = blocks.B_c  # line 2
    T_c = blocks.T_c  # line 2
    (by_row,) = line_3(blocks, N_q, N_k)  # line 3
    MASK = MASK.divided(by_row)  # line 3
    dropout = dropout.divided(by_row)  # line 3
    D = hbm.empty("D", L.shape, sram.dtype)  # line 3
    dQ = hbm.empty("dQ", Q.shape, Q.dtype, "output").divide(1)  # line 3
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c)  # line 3
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c)  # line 3
    Q, dO, L, D = (X.divide(1) for X in (Q, dO, L, D))  # line 3
    O = O.divide(1, 1)  # line 3
    K = K.divide(B_c)  # line 3
    V = V.divide(B_c)  # line 3
    for j in sram.loop(range(1)):  # line 4
        K_1, V_1 = sram.load(K[j], V[j])  # line 5
        dK_tilde_1 = sram.full(K[j].shape, 0.0)  # line 5
        dV_tilde_1 = sram.full(V[j].shape, 0.0)  # line 5
        for n in sram.loop(N_q):  # line 6
            Q_n, dO_n = sram.load(Q[n], dO[n])  # line 7
            D_n = sram.full(D[n].shape, 0.0)  # line 8
            for k in sram.loop(d_v):  # line 8
                O_nk = sram.load(O[n, k])  # line 8
                D_n = on_chip(D_n + dO_n[:, k : k + 1] * O_nk, over=D_n)  # line 8
            sram.store(D[n], D_n)  # line 8
            L_n = sram.load(L[n])  # line 9
            S_n1 = on_chip(tau * (Q_n @ K_1.T))  # line 9
            P_n1 = on_chip(  # line 9
                exp(at_most_0(MASK(S_n1, n, j) - finite(L_n))), over=S_n1
            )
            Z_n1 = on_chip(dropout(P_n1, n, j))  # line 10
            P_dropped_n1 = on_chip(P_n1 * Z_n1)  # line 10
            dV_tilde_1 = on_chip(  # line 11
                dV_tilde_1 + product(P_dropped_n1.T, dO_n), over=dV_tilde_1
            )
            dS_n1 = on_chip(  # line 12
                gated(P_n1, dO_n @ V_1.T * Z_n1 - D_n), over=P_n1
            )
            MASK.gradient(dS_n1, n, j)  # line 12
            dS_n1 = MASK.uncapped(dS_n1)  # line 12
            dK_tilde_1 = on_chip(  # line 13
                dK_tilde_1 + tau * product(dS_n1.T, Q_n), over=dK_tilde_1
            )
            sram.store(dQ[n], on_chip(tau * product(dS_n1, K_1)))  # line 14
        # line 15: end for
        sram.store(dK[j], dK_tilde_1)  # line 16
        sram.store(dV[j], dV_tilde_1)  # line 16
    # line 17: end for
    for j in sram.loop(range(1, T_c)):  # line 18
        K_j, V_j = sram.load(K[j], V[j])  # line 19
        dK_tilde_j = sram.full(K[j].shape, 0.0)  # line 19
        dV_tilde_j = sram.full(V[j].shape, 0.0)  # line 19
        for n in sram.loop(N_q):  # line 20
            Q_n, dO_n, D_n = sram.load(Q[n], dO[n], D[n])  # line 21
            L_n = sram.load(L[n])  # line 22
            S_nj = on_chip(tau * (Q_n @ K_j.T))  # line 22
            P_nj = on_chip(  # line 22
                exp(at_most_0(MASK(S_nj, n, j) - finite(L_n))), over=S_nj
            )
            Z_nj = on_chip(dropout(P_nj, n, j))  # line 23
            P_dropped_nj = on_chip(P_nj * Z_nj)  # line 23
            dV_tilde_j = on_chip(  # line 24
                dV_tilde_j + product(P_dropped_nj.T, dO_n), over=dV_tilde_j
            )
            dS_nj = on_chip(  # line 25
                gated(P_nj, dO_n @ V_j.T * Z_nj - D_n), over=P_nj
            )
            MASK.gradient(dS_nj, n, j)  # line 25
            dS_nj = MASK.uncapped(dS_nj)  # line 25
            dK_tilde_j = on_chip(  # line 26
                dK_tilde_j + tau * product(dS_nj.T, Q_n), over=dK_tilde_j
            )
            dQ_n = sram.load(dQ[n])  # line 27
            dQ_n = on_chip(dQ_n + tau * product(dS_nj, K_j), over=dQ_n)  # line 27
            sram.store(dQ[n], dQ_n)  # line 27
        # line 28: end for
        sram.store(dK[j], dK_tilde_j)  # line 29
        sram.store(dV[j], dV_tilde_j)  # line 29
    # line 30: end for
    return dQ, dK, dV  # line 31


ALGORITHM = Algorithm(
    name="streamed",
    direction="backward",
    title="Loops exchanged, rows streamed, D on the way, backward",
    run=streamed_backward,
    line_1=by_one_query,
    rows=rows,
    cuts=line_3,
    loops="K, V outermost, rows streamed",
    rounds=every_block,
    rounds_logs=lambda T_c: T_c + 2,
    gives_dS=True,
)
