"""Blocks of keys stay on chip while rows of Q and dO are read one by one; the first block computes
D and begins dQ. w = d + d_v.

peak    b_c(2w + 1) + w + d + 2: K_j V_j dK̃_j dṼ_j, P_nj, Q_n dO_n dQ_n, L_n D_n; + 2b_c with
        dropout, Z_nj and P_nj^dropped
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.appendix_b_memory_efficient import one_by_one
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles


def rows(M: int, d: int, d_v: int) -> int:
    """Return the keys that M allows."""
    w = d + d_v
    return max((M - w - d - 2) // (2 * w + 1), 1)


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w = p.d + p.d_v
    squares = 3 if p.dropout else 1
    return p.R + tiles.cut(1, blocks.B_c).most(
        lambda r, c: (2 * w + squares) * c + w + p.d + 2 + p.mask_tile(r, c) + p.gradient_tile(r, c)
    )


FORM = Form(
    name="streamed",
    direction="backward",
    line_1=one_by_one,
    rows=rows,
    passes=lambda p, blocks, tiles: (tiles.cut(1, blocks.B_c),),
    peak=peak,
    products=(3, 2),
    gives_dS=True,
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("T_c * N_q * d_v", "0"),
        "L": ("T_c * N_q", "0"),
        "D": ("(T_c - 1) * N_q", "N_q"),
        "dQ": ("(T_c - 1) * N_q * d", "T_c * N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)
