"""The loops exchanged, backward, with dS written by rows for dK and dV, and read by columns for dQ.
Every tile is computed.

w = d + d_v.

    peak    first pass as in `q_outer_streamed`: 2b_c·w + w + 2 + b_c, and 2b_c with dropout; then
            B_r(d + 1) + 1
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles


def line_1(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): B_r(d + 1) ≤ 4d(rows − 1), and B_c(4d + 1) + 2d + 2 ≤ 4d·rows."""
    M = 4 * d * rows
    return max((M - 4 * d) // (d + 1), 1), max((M - 2 * d - 2) // (4 * d + 1), 1)


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    rows = tiles.cut(1, blocks.B_c)
    w = p.d + p.d_v
    squares = 3 if p.dropout else 1
    of_row = rows.most(
        lambda r, c: (2 * w + squares) * c + w + 2 + p.mask_tile(r, c) + p.gradient_tile(r, c)
    )
    return p.R + max(of_row, blocks.B_r * (p.d + 1) + 1, 2 * p.d_v + 1)


FORM = Form(
    name="q_outer_stored",
    direction="backward",
    line_1=line_1,
    kept=lambda p, blocks: {"dS": (p.N_q * p.N_k, "chip")},
    passes=lambda p, blocks, tiles: (tiles.cut(1, blocks.B_c),),
    peak=peak,
    products=(3, 2),
    gives_dS=True,
    sink_of=("L",),
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("(1 + T_r) * N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("(1 + T_c) * N_q * d_v", "0"),
        "L": ("T_c * N_q", "0"),
        "D": ("T_c * N_q", "N_q"),
        "dS": ("N_q * N_k", "N_q * N_k"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)
