"""Algorithm 2: FlashAttention, forward, all tiles or some. Algorithms 1 and 5 move the same.

K, V are read once; each computed tile reads its rows of Q, O, ℓ, m and writes its rows of O, ℓ, m. With A = Σ over computed
tiles of their rows, which is T_c·N_q where all are computed:

    reads   N_k(d + d_v) + A(d + d_v + 2)          = 2Nd + T_c(2Nd + 2N)
    writes  N_q(d_v + 2) [line 2] + A(d_v + 2)     = Nd + 2N + T_c(Nd + 2N)
    peak    (b_r + b_c)(d + d_v) + b_r·b_c + 6b_r  K_j V_j Q_i O_i, S_ij, and ℓ, m: old, tile's, new

The peak is that of the largest computed tile, b_r × b_c; or, if no tile is, of K_j and V_j. A block of a mask that lives in
HBM is on chip beside S_ij.
"""

from __future__ import annotations

from flashsim.records import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import Arrays, OneHead, Tiles


def proportions(rows: int, d: int) -> tuple[int, int]:
    """Return line 1's (B_r, B_c) where ⌈M/4d⌉ = rows."""
    return min(rows, d), rows


def traffic(p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Algorithms 1, 2, 5."""
    n, A = p.N_q, tiles.rows
    return {
        **p.array("Q", "input", reads=A * p.d),
        **p.array("K", "input", reads=p.N_k * p.d),
        **p.array("V", "input", reads=p.N_k * p.d_v),
        **p.masks(tiles),
        **p.generator("forward"),
        **p.array("O", "output", reads=A * p.d_v, writes=A * p.d_v, init=n * p.d_v),
        **p.array("l", "extra", reads=A, writes=A, init=n),
        **p.array("m", "extra", reads=A, writes=A, init=n),
    }


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Algorithms 1, 2, 5."""
    w = p.d + p.d_v
    return max(blocks.B_c * w, tiles.most(lambda r, c: (r + c) * w + r * c + 6 * r + p.mask_tile(r, c)))


FORM = Form(
    name="flash",
    direction="forward",
    proportions=proportions,
    traffic=traffic,
    peak=peak,
    products=(1, 1),
    extra="2 * N_q + R",
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("T_c * N_q * d_v", "(T_c + 1) * N_q * d_v"),
        "l": ("T_c * N_q", "(T_c + 1) * N_q"),
        "m": ("T_c * N_q", "(T_c + 1) * N_q"),
    },
)
