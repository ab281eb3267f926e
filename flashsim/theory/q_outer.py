"""The loops exchanged. Empty tiles are never loaded. w = d + d_v.

peak    (b_r + b_c)w + b_r·b_c + 3b_r: Q_i O_i K_j V_j, S_ij, ℓ_i m_i m_i^new; with no live tile
        B_r·w + 2B_r
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.algorithm_0_standard import line_1
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles
from flashsim.theory.theorems import theorem_2_flash


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Of a row block; or where its m_i begins as a sink's s."""
    return max(without_sink(p, blocks, tiles), blocks.B_r * (p.d + p.d_v + 1) + p.sink)


def without_sink(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Return the peak of a row block."""
    w = p.d + p.d_v
    return max(
        blocks.B_r * (w + 2),
        tiles.most(lambda r, c: (r + c) * w + r * c + 3 * r + p.mask_tile(r, c)),
    )


FORM = Form(
    name="q_outer",
    line_1=line_1,
    peak=peak,
    products=(1, 1),
    live=True,
    theta=theorem_2_flash,
    sink=lambda p, blocks: blocks.T_r,
    formulas={
        "Q": ("N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "L": ("0", "N_q"),
    },
)
