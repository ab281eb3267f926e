"""FlashAttention with the loops exchanged, forward: the order of FlashAttention-2, and
of the chapter's prefill.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop, and which tiles of S are live:
             not empty.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = ⌈M/4d⌉, B_c = min(⌈M/4d⌉, d).
    3  Divide Q, O, L into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    4  for 1 ≤ i ≤ T_r do
    5    Load Q_i from HBM to on-chip SRAM.
    6    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    7    for 1 ≤ j ≤ T_c, where tile (i, j) is live, do
    8      Load K_j, V_j from HBM to on-chip SRAM.
    9      S_ij = τ Q_i K_jᵀ.
    10     S_ij^masked = MASK(S_ij), unless tile (i, j) is full.
    11     m_i^new = max(m_i, rowmax(S_ij^masked)).
    12     P̃_ij = exp(S_ij^masked − m_i^new).
    13     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    14     P̃_ij^dropped = dropout(P̃_ij, p_drop).
    15     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij^dropped V_j.
    16     m_i ← m_i^new.
    17   end for
    18   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    19   Write O_i, L_i to HBM.
    20 end for
    21 Return O, L, R.

The listing is ours; the steps are those of "FlashAttention: Theory and Practice", "The
Full Algorithm". O, ℓ, m never leave the chip until a row block is done: they are
divided by ℓ once, and O is written once, with a log-sum-exp a row. The price is K and
V, which each of the T_r row blocks streams past; so B_r is the large size here.
Causally, the tiles above the diagonal are not loaded, and only those on it are masked.
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
from flashsim.algorithms.parts import Dropout, Live, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def q_outer(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
    live: Live,
) -> tuple[Matrix, Matrix]:
    """Run on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v) and the
    log-sum-exp L (N_q, 1), in HBM.
    """
    on_chip = sram.on_chip
    N = Q.shape[0]
    d_v = V.shape[1]
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
    for i in sram.loop(blocks.T_r, alike=live.rows_alike):  # line 4
        Q_i = sram.load(Q[i])  # line 5
        O_i = sram.full(O[i].shape, 0.0)  # line 6
        l_i = sram.full(L[i].shape, 0.0)  # line 6
        m_i = sram.full(L[i].shape, float("-inf"))  # line 6
        for j in sram.loop(blocks.T_c, where=live.row(i)):  # line 7
            K_j, V_j = sram.load(K[j], V[j])  # line 8
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 9
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 10
            m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 11
            P_tilde_ij = on_chip(  # line 12
                exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij
            )
            l_i = on_chip(  # line 13
                exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
            )
            P_dropped_ij = on_chip(  # line 14
                P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij
            )
            O_i = on_chip(  # line 15
                exp(m_i - finite(m_i_new)) * O_i + product(P_dropped_ij, V_j), over=O_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 16
        # line 17: end for
        O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 18
        L_i = on_chip(m_i + log(l_i), over=l_i)  # line 18
        sram.store(O[i], O_i)  # line 19
        sram.store(L[i], L_i)  # line 19
    # line 20: end for
    return O, L  # line 21


ALGORITHM = Algorithm(
    name="q_outer",
    title="FlashAttention, loops exchanged",
    short="loops exchanged",
    look=("orange", "v", "-"),
    run=q_outer,
    line_1=q_outer_blocks,
    loops="Q outermost",
    returns=("O", "L"),
    saves=("R",),
)
