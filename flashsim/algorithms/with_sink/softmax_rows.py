"""Softmax by rows, with a sink's logit s as one more score of each row: in one form for
rows that fit in SRAM, one for longer rows.

The weight of the sink in each row is written to HBM, as P_sink.
"""

from collections.abc import Callable

from flashsim.algorithms.notation import (
    exp,
    finite,
    maximum,
    nonzero,
    rowmax,
    rowsum,
)
from flashsim.algorithms.parts import Sink
from flashsim.memory.hbm import Matrix
from flashsim.memory.sram import SRAM

SoftmaxRows = Callable[[SRAM, Matrix, Matrix, Sink], None]


def softmax_rows_for(M: int, N_k: int, room: int) -> SoftmaxRows:
    """Return the form that M allows for rows of N_k: a whole row needs room for itself,
    m and ℓ, and `room` for a sink.
    """
    return whole_rows if N_k + 2 + room <= M else long_rows


def whole_rows(sram: SRAM, S: Matrix, P: Matrix, sink: Sink) -> None:
    """As many whole rows at a time as fit."""
    on_chip = sram.on_chip
    N_k = S.shape[1]
    rows = (sram.capacity - sink.room) // (N_k + 2)
    S = S.divide(rows)
    P = P.divide(rows)
    for i in sram.loop(len(S)):  # line 2
        S_i = sram.load(S[i])  # line 2
        m_i = on_chip(sink.above(rowmax(S_i), S[i]))  # line 2
        P_tilde_i = on_chip(exp(S_i - finite(m_i)), over=S_i)  # line 2
        l_i = on_chip(sink.total(rowsum(P_tilde_i), m_i))  # line 2
        P_i = on_chip(P_tilde_i / nonzero(l_i), over=P_tilde_i)  # line 2
        sram.store(P[i], P_i)  # line 2
        sink.keep(m_i, l_i, S[i])  # line 2


def long_rows(sram: SRAM, S: Matrix, P: Matrix, sink: Sink) -> None:
    """One row at a time, in pieces that leave room for its running m and ℓ, and the
    new m.
    """
    on_chip = sram.on_chip
    piece = max(sram.capacity - 3, 1)
    S = S.divide(1, piece)
    P = P.divide(1, piece)
    rows, pieces = S.blocks
    for i in sram.loop(rows):  # line 2
        m_i = sram.full((1, 1), sink.m(S[i, 0]))  # line 2
        l_i = sram.full((1, 1), sink.l)  # line 2
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
        sink.keep(m_i, l_i, S[i, 0])  # line 2
