"""FlashAttention with the loops exchanged, K and V streamed element by element, and one
statistic a row; spare room holds keys.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = ⌊(M − 1)/(d + d_v + 2)⌋, B_c = 1.
    3  Divide Q, O, L into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows,
       and each block into its columns.
    4  Set p: how many blocks of K and V fit beside Q_i, O_i, L_i, S_ij,
       a column of K_j and the mask's block.
    5  Load K_1 … K_p, V_1 … V_p from HBM to on-chip SRAM, to stay.
    6  for 1 ≤ i ≤ T_r do
    7    Load Q_i from HBM to on-chip SRAM.
    8    Initialize O_i = (0)_{B_r×d_v}, L_i = (−∞)_{B_r} on SRAM.
    9    for 1 ≤ j ≤ p do
    10     S_ij^masked = MASK(τ Q_i K_jᵀ).
    11     O_i ← diag(e^{L_i − L_i^new}) O_i, L_i ← L_i^new,
           where L_i^new = log(e^{L_i} + rowsum(exp(S_ij^masked))).
    12     P_ij = exp(S_ij^masked − L_i), P_ij^dropped = dropout(P_ij, p_drop).
    13     O_i ← O_i + P_ij^dropped V_j.
    14   end for
    15   for p < j ≤ T_c do
    16     On chip, set S_ij = (0)_{B_r×B_c}.
    17     for 1 ≤ k ≤ d do
    18       Load the column K_jk from HBM to on-chip SRAM.
    19       S_ij ← S_ij + Q_ik K_jkᵀ.
    20     end for
    21     S_ij^masked = MASK(τ S_ij).
    22     O_i ← diag(e^{L_i − L_i^new}) O_i, L_i ← L_i^new, as in line 11.
    23     P_ij = exp(S_ij^masked − L_i), P_ij^dropped = dropout(P_ij, p_drop).
    24     for 1 ≤ c ≤ d_v do
    25       Load the column V_jc from HBM to on-chip SRAM.
    26       O_ic ← O_ic + P_ij^dropped V_jc.
    27     end for
    28   end for
    29   Write O_i, L_i to HBM.
    30 end for
    31 Return O, L, R.

The listing is ours. AccelForge, a mapper, found the streams: where `q_outer` holds a
row of K and of V, one element is enough, as S_ij and O_i take up what it contributes
before the next comes. Q_i, O_i, S_ij and that element are all that AccelForge counts. A
softmax needs L_i, too. It is the only statistic: O_i is kept divided by what ℓ_i would
be, and L_i^new is made twice, from the same L_i and S_ij. Every tile is computed: empty
tiles are not skipped.
"""

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
    """Return the largest b, at least 1, with b(d + d_v + 2) + 1 ≤ M: Q_i, O_i, S_ij,
    L_i and an element of K or V.
    """
    return max((M - 1) // (d + d_v + 2), 1)


def line_4(M: int, blocks: Blocks, N_k: int, w: int, masking: int) -> int:
    """Return p, of blocks of K and V that are w columns wide: T_c where all fit, as no
    column is then streamed.
    """
    spare = M - blocks.B_r * (w + blocks.B_c + 1) - masking
    if spare >= N_k * w:
        return blocks.T_c
    return min(max(spare - blocks.B_c, 0) // (blocks.B_c * w), blocks.T_c)


def streamed(
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
    """Run on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v) and the
    log-sum-exp L (N_q, 1), in HBM.
    """
    on_chip = sram.on_chip
    (N_q, d), (N_k, d_v) = Q.shape, V.shape
    dropout.save()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    O = hbm.empty("O", (N_q, d_v), V.dtype, "output")  # line 3
    L = hbm.empty("L", (N_q, 1), sram.dtype)  # line 3
    Q = Q.divide(B_r)  # line 3
    O = O.divide(B_r)  # line 3
    L = L.divide(B_r)  # line 3
    K_blocks = K.divide(B_c)  # line 3
    V_blocks = V.divide(B_c)  # line 3
    K = K.divide(B_c, 1)  # line 3
    V = V.divide(B_c, 1)  # line 3
    p = line_4(sram.capacity, blocks, N_k, d + d_v, MASK.room(B_r, B_c))  # line 4
    pinned = [sram.load(K_blocks[j], V_blocks[j]) for j in range(p)]  # line 5
    for i in sram.loop(blocks.T_r):  # line 6
        Q_i = sram.load(Q[i])  # line 7
        O_i = sram.full(O[i].shape, 0.0)  # line 8
        L_i = sram.full(L[i].shape, float("-inf"))  # line 8
        for j in sram.loop(range(p)):  # line 9
            K_j, V_j = pinned[j]
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 10
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 10
            O_i = on_chip(  # line 11
                exp(L_i - finite(logaddexp(L_i, logsumexp(S_masked_ij)))) * O_i,
                over=O_i,
            )
            L_i = on_chip(logaddexp(L_i, logsumexp(S_masked_ij)), over=L_i)  # line 11
            P_ij = on_chip(  # line 12
                exp(at_most_0(S_masked_ij - finite(L_i))), over=S_masked_ij
            )
            P_dropped_ij = on_chip(P_ij * dropout(P_ij, i, j), over=P_ij)  # line 12
            O_i = on_chip(O_i + product(P_dropped_ij, V_j), over=O_i)  # line 13
        # line 14: end for
        for j in sram.loop(range(p, blocks.T_c)):  # line 15
            S_ij = sram.full((Q_i.shape[0], K_blocks[j].shape[0]), 0.0)  # line 16
            for k in sram.loop(d):  # line 17
                K_jk = sram.load(K[j, k])  # line 18
                S_ij = on_chip(S_ij + Q_i[:, k : k + 1] @ K_jk.T, over=S_ij)  # line 19
            # line 20: end for
            S_masked_ij = on_chip(MASK(tau * S_ij, i, j), over=S_ij)  # line 21
            O_i = on_chip(  # line 22
                exp(L_i - finite(logaddexp(L_i, logsumexp(S_masked_ij)))) * O_i,
                over=O_i,
            )
            L_i = on_chip(logaddexp(L_i, logsumexp(S_masked_ij)), over=L_i)  # line 22
            P_ij = on_chip(  # line 23
                exp(at_most_0(S_masked_ij - finite(L_i))), over=S_masked_ij
            )
            P_dropped_ij = on_chip(P_ij * dropout(P_ij, i, j), over=P_ij)  # line 23
            for c in sram.loop(d_v):  # line 24
                V_jc = sram.load(V[j, c])  # line 25
                O_ic = O_i[:, c : c + 1]  # line 25
                O_ic = on_chip(O_ic + product(P_dropped_ij, V_jc), over=O_ic)  # line 26
            # line 27: end for
        # line 28: end for
        sram.store(O[i], O_i)  # line 29
        sram.store(L[i], L_i)  # line 29
    # line 30: end for
    return O, L  # line 31


ALGORITHM = Algorithm(
    name="streamed",
    title="Loops exchanged, K and V by elements",
    short="streamed",
    run=streamed,
    line_1=by_one_key,
    rows=rows,
    loops="K, V streamed",
    returns=("O", "L"),
    saves=("R",),
    follows=("L", "O"),
    rounds_logs=lambda T_c: T_c + 1,
)
