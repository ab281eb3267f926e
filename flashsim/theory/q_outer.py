"""The loops exchanged.

Empty tiles are never loaded. Over the live tiles, A = Σ of their rows (T_c·N_q if all are live) and C = Σ
of their columns (T_r·N_k). w = d + d_v.

    reads   Q: N_q·d   K: C·d   V: C·d_v
    writes  O: N_q·d_v   L: N_q
    peak    (b_r + b_c)w + b_r·b_c + 3b_r: Q_i O_i K_j V_j, S_ij, ℓ_i m_i m_i^new; with no live tile B_r·w + 2B_r
"""

from __future__ import annotations

from flashsim.records import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import Arrays, OneHead, Tiles


def proportions(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): Algorithm 1's, exchanged."""
    return rows, min(rows, d)


def traffic(p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Forward."""
    return {
        **p.array("Q", "input", reads=p.N_q * p.d),
        **p.array("K", "input", reads=tiles.columns * p.d),
        **p.array("V", "input", reads=tiles.columns * p.d_v),
        **p.masks(tiles),
        **p.generator("forward"),
        **p.array("O", "output", writes=p.N_q * p.d_v),
        **p.array("L", "extra", writes=p.N_q),
    }


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Forward."""
    w = p.d + p.d_v
    return max(blocks.B_r * (w + 2), tiles.most(lambda r, c: (r + c) * w + r * c + 3 * r + p.mask_tile(r, c)))


FORM = Form(
    name="q_outer",
    direction="forward",
    proportions=proportions,
    traffic=traffic,
    peak=peak,
    live=True,
    products=(1, 1),
    extra="N_q + R",
    formulas={
        "Q": ("N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "L": ("0", "N_q"),
    },
)
