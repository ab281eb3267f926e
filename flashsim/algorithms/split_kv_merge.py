"""Merging FlashDecoding's parts (O_s, ℓ_s, m_s), of one row block each: one after
another, or as a tree of pairs.

Two parts become one: m = max(m_a, m_b), ℓ = e^{m_a − m} ℓ_a + e^{m_b − m} ℓ_b, and O
likewise; the last is divided by ℓ. Apart from rounding this is associative, so any
order will do. In sequence every part is read once and only O is written. In a tree,
pairs are merged at the same time, level by level, and every merged part goes back to
HBM: about twice the traffic, in log₂ t steps and not t. Sources: "FlashAttention:
Theory and Practice", "FlashDecoding: Phase 2" and "merge(tile_i, tile_j)".
"""

from collections.abc import Callable

from flashsim.algorithms.notation import exp, finite, maximum, nonzero
from flashsim.memory.hbm import Matrix
from flashsim.memory.sram import SRAM

Merge = Callable[[SRAM, Matrix, Matrix, Matrix, Matrix], None]


def merge_in_sequence(
    sram: SRAM, O_parts: Matrix, l_parts: Matrix, m_parts: Matrix, O: Matrix
) -> None:
    """Merge the parts of each row block into running O_i, ℓ_i, m_i; write O."""
    on_chip = sram.on_chip
    T_r, t = l_parts.blocks
    for i in sram.loop(T_r):  # line 22
        O_i = sram.full(O[i].shape, 0.0)  # line 22
        l_i = sram.full(l_parts[i, 0].shape, 0.0)  # line 22
        m_i = sram.full(m_parts[i, 0].shape, float("-inf"))  # line 22
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


def merge_as_tree(
    sram: SRAM, O_parts: Matrix, l_parts: Matrix, m_parts: Matrix, O: Matrix
) -> None:
    """Merge neighbours, then neighbouring pairs, and so on, in place in HBM; write O
    from the last one left.
    """
    on_chip = sram.on_chip
    T_r, t = l_parts.blocks
    apart = 1
    while apart < t:
        for i in sram.loop(T_r):  # line 22
            for pair in sram.loop(-(-(t - apart) // (2 * apart))):  # line 22
                a = 2 * apart * pair
                b = 2 * apart * pair + apart
                O_a, l_a, m_a = sram.load(  # line 22
                    O_parts[i, a], l_parts[i, a], m_parts[i, a]
                )
                O_b, l_b, m_b = sram.load(  # line 22
                    O_parts[i, b], l_parts[i, b], m_parts[i, b]
                )
                m_ab = on_chip(maximum(m_a, m_b))  # line 22
                O_ab = on_chip(  # line 22
                    exp(m_a - finite(m_ab)) * O_a + exp(m_b - finite(m_ab)) * O_b,
                    over=O_a,
                )
                l_ab = on_chip(  # line 22
                    exp(m_a - finite(m_ab)) * l_a + exp(m_b - finite(m_ab)) * l_b,
                    over=l_a,
                )
                sram.store(O_parts[i, a], O_ab)  # line 22
                sram.store(l_parts[i, a], l_ab)  # line 22
                sram.store(m_parts[i, a], m_ab)  # line 22
        apart *= 2
    for i in sram.loop(T_r):  # line 22
        O_i, l_i = sram.load(O_parts[i, 0], l_parts[i, 0])  # line 22
        O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 22
        sram.store(O[i], O_i)  # line 22


MERGES: dict[str, Merge] = {"sequence": merge_in_sequence, "tree": merge_as_tree}
