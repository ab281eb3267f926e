"""The loops exchanged; the keys are read upwards for one row block and downwards for the next. At
each turn the last block stays on chip. Every tile is computed.

The last block of keys, of N_k − (T_c − 1)B_c, is kept ⌊T_r/2⌋ times, the first ⌊(T_r − 1)/2⌋ times.
So the rows of K that are read are W = T_r·N_k − ⌊T_r/2⌋(N_k − (T_c − 1)B_c) − ⌊(T_r − 1)/2⌋B_c. w =
d + d_v.

    peak    B_c·w + B_r·w + 3B_r and the largest tile S_ij with the mask's block
"""

from dataclasses import replace

from flashsim.attention.shapes import Blocks
from flashsim.theory import q_outer
from flashsim.theory.problem import OneHead, Tiles


def symbols(p: OneHead, blocks: Blocks) -> dict[str, int]:
    T_r = blocks.T_r
    last = p.N_k - (blocks.T_c - 1) * blocks.B_c
    return {"W": T_r * p.N_k - T_r // 2 * last - (T_r - 1) // 2 * blocks.B_c}


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w = p.d + p.d_v
    return blocks.B_c * w + tiles.most(lambda r, c: r * w + r * c + 3 * r + p.mask_tile(r, c))


FORM = replace(
    q_outer.FORM,
    name="snake",
    symbols=symbols,
    meanings={"W": "rows of K and V that are read"},
    peak=peak,
    live=False,
    sink=None,
    theta=None,
    formulas={**q_outer.FORM.formulas, "K": ("W * d", "0"), "V": ("W * d_v", "0")},
)
