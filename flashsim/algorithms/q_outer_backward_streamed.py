"""The backward pass of `q_outer` in two passes, each with tiles of its own: what is
summed up stays, single rows stream past.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M,
             softmax scaling constant τ, masking function MASK, dropout probability
             p_drop, generator state R, and which tiles of S are live.
    1  Set the pseudo-random number generator state to R.
    2  Set block sizes B_c: as large as four blocks of B_c×d, two rows and S_nj fit M
       together; B_r: as large as three blocks of B_r×d, L_i, D_i, two rows and S_in do.
    3  Divide Q, dO, dQ, L, D into T_r blocks of B_r rows, K, V, dK,
       dV into T_c blocks of B_c rows; and all into rows, index n.
    4  for 1 ≤ n ≤ N_q do
    5    Load O_n, dO_n from HBM to on-chip SRAM.
    6    Write D_n = rowsum(dO_n ∘ O_n) to HBM.
    7  end for
    8  for 1 ≤ j ≤ T_c do
    9    Load K_j, V_j from HBM to on-chip SRAM.
    10   Initialize dK̃_j = (0)_{B_c×d}, dṼ_j = (0)_{B_c×d} on SRAM.
    11   for 1 ≤ n ≤ N_q, where tile (n, j), of one row, is live, do
    12     Load Q_n, dO_n, L_n, D_n from HBM to on-chip SRAM.
    13     S_nj = τ Q_n K_jᵀ, masked; P_nj = exp(S_nj^masked − L_n).
    14     Z_nj: the forward pass's dropout mask. P_nj^dropped = P_nj ∘ Z_nj.
    15     dṼ_j ← dṼ_j + (P_nj^dropped)ᵀ dO_n.
    16     dS_nj = P_nj ∘ (dO_n V_jᵀ ∘ Z_nj − D_n).
    17     dK̃_j ← dK̃_j + τ dS_njᵀ Q_n.
    18   end for
    19   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
    20 end for
    21 for 1 ≤ i ≤ T_r do
    22   Load Q_i, dO_i, L_i, D_i from HBM to on-chip SRAM.
    23   Initialize dQ̃_i = (0)_{B_r×d} on SRAM.
    24   for 1 ≤ n ≤ N_k, where tile (i, n), of one key, is live, do
    25     Load K_n, V_n from HBM to on-chip SRAM.
    26     S_in = τ Q_i K_nᵀ, masked; P_in = exp(S_in^masked − L_i).
    27     dS_in = P_in ∘ (dO_i V_nᵀ ∘ Z_in − D_i).
    28     dQ̃_i ← dQ̃_i + τ dS_in K_n.
    29   end for
    30   Write dQ_i ← dQ̃_i to HBM.
    31 end for
    32 Return dQ, dK, dV.

The listing is ours. `q_outer_backward_two_pass` has one square tile for both passes, as
a kernel would, and so gives much of M to what streams past. Here nearly all of M holds
what stays: four blocks of B_c ≈ M/4d keys, then three of B_r ≈ M/3d queries. Each block
has all of Q and dO, or all of K and V, read once: 8 and 6, together 14 N²d²/M accesses,
the fewest known here for M well above d². No matrix unit likes tiles of one row, or one
key.
"""

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.parts import Dropout, Live, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def line_2(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c), given `rows` for M/4d: the most with B_c(4d + 1) + 2d + 2 ≤ M,
    and B_r(3d + 3) + 2d ≤ M.
    """
    return max((4 * d * rows - 2 * d) // (3 * d + 3), 1), max(
        (4 * d * rows - 2 * d - 2) // (4 * d + 1), 1
    )


def line_3(blocks: Blocks, N_q: int, N_k: int) -> tuple[Blocks, Blocks]:
    """Return the tiles of both passes: of one row, and of one key."""
    return Blocks(1, blocks.B_c, N_q=N_q, N_k=N_k), Blocks(
        blocks.B_r, 1, N_q=N_q, N_k=N_k
    )


def q_outer_backward_streamed(
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
    N_q = Q.shape[0]
    N_k = K.shape[0]
    dropout.restore()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    by_row, by_key = line_3(blocks, N_q, N_k)  # line 3
    MASK_by_row = MASK.divided(by_row)  # line 3
    MASK_by_key = MASK.divided(by_key)  # line 3
    dropout_by_row = dropout.divided(by_row)  # line 3
    dropout_by_key = dropout.divided(by_key)  # line 3
    live_by_row = live.divided(by_row)  # line 3
    live_by_key = live.divided(by_key)  # line 3
    D = hbm.empty("D", L.shape, sram.dtype)  # line 3
    dQ = hbm.empty("dQ", Q.shape, Q.dtype, "output").divide(B_r)  # line 3
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c)  # line 3
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c)  # line 3
    Q_rows, O_rows, dO_rows, L_rows, D_rows = (  # line 3
        X.divide(1) for X in (Q, O, dO, L, D)
    )
    K_rows = K.divide(1)  # line 3
    V_rows = V.divide(1)  # line 3
    Q, dO, L, D, K, V = (  # line 3
        *(X.divide(B_r) for X in (Q, dO, L, D)),
        K.divide(B_c),
        V.divide(B_c),
    )
    for n in sram.loop(N_q):  # line 4
        O_n, dO_n = sram.load(O_rows[n], dO_rows[n])  # line 5
        D_n = on_chip(rowsum(dO_n * O_n))  # line 6
        sram.store(D_rows[n], D_n)  # line 6
    # line 7: end for
    for j in sram.loop(blocks.T_c, alike=live_by_row.alike):  # line 8
        K_j, V_j = sram.load(K[j], V[j])  # line 9
        dK_tilde_j = sram.full(K[j].shape, 0.0)  # line 10
        dV_tilde_j = sram.full(V[j].shape, 0.0)  # line 10
        for n in sram.loop(N_q, where=live_by_row.column(j)):  # line 11
            Q_n, dO_n, L_n, D_n = sram.load(  # line 12
                Q_rows[n], dO_rows[n], L_rows[n], D_rows[n]
            )
            S_nj = on_chip(tau * (Q_n @ K_j.T))  # line 13
            P_nj = on_chip(  # line 13
                exp(at_most_0(MASK_by_row(S_nj, n, j) - finite(L_n))), over=S_nj
            )
            Z_nj = on_chip(dropout_by_row(P_nj, n, j))  # line 14
            P_dropped_nj = on_chip(P_nj * Z_nj)  # line 14
            dV_tilde_j = on_chip(  # line 15
                dV_tilde_j + product(P_dropped_nj.T, dO_n), over=dV_tilde_j
            )
            dS_nj = on_chip(  # line 16
                gated(P_nj, dO_n @ V_j.T * Z_nj - D_n), over=P_nj
            )
            MASK_by_row.gradient(dS_nj, n, j)  # line 16
            dS_nj = MASK_by_row.uncapped(dS_nj)  # line 16
            dK_tilde_j = on_chip(  # line 17
                dK_tilde_j + tau * product(dS_nj.T, Q_n), over=dK_tilde_j
            )
        # line 18: end for
        sram.store(dK[j], dK_tilde_j)  # line 19
        sram.store(dV[j], dV_tilde_j)  # line 19
    # line 20: end for
    for i in sram.loop(blocks.T_r, alike=live_by_key.rows_alike):  # line 21
        Q_i, dO_i, L_i, D_i = sram.load(Q[i], dO[i], L[i], D[i])  # line 22
        dQ_tilde_i = sram.full(Q[i].shape, 0.0)  # line 23
        for n in sram.loop(N_k, where=live_by_key.row(i)):  # line 24
            K_n, V_n = sram.load(K_rows[n], V_rows[n])  # line 25
            S_in = on_chip(tau * (Q_i @ K_n.T))  # line 26
            P_in = on_chip(  # line 26
                exp(at_most_0(MASK_by_key(S_in, i, n) - finite(L_i))), over=S_in
            )
            dS_in = on_chip(  # line 27
                gated(P_in, dO_i @ V_n.T * dropout_by_key(P_in, i, n) - D_i), over=P_in
            )
            dS_in = MASK_by_key.uncapped(dS_in)  # line 27
            dQ_tilde_i = on_chip(  # line 28
                dQ_tilde_i + tau * product(dS_in, K_n), over=dQ_tilde_i
            )
        # line 29: end for
        sram.store(dQ[i], dQ_tilde_i)  # line 30
    # line 31: end for
    return dQ, dK, dV  # line 32


ALGORITHM = Algorithm(
    name="q_outer_streamed",
    direction="backward",
    title="FlashAttention, loops exchanged, backward in two passes, rows streamed",
    of="q_outer",
    run=q_outer_backward_streamed,
    line_1=line_2,
    cuts=line_3,
    loops="two passes, rows streamed",
    rounds_logs=lambda T_c: 2,
    gives_dS=True,
)
