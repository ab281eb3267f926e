"""Algorithms 1, 2, 4 and 5: FlashAttention, forward and backward, all tiles or some.

K, V are read once; each computed tile reads its rows of Q, O, ℓ, m (backward: of dO and dQ too) and writes its rows of
O, ℓ, m (backward: of dQ). With A = Σ over computed tiles of their rows, which is T_c·N_q where all are computed:

    forward   reads   N_k(d + d_v) + A(d + d_v + 2)          = 2Nd + T_c(2Nd + 2N)
              writes  N_q(d_v + 2) [line 2] + A(d_v + 2)     = Nd + 2N + T_c(Nd + 2N)
              peak    (b_r + b_c)(d + d_v) + b_r·b_c + 6b_r  K_j V_j Q_i O_i, S_ij, and ℓ, m: old, tile's, new
    backward  reads   N_k(d + d_v) + A(2d + 2d_v + 2)        = 2Nd + T_c(4Nd + 2N)
              writes  N_q·d + N_k(d + d_v) [line 5] + A·d + N_k(d + d_v)   = 3Nd + T_c·Nd + 2Nd
              peak    2(b_r + b_c)(d + d_v) + 2b_r·b_c + 3b_r   K_j V_j dK̃_j dṼ_j Q_i O_i dO_i dQ_i, P_ij dP_ij, ℓ_i m_i D_i
                      + 2b_r·b_c + 2 with dropout: Z_ij and P_ij^dropped, and R, all along

The peak is that of the largest computed tile, b_r × b_c; or, if no tile is, of K_j and V_j (backward: dK̃_j and dṼ_j
too). A block of a mask that lives in HBM is on chip beside S_ij.
"""

from __future__ import annotations

from flashsim.records import Blocks
from flashsim.theory.problem import Arrays, Problem, Tiles


def proportions(rows: int, d: int) -> tuple[int, int]:
    """Return line 1's (B_r, B_c) where ⌈M/4d⌉ = rows."""
    return min(rows, d), rows


def forward_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
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


def forward_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Algorithms 1, 2, 5."""
    w = p.d + p.d_v
    return max(blocks.B_c * w, tiles.most(lambda r, c: (r + c) * w + r * c + 6 * r + p.mask_tile(r, c)))


def backward_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Algorithm 4, and 5's backward pass."""
    A, key, value = tiles.rows, p.N_k * p.d, p.N_k * p.d_v
    return {
        **p.array("Q", "input", reads=A * p.d),
        **p.array("K", "input", reads=key),
        **p.array("V", "input", reads=value),
        **p.array("O", "input", reads=A * p.d_v),
        **p.array("dO", "input", reads=A * p.d_v),
        **p.array("l", "input", reads=A),
        **p.array("m", "input", reads=A),
        **p.generator("backward"),
        **p.masks(tiles),
        **p.array("dQ", "output", reads=A * p.d, writes=A * p.d, init=p.N_q * p.d),
        **p.array("dK", "output", writes=key, init=key),
        **p.array("dV", "output", writes=value, init=value),
    }


def backward_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Algorithm 4, and 5's backward pass."""
    w, squares = p.d + p.d_v, 4 if p.dropout else 2
    tile = tiles.most(lambda r, c: 2 * (r + c) * w + squares * r * c + 3 * r + p.mask_tile(r, c))
    return p.R + max(2 * blocks.B_c * w, tile)
