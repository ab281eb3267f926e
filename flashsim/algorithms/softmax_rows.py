"""Softmax by rows, and its gradient, for standard attention: in one form for rows that
fit in SRAM, one for longer rows.

A row that fits is read once. A longer one must be read twice: once for its maximum and
sum (or, in the gradient, for Σ_l P_il dP_il), kept running, and once more to use them.
The paper counts one read, which is not enough for a row that is too long for M.
"""

from collections.abc import Callable

from flashsim.algorithms.notation import (
    exp,
    finite,
    gated,
    maximum,
    nonzero,
    rowmax,
    rowsum,
)
from flashsim.memory.hbm import Matrix
from flashsim.memory.sram import SRAM

SoftmaxRows = Callable[[SRAM, Matrix, Matrix], None]
SoftmaxBackward = Callable[[SRAM, Matrix, Matrix, Matrix], None]


def softmax_rows_for(M: int, N_k: int) -> SoftmaxRows:
    """Return the form that M allows for rows of N_k: a whole row needs room for itself,
    m and ℓ.
    """
    return whole_rows if N_k + 2 <= M else long_rows


def whole_rows(sram: SRAM, S: Matrix, P: Matrix) -> None:
    """As many whole rows at a time as fit."""
    on_chip = sram.on_chip
    N_k = S.shape[1]
    rows = sram.capacity // (N_k + 2)
    S = S.divide(rows)
    P = P.divide(rows)
    for i in sram.loop(len(S)):  # line 2
        S_i = sram.load(S[i])  # line 2
        m_i = on_chip(rowmax(S_i))  # line 2
        P_tilde_i = on_chip(exp(S_i - finite(m_i)), over=S_i)  # line 2
        l_i = on_chip(rowsum(P_tilde_i))  # line 2
        P_i = on_chip(P_tilde_i / nonzero(l_i), over=P_tilde_i)  # line 2
        sram.store(P[i], P_i)  # line 2


def long_rows(sram: SRAM, S: Matrix, P: Matrix) -> None:
    """One row at a time, in pieces that leave room for its running m and ℓ, and the
    new m.
    """
    on_chip = sram.on_chip
    piece = max(sram.capacity - 3, 1)
    S = S.divide(1, piece)
    P = P.divide(1, piece)
    rows, pieces = S.blocks
    for i in sram.loop(rows):  # line 2
        m_i = sram.full((1, 1), float("-inf"))  # line 2
        l_i = sram.full((1, 1), 0.0)  # line 2
        for j in sram.loop(pieces):  # line 2
            S_ij = sram.load(S[i, j])  # line 2
            m_i_new = on_chip(maximum(m_i, rowmax(S_ij)))  # line 2
            P_tilde_ij = on_chip(exp(S_ij - finite(m_i_new)), over=S_ij)  # line 2
            l_i = on_chip(  # line 2
                exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 2
        for j in sram.loop(pieces):  # line 2
            S_ij = sram.load(S[i, j])  # line 2
            P_ij = on_chip(exp(S_ij - finite(m_i)) / nonzero(l_i), over=S_ij)  # line 2
            sram.store(P[i, j], P_ij)  # line 2


def softmax_backward_for(M: int, N_k: int) -> SoftmaxBackward:
    """Return the gradient's form that M allows: a whole row needs room for P, dP, and
    their product's sum.
    """
    return whole_rows_backward if 2 * N_k + 1 <= M else long_rows_backward


def whole_rows_backward(sram: SRAM, P: Matrix, dP: Matrix, dS: Matrix) -> None:
    """As many whole rows at a time as fit."""
    on_chip = sram.on_chip
    rows = sram.capacity // (2 * P.shape[1] + 1)
    P = P.divide(rows)
    dP = dP.divide(rows)
    dS = dS.divide(rows)
    for i in sram.loop(len(P)):  # line 3
        P_i, dP_i = sram.load(P[i], dP[i])  # line 3
        D_i = on_chip(rowsum(gated(P_i, dP_i)))  # line 3
        dS_i = on_chip(gated(P_i, dP_i - D_i), over=dP_i)  # line 3
        sram.store(dS[i], dS_i)  # line 3


def long_rows_backward(sram: SRAM, P: Matrix, dP: Matrix, dS: Matrix) -> None:
    """One row at a time, in pieces of P and of dP that leave room for the running
    sum.
    """
    on_chip = sram.on_chip
    piece = max((sram.capacity - 1) // 2, 1)
    P = P.divide(1, piece)
    dP = dP.divide(1, piece)
    dS = dS.divide(1, piece)
    rows, pieces = P.blocks
    for i in sram.loop(rows):  # line 3
        D_i = sram.full((1, 1), 0.0)  # line 3
        for j in sram.loop(pieces):  # line 3
            P_ij, dP_ij = sram.load(P[i, j], dP[i, j])  # line 3
            D_i = on_chip(D_i + rowsum(gated(P_ij, dP_ij)), over=D_i)  # line 3
        for j in sram.loop(pieces):  # line 3
            P_ij, dP_ij = sram.load(P[i, j], dP[i, j])  # line 3
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 3
            sram.store(dS[i, j], dS_ij)  # line 3
