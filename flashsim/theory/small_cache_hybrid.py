"""S by whole rows of Q, kept in HBM; then O by tiles of b_r × b_c.

Of all (b_r, b_c) with b_r(b_c + 2) + b_c ≤ M, for O_uc, S_un, L_u and V_nc, those that read the
fewest elements of S and V: U_v = ⌈d_v/b_c⌉ times S, U_r = ⌈N_q/b_r⌉ times V. 1 × 1 where none fits.

    peak    B_r(d + 3) + B_c·d + B_r·B_c with the mask's tile: Q_i, ℓ_i, m_i, m_i^new, K_j, S_ij; or
            b_r(b_c + 2) + b_c
"""

from collections.abc import Callable
from functools import lru_cache

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles, ceil_div


def rows(M: int, d: int, d_v: int) -> int:
    """Return the rows of Q that M allows beside a row of K."""
    return max((M - d) // (d + 4), 1)


def line_1(rows: int, d: int) -> tuple[int, int]:
    return rows, 1


def fewest_read(rows: Callable[[int], int], N: int, d: int) -> tuple[int, int]:
    """Return the tile b × x of an N × d matrix that reads least: N for each piece of x columns, d
    for each b of N rows.

    rows  how many of x columns fit

    The narrowest of as many pieces leaves the most rows. Of equally good ones it is the narrowest;
    1 × 1 where none fits.
    """
    best = (1, 1)
    fewest = 0
    x = 1
    while rows(x) >= 1:
        b = min(rows(x), N)
        pieces = ceil_div(d, x)
        read = pieces * N + ceil_div(N, b) * d
        if not fewest or read < fewest:
            best = (b, x)
            fewest = read
        if pieces == 1:
            break
        x = ceil_div(d, pieces - 1)
    return best


@lru_cache(1024)
def tile_of_O(M: int, N_q: int, d_v: int) -> tuple[int, int]:
    """Return (b_r, b_c)."""
    return fewest_read(lambda x: (M - x) // (x + 2), N_q, d_v)


def symbols(p: OneHead, blocks: Blocks) -> dict[str, int]:
    """Return how many blocks O's rows and columns make."""
    b_r, b_c = tile_of_O(p.M, p.N_q, p.d_v)
    return {"U_r": ceil_div(p.N_q, b_r), "U_v": ceil_div(p.d_v, b_c)}


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    b_r, b_c = tile_of_O(p.M, p.N_q, p.d_v)
    by_rows = tiles.most(lambda r, c: r * (p.d + 3) + c * p.d + r * c + p.mask_tile(r, c))
    return max(by_rows, b_r * (b_c + 2) + b_c)


FORM = Form(
    name="small_cache_hybrid",
    line_1=line_1,
    rows=rows,
    symbols=symbols,
    meanings={"U_r": "blocks of O's rows", "U_v": "blocks of O's columns"},
    kept=lambda p, blocks: {"S": (p.N_q * p.N_k, "chip")},
    peak=peak,
    products=(1, 1),
    formulas={
        "Q": ("N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("U_r * N_k * d_v", "0"),
        "S": ("U_v * N_q * N_k", "N_q * N_k"),
        "O": ("0", "N_q * d_v"),
        "L": ("N_q", "N_q"),
    },
)
