"""Sliding-window attention, backward: the loops exchanged, with D_i computed anew. Empty tiles are never loaded. w = d + d_v.

peak    2(b_r + b_c)w + 2b_r·b_c + 2b_r: K_j V_j dK̃_j dṼ_j, Q_i O_i dO_i dQ_i, P_ij dP_ij, L_i D_i; + 2b_r·b_c with dropout,
        Z_ij and P_ij^dropped
"""

from __future__ import annotations

from dataclasses import replace

from flashsim.problem.shapes import Blocks
from flashsim.theory import q_outer_backward
from flashsim.theory.problem import OneHead, Tiles
from flashsim.theory.sliding_window import WINDOW


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    w, squares = p.d + p.d_v, 4 if p.dropout else 2
    tile = tiles.most(
        lambda r, c: 2 * (r + c) * w + squares * r * c + 2 * r + p.mask_tile(r, c) + p.gradient_tile(r, c)
    )
    return p.R + max(2 * blocks.B_c * w, tile)


FORM = replace(
    q_outer_backward.FORM,
    name="sliding_window",
    peak=peak,
    options=(WINDOW,),
    formulas={
        **{name: moved for name, moved in q_outer_backward.FORM.formulas.items() if name != "D"},
        "O": ("T_c * N_q * d_v", "0"),
        "dO": ("T_c * N_q * d_v", "0"),
    },
)
