"""Sliding-window attention, forward: a row block loads only the blocks of keys that its windows reach.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, window (w_left, w_right), masking function
             MASK, which allows keys in the window alone, dropout probability p_drop.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = ⌈M/4d⌉, B_c = min(⌈M/4d⌉, d).
    3  Divide Q, O, L into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    4  for 1 ≤ i ≤ T_r do
    5    Load Q_i from HBM to on-chip SRAM.
    6    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    7    for 1 ≤ j ≤ T_c, where block j has a key from p − w_left to p + w_right for a position p of block i, do
    8      Load K_j, V_j from HBM to on-chip SRAM.
    9      S_ij = τ Q_i K_jᵀ.
    10     S_ij^masked = MASK(S_ij), unless tile (i, j) is full.
    11     m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    12     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    13     P̃_ij^dropped = dropout(P̃_ij, p_drop).
    14     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij^dropped V_j, m_i ← m_i^new.
    15   end for
    16   Write O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i to HBM.
    17 end for
    18 Return O, L, R.

The listing is ours; the window is that of Longformer (I. Beltagy, M. E. Peters, A. Cohan, 2020) and of FlashAttention's
`window_size`. Query i is at position p = i + N_k − N_q. A row block reaches B_r + w_left + w_right keys, so it loads that many
and less than 2B_c more: K and V are read about (B_r + w_left + w_right)/B_r times, whatever N is. Without a window this is
`q_outer`.

The option `window` is (left, right), or `left` alone, with right = 0; −1: no limit on that side. Default: no window.
"""

from __future__ import annotations

from flashsim.algorithms.blocks import by_queries
from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.parts import Dropout, Live, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.masks.rules import SlidingWindow
from flashsim.problem.options import Option
from flashsim.problem.shapes import Blocks


def sliding_window(
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
    """Run on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v) and the log-sum-exp L (N_q, 1), in HBM."""
    on_chip = sram.on_chip
    N, d_v = Q.shape[0], V.shape[1]
    dropout.save()  # line 1
    B_r, B_c = blocks.B_r, blocks.B_c  # line 2
    O, L = hbm.empty("O", (N, d_v), V.dtype, "output"), hbm.empty("L", (N, 1), sram.dtype)  # line 3
    Q, O, L, K, V = Q.divide(B_r), O.divide(B_r), L.divide(B_r), K.divide(B_c), V.divide(B_c)  # line 3
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
            P_tilde_ij = on_chip(exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij)  # line 11
            l_i = on_chip(exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i)  # line 12
            P_dropped_ij = on_chip(P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij)  # line 13
            O_i = on_chip(exp(m_i - finite(m_i_new)) * O_i + product(P_dropped_ij, V_j), over=O_i)  # line 14
            m_i = on_chip(m_i_new, over=m_i)  # line 14
        # line 15: end for
        O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 16
        L_i = on_chip(m_i + log(l_i), over=l_i)  # line 16
        sram.store(O[i], O_i)  # line 16
        sram.store(L[i], L_i)  # line 16
    # line 17: end for
    return O, L  # line 18


ALGORITHM = Algorithm(
    name="sliding_window",
    title="Sliding window",
    run=sliding_window,
    options=(
        Option(
            "window",
            None,
            SlidingWindow.of,
            "left,right, or left alone: how many keys before and after its own position a query attends to, -1: all. "
            "Default: all",
            examples=((0, 0), (3, 1), (5, -1), (-1, 4)),
        ),
    ),
    returns=("O", "L"),
    saves=("R",),
    line_1=by_queries,
    loops=None,
)
