"""FlashAttention with the loops exchanged, and keys there and back: at each turn the
last block of K and V stays on chip.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = ⌈M/4d⌉, B_c = min(⌈M/4d⌉, d).
    3  Divide Q, O, L into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    4  Load K_1, V_1 from HBM to on-chip SRAM.
    5  for 1 ≤ i ≤ T_r do
    6    Load Q_i from HBM to on-chip SRAM.
    7    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    8    for the j whose K_j, V_j are on chip, 1 if i is odd, else T_c, do
    9      S_ij^masked = MASK(τ Q_i K_jᵀ).
    10     m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    11     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    12     P̃_ij^dropped = dropout(P̃_ij, p_drop).
    13     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij^dropped V_j, m_i ← m_i^new.
    14   end for
    15   for the other j, upwards if i is odd, else downwards, do
    16     Load K_j, V_j from HBM to on-chip SRAM, over those before.
    17     S_ij^masked = MASK(τ Q_i K_jᵀ).
    18     m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    19     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    20     P̃_ij^dropped = dropout(P̃_ij, p_drop).
    21     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij^dropped V_j, m_i ← m_i^new.
    22   end for
    23   Write O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i to HBM.
    24 end for
    25 Return O, L, R.

The listing is ours. Each of the T_r − 1 turns saves a block of K and V, and no room is
needed for it: the larger B_c, the more. It is to `q_outer` what the snake is to rows in
the smallest games, where it is often optimal. Every tile is computed: empty tiles are
not skipped.
"""

from flashsim.algorithms.blocks import q_outer_blocks
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


def snake(
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
    N = Q.shape[0]
    d_v = V.shape[1]
    T_c = blocks.T_c
    dropout.save()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    O = hbm.empty("O", (N, d_v), V.dtype, "output")  # line 3
    L = hbm.empty("L", (N, 1), sram.dtype)  # line 3
    Q = Q.divide(B_r)  # line 3
    O = O.divide(B_r)  # line 3
    L = L.divide(B_r)  # line 3
    K = K.divide(B_c)  # line 3
    V = V.divide(B_c)  # line 3
    ways = range(T_c), range(T_c - 1, -1, -1)
    K_here, V_here = sram.load(K[0], V[0])  # line 4
    for i in sram.loop(blocks.T_r, alike=(0, 1) * blocks.T_r):  # line 5
        Q_i = sram.load(Q[i])  # line 6
        O_i = sram.full(O[i].shape, 0.0)  # line 7
        l_i = sram.full(L[i].shape, 0.0)  # line 7
        m_i = sram.full(L[i].shape, float("-inf"))  # line 7
        for j in sram.loop(ways[i % 2][:1]):  # line 8
            keys = K[j].shape[0]  # fewer in the last block
            K_j = K_here[:keys]
            V_j = V_here[:keys]
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 9
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 9
            m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 10
            P_tilde_ij = on_chip(  # line 10
                exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij
            )
            l_i = on_chip(  # line 11
                exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
            )
            P_dropped_ij = on_chip(  # line 12
                P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij
            )
            O_i = on_chip(  # line 13
                exp(m_i - finite(m_i_new)) * O_i + product(P_dropped_ij, V_j), over=O_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 13
        # line 14: end for
        for j in sram.loop(ways[i % 2][1:]):  # line 15
            sram.load(K[j], over=K_here)  # line 16
            sram.load(V[j], over=V_here)  # line 16
            rows = K[j].shape[0]
            K_j = K_here[:rows]
            V_j = V_here[:rows]
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 17
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 17
            m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 18
            P_tilde_ij = on_chip(  # line 18
                exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij
            )
            l_i = on_chip(  # line 19
                exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
            )
            P_dropped_ij = on_chip(  # line 20
                P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij
            )
            O_i = on_chip(  # line 21
                exp(m_i - finite(m_i_new)) * O_i + product(P_dropped_ij, V_j), over=O_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 21
        # line 22: end for
        O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 23
        L_i = on_chip(m_i + log(l_i), over=l_i)  # line 23
        sram.store(O[i], O_i)  # line 23
        sram.store(L[i], L_i)  # line 23
    # line 24: end for
    return O, L  # line 25


ALGORITHM = Algorithm(
    name="snake",
    title="Loops exchanged, there and back",
    short="snake",
    run=snake,
    line_1=q_outer_blocks,
    loops="there and back",
    returns=("O", "L"),
)
