"""Appendix B.5: Rabe and Staats.

FlashAttention's loops, but each tile writes its own output and statistics, which are read once to combine them:

peak    (B_r + B_c)(d + d_v) + B_r·B_c + 2B_r to summarise; 2B_r·d_v + 5B_r to combine
"""

from __future__ import annotations

from dataclasses import replace

from flashsim.records import Blocks
from flashsim.theory.algorithm_2_flash import proportions
from flashsim.theory.form import Form
from flashsim.theory.problem import Arrays, OneHead, Tiles


def traffic(p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
    n, k, A = p.N_q, p.N_k, blocks.T_c * p.N_q
    arrays = {
        **p.array("Q", "input", reads=A * p.d),
        **p.array("K", "input", reads=k * p.d),
        **p.array("V", "input", reads=k * p.d_v),
        **p.masks(tiles),
        **p.generator("forward"),
        **p.array("O", "output", writes=n * p.d_v),
        **p.array("l", "extra", writes=n),
        **p.array("m", "extra", writes=n),
    }
    for whole, width in (("O", p.d_v), ("l", 1), ("m", 1)):
        parts = replace(arrays[whole], reads=A * width, writes=A * width, size=A * width, role="extra")
        arrays[f"{whole}_parts"] = parts
    return arrays


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w = p.d + p.d_v
    summarise = tiles.most(lambda r, c: (r + c) * w + r * c + 2 * r + p.mask_tile(r, c))
    return max(summarise, blocks.B_r * (2 * p.d_v + 5))


FORM = Form(
    name="rabe_staats",
    proportions=proportions,
    traffic=traffic,
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
