"""Attention for a small cache in the least room: tiles as `small_cache`'s, one of two
factors by columns, the other by elements.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = B_c = ⌊√M⌋ − 1.
    3  Divide Q into T_r blocks of B_r rows, and each into its d columns;
       K and V into their elements.
    4  Divide O into T_r × T_v tiles of B_r × B_c, L into T_r blocks of B_r rows, S,
       a strip, into tiles and columns.
    5  for 1 ≤ i ≤ T_r do
    6    On chip, set L_i = (−∞)_{B_r}.
    7    for 1 ≤ j ≤ T_c, a block of B_c keys, do
    8      On chip, set S_ij = (0)_{B_r×B_c}.
    9      for 1 ≤ k ≤ d do
    10       Load the column Q_ik from HBM to on-chip SRAM.
    11       for each key n of block j do
    12         Load the element K_nk from HBM to on-chip SRAM.
    13         S_in ← S_in + Q_ik K_nk.
    14       end for
    15     end for
    16     S_ij^masked = MASK(τ S_ij).
    17     L_i ← log(e^{L_i} + rowsum(exp(S_ij^masked))).
    18     Write S_ij^masked to the strip S_i in HBM.
    19   end for
    20   for 1 ≤ c ≤ T_v do
    21     On chip, set O_ic = (0)_{B_r×B_c}.
    22     for 1 ≤ n ≤ N_k do
    23       Load the strip's column S_in from HBM to on-chip SRAM.
    24       P_in = exp(S_in − L_i), P_in^dropped = dropout(P_in, p_drop).
    25       for each column e of tile c do
    26         Load the element V_ne from HBM to on-chip SRAM.
    27         O_ie ← O_ie + P_in^dropped V_ne.
    28       end for
    29     end for
    30     Write O_ic to HBM.
    31   end for
    32   Write L_i to HBM.
    33 end for
    34 Return O, L, R.

The listing is ours; AccelForge, a mapper, found its tiles. A tile of b × b takes b² +
2b + 1 elements: itself, a column, an element, and L_i, the only statistic.
`small_cache` takes b² + 4b.
"""

from math import isqrt

from flashsim.algorithms.blocks import squares
from flashsim.algorithms.notation import (
    at_most_0,
    exp,
    finite,
    logaddexp,
    logsumexp,
    product,
)
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def rows(M: int, d: int, d_v: int) -> int:
    """Return the largest b, at least 1, with b² + 2b + 1 ≤ M: a tile, a column, L_i and
    an element. d has no part.
    """
    return max(isqrt(M) - 1, 1)


def tiles_streamed(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
) -> tuple[Matrix, Matrix]:
    """Run this listing on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v) and
    L (N_q, 1), in HBM.
    """
    on_chip = sram.on_chip
    (N_q, d), (N_k, d_v) = Q.shape, V.shape
    dropout.save()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    Q = Q.divide(B_r, 1)  # line 3
    K = K.divide(1, 1)  # line 3
    V = V.divide(1, 1)  # line 3
    O = hbm.empty("O", (N_q, d_v), V.dtype, "output").divide(B_r, B_c)  # line 4
    L = hbm.empty("L", (N_q, 1), sram.dtype).divide(B_r)  # line 4
    S = hbm.empty("S", (B_r, N_k), sram.dtype)  # line 4
    dropout_by_key = dropout.divided(Blocks(B_r, 1, N_q=N_q, N_k=N_k))
    for i in sram.loop(blocks.T_r):  # line 5
        L_i = sram.full(L[i].shape, float("-inf"))  # line 6
        # fewer rows in the last strip
        S_tiles = S.divide(L_i.shape[0], B_c)
        S_columns = S.divide(L_i.shape[0], 1)
        for j in sram.loop(blocks.T_c):  # line 7
            S_ij = sram.full(S_tiles[0, j].shape, 0.0)  # line 8
            for k in sram.loop(d):  # line 9
                Q_ik = sram.load(Q[i, k])  # line 10
                for n in sram.loop(S_ij.shape[1]):  # line 11
                    K_nk = sram.load(K[j * B_c + n, k])  # line 12
                    S_in = S_ij[:, n : n + 1]  # line 12
                    S_in = on_chip(S_in + Q_ik @ K_nk, over=S_in)  # line 13
                # line 14: end for
            # line 15: end for
            S_masked_ij = on_chip(MASK(tau * S_ij, i, j), over=S_ij)  # line 16
            L_i = on_chip(logaddexp(L_i, logsumexp(S_masked_ij)), over=L_i)  # line 17
            sram.store(S_tiles[0, j], S_masked_ij)  # line 18
        # line 19: end for
        for c in sram.loop(O.blocks[1]):  # line 20
            O_ic = sram.full(O[i, c].shape, 0.0)  # line 21
            for n in sram.loop(N_k):  # line 22
                S_in = sram.load(S_columns[0, n])  # line 23
                P_in = on_chip(exp(at_most_0(S_in - finite(L_i))), over=S_in)  # line 24
                P_dropped_in = on_chip(  # line 24
                    P_in * dropout_by_key(P_in, i, n), over=P_in
                )
                for e in sram.loop(O_ic.shape[1]):  # line 25
                    V_ne = sram.load(V[n, c * B_c + e])  # line 26
                    O_ie = O_ic[:, e : e + 1]  # line 26
                    O_ie = on_chip(  # line 27
                        O_ie + product(P_dropped_in, V_ne), over=O_ie
                    )
                # line 28: end for
            # line 29: end for
            sram.store(O[i, c], O_ic)  # line 30
        # line 31: end for
        sram.store(L[i], L_i)  # line 32
    # line 33: end for
    return O, L  # line 34


ALGORITHM = Algorithm(
    name="tiles_streamed",
    title="Small cache, by elements",
    short="tiles, streamed",
    run=tiles_streamed,
    line_1=squares,
    rows=rows,
    loops="tile, streamed",
    returns=("O", "L"),
    saves=("R",),
    follows=("L",),
    rounds_logs=lambda T_c: T_c + 1,
)
