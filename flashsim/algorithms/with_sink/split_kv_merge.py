"""Merging FlashDecoding's parts with a sink: the running O_i, ℓ_i, m_i begin as the
sink's part, (0, 1, s), where `merge_in_sequence` begins with (0, 0, −∞).
"""

from flashsim.algorithms.notation import exp, finite, maximum, nonzero
from flashsim.algorithms.parts import Sink
from flashsim.memory.hbm import Matrix
from flashsim.memory.sram import SRAM


def merge_in_sequence_with_sink(
    sram: SRAM, O_parts: Matrix, l_parts: Matrix, m_parts: Matrix, O: Matrix, sink: Sink
) -> None:
    """Merge the parts of each row block into running O_i, ℓ_i, m_i; write O. Load s for
    each row block.
    """
    on_chip = sram.on_chip
    T_r, t = l_parts.blocks
    for i in sram.loop(T_r):  # line 22
        O_i = sram.full(O[i].shape, 0.0)  # line 22
        l_i = sram.full(l_parts[i, 0].shape, sink.l)  # line 22
        m_i = sram.full(m_parts[i, 0].shape, sink.m(m_parts[i, 0]))  # line 22
        for s in sram.loop(t):  # line 22
            O_s, l_s, m_s = sram.load(  # line 22
                O_parts[i, s], l_parts[i, s], m_parts[i, s]
            )
            m_i_new = on_chip(maximum(m_i, m_s))  # line 22
            O_i = on_chip(  # line 22
                exp(m_i - finite(m_i_new)) * O_i + exp(m_s - finite(m_i_new)) * O_s,
                over=O_i,
            )
            l_i = on_chip(  # line 22
                exp(m_i - finite(m_i_new)) * l_i + exp(m_s - finite(m_i_new)) * l_s,
                over=l_i,
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 22
        O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 22
        sram.store(O[i], O_i)  # line 22
