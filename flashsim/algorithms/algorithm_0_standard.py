"""Algorithm 0: standard attention, forward.

    Require: Q, K, V in HBM.
    1  Load Q, K by blocks from HBM, compute S = QKᵀ, write S to HBM.
    2  Read S from HBM, compute P = softmax(S), write P to HBM.
    3  Load P, V by blocks from HBM, compute O = PV, write O to HBM.
    4  Return O.

The paper's proof counts each operand as read once. A product blocked for M elements of
SRAM cannot do that: with panels of full depth d, each of the T_r row panels re-reads
all of K (line 1) or V (line 3). That is what runs, and is counted, here. The row panel
is the large block, as it decides how often K and V are read again.

A mask and dropout are passes of their own over S and P, as in frameworks without a
fused kernel: between lines 1 and 2, and between lines 2 and 3. P^dropped and the
dropout mask Z are then kept in HBM for the backward pass.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashsim.algorithms.blocks import q_outer_blocks
from flashsim.algorithms.notation import logsumexp, product
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.algorithms.softmax_rows import softmax_rows_for
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix, Tile
from flashsim.memory.sram import SRAM


def standard(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    MASK: MaskFunction,
    dropout: Dropout,
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
    softmax_rows = softmax_rows_for(sram.capacity, N_k)

    for i in sram.loop(T_r):  # line 1
        Q_i = sram.load(Q[i])  # line 1
        for j in sram.loop(T_c):  # line 1
            K_j = sram.load(K[j])  # line 1
            S_ij = on_chip(Q_i @ K_j.T)  # line 1
            sram.store(S_tiles[i, j], S_ij)  # line 1

    MASK.whole(sram, S)  # line 2
    softmax_rows(sram, S, P)  # line 2
    P_tiles = dropout.whole(sram, P).divide(B_r, B_c)  # line 3

    for i in sram.loop(T_r):  # line 3
        O_i = sram.full(O[i].shape, 0.0)  # line 3
        for j in sram.loop(T_c):  # line 3
            P_ij, V_j = sram.load(P_tiles[i, j], V[j])  # line 3
            O_i = on_chip(O_i + product(P_ij, V_j), over=O_i)  # line 3
        sram.store(O[i], O_i)  # line 3

    return (O,)  # line 4


def lse(hbm: HBM, options: Mapping[str, Any]) -> Tile:
    """Return the log-sum-exp of the rows of S, which is masked where it lies."""
    S = hbm.peek("S")
    return logsumexp(S.astype(np.result_type(S.dtype, np.float32), copy=False))


ALGORITHM = Algorithm(
    name="standard",
    title="Algorithm 0, standard attention",
    short="standard",
    look=("vermillion", "s", "--"),
    run=standard,
    line_1=q_outer_blocks,
    loops="standard",
    returns=("O",),
    saves=("P", "P_dropped", "Z"),
    follows=("l", "O"),
    lse=lse,
    stores_scores=True,
)
