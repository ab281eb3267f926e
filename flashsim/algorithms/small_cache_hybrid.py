"""Attention for M about d²: S by whole rows of Q, as FlashAttention's, and O by tiles
of it, as in `small_cache`.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = ⌊(M − d)/(d + 4)⌋, B_c = 1.
    3  Set the sizes b_r × b_c of a tile of O: of those that fit,
       b_r(b_c + 2) + b_c ≤ M, the ones of fewest accesses.
    4  Divide Q into T_r blocks of B_r rows, K into T_c blocks of B_c rows,
       S into T_r × T_c tiles of B_r × B_c.
    5  for 1 ≤ i ≤ T_r do
    6    Load Q_i from HBM to on-chip SRAM.
    7    On chip, set ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r}.
    8    for 1 ≤ j ≤ T_c do
    9      Load K_j from HBM to on-chip SRAM.
    10     S_ij^masked = MASK(τ Q_i K_jᵀ).
    11     m_i^new = max(m_i, rowmax(S_ij^masked)).
    12     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(exp(S_ij^masked − m_i^new)),
           m_i ← m_i^new.
    13     Write S_ij^masked to HBM.
    14   end for
    15   Write L_i = m_i + log ℓ_i to HBM.
    16 end for
    17 Divide O into tiles of b_r × b_c, L into blocks of b_r rows,
       S into columns of b_r rows, V into pieces of 1 × b_c.
    18 for each block of rows u of O do
    19   Load L_u from HBM to on-chip SRAM.
    20   for each block of columns c of O do
    21     On chip, set O_uc = (0)_{b_r×b_c}.
    22     for 1 ≤ n ≤ N_k do
    23       Load the column S_un and the piece V_nc from HBM to on-chip SRAM.
    24       P_un = exp(S_un − L_u), P_un^dropped = dropout(P_un, p_drop).
    25       O_uc ← O_uc + P_un^dropped V_nc.
    26     end for
    27     Write O_uc to HBM.
    28   end for
    29 end for
    30 Return O, L, R.

The listing is ours. With x = d/√M it makes about (x + 1)² accesses for each pair of
query and key: x² to read K, 1 to write S, x to read it, x to read V. `q_outer` makes
4x², `small_cache` 4x + 1: for d²/4 < M < d², where x is from 1 to 2, both make more.
The price is all of S in HBM, N_q·N_k elements, in the chip's type.
"""

from math import isqrt

from flashsim.algorithms.blocks import by_one_key
from flashsim.algorithms.notation import (
    at_most_0,
    exp,
    finite,
    log,
    maximum,
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
    """Return the largest b, at least 1, with (d + 4)b + d ≤ M: Q_i, K_j, S_ij, ℓ_i,
    m_i, m_i^new.
    """
    return max((M - d) // (d + 4), 1)


def line_3(M: int, N_q: int, d_v: int) -> tuple[int, int]:
    """Return (b_r, b_c), by which N_k (⌈d_v/b_c⌉ N_q + ⌈N_q/b_r⌉ d_v) elements of S and
    V are read; 1 × 1 if none fits.

    Of those b_c that make as many pieces, the least leaves the most rows: it is
    ⌈d_v/c⌉, or c, for a c of √d_v + 1 at most.
    """
    few = range(1, isqrt(d_v) + 2)
    widths = sorted({*few, *(-(-d_v // c) for c in few)})
    fitting = [
        (min((M - b_c) // (b_c + 2), N_q), b_c) for b_c in widths if 2 * b_c + 2 <= M
    ] or [(1, 1)]
    return min(fitting, key=lambda b: -(-d_v // b[1]) * N_q + -(-N_q // b[0]) * d_v)


def small_cache_hybrid(
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
    (N_q, _), (N_k, d_v) = Q.shape, V.shape
    dropout.save()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    b_r, b_c = line_3(sram.capacity, N_q, d_v)  # line 3
    Q = Q.divide(B_r)  # line 4
    K = K.divide(B_c)  # line 4
    L = hbm.empty("L", (N_q, 1), sram.dtype)  # line 4
    S = hbm.empty("S", (N_q, N_k), sram.dtype)  # line 4
    L_blocks = L.divide(B_r)  # line 4
    S_tiles = S.divide(B_r, B_c)  # line 4
    for i in sram.loop(blocks.T_r):  # line 5
        Q_i = sram.load(Q[i])  # line 6
        l_i = sram.full(L_blocks[i].shape, 0.0)  # line 7
        m_i = sram.full(L_blocks[i].shape, float("-inf"))  # line 7
        for j in sram.loop(blocks.T_c):  # line 8
            K_j = sram.load(K[j])  # line 9
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 10
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 10
            m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 11
            l_i = on_chip(  # line 12
                exp(m_i - finite(m_i_new)) * l_i
                + rowsum(exp(S_masked_ij - finite(m_i_new))),
                over=l_i,
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 12
            sram.store(S_tiles[i, j], S_masked_ij)  # line 13
        # line 14: end for
        L_i = on_chip(m_i + log(l_i), over=m_i)  # line 15
        sram.store(L_blocks[i], L_i)  # line 15
    # line 16: end for
    O = hbm.empty("O", (N_q, d_v), V.dtype, "output").divide(b_r, b_c)  # line 17
    L_blocks = L.divide(b_r)  # line 17
    S_columns = S.divide(b_r, 1)  # line 17
    V = V.divide(1, b_c)  # line 17
    dropout_by_key = dropout.divided(Blocks(b_r, 1, N_q=N_q, N_k=N_k))
    for u in sram.loop(O.blocks[0]):  # line 18
        L_u = sram.load(L_blocks[u])  # line 19
        for c in sram.loop(O.blocks[1]):  # line 20
            O_uc = sram.full(O[u, c].shape, 0.0)  # line 21
            for n in sram.loop(N_k):  # line 22
                S_un, V_nc = sram.load(S_columns[u, n], V[n, c])  # line 23
                P_un = on_chip(exp(at_most_0(S_un - finite(L_u))), over=S_un)  # line 24
                P_dropped_un = on_chip(  # line 24
                    P_un * dropout_by_key(P_un, u, n), over=P_un
                )
                O_uc = on_chip(O_uc + product(P_dropped_un, V_nc), over=O_uc)  # line 25
            # line 26: end for
            sram.store(O[u, c], O_uc)  # line 27
        # line 28: end for
    # line 29: end for
    return O, L  # line 30


ALGORITHM = Algorithm(
    name="small_cache_hybrid",
    title="S by rows, O by tiles",
    short="hybrid",
    look=("sky", "P", "-."),
    run=small_cache_hybrid,
    line_1=by_one_key,
    rows=rows,
    loops="rows, tiles",
    returns=("O", "L"),
    follows=("m", "l", "L"),
    rounds_logs=lambda T_c: 2,
)
