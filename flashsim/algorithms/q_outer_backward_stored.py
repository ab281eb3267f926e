"""The backward pass of `q_outer` with dS in HBM: dK and dV as in `q_outer_streamed`,
then dQ from dS and K alone.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M,
             softmax scaling constant τ, masking function MASK, dropout probability
             p_drop, generator state R.
    1  Set the pseudo-random number generator state to R.
    2  Set block sizes B_c: as large as four blocks of B_c×d, two rows and S_nj fit M
       together; B_r: as large as a block of B_r×d and a column of dS fit M − 4d.
    3  Divide Q, O, dO, L, D into rows, index n; K, V, dK, dV into T_c blocks of B_c
       rows; dQ into T_r blocks of B_r rows, dS into rows of B_c and into columns of
       B_r; K into elements.
    4  for 1 ≤ n ≤ N_q do
    5    Load O_n, dO_n from HBM to on-chip SRAM.
    6    Write D_n = rowsum(dO_n ∘ O_n) to HBM.
    7  end for
    8  for 1 ≤ j ≤ T_c do
    9    Load K_j, V_j from HBM to on-chip SRAM.
    10   Initialize dK̃_j = (0)_{B_c×d}, dṼ_j = (0)_{B_c×d} on SRAM.
    11   for 1 ≤ n ≤ N_q do
    12     Load Q_n, dO_n, L_n, D_n from HBM to on-chip SRAM.
    13     S_nj = τ Q_n K_jᵀ, masked; P_nj = exp(S_nj^masked − L_n).
    14     Z_nj: the forward pass's dropout mask. P_nj^dropped = P_nj ∘ Z_nj.
    15     dṼ_j ← dṼ_j + (P_nj^dropped)ᵀ dO_n.
    16     dS_nj = P_nj ∘ (dO_n V_jᵀ ∘ Z_nj − D_n). Write dS_nj to HBM.
    17     dK̃_j ← dK̃_j + τ dS_njᵀ Q_n.
    18   end for
    19   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
    20 end for
    21 for 1 ≤ i ≤ T_r do
    22   Initialize dQ̃_i = (0)_{B_r×d} on SRAM.
    23   for 1 ≤ n ≤ N_k do
    24     Load the column dS_in from HBM to on-chip SRAM.
    25     for 1 ≤ k ≤ d: load the element K_nk; dQ̃_ik ← dQ̃_ik + τ dS_in K_nk.
    26   end for
    27   Write dQ_i ← dQ̃_i to HBM.
    28 end for
    29 Return dQ, dK, dV.

The listing is ours. `q_outer_streamed` computes S and dP again for dQ, with three
blocks of queries on chip: 6 N²d²/M accesses. Here dS is written and read once, 2N², and
one block is enough for dQ: N²d²/M. With 8 N²d²/M for dK and dV this is 9 N²d²/M + 2N²,
which is less than 14 N²d²/M for M below 2.5 d². The price is dS, N_q·N_k elements of
HBM in the chip's type. Every tile is computed: empty tiles are not skipped.
"""

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def line_2(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c), given `rows` for M/4d: the most with B_c(4d + 1) + 2d + 2 ≤ M,
    and B_r(d + 1) ≤ M − 4d.
    """
    return max(4 * d * (rows - 1) // (d + 1), 1), max(
        (4 * d * rows - 2 * d - 2) // (4 * d + 1), 1
    )


def line_3(blocks: Blocks, N_q: int, N_k: int) -> tuple[Blocks]:
    """Return the tiles of the one pass over S: of one row."""
    return (Blocks(1, blocks.B_c, N_q=N_q, N_k=N_k),)


def q_outer_backward_stored(
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
    on_chip, (N_q, d), N_k = sram.on_chip, Q.shape, K.shape[0]
    dropout.restore()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    (by_row,) = line_3(blocks, N_q, N_k)  # line 3
    MASK = MASK.divided(by_row)  # line 3
    dropout = dropout.divided(by_row)  # line 3
    D = hbm.empty("D", L.shape, sram.dtype)  # line 3
    dS = hbm.empty("dS", (N_q, N_k), sram.dtype)  # line 3
    dQ = hbm.empty("dQ", Q.shape, Q.dtype, "output").divide(B_r)  # line 3
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c)  # line 3
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c)  # line 3
    Q, O, dO, L, D = (X.divide(1) for X in (Q, O, dO, L, D))  # line 3
    K_elements = K.divide(1, 1)  # line 3
    K = K.divide(B_c)  # line 3
    V = V.divide(B_c)  # line 3
    dS_rows = dS.divide(1, B_c)  # line 3
    dS_columns = dS.divide(B_r, 1)  # line 3
    for n in sram.loop(N_q):  # line 4
        O_n, dO_n = sram.load(O[n], dO[n])  # line 5
        D_n = on_chip(rowsum(dO_n * O_n))  # line 6
        sram.store(D[n], D_n)  # line 6
    # line 7: end for
    for j in sram.loop(blocks.T_c):  # line 8
        K_j, V_j = sram.load(K[j], V[j])  # line 9
        dK_tilde_j = sram.full(K[j].shape, 0.0)  # line 10
        dV_tilde_j = sram.full(V[j].shape, 0.0)  # line 10
        for n in sram.loop(N_q):  # line 11
            Q_n, dO_n, L_n, D_n = sram.load(Q[n], dO[n], L[n], D[n])  # line 12
            S_nj = on_chip(tau * (Q_n @ K_j.T))  # line 13
            P_nj = on_chip(  # line 13
                exp(at_most_0(MASK(S_nj, n, j) - finite(L_n))), over=S_nj
            )
            Z_nj = on_chip(dropout(P_nj, n, j))  # line 14
            P_dropped_nj = on_chip(P_nj * Z_nj)  # line 14
            dV_tilde_j = on_chip(  # line 15
                dV_tilde_j + product(P_dropped_nj.T, dO_n), over=dV_tilde_j
            )
            dS_nj = on_chip(  # line 16
                gated(P_nj, dO_n @ V_j.T * Z_nj - D_n), over=P_nj
            )
            MASK.gradient(dS_nj, n, j)  # line 16
            dS_nj = MASK.uncapped(dS_nj)  # line 16
            sram.store(dS_rows[n, j], dS_nj)  # line 16
            dK_tilde_j = on_chip(  # line 17
                dK_tilde_j + tau * product(dS_nj.T, Q_n), over=dK_tilde_j
            )
        # line 18: end for
        sram.store(dK[j], dK_tilde_j)  # line 19
        sram.store(dV[j], dV_tilde_j)  # line 19
    # line 20: end for
    for i in sram.loop(blocks.T_r):  # line 21
        dQ_tilde_i = sram.full(dQ[i].shape, 0.0)  # line 22
        for n in sram.loop(N_k):  # line 23
            dS_in = sram.load(dS_columns[i, n])  # line 24
            for k in sram.loop(d):  # line 25
                K_nk = sram.load(K_elements[n, k])  # line 25
                dQ_tilde_ik = dQ_tilde_i[:, k : k + 1]  # line 25
                dQ_tilde_ik = on_chip(  # line 25
                    dQ_tilde_ik + tau * product(dS_in, K_nk), over=dQ_tilde_ik
                )
        # line 26: end for
        sram.store(dQ[i], dQ_tilde_i)  # line 27
    # line 28: end for
    return dQ, dK, dV  # line 29


ALGORITHM = Algorithm(
    name="q_outer_stored",
    direction="backward",
    title="FlashAttention, loops exchanged, backward, dS in HBM",
    of="q_outer",
    run=q_outer_backward_stored,
    line_1=line_2,
    cuts=line_3,
    loops="dS in HBM",
    rounds_logs=lambda T_c: 2,
    gives_dS=True,
)
