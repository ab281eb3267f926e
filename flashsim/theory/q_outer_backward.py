"""The loops exchanged, backward, dQ accumulated in HBM. Empty tiles are never loaded. w = d + d_v.

peak    2b_c·w + b_r(w + d) + 2b_r·b_c + 2b_r: K_j V_j dK̃_j dṼ_j, Q_i dO_i dQ_i, P_ij dP_ij, L_i
        D_i; + 2b_r·b_c with dropout, Z_ij and P_ij^dropped; or lines 5 and 6: B_r(2d_v + 1)
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.algorithm_2_flash import line_1
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w = p.d + p.d_v
    squares = 4 if p.dropout else 2
    tile = tiles.most(
        lambda r, c: (
            2 * c * w
            + r * (w + p.d)
            + squares * r * c
            + 2 * r
            + p.mask_tile(r, c)
            + p.gradient_tile(r, c)
        )
    )
    return p.R + max(blocks.B_r * (2 * p.d_v + 1), 2 * blocks.B_c * w, tile)


FORM = Form(
    name="q_outer",
    direction="backward",
    line_1=line_1,
    peak=peak,
    products=(3, 2),
    live=True,
    initial=("dQ",),
    gives_dS=True,
    sink_of=("L",),
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("(T_c + 1) * N_q * d_v", "0"),
        "L": ("T_c * N_q", "0"),
        "D": ("T_c * N_q", "N_q"),
        "dQ": ("T_c * N_q * d", "(T_c + 1) * N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)
