"""S by whole rows of Q, kept in HBM, with K by elements; then O by tiles of b_r × b_c, with V by
elements.

Of all (b_r, b_c) with b_r(b_c + 2) + 1 ≤ M, for O_uc, S_un, L_u and an element of V, those that
read the fewest elements of S and V: U_v = ⌈d_v/b_c⌉ times S, U_r = ⌈N_q/b_r⌉ times V. 1 × 1 where
none fits.

    peak    B_r(d + 1) + B_r·B_c with the larger of B_c and the mask's tile: Q_i, L_i, S_ij, K_jk;
            or b_r(b_c + 2) + 1
"""

from dataclasses import replace
from functools import lru_cache

from flashsim.attention.shapes import Blocks
from flashsim.theory import small_cache_hybrid
from flashsim.theory.problem import OneHead, Tiles, ceil_div


def rows(M: int, d: int, d_v: int) -> int:
    """Return the rows of Q that M allows beside an element of K."""
    return max((M - 1) // (d + 2), 1)


@lru_cache(1024)
def tile_of_O(M: int, N_q: int, d_v: int) -> tuple[int, int]:
    """Return (b_r, b_c)."""
    return small_cache_hybrid.fewest_read(lambda x: (M - 1) // (x + 2), N_q, d_v)


def symbols(p: OneHead, blocks: Blocks) -> dict[str, int]:
    """Return how many blocks O's rows and columns make."""
    b_r, b_c = tile_of_O(p.M, p.N_q, p.d_v)
    return {"U_r": ceil_div(p.N_q, b_r), "U_v": ceil_div(p.d_v, b_c)}


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Return the larger of both passes'."""
    b_r, b_c = tile_of_O(p.M, p.N_q, p.d_v)
    B_r = blocks.B_r
    B_c = blocks.B_c
    masked = tiles.most(lambda r, c: r * (p.d + 1 + c) + p.mask_tile(r, c))
    return max(B_r * (p.d + 1 + B_c) + B_c, masked, b_r * (b_c + 2) + 1)


FORM = replace(
    small_cache_hybrid.FORM, name="hybrid_streamed", rows=rows, symbols=symbols, peak=peak
)
