"""Attention for a small cache, K and V by elements: with tiles of the same B_r × B_c, `small_cache`
moves as much.

B_r = B_c = max(⌊√M⌋ − 1, 1), as (b + 1)² ≤ M is b² + 2b + 1 ≤ M; T_v = ⌈d_v/B_c⌉ counts blocks of
V's columns.

    peak    B_r·B_c + B_r, for S_ij and L_i, and then the larger of B_r + 1, for Q_ik and K_nk, and
            the mask's tile. O_ic is no wider than S_ij, and S_in, V_ne take as much as Q_ik, K_nk
"""

from dataclasses import replace
from math import isqrt

from flashsim.attention.shapes import Blocks
from flashsim.theory import small_cache
from flashsim.theory.problem import OneHead, Tiles


def rows(M: int, d: int, d_v: int) -> int:
    """Return the side of the largest square tile that fits."""
    return max(isqrt(M) - 1, 1)


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """A tile of S or O with L_i, and what it is made of or masked by."""
    B_r = blocks.B_r
    B_c = blocks.B_c
    return max(B_r * B_c + 2 * B_r + 1, tiles.most(lambda r, c: r * c + r + p.mask_tile(r, c)))


FORM = replace(small_cache.FORM, name="tiles_streamed", rows=rows, peak=peak, theta=None)
