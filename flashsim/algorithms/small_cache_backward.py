"""The backward pass of `small_cache`, for M < d²: five products, each by outer products
into square tiles.

X. Li, Y. Liang, Z. Shi, Z. Song, Y. Zhou, "Fine-grained attention I/O complexity:
comprehensive analysis for backward passes" (arXiv 2410.09397), show that Θ(N²d/√M) is
what it costs there, as the forward pass does; this listing is ours.

    Require: Q, K, V, O, dO in HBM, log-sum-exp L in HBM, on-chip SRAM of size M,
             softmax scaling constant τ, masking function MASK, dropout probability
             p_drop, generator state R.
    1  Set the pseudo-random number generator state to R.
    2  Set block sizes B_r = B_c = ⌊√(M + 1)⌋ − 1.
    3  Divide Q, O, dO, dQ, L into T_r blocks of B_r rows, K, V, dK, dV into T_c blocks
       of B_c rows, and each as a line says: into its columns, index k; into pieces of
       B_c columns, index c; or into rows n and pieces c of these.
    4  for 1 ≤ i ≤ T_r do
    5    D_i = Σ_k O_ik ∘ dO_ik, of which each column is loaded. Write D_i to HBM.
    6  end for
    7  Initialize dQ = (0)_{N×d} in HBM, and strips P, dS of N_q × B_c in HBM.
    8  for 1 ≤ j ≤ T_c do
    9    for 1 ≤ i ≤ T_r do
    10     On chip, set S_ij = (0)_{B_r×B_c}.
    11     for 1 ≤ k ≤ d: load the columns Q_ik, K_jk; S_ij ← S_ij + Q_ik K_jkᵀ.
    12     Load L_i. P_ij = exp(MASK(τ S_ij) − L_i). Write P_ij to the strip P.
    13   end for
    14   for 1 ≤ i ≤ T_r do
    15     On chip, set dP_ij^dropped = (0)_{B_r×B_c}.
    16     for 1 ≤ k ≤ d: load the columns dO_ik, V_jk;
           dP_ij^dropped ← dP_ij^dropped + dO_ik V_jkᵀ.
    17     Load D_i.
    18     for each key n of block j: load the column P_in;
           dS_in = P_in ∘ (dP_in^dropped ∘ Z_in − D_i); write it to the strip dS.
    19   end for
    20   for each piece c of dV_j do
    21     On chip, set dV_jc = 0.
    22     for 1 ≤ n ≤ N_q: load the row P_nj and dO_nc;
           dV_jc ← dV_jc + (P_nj ∘ Z_nj)ᵀ dO_nc.
    23     Write dV_jc to HBM.
    24   end for
    25   for each piece c of dK_j do
    26     On chip, set dK_jc = 0.
    27     for 1 ≤ n ≤ N_q: load the row dS_nj and Q_nc; dK_jc ← dK_jc + τ dS_njᵀ Q_nc.
    28     Write dK_jc to HBM.
    29   end for
    30   for 1 ≤ i ≤ T_r and each piece c of dQ_i do
    31     Load dQ_ic.
    32     for each key n of block j: load the column dS_in and K_nc;
           dQ_ic ← dQ_ic + τ dS_in K_nc.
    33     Write dQ_ic to HBM.
    34   end for
    35 end for
    36 Return dQ, dK, dV.

P and dS wait in HBM, for one block of keys at a time: the strips take N_q × B_c each,
in the chip's type. With T = N/√M it makes about 9T·Nd + 3T_d·N² + 3N² accesses, 12
N²d/√M + 3N². No tile of dS is whole on chip: a bias has no gradient here.
"""

from math import isqrt

from flashsim.algorithms.blocks import squares
from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm, every_block
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def rows(M: int, d: int, d_v: int) -> int:
    """Return the largest b, at least 1, with b² + 2b ≤ M: a tile and two columns. d
    has no part.
    """
    return max(isqrt(M + 1) - 1, 1)


def small_cache_backward(
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
    K_columns = K.divide(B_c, 1)  # line 3
    V_columns = V.divide(B_c, 1)  # line 3
    O_columns = O.divide(B_r, 1)  # line 3
    dO_columns = dO.divide(B_r, 1)  # line 3
    L = L.divide(B_r)  # line 3
    Q = Q.divide(1, B_c)  # line 3
    K = K.divide(1, B_c)  # line 3
    dO = dO.divide(1, B_c)  # line 3
    dropout_by_key = dropout.divided(Blocks(B_r, 1, N_q=N_q, N_k=N_k))
    dropout_by_query = dropout.divided(Blocks(1, B_c, N_q=N_q, N_k=N_k))
    D = hbm.empty("D", L.shape, sram.dtype).divide(B_r)  # line 3
    for i in sram.loop(T_r):  # line 4
        D_i = sram.full(D[i].shape, 0.0)  # line 5
        for k in sram.loop(d_v):  # line 5
            O_ik, dO_ik = sram.load(O_columns[i, k], dO_columns[i, k])  # line 5
            D_i = on_chip(D_i + O_ik * dO_ik, over=D_i)  # line 5
        sram.store(D[i], D_i)  # line 5
    # line 6: end for
    dQ = hbm.full("dQ", Q.shape, 0.0, Q.dtype, "output").divide(B_r, B_c)  # line 7
    dK = hbm.empty("dK", K.shape, K.dtype, "output").divide(B_c, B_c)  # line 7
    dV = hbm.empty("dV", V.shape, V.dtype, "output").divide(B_c, B_c)  # line 7
    P, dS = (hbm.empty(name, (N_q, B_c), sram.dtype) for name in ("P", "dS"))  # line 7
    for j in sram.loop(T_c):  # line 8
        keys = K_columns[j, 0].shape[0]  # fewer in the last block
        P_tiles = P.divide(B_r, keys)
        P_columns = P.divide(B_r, 1)
        P_rows = P.divide(1, keys)
        dS_columns = dS.divide(B_r, 1)
        dS_rows = dS.divide(1, keys)
        for i in sram.loop(T_r):  # line 9
            S_ij = sram.full(P_tiles[i, 0].shape, 0.0)  # line 10
            for k in sram.loop(d):  # line 11
                Q_ik, K_jk = sram.load(Q_columns[i, k], K_columns[j, k])  # line 11
                S_ij = on_chip(S_ij + Q_ik @ K_jk.T, over=S_ij)  # line 11
            L_i = sram.load(L[i])  # line 12
            P_ij = on_chip(  # line 12
                exp(at_most_0(MASK(tau * S_ij, i, j) - finite(L_i))), over=S_ij
            )
            sram.store(P_tiles[i, 0], P_ij)  # line 12
        # line 13: end for
        for i in sram.loop(T_r):  # line 14
            dP_dropped_ij = sram.full(P_tiles[i, 0].shape, 0.0)  # line 15
            for k in sram.loop(d_v):  # line 16
                dO_ik, V_jk = sram.load(dO_columns[i, k], V_columns[j, k])  # line 16
                dP_dropped_ij = on_chip(  # line 16
                    dP_dropped_ij + dO_ik @ V_jk.T, over=dP_dropped_ij
                )
            D_i = sram.load(D[i])  # line 17
            for n in sram.loop(keys):  # line 18
                P_in = sram.load(P_columns[i, n])  # line 18
                dS_in = on_chip(  # line 18
                    gated(
                        P_in,
                        dP_dropped_ij[:, n : n + 1]
                        * dropout_by_key(P_in, i, j * B_c + n)
                        - D_i,
                    ),
                    over=P_in,
                )
                sram.store(dS_columns[i, n], dS_in)  # line 18
        # line 19: end for
        for c in sram.loop(dV.blocks[1]):  # line 20
            dV_jc = sram.full(dV[j, c].shape, 0.0)  # line 21
            for n in sram.loop(N_q):  # line 22
                P_nj, dO_nc = sram.load(P_rows[n, 0], dO[n, c])  # line 22
                P_dropped_nj = on_chip(  # line 22
                    P_nj * dropout_by_query(P_nj, n, j), over=P_nj
                )
                dV_jc = on_chip(  # line 22
                    dV_jc + product(P_dropped_nj.T, dO_nc), over=dV_jc
                )
            sram.store(dV[j, c], dV_jc)  # line 23
        # line 24: end for
        for c in sram.loop(dK.blocks[1]):  # line 25
            dK_jc = sram.full(dK[j, c].shape, 0.0)  # line 26
            for n in sram.loop(N_q):  # line 27
                dS_nj, Q_nc = sram.load(dS_rows[n, 0], Q[n, c])  # line 27
                dK_jc = on_chip(  # line 27
                    dK_jc + tau * product(dS_nj.T, Q_nc), over=dK_jc
                )
            sram.store(dK[j, c], dK_jc)  # line 28
        # line 29: end for
        for i in sram.loop(T_r):  # line 30
            for c in sram.loop(dQ.blocks[1]):  # line 30
                dQ_ic = sram.load(dQ[i, c])  # line 31
                for n in sram.loop(keys):  # line 32
                    dS_in, K_nc = sram.load(  # line 32
                        dS_columns[i, n], K[j * B_c + n, c]
                    )
                    dQ_ic = on_chip(  # line 32
                        dQ_ic + tau * product(dS_in, K_nc), over=dQ_ic
                    )
                sram.store(dQ[i, c], dQ_ic)  # line 33
        # line 34: end for
    # line 35: end for
    return dQ, dK, dV  # line 36


ALGORITHM = Algorithm(
    name="small_cache",
    direction="backward",
    title="Small cache, backward",
    run=small_cache_backward,
    line_1=squares,
    rows=rows,
    loops="small cache",
    follows=("D",),
    rounds=every_block,
    rounds_logs=lambda T_c: 2,
)
