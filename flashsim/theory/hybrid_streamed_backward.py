"""S and dP by rows of Q and dO beside blocks of keys, kept in HBM as P and dS; then dV, dK and dQ
by tiles, the rest by elements.

Tiles of dV are b × x, of all b(x + 1) + 1 ≤ M those that read least: U_v = ⌈d_v/x⌉ times P, R_v =
⌈N_k/b⌉ times dO. So are dK's, U_k and R_k, and dQ's, U_q and R_q. 1 × 1 where none fits.

    peak    B_c(d + 1) + 1, for K_j, S_nj, and Q_nk or L_n, with the mask's tile; B_c(d_v + 1) + 2,
            for V_j, dP_nj, D_n, P_ne; b(x + 1) + 1 of each tile; and of D: B_c(d_v + 1) + 3 where
            that fits M, and U_D = 0: the first block of V makes it; otherwise U_D = 1, a pass of
            its own, and 2d_v + 1
"""

from functools import lru_cache

from flashsim.attention.shapes import Blocks
from flashsim.theory.appendix_b_memory_efficient import one_by_one
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles, ceil_div
from flashsim.theory.small_cache_hybrid import fewest_read


def rows(M: int, d: int, d_v: int) -> int:
    """Return the keys that M allows, with a score of each."""
    return max(min((M - 1) // (d + 1), (M - 2) // (d_v + 1)), 1)


@lru_cache(1024)
def tile(M: int, N: int, d: int) -> tuple[int, int]:
    """Return (b, x)."""
    return fewest_read(lambda x: (M - 1) // (x + 1), N, d)


def _tiles(p: OneHead) -> dict[str, tuple[int, int, int, int]]:
    widths = (("v", p.N_k, p.d_v), ("k", p.N_k, p.d), ("q", p.N_q, p.d))
    return {of: (N, w, *tile(p.M - p.R, N, w)) for of, N, w in widths}


def _with_D(p: OneHead, blocks: Blocks) -> int:
    return p.R + blocks.B_c * (p.d_v + 1) + 3


def symbols(p: OneHead, blocks: Blocks) -> dict[str, int]:
    """Return how many blocks the tiles' rows and columns make, and passes for D alone."""
    tiles = _tiles(p).items()
    return (
        {"U_D": int(_with_D(p, blocks) > p.M)}
        | {f"R_{of}": ceil_div(N, b) for of, (N, _, b, _) in tiles}
        | {f"U_{of}": ceil_div(w, x) for of, (_, w, _, x) in tiles}
    )


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Return the largest of all passes'."""
    B_c = blocks.B_c
    by_row = tiles.cut(1, blocks.B_c)
    masked = by_row.most(lambda r, c: c * (p.d + 1) + 1 + p.mask_tile(r, c))
    of_tiles = max(b * (x + 1) + 1 for _, _, b, x in _tiles(p).values())
    of_D = _with_D(p, blocks)
    alone = max(B_c * (p.d_v + 1) + 2, 2 * p.d_v + 1)
    return max(p.R + max(masked, of_tiles), of_D if of_D <= p.M else p.R + alone)


FORM = Form(
    name="hybrid_streamed",
    direction="backward",
    line_1=one_by_one,
    rows=rows,
    symbols=symbols,
    meanings={
        "U_D": "passes that make D alone, one or none",
        "R_v": "blocks of rows of dV's tiles",
        "U_v": "pieces of dV's columns",
        "R_k": "blocks of rows of dK's tiles",
        "U_k": "pieces of dK's columns",
        "R_q": "blocks of rows of dQ's tiles",
        "U_q": "pieces of dQ's columns",
    },
    kept=lambda p, blocks: {"P": (p.N_q * p.N_k, "chip"), "dS": (p.N_q * p.N_k, "chip")},
    passes=lambda p, blocks, tiles: (tiles.cut(1, blocks.B_c),),
    peak=peak,
    products=(3, 2),
    formulas={
        "Q": ("(T_c + R_k) * N_q * d", "0"),
        "K": ("(1 + R_q) * N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("(U_D + T_c + R_v) * N_q * d_v", "0"),
        "L": ("T_c * N_q", "0"),
        "D": ("(T_c - 1 + U_D) * N_q", "N_q"),
        "P": ("(1 + U_v) * N_q * N_k", "N_q * N_k"),
        "dS": ("(U_k + U_q) * N_q * N_k", "N_q * N_k"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)
