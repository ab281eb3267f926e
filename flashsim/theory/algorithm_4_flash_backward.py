"""Algorithm 4: FlashAttention, backward, all tiles or some. Algorithm 5's backward pass moves the
same.

K, V are read once; each computed tile reads its rows of Q, O, dO, dQ, ℓ, m and writes its rows of
dQ.

    peak    2(b_r + b_c)(d + d_v) + 2b_r·b_c + 3b_r
                K_j V_j dK̃_j dṼ_j Q_i O_i dO_i dQ_i, P_ij dP_ij, ℓ_i m_i D_i
            + 2b_r·b_c + 2 with dropout: Z_ij and P_ij^dropped, and R, all along

The peak is that of the largest computed tile, b_r × b_c; or, if no tile is, of K_j, V_j, dK̃_j and
dṼ_j. A block of a mask that lives in HBM is on chip beside S_ij, and one of a bias's gradient
beside dS_ij.
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
            2 * (r + c) * w + squares * r * c + 3 * r + p.mask_tile(r, c) + p.gradient_tile(r, c)
        )
    )
    return p.R + max(2 * blocks.B_c * w, tile)


FORM = Form(
    name="flash",
    direction="backward",
    line_1=line_1,
    peak=peak,
    products=(3, 2),  # S dQ dK; dV dP
    initial=("dQ", "dK", "dV"),
    gives_dS=True,
    sink_of=("l", "m"),
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("T_c * N_q * d_v", "0"),
        "dO": ("T_c * N_q * d_v", "0"),
        "l": ("T_c * N_q", "0"),
        "m": ("T_c * N_q", "0"),
        "dQ": ("T_c * N_q * d", "(T_c + 1) * N_q * d"),
        "dK": ("0", "2 * N_k * d"),
        "dV": ("0", "2 * N_k * d_v"),
    },
)
