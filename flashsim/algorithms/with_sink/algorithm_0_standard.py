"""Algorithm 0 with a sink: a logit s, whose e^s is in the softmax's sum, but brings no
value.

    Require: Q, K, V, the sink's logit s in HBM.
    1  Load Q, K by blocks from HBM, compute S = QKᵀ, write S to HBM.
    2  Read S, s from HBM, compute (P, P_sink) = softmax((S, s)), write P, P_sink to
       HBM.
    3  Load P, V by blocks from HBM, compute O = PV, write O to HBM.
    4  Return O.

Frameworks append the sink to S as a column. Here it joins the softmax of line 2, the
only line that differs from Algorithm 0. Its column of P is kept, as P_sink, for its
gradient.
"""

from dataclasses import replace

from flashsim.algorithms import algorithm_0_standard
from flashsim.algorithms.notation import product
from flashsim.algorithms.parts import Dropout, MaskFunction, Sink
from flashsim.algorithms.with_sink.softmax_rows import softmax_rows_for
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def standard_with_sink(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    MASK: MaskFunction,
    dropout: Dropout,
    sink: Sink,
) -> tuple[Matrix]:
    """Run Algorithm 0 on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v),
    in HBM.
    """
    on_chip = sram.on_chip
    B_r = blocks.B_r
    B_c = blocks.B_c
    T_r = blocks.T_r
    T_c = blocks.T_c
    N_q = Q.shape[0]
    N_k = K.shape[0]
    S = hbm.empty("S", (N_q, N_k), Q.dtype)
    P = hbm.empty("P", (N_q, N_k), Q.dtype)
    O = hbm.empty("O", (N_q, V.shape[1]), V.dtype, "output")
    Q = Q.divide(B_r)
    K = K.divide(B_c)
    V = V.divide(B_c)
    O = O.divide(B_r)
    S_tiles = S.divide(B_r, B_c)
    softmax_rows = softmax_rows_for(sram.capacity, N_k, sink.room)

    for i in sram.loop(T_r):  # line 1
        Q_i = sram.load(Q[i])  # line 1
        for j in sram.loop(T_c):  # line 1
            K_j = sram.load(K[j])  # line 1
            S_ij = on_chip(Q_i @ K_j.T)  # line 1
            sram.store(S_tiles[i, j], S_ij)  # line 1

    MASK.whole(sram, S)  # line 2
    softmax_rows(sram, S, P, sink)  # line 2
    P_tiles = dropout.whole(sram, P).divide(B_r, B_c)  # line 3

    for i in sram.loop(T_r):  # line 3
        O_i = sram.full(O[i].shape, 0.0)  # line 3
        for j in sram.loop(T_c):  # line 3
            P_ij, V_j = sram.load(P_tiles[i, j], V[j])  # line 3
            O_i = on_chip(O_i + product(P_ij, V_j), over=O_i)  # line 3
        sram.store(O[i], O_i)  # line 3

    return (O,)  # line 4


ALGORITHM = replace(
    algorithm_0_standard.ALGORITHM,
    title=f"{algorithm_0_standard.ALGORITHM.title}, with a sink",
    run=standard_with_sink,
    parts=(*algorithm_0_standard.ALGORITHM.parts, "sink"),
    saves=(*algorithm_0_standard.ALGORITHM.saves, "P_sink"),
)
