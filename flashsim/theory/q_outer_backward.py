"""The loops exchanged, backward, dQ accumulated in HBM.

Empty tiles are never loaded. Over the live tiles, A = Σ of their rows (T_c·N_q if all are live) and C = Σ
of their columns (T_r·N_k). w = d + d_v.

    reads   O: N_q·d_v   dO: N_q·d_v + A·d_v   K, V: N_k·w   Q: A·d   L, D: A each   dQ: A·d
    writes  D: N_q   dQ: N_q·d [initial] + A·d   dK, dV: N_k·w
    peak    2b_c·w + b_r(w + d) + 2b_r·b_c + 2b_r: K_j V_j dK̃_j dṼ_j, Q_i dO_i dQ_i, P_ij dP_ij, L_i D_i; + 2b_r·b_c with
            dropout, Z_ij and P_ij^dropped; or lines 5 and 6: B_r(2d_v + 1)
"""

from __future__ import annotations

from flashsim.records import Blocks
from flashsim.theory.algorithm_2_flash import proportions
from flashsim.theory.form import Form
from flashsim.theory.problem import Arrays, OneHead, Tiles


def traffic(p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Backward, dQ accumulated."""
    n, A = p.N_q, tiles.rows
    return {
        **p.array("Q", "input", reads=A * p.d),
        **p.array("K", "input", reads=p.N_k * p.d),
        **p.array("V", "input", reads=p.N_k * p.d_v),
        **p.array("O", "input", reads=n * p.d_v),
        **p.array("dO", "input", reads=(n + A) * p.d_v),
        **p.array("L", "input", reads=A),
        **p.generator("backward"),
        **p.masks(tiles),
        **p.gradient(tiles),
        **p.array("D", "extra", reads=A, writes=n),
        **p.array("dQ", "output", reads=A * p.d, writes=A * p.d, init=n * p.d),
        **p.array("dK", "output", writes=p.N_k * p.d),
        **p.array("dV", "output", writes=p.N_k * p.d_v),
    }


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Backward, dQ accumulated."""
    w, squares = p.d + p.d_v, 4 if p.dropout else 2
    tile = tiles.most(
        lambda r, c: 2 * c * w + r * (w + p.d) + squares * r * c + 2 * r + p.mask_tile(r, c) + p.gradient_tile(r, c)
    )
    return p.R + max(blocks.B_r * (2 * p.d_v + 1), 2 * blocks.B_c * w, tile)


FORM = Form(
    name="q_outer",
    direction="backward",
    proportions=proportions,
    traffic=traffic,
    peak=peak,
    live=True,
    products=(3, 2),
    extra="N_q",
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
    gives_dS=True,
)
