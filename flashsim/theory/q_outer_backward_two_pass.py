"""The loops exchanged, backward in two passes. Empty tiles are never loaded. w = d + d_v.

peak    first pass: 2b_c·w + b_r·w + 2b_r·b_c + 2b_r, + 2b_r·b_c with dropout; second: b_c·w + b_r(w
        + d) + 2b_r·b_c + 2b_r, with no live tile B_r(w + d + 2); or, before them, B_r(2d_v + 1)
"""

from math import isqrt

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles


def square(rows: int, d: int) -> tuple[int, int]:
    """Return B_r = B_c = b: b² + 4bd ≤ 4d·rows is (b + 2d)² ≤ 4d² + 4d·rows."""
    b = max(isqrt(4 * d * d + 4 * d * rows) - 2 * d, 1)
    return b, b


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w = p.d + p.d_v
    squares = 4 if p.dropout else 2
    first = tiles.most(
        lambda r, c: (
            2 * c * w + r * w + squares * r * c + 2 * r + p.mask_tile(r, c) + p.gradient_tile(r, c)
        )
    )
    second = tiles.most(lambda r, c: c * w + r * (w + p.d) + 2 * r * c + 2 * r + p.mask_tile(r, c))
    untiled = max(blocks.B_r * (2 * p.d_v + 1), 2 * blocks.B_c * w, blocks.B_r * (w + p.d + 2))
    return p.R + max(untiled, first, second)


FORM = Form(
    name="q_outer_two_pass",
    direction="backward",
    line_1=square,
    passes=lambda p, blocks, tiles: (tiles, tiles),
    peak=peak,
    products=(4, 3),  # S and dP twice
    live=True,
    gives_dS=True,
    sink_of=("L",),
    formulas={
        "Q": ("(T_c + 1) * N_q * d", "0"),
        "K": ("(T_r + 1) * N_k * d", "0"),
        "V": ("(T_r + 1) * N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("(T_c + 2) * N_q * d_v", "0"),
        "L": ("(T_c + 1) * N_q", "0"),
        "D": ("(T_c + 1) * N_q", "N_q"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)
