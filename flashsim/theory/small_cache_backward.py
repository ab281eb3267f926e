"""Attention for a small cache, backward: five products by outer products into square tiles, over
strips of P and dS.

B_r = B_c = max(⌊√(M + 1)⌋ − 1, 1), as (b + 1)² ≤ M + 1 is b² + 2b ≤ M; T_v = ⌈d_v/B_c⌉ and T_d =
⌈d/B_c⌉ count pieces of columns.

    peak    B_r·B_c and the largest of B_r + B_c, for two columns, of 2B_r, for D_i and P_in, and of
            B_r + the mask's tile, for L_i; or pieces: b(x + 1) + x for b = B_c or B_r and x =
            min(B_c, d) or min(B_c, d_v); or, before them, 3B_r

P and dS occupy N_q·B_c elements of HBM each: one strip, in the type that is computed in.
"""

from math import isqrt

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles
from flashsim.theory.small_cache import line_1


def rows(M: int, d: int, d_v: int) -> int:
    return max(isqrt(M + 1) - 1, 1)


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    B_r = blocks.B_r
    B_c = blocks.B_c
    by_d = min(B_c, p.d)
    by_d_v = min(B_c, p.d_v)
    tile = B_r * B_c + max(B_r + B_c, 2 * B_r)
    masked = tiles.most(lambda r, c: r * c + r + p.mask_tile(r, c))
    pieces = max(B_c * (by_d_v + 1) + by_d_v, max(B_c, B_r) * (by_d + 1) + by_d)
    return p.R + max(3 * B_r, tile, masked, pieces)


FORM = Form(
    name="small_cache",
    direction="backward",
    line_1=line_1,
    rows=rows,
    kept=lambda p, blocks: dict.fromkeys(("P", "dS"), (p.N_q * blocks.B_c, "chip")),
    peak=peak,
    products=(3, 2),
    initial=("dQ",),
    formulas={
        "Q": ("2 * T_c * N_q * d", "0"),
        "K": ("2 * T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("(2 * T_c + 1) * N_q * d_v", "0"),
        "L": ("T_c * N_q", "0"),
        "D": ("T_c * N_q", "N_q"),
        "P": ("(1 + T_v) * N_q * N_k", "N_q * N_k"),
        "dS": ("2 * T_d * N_q * N_k", "N_q * N_k"),
        "dQ": ("T_c * N_q * d", "(T_c + 1) * N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)
