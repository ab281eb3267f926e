"""Attention for a small cache (Saha and Ye, arXiv 2402.07443): products by outer products into
square tiles.

B_r = B_c = max(⌊√(M + 4)⌋ − 2, 1), as (b + 2)² ≤ M + 4 is b² + 4b ≤ M; T_v = ⌈d_v/B_c⌉ counts
blocks of V's columns.

    peak    B_r·B_c + 2B_r, for S_ij, ℓ_i, m_i, and then the larger of B_r + B_c, for the columns
            Q_ik and K_jk, and B_r + the mask's tile, for m_i^new. O_ic is no wider than S_ij, and
            S_in, V_nc take no more than Q_ik, K_jk

S occupies B_r·N_k elements of HBM: one strip, in the type that is computed in.
"""

from math import isqrt

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles
from flashsim.theory.theorems import theorem_saha_ye


def rows(M: int, d: int, d_v: int) -> int:
    return max(isqrt(M + 4) - 2, 1)


def line_1(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): squares."""
    return rows, rows


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """A tile of S with its statistics, and what it is made of or masked by."""
    B_r = blocks.B_r
    B_c = blocks.B_c
    return max(
        B_r * B_c + 3 * B_r + B_c, tiles.most(lambda r, c: r * c + 3 * r + p.mask_tile(r, c))
    )


FORM = Form(
    name="small_cache",
    line_1=line_1,
    rows=rows,
    kept=lambda p, blocks: {"S": (blocks.B_r * p.N_k, "chip")},
    peak=peak,
    products=(1, 1),
    theta=theorem_saha_ye,
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "S": ("T_v * N_q * N_k", "N_q * N_k"),
        "O": ("0", "N_q * d_v"),
        "L": ("0", "N_q"),
    },
)
