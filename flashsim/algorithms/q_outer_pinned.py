"""FlashAttention with the loops exchanged, where spare room on chip holds rows of K and
V for the whole run.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = ⌈M/4d⌉, B_c = min(⌈M/32d⌉, ⌈d/8⌉).
    3  Divide Q, O, L into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    4  Load K_1, V_1 … K_p, V_p from HBM to on-chip SRAM:
       as many as fit beside what lines 5 to 24 need.
    5  for 1 ≤ i ≤ T_r do
    6    Load Q_i from HBM to on-chip SRAM.
    7    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    8    for 1 ≤ j ≤ p do
    9      S_ij^masked = MASK(τ Q_i K_jᵀ).
    10     m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    11     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    12     P̃_ij^dropped = dropout(P̃_ij, p_drop).
    13     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij^dropped V_j, m_i ← m_i^new.
    14   end for
    15   for p < j ≤ T_c do
    16     Load K_j, V_j from HBM to on-chip SRAM.
    17     S_ij^masked = MASK(τ Q_i K_jᵀ).
    18     m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    19     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    20     P̃_ij^dropped = dropout(P̃_ij, p_drop).
    21     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij^dropped V_j, m_i ← m_i^new.
    22   end for
    23   Write O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i to HBM.
    24 end for
    25 Return O, L, R.

The listing is ours. Rows of Q in T_r blocks rarely fill M: what is left over holds s =
p·B_c rows of K and V, which then are read once, not T_r times. It saves (T_r − 1)·s·2d
accesses: much where N is small, nothing in the limit. Narrow blocks of keys leave more
room, so line 2's are an eighth of `q_outer`'s. Every tile is computed: empty tiles are
not skipped.
"""

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


def line_2(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c) where a block of Q may have `rows` rows."""
    return rows, min(-(-rows // 8), -(-d // 8))


def line_4(M: int, blocks: Blocks, w: int, masking: int) -> int:
    """Return p: blocks of K and V, w columns wide, that fit beside Q_i, O_i, K_j, V_j,
    S_ij, ℓ_i, m_i, m_i^new and the mask's.
    """
    B_r = blocks.B_r
    B_c = blocks.B_c
    spare = M - (B_r + B_c) * w - B_r * B_c - 3 * B_r - masking
    return min(max(spare, 0) // (B_c * w), blocks.T_c)


def q_outer_pinned(
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
    (N, d), d_v = Q.shape, V.shape[1]
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
    p = line_4(sram.capacity, blocks, d + d_v, MASK.room(B_r, B_c))  # line 4
    pinned = [sram.load(K[j], V[j]) for j in range(p)]  # line 4
    for i in sram.loop(blocks.T_r):  # line 5
        Q_i = sram.load(Q[i])  # line 6
        O_i = sram.full(O[i].shape, 0.0)  # line 7
        l_i = sram.full(L[i].shape, 0.0)  # line 7
        m_i = sram.full(L[i].shape, float("-inf"))  # line 7
        for j in sram.loop(range(p)):  # line 8
            K_j, V_j = pinned[j]
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
        for j in sram.loop(range(p, blocks.T_c)):  # line 15
            K_j, V_j = sram.load(K[j], V[j])  # line 16
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
    name="q_outer_pinned",
    title="Loops exchanged, K and V pinned",
    short="exchanged, pinned",
    run=q_outer_pinned,
    line_1=line_2,
    loops="K, V pinned",
    returns=("O", "L"),
)
