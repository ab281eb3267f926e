"""Algorithm 2: FlashAttention, forward, all tiles or some. Algorithms 1 and 5 move the same.

K, V are read once; each computed tile reads its rows of Q, O, ℓ, m and writes its rows of O, ℓ, m.

    peak    (b_r + b_c)(d + d_v) + b_r·b_c + 6b_r  K_j V_j Q_i O_i, S_ij, and ℓ, m: old, tile's, new

The peak is that of the largest computed tile, b_r × b_c; or, if no tile is, of K_j and V_j. A block
of a mask that lives in HBM is on chip beside S_ij.
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles
from flashsim.theory.theorems import theorem_2_flash


def line_1(rows: int, d: int) -> tuple[int, int]:
    """Return line 1's (B_r, B_c) where ⌈M/4d⌉ = rows."""
    return min(rows, d), rows


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w = p.d + p.d_v
    return max(
        blocks.B_c * w,
        p.sink,
        tiles.most(lambda r, c: (r + c) * w + r * c + 6 * r + p.mask_tile(r, c)),
    )


FORM = Form(
    name="flash",
    line_1=line_1,
    peak=peak,
    products=(1, 1),
    theta=theorem_2_flash,
    initial=("O", "l", "m"),
    sink=lambda p, blocks: 1,
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("T_c * N_q * d_v", "(T_c + 1) * N_q * d_v"),
        "l": ("T_c * N_q", "(T_c + 1) * N_q"),
        "m": ("T_c * N_q", "(T_c + 1) * N_q"),
    },
)
