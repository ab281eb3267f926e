"""Appendix B.5: Rabe and Staats, backward. Algorithm 4's traffic, with dK and dV not initialised.

peak    2(B_r + B_c)(d + d_v) + 2B_r·B_c + 7B_r + B_r·d_v: as Algorithm 4, with m_ij ℓ_ij w_ij and
        two row sums for D_i, and O_ij; + 2B_r·B_c + 2 with dropout
"""

from dataclasses import replace

from flashsim.attention.shapes import Blocks
from flashsim.theory import algorithm_4_flash_backward as flash
from flashsim.theory.problem import OneHead, Tiles


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Algorithm 4's, less its D_i, plus O_ij and five columns."""
    return flash.peak(p, blocks, tiles) + blocks.B_r * (p.d_v + 4)


FORM = replace(
    flash.FORM,
    name="rabe_staats",
    peak=peak,
    products=(3, 3),  # S dQ dK; dV dP, and O_ij again
    initial=("dQ",),
    sink_of=(),
    formulas={**flash.FORM.formulas, "dK": ("0", "N_k * d"), "dV": ("0", "N_k * d_v")},
)
