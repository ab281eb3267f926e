"""The loops exchanged, K and V streamed by columns of B_c elements, s rows of them pinned. w = d +
d_v; every tile is computed.

p blocks are pinned, of those that fit in M − B_r(w + B_c + 1) − the mask's block: T_c if all of K
and V do, else as many as leave B_c elements for the column; s = min(p·B_c, N_k). The mask's block
is counted as in `q_outer_pinned`.

    peak    s·w + B_r(w + 1) and a tile S_ij with the mask's block; and, where p < T_c, a column of
            K_j or V_j
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles, ceil_div
from flashsim.theory.q_outer_pinned import columns
from flashsim.theory.small_cache_hybrid import line_1


def rows(M: int, d: int, d_v: int) -> int:
    return max((M - 1) // (d + d_v + 2), 1)


def _pinned(p: OneHead, blocks: Blocks) -> int:
    """Return p."""
    B_r = blocks.B_r
    B_c = blocks.B_c
    w = p.d + p.d_v
    masking = p.mask_tile(B_r, B_c) + B_r * min(ceil_div(B_c - 1, 32) + 1, p.tree_words)
    spare = p.M - B_r * (w + B_c + 1) - masking
    return blocks.T_c if spare >= p.N_k * w else min(max(spare - B_c, 0) // (B_c * w), blocks.T_c)


def symbols(p: OneHead, blocks: Blocks) -> dict[str, int]:
    return {"s": min(_pinned(p, blocks) * blocks.B_c, p.N_k)}


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w, pinned = p.d + p.d_v, _pinned(p, blocks)
    ends = (0, pinned), (pinned, blocks.T_c)
    here, there = (p.tiles(blocks.B_r, blocks.B_c, columns(blocks.T_r, *part)) for part in ends)
    at_rest = here.most(lambda r, c: r * (w + c + 1) + p.mask_tile(r, c))
    by_columns = there.most(lambda r, c: r * (w + c + 1) + c + p.mask_tile(r, c))
    return min(pinned * blocks.B_c, p.N_k) * w + max(at_rest, by_columns)


FORM = Form(
    name="streamed",
    line_1=line_1,
    rows=rows,
    symbols=symbols,
    meanings={"s": "rows of K and V that stay on chip, without a mask"},
    peak=peak,
    products=(1, 1),
    formulas={
        "Q": ("N_q * d", "0"),
        "K": ("(s + T_r * (N_k - s)) * d", "0"),
        "V": ("(s + T_r * (N_k - s)) * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "L": ("0", "N_q"),
    },
)
