"""Appendix B.2: its gradients. A key or a query at a time; in equations 3 and 6 past blocks of t =
min(B_c, N_q) queries.

reads   (3) K: N_k·d, Q, dO, L: N_k·N_q(d + d_v + 1)             (4) O, dO: N_q·d_v each
        (5) Q, dO, L, D: N_q(d + d_v + 2), K, V: N_q·N_k(d + d_v)
        (6) K, V: N_k(d + d_v), Q, dO, L, D: N_k·N_q(d + d_v + 2)
writes  (3) dV: N_k·d_v   (4) D: N_q   (5) dQ: N_q·d   (6) dK: N_k·d
peak    (3) (t + 1)(d + d_v) + 2t   (4) t(2d_v + 1)   (5) 2d + d_v + 2 + B_c(d + d_v + 2)
        (6) 2d + d_v + t(d + d_v + 4)
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.appendix_b_memory_efficient import one_by_one
from flashsim.theory.form import Form
from flashsim.theory.problem import OneHead, Tiles


def passes(p: OneHead, blocks: Blocks, tiles: Tiles) -> tuple[Tiles, ...]:
    """Equation 5: a query, and B_c keys at a time; equations 3 and 6: a key, and t queries at a
    time.
    """
    by_key = p.tiles(min(blocks.B_c, p.N_q), 1)
    return p.tiles(1, blocks.B_c), by_key, by_key


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """The widest of equations 3 to 6; never the third, as the sixth holds the same and more."""
    w, t = p.d + p.d_v, min(blocks.B_c, p.N_q)
    fourth = t * (2 * p.d_v + 1)
    fifth = p.tiles(1, blocks.B_c).most(
        lambda _, c: p.d + w + 2 + c * (w + 2) + p.mask_tile(1, c) + p.gradient_tile(1, c)
    )
    sixth = p.tiles(t, 1).most(lambda t, _: p.d + w + t * (w + 4) + p.mask_tile(t, 1))
    return p.R + max(fourth, fifth, sixth)


FORM = Form(
    name="memory_efficient",
    direction="backward",
    line_1=one_by_one,
    passes=passes,
    peak=peak,
    products=(5, 3),  # S three times, dQ dK; dV, dP twice
    gives_dS=True,
    formulas={
        "Q": ("(2 * N_k + 1) * N_q * d", "0"),
        "K": ("(N_q + 2) * N_k * d", "0"),
        "V": ("(N_q + 1) * N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("2 * (N_k + 1) * N_q * d_v", "0"),
        "L": ("(2 * N_k + 1) * N_q", "0"),
        "D": ("(N_k + 1) * N_q", "N_q"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)
