"""Appendix B.2: its gradients. A key or a query at a time; in equations 3 and 6 past blocks of t = min(B_c, N_q) queries.

reads   (3) K: N_k·d, Q, dO, L: N_k·N_q(d + d_v + 1)             (4) O, dO: N_q·d_v each
        (5) Q, dO, L, D: N_q(d + d_v + 2), K, V: N_q·N_k(d + d_v)
        (6) K, V: N_k(d + d_v), Q, dO, L, D: N_k·N_q(d + d_v + 2)
writes  (3) dV: N_k·d_v   (4) D: N_q   (5) dQ: N_q·d   (6) dK: N_k·d
peak    (3) (t + 1)(d + d_v) + 2t   (4) t(2d_v + 1)   (5) 2d + d_v + 2 + B_c(d + d_v + 2)
        (6) 2d + d_v + t(d + d_v + 4)
"""

from __future__ import annotations

from flashsim.records import Blocks
from flashsim.theory.appendix_b_memory_efficient import one_by_one
from flashsim.theory.form import Form
from flashsim.theory.problem import Arrays, OneHead, Tiles


def traffic(p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Equations 3 to 6."""
    n, k, d, d_v = p.N_q, p.N_k, p.d, p.d_v
    by_key, by_query = _by_key(p, blocks), _by_query(p, blocks)
    return {
        **p.array("Q", "input", reads=(2 * k + 1) * n * d),
        **p.array("K", "input", reads=(n + 2) * k * d),
        **p.array("V", "input", reads=(n + 1) * k * d_v),
        **p.array("O", "input", reads=n * d_v),
        **p.array("dO", "input", reads=(2 * k + 2) * n * d_v),
        **p.array("L", "input", reads=(2 * k + 1) * n),
        **p.generator("backward"),
        **p.masks(by_key, by_query, by_key),
        **p.gradient(by_query),
        **p.array("D", "extra", reads=(k + 1) * n, writes=n),
        **p.array("dQ", "output", writes=n * d),
        **p.array("dK", "output", writes=k * d),
        **p.array("dV", "output", writes=k * d_v),
    }


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """The widest of equations 3 to 6; never the third, as the sixth holds the same and more."""
    w, t = p.d + p.d_v, min(blocks.B_c, p.N_q)
    fourth = t * (2 * p.d_v + 1)
    fifth = _by_query(p, blocks).most(
        lambda _, c: p.d + w + 2 + c * (w + 2) + p.mask_tile(1, c) + p.gradient_tile(1, c)
    )
    sixth = _by_key(p, blocks).most(lambda t, _: p.d + w + t * (w + 4) + p.mask_tile(t, 1))
    return p.R + max(fourth, fifth, sixth)


def _by_key(p: OneHead, blocks: Blocks) -> Tiles:
    """Equations 3 and 6: a key, and t queries at a time."""
    return p.tiles(min(blocks.B_c, p.N_q), 1)


def _by_query(p: OneHead, blocks: Blocks) -> Tiles:
    """Equation 5: a query, and B_c keys at a time."""
    return p.tiles(1, blocks.B_c)


FORM = Form(
    name="memory_efficient",
    direction="backward",
    proportions=one_by_one,
    traffic=traffic,
    peak=peak,
    products=(5, 3),  # S three times, dQ dK; dV, dP twice
    extra="N_q",
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
    gives_dS=True,
)
