"""A small cache, backward, K and V by elements: five products in tiles of B_r × B_c, over a strip
of P and all of dS.

B_r = B_c = the largest b with b² + b + 1 ≤ M, at least 1. U_v = ⌈d_v/B_r⌉, U_d = ⌈d/B_r⌉: pieces of
dV's and dK's columns.

    peak    B_r·B_c and the larger of B_r + 1, for a column and an element, and of B_r + the mask's
            tile, for L_i; or pieces: B_c·x + x + 1 for x = min(B_r, d) or min(B_r, d_v), B_r·y +
            B_r + 1 for y = min(B_c, d); or, before them, 2B_r + 1

P occupies N_q·B_c elements of HBM, dS N_q·N_k, in the type that is computed in.
"""

from math import isqrt

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles, ceil_div
from flashsim.theory.small_cache import line_1


def rows(M: int, d: int, d_v: int) -> int:
    """Return the side of the largest square tile that fits."""
    return max((isqrt(max(4 * M - 3, 0)) - 1) // 2, 1)


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Return the largest of all products'."""
    B_r = blocks.B_r
    B_c = blocks.B_c
    tile = B_r * B_c + B_r + 1
    masked = tiles.most(lambda r, c: r * c + r + p.mask_tile(r, c))
    pieces = max(B_c * x + x + 1 for x in (min(B_r, p.d), min(B_r, p.d_v)))
    return p.R + max(2 * B_r + 1, tile, masked, pieces, B_r * min(B_c, p.d) + B_r + 1)


def symbols(p: OneHead, blocks: Blocks) -> dict[str, int]:
    """Return how many pieces of B_r columns dV and dK make."""
    return {"U_v": ceil_div(p.d_v, blocks.B_r), "U_d": ceil_div(p.d, blocks.B_r)}


FORM = Form(
    name="tiles_streamed",
    direction="backward",
    line_1=line_1,
    rows=rows,
    symbols=symbols,
    meanings={
        "U_v": "⌈d_v / B_r⌉: pieces of dV's columns",
        "U_d": "⌈d / B_r⌉: pieces of dK's columns",
    },
    kept=lambda p, blocks: {"P": (p.N_q * blocks.B_c, "chip"), "dS": (p.N_q * p.N_k, "chip")},
    peak=peak,
    products=(3, 2),
    formulas={
        "Q": ("2 * T_c * N_q * d", "0"),
        "K": ("2 * T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("(2 * T_c + 1) * N_q * d_v", "0"),
        "L": ("T_c * N_q", "0"),
        "D": ("T_c * N_q", "N_q"),
        "P": ("(1 + U_v) * N_q * N_k", "N_q * N_k"),
        "dS": ("(U_d + T_d) * N_q * N_k", "N_q * N_k"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)
