"""Appendix B.1: attention in closed form. A query at a time (B_r = 1) past blocks of B_c keys.

peak    equation 2's (B_r + B_c)(d + d_v) + B_r·B_c + B_r: q_i o_i k_j v_j, S_ij, log L_i
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles


def one_by_one(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): one query and `rows` terms of its sum."""
    return 1, rows


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Equation 2; equation 1 holds less."""
    return tiles.most(lambda r, c: (r + c) * (p.d + p.d_v) + r * c + r + p.mask_tile(r, c))


FORM = Form(
    name="memory_efficient",
    line_1=one_by_one,
    passes=lambda p, blocks, tiles: (tiles, tiles),
    peak=peak,
    products=(2, 1),  # QKᵀ for L, and again for O
    formulas={
        "Q": ("2 * N_q * d", "0"),
        "K": ("2 * T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "L": ("N_q", "N_q"),
    },
)
