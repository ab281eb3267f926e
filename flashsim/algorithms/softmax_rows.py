"""P = softmax(S) by rows, for Algorithm 0's line 2, in two forms: rows that fit in SRAM, and rows that do not.

A row that fits is read once. A longer one must be read twice: once for its maximum and sum, kept running, and once
more to normalise. The paper counts one read; below M = N_k + 2 that is not to be had.
"""

from __future__ import annotations

from collections.abc import Callable

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum
from flashsim.memory import SRAM, Matrix

SoftmaxRows = Callable[[SRAM, Matrix, Matrix], None]


def softmax_rows_for(M: int, N_k: int) -> SoftmaxRows:
    """Return the form that M allows for rows of N_k: a whole row needs room for itself, m and ℓ."""
    return whole_rows if N_k + 2 <= M else long_rows


def whole_rows(sram: SRAM, S: Matrix, P: Matrix) -> None:
    """As many whole rows at a time as fit."""
    on_chip = sram.on_chip
    N_k = S.shape[1]
    rows = sram.capacity // (N_k + 2)
    S, P = S.divide(rows), P.divide(rows)
    for i in sram.loop(len(S)):  # line 2
        S_i = sram.load(S[i])  # line 2
        m_i = on_chip(rowmax(S_i))  # line 2
        P_tilde_i = on_chip(exp(S_i - m_i), over=S_i)  # line 2
        l_i = on_chip(rowsum(P_tilde_i))  # line 2
        P_i = on_chip(P_tilde_i / l_i, over=P_tilde_i)  # line 2
        sram.store(P[i], P_i)  # line 2


def long_rows(sram: SRAM, S: Matrix, P: Matrix) -> None:
    """One row at a time, in pieces that leave room for its running m and ℓ, and the new m."""
    on_chip = sram.on_chip
    piece = max(sram.capacity - 3, 1)
    S, P = S.divide(1, piece), P.divide(1, piece)
    rows, pieces = S.blocks
    for i in sram.loop(rows):  # line 2
        m_i = sram.full((1, 1), float("-inf"))  # line 2
        l_i = sram.full((1, 1), 0.0)  # line 2
        for j in sram.loop(pieces):  # line 2
            S_ij = sram.load(S[i, j])  # line 2
            m_i_new = on_chip(maximum(m_i, rowmax(S_ij)))  # line 2
            P_tilde_ij = on_chip(exp(S_ij - m_i_new), over=S_ij)  # line 2
            l_i = on_chip(exp(m_i - m_i_new) * l_i + rowsum(P_tilde_ij), over=l_i)  # line 2
            m_i = on_chip(m_i_new, over=m_i)  # line 2
        for j in sram.loop(pieces):  # line 2
            S_ij = sram.load(S[i, j])  # line 2
            P_ij = on_chip(exp(S_ij - m_i) / l_i, over=S_ij)  # line 2
            sram.store(P[i, j], P_ij)  # line 2
