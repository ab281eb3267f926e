"""As "q_outer_two_pass", with streamed rows: first B_c keys stay on chip while rows of Q are read
one by one, then B_r queries while keys are.

Empty tiles are never loaded. w = d + d_v.

    peak    first pass: 2b_c·w + w + 2 + b_c: K_j V_j dK̃_j dṼ_j, Q_n dO_n L_n D_n, P_nj; + 2b_c
            with dropout, Z_nj and P_nj^dropped; second: b_r(w + d + 2) + w + b_r; each with no live
            tile without its row and what goes with it (line 6's 2d_v + 1 is less)
"""

from dataclasses import replace

from flashsim.attention.shapes import Blocks
from flashsim.theory import q_outer_backward_two_pass as two_pass
from flashsim.theory.problem import OneHead, Tiles


def line_1(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): B_r(3d + 3) + 2d ≤ 4d·rows, and B_c(4d + 1) + 2d + 2 ≤ 4d·rows."""
    M = 4 * d * rows
    return max((M - 2 * d) // (3 * d + 3), 1), max((M - 2 * d - 2) // (4 * d + 1), 1)


def passes(p: OneHead, blocks: Blocks, tiles: Tiles) -> tuple[Tiles, ...]:
    """One row and B_c keys at a time; then B_r rows and one key."""
    return tiles.cut(1, blocks.B_c), tiles.cut(blocks.B_r, 1)


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    first = tiles.cut(1, blocks.B_c)
    second = tiles.cut(blocks.B_r, 1)
    w = p.d + p.d_v
    squares = 3 if p.dropout else 1
    of_row = first.most(
        lambda r, c: (2 * w + squares) * c + w + 2 + p.mask_tile(r, c) + p.gradient_tile(r, c)
    )
    of_key = second.most(lambda r, c: (w + p.d + 3) * r + w + p.mask_tile(r, c))
    untiled = max(2 * blocks.B_c * w, blocks.B_r * (w + p.d + 2))
    return p.R + max(untiled, of_row, of_key)


def matmul(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Return the FLOPs of S, dP, dV, dK, and of S, dP, dQ."""
    first, second = passes(p, blocks, tiles)
    return 2 * (first.area * 2 * (p.d + p.d_v) + second.area * (2 * p.d + p.d_v))


FORM = replace(
    two_pass.FORM, name="q_outer_streamed", line_1=line_1, passes=passes, peak=peak, matmul=matmul
)
