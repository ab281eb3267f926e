"""The backward pass of `hybrid_streamed`, for M about d²: S and dP by whole rows, dV,
dK and dQ by tiles, P and dS in HBM.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M,
             softmax scaling constant τ, masking function MASK, dropout probability
             p_drop, generator state R.
    1  Set the pseudo-random number generator state to R.
    2  Set block size B_c: as large as K_j, S_nj and an element fit M, and V_j,
       dP_nj and two elements; B_r = 1.
    3  Set the sizes b × x of tiles of dV, dK and dQ: of those that fit M beside R,
       b(x + 1) + 1, the ones of fewest accesses.
    4  Divide O, dO, L, D into rows, index n; K, V into T_c blocks of B_c rows;
       and each as a line says; e is a key, or a column.
    5  Set p, how many blocks of V make D: 1 if V_1, dP_n1,
       D_n and two elements fit M beside R, otherwise 0.
    6  for 1 ≤ n ≤ (1 − p)·N_q: load O_n, dO_n; write D_n = rowsum(dO_n ∘ O_n) to HBM.
    7  end for
    8  for 1 ≤ j ≤ T_c do
    9    Load K_j from HBM to on-chip SRAM.
    10   for 1 ≤ n ≤ N_q do
    11     On chip, S_nj = (0)_{B_c}; for 1 ≤ k ≤ d: load the element Q_nk;
           S_nj ← S_nj + Q_nk K_jkᵀ.
    12     Load L_n. P_nj = exp(MASK(τ S_nj) − L_n). Write P_nj to HBM.
    13   end for
    14 end for
    15 for 1 ≤ j ≤ p do
    16   Load V_1 from HBM to on-chip SRAM.
    17   for 1 ≤ n ≤ N_q do
    18     On chip, dP_n1^dropped = (0)_{B_c}, D_n = 0; for 1 ≤ k ≤ d_v: load dO_nk,
           O_nk; dP_n1^dropped ← dP_n1^dropped + dO_nk V_1kᵀ, D_n ← D_n + dO_nk O_nk.
           Write D_n to HBM.
    19     For each key e of block 1: load P_ne,
           dS_ne = P_ne ∘ (dP_ne^dropped ∘ Z_ne − D_n). Write dS_ne to HBM.
    20   end for
    21 end for
    22 for p < j ≤ T_c do
    23   Load V_j from HBM to on-chip SRAM.
    24   for 1 ≤ n ≤ N_q do
    25     On chip, dP_nj^dropped = (0)_{B_c}; for 1 ≤ k ≤ d_v: load dO_nk;
           dP_nj^dropped ← dP_nj^dropped + dO_nk V_jkᵀ.
    26     Load D_n. For each key e of block j: load P_ne,
           dS_ne = P_ne ∘ (dP_ne^dropped ∘ Z_ne − D_n). Write dS_ne to HBM.
    27   end for
    28 end for
    29 for each tile dV_jc: set dV_jc = 0.
    30   for 1 ≤ n ≤ N_q: load P_nj, Z_nj dropped from it; for each column e of tile c:
         load dO_ne, dV_je ← dV_je + P_njᵀ dO_ne.
    31   Write dV_jc to HBM.
    32 end for
    33 for each tile dK_jc: set dK_jc = 0.
    34   for 1 ≤ n ≤ N_q: load dS_nj; for each column e of tile c: load Q_ne,
         dK_je ← dK_je + τ dS_njᵀ Q_ne.
    35   Write dK_jc to HBM.
    36 end for
    37 for each tile dQ_ic: set dQ_ic = 0.
    38   for 1 ≤ n ≤ N_k: load dS_in; for each column e of tile c: load K_ne,
         dQ_ie ← dQ_ie + τ dS_in K_ne.
    39   Write dQ_ic to HBM.
    40 end for
    41 Return dQ, dK, dV.

The listing is ours; AccelForge, a mapper, found its streams. Where `tiles_streamed`
makes S and dP in tiles, 4 N²d/√M accesses, this holds rows of K, then of V, and makes 2
N²d²/M: fewer from M = d²/4 on. From about d² on `q_outer_stored` makes fewer. The price
is P and dS in HBM, 2 N_q·N_k elements in the chip's type. A bias has no gradient here.
"""

from math import isqrt

from flashsim.algorithms.blocks import by_one_query
from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def rows(M: int, d: int, d_v: int) -> int:
    """Return the largest B_c, at least 1, with B_c(d + 1) + 1 ≤ M and B_c(d_v + 1) +
    2 ≤ M.
    """
    return max(min((M - 1) // (d + 1), (M - 2) // (d_v + 1)), 1)


def cuts(blocks: Blocks, N_q: int, N_k: int) -> tuple[Blocks]:
    """Return the tiles of S: of one row."""
    return (Blocks(1, blocks.B_c, N_q=N_q, N_k=N_k),)


def line_3(M: int, N: int, d: int) -> tuple[int, int]:
    """Return b × x, by which ⌈d/x⌉·N + ⌈N/b⌉·d elements are read for each row that is
    summed over; 1 × 1 if none fits.

    Of those x that make as many pieces, the least leaves the most rows: it is ⌈d/c⌉, or
    c, for a c of √d + 1 at most.
    """
    few = range(1, isqrt(d) + 2)
    widths = sorted({*few, *(-(-d // c) for c in few)})
    fitting = [(min((M - 1) // (x + 1), N), x) for x in widths if x + 2 <= M] or [
        (1, 1)
    ]
    return min(fitting, key=lambda tile: -(-d // tile[1]) * N + -(-N // tile[0]) * d)


def line_5(M: int, B_c: int, d_v: int) -> int:
    """Return how many blocks of V make D: 1 if V_1, dP_n1, dO_nk, O_nk and D_n fit,
    otherwise 0.
    """
    return int(B_c * (d_v + 1) + 3 <= M)


def hybrid_streamed_backward(
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
    (N_q, d), (N_k, d_v) = Q.shape, V.shape
    dropout.restore()  # line 1
    B_c = blocks.B_c  # line 2
    T_c = blocks.T_c  # line 2
    (b_V, x_V), (b_K, x_K), (b_Q, x_Q) = (  # line 3
        line_3(sram.capacity - sum(sram.resident.values()), N, w)
        for N, w in ((N_k, d_v), (N_k, d), (N_q, d))
    )
    Q_elements, K_elements, O_elements, dO_elements = (  # line 4
        X.divide(1, 1) for X in (Q, K, O, dO)
    )
    D = hbm.empty("D", L.shape, sram.dtype)  # line 4
    P, dS = (hbm.empty(name, (N_q, N_k), sram.dtype) for name in ("P", "dS"))  # line 4
    P_pieces = P.divide(1, B_c)  # line 4
    P_elements = P.divide(1, 1)  # line 4
    dS_elements = dS.divide(1, 1)  # line 4
    O, dO, L, D, K, V = (  # line 4
        *(X.divide(1) for X in (O, dO, L, D)),
        K.divide(B_c),
        V.divide(B_c),
    )
    (by_piece,) = cuts(blocks, N_q, N_k)
    MASK = MASK.divided(by_piece)
    dropout_by_element = dropout.divided(Blocks(1, 1, N_q=N_q, N_k=N_k))
    p = line_5(sram.capacity - sum(sram.resident.values()), B_c, d_v)  # line 5
    for n in sram.loop((1 - p) * N_q):  # line 6
        O_n, dO_n = sram.load(O[n], dO[n])  # line 6
        D_n = on_chip(rowsum(dO_n * O_n))  # line 6
        sram.store(D[n], D_n)  # line 6
    # line 7: end for
    for j in sram.loop(T_c):  # line 8
        K_j = sram.load(K[j])  # line 9
        for n in sram.loop(N_q):  # line 10
            S_nj = sram.full(P_pieces[n, j].shape, 0.0)  # line 11
            for k in sram.loop(d):  # line 11
                Q_nk = sram.load(Q_elements[n, k])  # line 11
                S_nj = on_chip(S_nj + Q_nk @ K_j[:, k : k + 1].T, over=S_nj)  # line 11
            L_n = sram.load(L[n])  # line 12
            P_nj = on_chip(  # line 12
                exp(at_most_0(MASK(tau * S_nj, n, j) - finite(L_n))), over=S_nj
            )
            sram.store(P_pieces[n, j], P_nj)  # line 12
        # line 13: end for
    # line 14: end for
    for j in sram.loop(range(p)):  # line 15
        V_1 = sram.load(V[j])  # line 16
        for n in sram.loop(N_q):  # line 17
            dP_dropped_n1 = sram.full(P_pieces[n, j].shape, 0.0)  # line 18
            D_n = sram.full(D[n].shape, 0.0)  # line 18
            for k in sram.loop(d_v):  # line 18
                dO_nk, O_nk = sram.load(dO_elements[n, k], O_elements[n, k])  # line 18
                dP_dropped_n1 = on_chip(  # line 18
                    dP_dropped_n1 + dO_nk @ V_1[:, k : k + 1].T, over=dP_dropped_n1
                )
                D_n = on_chip(D_n + dO_nk * O_nk, over=D_n)  # line 18
            sram.store(D[n], D_n)  # line 18
            for e in sram.loop(V_1.shape[0]):  # line 19
                P_ne = sram.load(P_elements[n, e])  # line 19
                dS_ne = on_chip(  # line 19
                    gated(
                        P_ne,
                        dP_dropped_n1[:, e : e + 1] * dropout_by_element(P_ne, n, e)
                        - D_n,
                    ),
                    over=P_ne,
                )
                sram.store(dS_elements[n, e], dS_ne)  # line 19
        # line 20: end for
    # line 21: end for
    for j in sram.loop(range(p, T_c)):  # line 22
        V_j = sram.load(V[j])  # line 23
        for n in sram.loop(N_q):  # line 24
            dP_dropped_nj = sram.full(P_pieces[n, j].shape, 0.0)  # line 25
            for k in sram.loop(d_v):  # line 25
                dO_nk = sram.load(dO_elements[n, k])  # line 25
                dP_dropped_nj = on_chip(  # line 25
                    dP_dropped_nj + dO_nk @ V_j[:, k : k + 1].T, over=dP_dropped_nj
                )
            D_n = sram.load(D[n])  # line 26
            for e in sram.loop(V_j.shape[0]):  # line 26
                P_ne = sram.load(P_elements[n, j * B_c + e])  # line 26
                key = j * B_c + e  # line 26
                dS_ne = on_chip(  # line 26
                    gated(
                        P_ne,
                        dP_dropped_nj[:, e : e + 1] * dropout_by_element(P_ne, n, key)
                        - D_n,
                    ),
                    over=P_ne,
                )
                sram.store(dS_elements[n, key], dS_ne)  # line 26
        # line 27: end for
    # line 28: end for
    dV = hbm.empty("dV", (N_k, d_v), V.dtype, "output").divide(b_V, x_V)  # line 29
    P_rows = P.divide(1, b_V)  # line 29
    dropout_by_row = dropout.divided(Blocks(1, b_V, N_q=N_q, N_k=N_k))  # line 29
    for j in sram.loop(dV.blocks[0]):  # line 29
        for c in sram.loop(dV.blocks[1]):  # line 29
            dV_jc = sram.full(dV[j, c].shape, 0.0)  # line 29
            for n in sram.loop(N_q):  # line 30
                P_nj = sram.load(P_rows[n, j])  # line 30
                P_dropped_nj = on_chip(  # line 30
                    P_nj * dropout_by_row(P_nj, n, j), over=P_nj
                )
                for e in sram.loop(dV_jc.shape[1]):  # line 30
                    dO_ne = sram.load(dO_elements[n, c * x_V + e])  # line 30
                    dV_je = dV_jc[:, e : e + 1]  # line 30
                    dV_je = on_chip(  # line 30
                        dV_je + product(P_dropped_nj.T, dO_ne), over=dV_je
                    )
            sram.store(dV[j, c], dV_jc)  # line 31
    # line 32: end for
    dK = hbm.empty("dK", (N_k, d), K.dtype, "output").divide(b_K, x_K)  # line 33
    dS_pieces = dS.divide(1, b_K)  # line 33
    for j in sram.loop(dK.blocks[0]):  # line 33
        for c in sram.loop(dK.blocks[1]):  # line 33
            dK_jc = sram.full(dK[j, c].shape, 0.0)  # line 33
            for n in sram.loop(N_q):  # line 34
                dS_nj = sram.load(dS_pieces[n, j])  # line 34
                for e in sram.loop(dK_jc.shape[1]):  # line 34
                    Q_ne = sram.load(Q_elements[n, c * x_K + e])  # line 34
                    dK_je = dK_jc[:, e : e + 1]  # line 34
                    dK_je = on_chip(  # line 34
                        dK_je + tau * product(dS_nj.T, Q_ne), over=dK_je
                    )
            sram.store(dK[j, c], dK_jc)  # line 35
    # line 36: end for
    dQ = hbm.empty("dQ", (N_q, d), Q.dtype, "output").divide(b_Q, x_Q)  # line 37
    dS_columns = dS.divide(b_Q, 1)  # line 37
    for i in sram.loop(dQ.blocks[0]):  # line 37
        for c in sram.loop(dQ.blocks[1]):  # line 37
            dQ_ic = sram.full(dQ[i, c].shape, 0.0)  # line 37
            for n in sram.loop(N_k):  # line 38
                dS_in = sram.load(dS_columns[i, n])  # line 38
                for e in sram.loop(dQ_ic.shape[1]):  # line 38
                    K_ne = sram.load(K_elements[n, c * x_Q + e])  # line 38
                    dQ_ie = dQ_ic[:, e : e + 1]  # line 38
                    dQ_ie = on_chip(  # line 38
                        dQ_ie + tau * product(dS_in, K_ne), over=dQ_ie
                    )
            sram.store(dQ[i, c], dQ_ic)  # line 39
    # line 40: end for
    return dQ, dK, dV  # line 41


ALGORITHM = Algorithm(
    name="hybrid_streamed",
    direction="backward",
    title="S by rows, gradients by tiles, by elements, backward",
    run=hybrid_streamed_backward,
    line_1=by_one_query,
    rows=rows,
    cuts=cuts,
    loops="rows, streamed",
    follows=("D",),
    rounds_logs=lambda T_c: T_c + 2,
)
