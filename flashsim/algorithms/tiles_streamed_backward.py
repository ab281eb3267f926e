"""The backward pass of `tiles_streamed`: five products in tiles of one size, one factor
by columns, the other by elements.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M,
             softmax scaling constant τ, masking function MASK, dropout probability
             p_drop, generator state R.
    1  Set the pseudo-random number generator state to R.
    2  Set block sizes B_r = B_c = the largest b with b² + b + 1 ≤ M.
    3  Divide Q, O, dO, dQ, L, D into T_r blocks of B_r rows, K, V, dK, dV into T_c
       blocks of B_c rows, and each as a line says: into columns, index k; into pieces,
       index c, of B_c columns for dQ and B_r for dK and dV; or into elements.
    4  for 1 ≤ i ≤ T_r do
    5    D_i = Σ_k O_ik ∘ dO_ik, of which each element is loaded. Write D_i to HBM.
    6  end for
    7  Reserve a strip P of N_q × B_c and dS of N_q × N_k in HBM.
    8  for 1 ≤ j ≤ T_c do
    9    for 1 ≤ i ≤ T_r do
    10     On chip, set S_ij = (0)_{B_r×B_c}.
    11     for 1 ≤ k ≤ d: load the column Q_ik; for each key n of block j: load K_nk;
           S_in ← S_in + Q_ik K_nk.
    12     Load L_i. P_ij = exp(MASK(τ S_ij) − L_i). Write P_ij to the strip P.
    13   end for
    14   for 1 ≤ i ≤ T_r do
    15     On chip, set dP_ij^dropped = (0)_{B_r×B_c}.
    16     for 1 ≤ k ≤ d_v: load the column dO_ik; for each n: load V_nk;
           dP_in^dropped ← dP_in^dropped + dO_ik V_nk.
    17     Load D_i.
    18     for each element (r, n) of the tile: load P_rn;
           dS_rn = P_rn ∘ (dP_rn^dropped ∘ Z_rn − D_r); write it to dS.
    19   end for
    20   for each piece c of dV_j do
    21     On chip, set dV_jc = 0.
    22     for 1 ≤ r ≤ N_q: load the piece dO_rc; for each key n: load P_rn;
           dV_nc ← dV_nc + P_rn Z_rn dO_rc.
    23     Write dV_jc to HBM.
    24   end for
    25   for each piece c of dK_j do
    26     On chip, set dK_jc = 0.
    27     for 1 ≤ r ≤ N_q: load the piece Q_rc; for each key n: load dS_rn;
           dK_nc ← dK_nc + τ dS_rn Q_rc.
    28     Write dK_jc to HBM.
    29   end for
    30 end for
    31 for 1 ≤ i ≤ T_r and each piece c of dQ_i do
    32   On chip, set dQ_ic = 0.
    33   for 1 ≤ n ≤ N_k: load the column dS_in; for each column e of piece c:
         load K_ne; dQ_ie ← dQ_ie + τ dS_in K_ne.
    34   Write dQ_ic to HBM.
    35 end for
    36 Return dQ, dK, dV.

The listing is ours; AccelForge, a mapper, found its tiles. A tile takes b² + b + 1
elements: itself, the shorter factor's column, an element; L_i and D_i come when the
column has gone. It makes 10 N²d/√M + 3N² accesses, where `small_cache` makes 12 N²d/√M
+ 3N² with larger columns on chip. The price is dS in HBM, N_q·N_k elements in the
chip's type. No tile of dS is whole on chip: a bias has no gradient here.
"""

from math import isqrt

from flashsim.algorithms.blocks import squares
from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def rows(M: int, d: int, d_v: int) -> int:
    """Return the largest b, at least 1, with b² + b + 1 ≤ M: a tile, a column and an
    element. d has no part.
    """
    return max((isqrt(max(4 * M - 3, 0)) - 1) // 2, 1)


def tiles_streamed_backward(
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
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    T_r = blocks.T_r  # line 2
    T_c = blocks.T_c  # line 2
    Q_columns = Q.divide(B_r, 1)  # line 3
    dO_columns = dO.divide(B_r, 1)  # line 3
    O_columns = O.divide(B_r, 1)  # line 3
    L = L.divide(B_r)  # line 3
    Q_pieces = Q.divide(1, B_r)  # line 3
    dO_pieces = dO.divide(1, B_r)  # line 3
    K = K.divide(1, 1)  # line 3
    V = V.divide(1, 1)  # line 3
    dO = dO.divide(1, 1)  # line 3
    dropout_by_element = dropout.divided(Blocks(1, 1, N_q=N_q, N_k=N_k))
    D = hbm.empty("D", L.shape, sram.dtype).divide(B_r)  # line 3
    for i in sram.loop(T_r):  # line 4
        D_i = sram.full(D[i].shape, 0.0)  # line 5
        for k in sram.loop(d_v):  # line 5
            O_ik = sram.load(O_columns[i, k])  # line 5
            for r in sram.loop(O_ik.shape[0]):  # line 5
                dO_rk = sram.load(dO[i * B_r + r, k])  # line 5
                D_r = D_i[r : r + 1]  # line 5
                D_r = on_chip(D_r + O_ik[r : r + 1] * dO_rk, over=D_r)  # line 5
        sram.store(D[i], D_i)  # line 5
    # line 6: end for
    dQ = hbm.empty("dQ", Q.shape, Q.dtype, "output").divide(B_r, B_c)  # line 7
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c, B_r)  # line 7
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c, B_r)  # line 7
    P = hbm.empty("P", (N_q, B_c), sram.dtype)  # line 7
    dS = hbm.empty("dS", (N_q, N_k), sram.dtype)  # line 7
    P_elements = P.divide(1, 1)  # line 7
    dS_elements = dS.divide(1, 1)  # line 7
    dS_columns = dS.divide(B_r, 1)  # line 7
    for j in sram.loop(T_c):  # line 8
        keys = dK[j, 0].shape[0]  # fewer in the last block
        P_tiles = P.divide(B_r, keys)
        for i in sram.loop(T_r):  # line 9
            S_ij = sram.full(P_tiles[i, 0].shape, 0.0)  # line 10
            for k in sram.loop(d):  # line 11
                Q_ik = sram.load(Q_columns[i, k])  # line 11
                for n in sram.loop(keys):  # line 11
                    K_nk = sram.load(K[j * B_c + n, k])  # line 11
                    S_in = S_ij[:, n : n + 1]  # line 11
                    S_in = on_chip(S_in + Q_ik @ K_nk, over=S_in)  # line 11
            L_i = sram.load(L[i])  # line 12
            P_ij = on_chip(  # line 12
                exp(at_most_0(MASK(tau * S_ij, i, j) - finite(L_i))), over=S_ij
            )
            sram.store(P_tiles[i, 0], P_ij)  # line 12
        # line 13: end for
        for i in sram.loop(T_r):  # line 14
            dP_dropped_ij = sram.full(P_tiles[i, 0].shape, 0.0)  # line 15
            for k in sram.loop(d_v):  # line 16
                dO_ik = sram.load(dO_columns[i, k])  # line 16
                for n in sram.loop(keys):  # line 16
                    V_nk = sram.load(V[j * B_c + n, k])  # line 16
                    dP_dropped_in = dP_dropped_ij[:, n : n + 1]  # line 16
                    dP_dropped_in = on_chip(  # line 16
                        dP_dropped_in + dO_ik @ V_nk, over=dP_dropped_in
                    )
            D_i = sram.load(D[i])  # line 17
            for r in sram.loop(D_i.shape[0]):  # line 18
                row = i * B_r + r
                dP_dropped_r = dP_dropped_ij[r : r + 1]
                D_r = D_i[r : r + 1]
                for n in sram.loop(keys):  # line 18
                    P_rn = sram.load(P_elements[row, n])  # line 18
                    key = j * B_c + n  # line 18
                    dS_rn = on_chip(  # line 18
                        gated(
                            P_rn,
                            dP_dropped_r[:, n : n + 1]
                            * dropout_by_element(P_rn, row, key)
                            - D_r,
                        ),
                        over=P_rn,
                    )
                    sram.store(dS_elements[row, key], dS_rn)  # line 18
        # line 19: end for
        for c in sram.loop(dV.blocks[1]):  # line 20
            dV_jc = sram.full(dV[j, c].shape, 0.0)  # line 21
            for r in sram.loop(N_q):  # line 22
                dO_rc = sram.load(dO_pieces[r, c])  # line 22
                for n in sram.loop(keys):  # line 22
                    P_rn = sram.load(P_elements[r, n])  # line 22
                    dV_nc = dV_jc[n : n + 1]  # line 22
                    P_dropped_rn = on_chip(  # line 22
                        P_rn * dropout_by_element(P_rn, r, j * B_c + n), over=P_rn
                    )
                    dV_nc = on_chip(  # line 22
                        dV_nc + product(P_dropped_rn, dO_rc), over=dV_nc
                    )
            sram.store(dV[j, c], dV_jc)  # line 23
        # line 24: end for
        for c in sram.loop(dK.blocks[1]):  # line 25
            dK_jc = sram.full(dK[j, c].shape, 0.0)  # line 26
            for r in sram.loop(N_q):  # line 27
                Q_rc = sram.load(Q_pieces[r, c])  # line 27
                for n in sram.loop(keys):  # line 27
                    dS_rn = sram.load(dS_elements[r, j * B_c + n])  # line 27
                    dK_nc = dK_jc[n : n + 1]  # line 27
                    dK_nc = on_chip(  # line 27
                        dK_nc + tau * product(dS_rn, Q_rc), over=dK_nc
                    )
            sram.store(dK[j, c], dK_jc)  # line 28
        # line 29: end for
    # line 30: end for
    for i in sram.loop(T_r):  # line 31
        for c in sram.loop(dQ.blocks[1]):  # line 31
            dQ_ic = sram.full(dQ[i, c].shape, 0.0)  # line 32
            for n in sram.loop(N_k):  # line 33
                dS_in = sram.load(dS_columns[i, n])  # line 33
                for e in sram.loop(dQ_ic.shape[1]):  # line 33
                    K_ne = sram.load(K[n, c * B_c + e])  # line 33
                    dQ_ie = dQ_ic[:, e : e + 1]  # line 33
                    dQ_ie = on_chip(  # line 33
                        dQ_ie + tau * product(dS_in, K_ne), over=dQ_ie
                    )
            sram.store(dQ[i, c], dQ_ic)  # line 34
    # line 35: end for
    return dQ, dK, dV  # line 36


ALGORITHM = Algorithm(
    name="tiles_streamed",
    direction="backward",
    title="Small cache, by elements, backward",
    run=tiles_streamed_backward,
    line_1=squares,
    rows=rows,
    loops="tile, streamed",
    follows=("D",),
    rounds_logs=lambda T_c: T_c + 2,
)
