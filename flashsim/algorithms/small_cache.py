"""Attention for a small cache, M < d²: O(N²d/√M) HBM accesses, where FlashAttention
makes Θ(N²d²/M), which is more.

B. Saha, C. Ye, "The I/O Complexity of Attention, or How Optimal is FlashAttention?",
ICML 2024 (arXiv 2402.07443), show that Θ(N²d/√M) is what attention costs there, and
that FlashAttention is optimal only from M = d² on. The paper gives the bound by blocked
matrix products; this listing of them is ours.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = B_c = ⌊√(M + 4)⌋ − 2.
    3  Divide Q into T_r blocks of B_r rows, K into T_c blocks of B_c rows,
       and each into its d columns.
    4  Divide V into N_k rows, and each into T_v = ⌈d_v/B_c⌉ pieces of B_c columns.
    5  Divide O into T_r × T_v tiles of B_r × B_c, L into T_r blocks of B_r rows.
    6  for 1 ≤ i ≤ T_r do
    7    On chip, set ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r}.
    8    for 1 ≤ j ≤ T_c do
    9      On chip, set S_ij = (0)_{B_r×B_c}.
    10     for 1 ≤ k ≤ d do
    11       Load the columns Q_ik, K_jk from HBM to on-chip SRAM.
    12       S_ij ← S_ij + Q_ik K_jkᵀ.
    13     end for
    14     S_ij^masked = MASK(τ S_ij).
    15     m_i^new = max(m_i, rowmax(S_ij^masked)).
    16     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(exp(S_ij^masked − m_i^new)),
           m_i ← m_i^new.
    17     Write S_ij^masked to the strip S_i in HBM.
    18   end for
    19   for 1 ≤ c ≤ T_v do
    20     On chip, set O_ic = (0)_{B_r×B_c}.
    21     for 1 ≤ n ≤ N_k do
    22       Load the strip's column S_in and the piece V_nc from HBM to on-chip SRAM.
    23       P_in = exp(S_in − m_i), P_in^dropped = dropout(P_in, p_drop).
    24       O_ic ← O_ic + P_in^dropped V_nc.
    25     end for
    26     Write O_ic ← diag(ℓ_i)⁻¹ O_ic to HBM.
    27   end for
    28   Write L_i = m_i + log ℓ_i to HBM.
    29 end for
    30 Return O, L, R.

FlashAttention keeps rows of full width d on chip, and tiles of M/4d rows at most. Here
nearly all of M holds one square tile of S or of O, into which both factors' columns are
streamed: an element that is loaded takes part in √M products, not M/4d. m_i is known
before the first weight is, so no O is rescaled; but S must wait in HBM for it. The
strip S_i is B_r × N_k, the same for every i, and kept as computed: in the chip's type,
not in the inputs'.
"""

from math import isqrt

from flashsim.algorithms.blocks import squares
from flashsim.algorithms.notation import (
    exp,
    finite,
    log,
    maximum,
    nonzero,
    product,
    rowmax,
    rowsum,
)
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def rows(M: int, d: int, d_v: int) -> int:
    """Return the largest b, at least 1, with b² + 4b ≤ M: a tile, a column of each
    factor, m_i and ℓ_i. d has no part.
    """
    return max(isqrt(M + 4) - 2, 1)


def small_cache(
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
    K = K.divide(B_c, 1)  # line 3
    V = V.divide(1, B_c)  # line 4
    O = hbm.empty("O", (N_q, d_v), V.dtype, "output").divide(B_r, B_c)  # line 5
    L = hbm.empty("L", (N_q, 1), sram.dtype).divide(B_r)  # line 5
    S = hbm.empty("S", (B_r, N_k), sram.dtype)
    dropout_by_key = dropout.divided(Blocks(B_r, 1, N_q=N_q, N_k=N_k))
    for i in sram.loop(blocks.T_r):  # line 6
        l_i = sram.full(L[i].shape, 0.0)  # line 7
        m_i = sram.full(L[i].shape, float("-inf"))  # line 7
        # fewer rows in the last strip
        S_tiles = S.divide(l_i.shape[0], B_c)
        S_columns = S.divide(l_i.shape[0], 1)
        for j in sram.loop(blocks.T_c):  # line 8
            S_ij = sram.full(S_tiles[0, j].shape, 0.0)  # line 9
            for k in sram.loop(d):  # line 10
                Q_ik, K_jk = sram.load(Q[i, k], K[j, k])  # line 11
                S_ij = on_chip(S_ij + Q_ik @ K_jk.T, over=S_ij)  # line 12
            # line 13: end for
            S_masked_ij = on_chip(MASK(tau * S_ij, i, j), over=S_ij)  # line 14
            m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 15
            l_i = on_chip(  # line 16
                exp(m_i - finite(m_i_new)) * l_i
                + rowsum(exp(S_masked_ij - finite(m_i_new))),
                over=l_i,
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 16
            sram.store(S_tiles[0, j], S_masked_ij)  # line 17
        # line 18: end for
        for c in sram.loop(O.blocks[1]):  # line 19
            O_ic = sram.full(O[i, c].shape, 0.0)  # line 20
            for n in sram.loop(N_k):  # line 21
                S_in, V_nc = sram.load(S_columns[0, n], V[n, c])  # line 22
                P_in = on_chip(exp(S_in - finite(m_i)), over=S_in)  # line 23
                P_dropped_in = on_chip(  # line 23
                    P_in * dropout_by_key(P_in, i, n), over=P_in
                )
                O_ic = on_chip(O_ic + product(P_dropped_in, V_nc), over=O_ic)  # line 24
            # line 25: end for
            O_ic = on_chip(O_ic / nonzero(l_i), over=O_ic)  # line 26
            sram.store(O[i, c], O_ic)  # line 26
        # line 27: end for
        L_i = on_chip(m_i + log(l_i), over=m_i)  # line 28
        sram.store(L[i], L_i)  # line 28
    # line 29: end for
    return O, L  # line 30


ALGORITHM = Algorithm(
    name="small_cache",
    title="Saha and Ye, small cache",
    short="small cache",
    look=("black", "x", ":"),
    run=small_cache,
    line_1=squares,
    rows=rows,
    loops="small cache",
    returns=("O", "L"),
    saves=("R",),
    follows=("m", "l", "L"),
)
