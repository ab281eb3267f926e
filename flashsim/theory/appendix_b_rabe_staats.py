"""Appendix B.5: Rabe and Staats.

FlashAttention's loops, but each tile writes its own output and statistics, which are read once to
combine them:

peak    (B_r + B_c)(d + d_v) + B_r·B_c + 2B_r to summarise; 2B_r·d_v + 5B_r to combine
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.algorithm_2_flash import line_1
from flashsim.theory.form import Form
from flashsim.theory.problem import Kept, OneHead, Tiles


def kept(p: OneHead, blocks: Blocks) -> dict[str, Kept]:
    parts = blocks.T_c * p.N_q
    return {
        "O_parts": (parts * p.d_v, "inputs"),
        "l_parts": (parts, "chip"),
        "m_parts": (parts, "chip"),
    }


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w = p.d + p.d_v
    summarise = tiles.most(lambda r, c: (r + c) * w + r * c + 2 * r + p.mask_tile(r, c))
    return max(summarise, blocks.B_r * (2 * p.d_v + 5))


FORM = Form(
    name="rabe_staats",
    line_1=line_1,
    kept=kept,
    peak=peak,
    products=(1, 1),
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "l": ("0", "N_q"),
        "m": ("0", "N_q"),
        "O_parts": ("T_c * N_q * d_v", "T_c * N_q * d_v"),
        "l_parts": ("T_c * N_q", "T_c * N_q"),
        "m_parts": ("T_c * N_q", "T_c * N_q"),
    },
)
