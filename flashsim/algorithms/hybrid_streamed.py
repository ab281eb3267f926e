"""Attention for M about d² in the least room: `small_cache_hybrid` with K and V
streamed by elements, and L alone kept of a row.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = ⌊(M − 1)/(d + 2)⌋, B_c = 1.
    3  Set the sizes b_r × b_c of a tile of O: of those that fit, b_r(b_c + 2) + 1 ≤ M,
       the ones of fewest accesses.
    4  Divide Q into T_r blocks of B_r rows, K into T_c blocks of B_c rows,
       and each into its columns; S into T_r × T_c tiles.
    5  for 1 ≤ i ≤ T_r do
    6    Load Q_i from HBM to on-chip SRAM.
    7    On chip, set L_i = (−∞)_{B_r}.
    8    for 1 ≤ j ≤ T_c do
    9      On chip, set S_ij = (0)_{B_r×B_c}.
    10     for 1 ≤ k ≤ d do
    11       Load the column K_jk from HBM to on-chip SRAM.
    12       S_ij ← S_ij + Q_ik K_jkᵀ.
    13     end for
    14     S_ij^masked = MASK(τ S_ij).
    15     L_i ← log(e^{L_i} + rowsum(exp(S_ij^masked))).
    16     Write S_ij^masked to HBM.
    17   end for
    18   Write L_i to HBM.
    19 end for
    20 Divide O into tiles of b_r × b_c, L into blocks of b_r rows,
       S into columns of b_r rows, V into its elements.
    21 for each block of rows u of O do
    22   Load L_u from HBM to on-chip SRAM.
    23   for each block of columns c of O do
    24     On chip, set O_uc = (0)_{b_r×b_c}.
    25     for 1 ≤ n ≤ N_k do
    26       Load the column S_un from HBM to on-chip SRAM.
    27       P_un = exp(S_un − L_u), P_un^dropped = dropout(P_un, p_drop).
    28       for each column e of block c do
    29         Load the element V_ne from HBM to on-chip SRAM.
    30         O_ue ← O_ue + P_un^dropped V_ne.
    31       end for
    32     end for
    33     Write O_uc to HBM.
    34   end for
    35 end for
    36 Return O, L, R.

The listing is ours; AccelForge, a mapper, found its streams. Where `small_cache_hybrid`
holds Q_i, a row of K, S_ij and three statistics, this holds Q_i, an element, S_ij and
one. The price is the same: all of S in HBM, in the chip's type.
"""

from math import isqrt

from flashsim.algorithms.blocks import by_one_key
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
    """Return the largest b, at least 1, with b(d + 2) + 1 ≤ M: Q_i, S_ij, L_i and an
    element of K.
    """
    return max((M - 1) // (d + 2), 1)


def line_3(M: int, N_q: int, d_v: int) -> tuple[int, int]:
    """Return (b_r, b_c), by which N_k (⌈d_v/b_c⌉ N_q + ⌈N_q/b_r⌉ d_v) elements of S and
    V are read; 1 × 1 if none fits.

    Of those b_c that make as many pieces, the least leaves the most rows: it is
    ⌈d_v/c⌉, or c, for a c of √d_v + 1 at most.
    """
    few = range(1, isqrt(d_v) + 2)
    widths = sorted({*few, *(-(-d_v // c) for c in few)})
    fitting = [
        (min((M - 1) // (b_c + 2), N_q), b_c) for b_c in widths if b_c + 3 <= M
    ] or [(1, 1)]
    return min(fitting, key=lambda b: -(-d_v // b[1]) * N_q + -(-N_q // b[0]) * d_v)


def hybrid_streamed(
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
    b_r, b_c = line_3(sram.capacity, N_q, d_v)  # line 3
    Q = Q.divide(B_r)  # line 4
    K = K.divide(B_c, 1)  # line 4
    L = hbm.empty("L", (N_q, 1), sram.dtype)  # line 4
    S = hbm.empty("S", (N_q, N_k), sram.dtype)  # line 4
    L_blocks = L.divide(B_r)  # line 4
    S_tiles = S.divide(B_r, B_c)  # line 4
    for i in sram.loop(blocks.T_r):  # line 5
        Q_i = sram.load(Q[i])  # line 6
        L_i = sram.full(L_blocks[i].shape, float("-inf"))  # line 7
        for j in sram.loop(blocks.T_c):  # line 8
            S_ij = sram.full(S_tiles[i, j].shape, 0.0)  # line 9
            for k in sram.loop(d):  # line 10
                K_jk = sram.load(K[j, k])  # line 11
                S_ij = on_chip(S_ij + Q_i[:, k : k + 1] @ K_jk.T, over=S_ij)  # line 12
            # line 13: end for
            S_masked_ij = on_chip(MASK(tau * S_ij, i, j), over=S_ij)  # line 14
            L_i = on_chip(logaddexp(L_i, logsumexp(S_masked_ij)), over=L_i)  # line 15
            sram.store(S_tiles[i, j], S_masked_ij)  # line 16
        # line 17: end for
        sram.store(L_blocks[i], L_i)  # line 18
    # line 19: end for
    O = hbm.empty("O", (N_q, d_v), V.dtype, "output").divide(b_r, b_c)  # line 20
    L_blocks = L.divide(b_r)  # line 20
    S_columns = S.divide(b_r, 1)  # line 20
    V = V.divide(1, 1)  # line 20
    dropout_by_key = dropout.divided(Blocks(b_r, 1, N_q=N_q, N_k=N_k))
    for u in sram.loop(O.blocks[0]):  # line 21
        L_u = sram.load(L_blocks[u])  # line 22
        for c in sram.loop(O.blocks[1]):  # line 23
            O_uc = sram.full(O[u, c].shape, 0.0)  # line 24
            for n in sram.loop(N_k):  # line 25
                S_un = sram.load(S_columns[u, n])  # line 26
                P_un = on_chip(exp(at_most_0(S_un - finite(L_u))), over=S_un)  # line 27
                P_dropped_un = on_chip(  # line 27
                    P_un * dropout_by_key(P_un, u, n), over=P_un
                )
                for e in sram.loop(O_uc.shape[1]):  # line 28
                    V_ne = sram.load(V[n, c * b_c + e])  # line 29
                    O_ue = O_uc[:, e : e + 1]  # line 29
                    O_ue = on_chip(  # line 30
                        O_ue + product(P_dropped_un, V_ne), over=O_ue
                    )
                # line 31: end for
            # line 32: end for
            sram.store(O[u, c], O_uc)  # line 33
        # line 34: end for
    # line 35: end for
    return O, L  # line 36


ALGORITHM = Algorithm(
    name="hybrid_streamed",
    title="S by rows, O by tiles, by elements",
    short="hybrid, streamed",
    run=hybrid_streamed,
    line_1=by_one_key,
    rows=rows,
    loops="rows, streamed",
    returns=("O", "L"),
    saves=("R",),
    follows=("L",),
    rounds_logs=lambda T_c: T_c + 1,
)
