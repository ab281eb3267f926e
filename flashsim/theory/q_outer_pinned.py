"""The loops exchanged, with s = min(p·B_c, N_k) rows of K and V pinned. w = d + d_v; every tile is
computed.

p = ⌊(M − (B_r + B_c)w − B_r·B_c − 3B_r − the mask's block) / (B_c·w)⌋, at least 0 and at most T_c.
A tree's block is counted as B_r·min(⌈(B_c − 1)/32⌉ + 1, all words of a row), which no tile of its
overlaps more words than.

    peak    s·w + B_r·w + 3B_r and a tile S_ij with the mask's block; and K_j, V_j where p < T_c
"""

from dataclasses import replace

from flashsim.attention.shapes import Blocks
from flashsim.theory import q_outer
from flashsim.theory.live import Chosen
from flashsim.theory.problem import OneHead, Tiles, ceil_div


def columns(T_r: int, a: int, b: int) -> Chosen:
    """Return the tiles of columns a … b − 1, of T_r row blocks."""

    def chosen(first: int, end: int) -> tuple[int, int]:
        here = max(min(end, b) - max(first, a), 0)
        return (T_r - 1) * here, here

    return chosen


def line_1(rows: int, d: int) -> tuple[int, int]:
    return rows, min(ceil_div(rows, 8), ceil_div(d, 8))


def _pinned(p: OneHead, blocks: Blocks) -> int:
    """Return p."""
    B_r = blocks.B_r
    B_c = blocks.B_c
    w = p.d + p.d_v
    masking = p.mask_tile(B_r, B_c) + B_r * min(ceil_div(B_c - 1, 32) + 1, p.tree_words)
    spare = p.M - (B_r + B_c) * w - B_r * B_c - 3 * B_r - masking
    return min(max(spare, 0) // (B_c * w), blocks.T_c)


def symbols(p: OneHead, blocks: Blocks) -> dict[str, int]:
    return {"s": min(_pinned(p, blocks) * blocks.B_c, p.N_k)}


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w, pinned = p.d + p.d_v, _pinned(p, blocks)
    ends = (0, pinned), (pinned, blocks.T_c)
    here, there = (p.tiles(blocks.B_r, blocks.B_c, columns(blocks.T_r, *part)) for part in ends)
    at_rest = here.most(lambda r, c: r * w + r * c + 3 * r + p.mask_tile(r, c))
    streamed = there.most(lambda r, c: (r + c) * w + r * c + 3 * r + p.mask_tile(r, c))
    return min(pinned * blocks.B_c, p.N_k) * w + max(at_rest, streamed)


FORM = replace(
    q_outer.FORM,
    name="q_outer_pinned",
    line_1=line_1,
    symbols=symbols,
    meanings={"s": "rows of K and V that stay on chip, without a mask"},
    peak=peak,
    live=False,
    sink=None,
    theta=None,
    formulas={
        **q_outer.FORM.formulas,
        "K": ("(s + T_r * (N_k - s)) * d", "0"),
        "V": ("(s + T_r * (N_k - s)) * d_v", "0"),
    },
)
