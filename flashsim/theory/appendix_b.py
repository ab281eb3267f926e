"""Appendix B: attention in closed form (B.1, B.2), and Rabe and Staats' (B.5).

`memory_efficient`. A query at a time (B_r = 1) past blocks of B_c keys; backward, equations 3 and 6 a key at a time past
blocks of t = min(B_c, N_q) queries:

    forward   reads   Q: 2N_q·d   K: 2T_r·N_k·d   V: T_r·N_k·d_v   L: N_q      writes  L: N_q   O: N_q·d_v
              peak    equation 2's (B_r + B_c)(d + d_v) + B_r·B_c + B_r: q_i o_i k_j v_j, S_ij, log L_i
    backward  reads   (3) K: N_k·d, Q, dO, L: N_k·N_q(d + d_v + 1)             (4) O, dO: N_q·d_v each
                      (5) Q, dO, L, D: N_q(d + d_v + 2), K, V: N_q·N_k(d + d_v)
                      (6) K, V: N_k(d + d_v), Q, dO, L, D: N_k·N_q(d + d_v + 2)
              writes  (3) dV: N_k·d_v   (4) D: N_q   (5) dQ: N_q·d   (6) dK: N_k·d
              peak    (3) (t + 1)(d + d_v) + 2t   (4) t(2d_v + 1)   (5) 2d + d_v + 2 + B_c(d + d_v + 2)
                      (6) 2d + d_v + t(d + d_v + 4)

`rabe_staats`. FlashAttention's loops, but each tile writes its own output and statistics, read once to combine them:

    forward   reads   K, V: N_k(d + d_v)   Q: T_c·N_q·d   parts: T_c·N_q(d_v + 2)
              writes  parts: T_c·N_q(d_v + 2)   O, ℓ, m: N_q(d_v + 2)
              peak    (B_r + B_c)(d + d_v) + B_r·B_c + 2B_r to summarise; 2B_r·d_v + 5B_r to combine
    backward  Algorithm 4's, with dK and dV not initialised
              peak    2(B_r + B_c)(d + d_v) + 2B_r·B_c + 7B_r + B_r·d_v: as Algorithm 4, with m_ij ℓ_ij w_ij and two row
                      sums for D_i, and O_ij; + 2B_r·B_c + 2 with dropout
"""

from __future__ import annotations

from dataclasses import replace

from flashsim.records import Blocks
from flashsim.theory import flash
from flashsim.theory.problem import Arrays, Problem, Tiles


def one_by_one(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): one query and `rows` terms of its sum."""
    return 1, rows


def closed_form_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Equations 1 and 2."""
    n, k, T_r = p.N_q, p.N_k, blocks.T_r
    return {
        **p.array("Q", "input", reads=2 * n * p.d),
        **p.array("K", "input", reads=2 * T_r * k * p.d),
        **p.array("V", "input", reads=T_r * k * p.d_v),
        **p.masks(tiles, tiles),
        **p.generator("forward"),
        **p.array("O", "output", writes=n * p.d_v),
        **p.array("L", "extra", reads=n, writes=n),
    }


def closed_form_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Equation 2; equation 1 holds less."""
    return tiles.most(lambda r, c: (r + c) * (p.d + p.d_v) + r * c + r + p.mask_tile(r, c))


def closed_form_backward_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
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
        **p.array("D", "extra", reads=(k + 1) * n, writes=n),
        **p.array("dQ", "output", writes=n * d),
        **p.array("dK", "output", writes=k * d),
        **p.array("dV", "output", writes=k * d_v),
    }


def closed_form_backward_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """The widest of equations 3 to 6."""
    w, t = p.d + p.d_v, min(blocks.B_c, p.N_q)
    third = _by_key(p, blocks).most(lambda t, _: (t + 1) * w + 2 * t + p.mask_tile(t, 1))
    fourth = t * (2 * p.d_v + 1)
    fifth = _by_query(p, blocks).most(lambda _, c: p.d + w + 2 + c * (w + 2) + p.mask_tile(1, c))
    sixth = _by_key(p, blocks).most(lambda t, _: p.d + w + t * (w + 4) + p.mask_tile(t, 1))
    return p.R + max(third, fourth, fifth, sixth)


def _by_key(p: Problem, blocks: Blocks) -> Tiles:
    """Equations 3 and 6: a key, and t queries at a time."""
    return p.tiles(min(blocks.B_c, p.N_q), 1)


def _by_query(p: Problem, blocks: Blocks) -> Tiles:
    """Equation 5: a query, and B_c keys at a time."""
    return p.tiles(1, blocks.B_c)


def rabe_staats_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Summarise, and combine."""
    n, k, A = p.N_q, p.N_k, blocks.T_c * p.N_q
    arrays = {
        **p.array("Q", "input", reads=A * p.d),
        **p.array("K", "input", reads=k * p.d),
        **p.array("V", "input", reads=k * p.d_v),
        **p.masks(tiles),
        **p.generator("forward"),
        **p.array("O", "output", writes=n * p.d_v),
        **p.array("l", "extra", writes=n),
        **p.array("m", "extra", writes=n),
    }
    for whole, width in (("O", p.d_v), ("l", 1), ("m", 1)):
        parts = replace(arrays[whole], reads=A * width, writes=A * width, size=A * width, role="extra")
        arrays[f"{whole}_parts"] = parts
    return arrays


def rabe_staats_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Summarise, or combine."""
    w = p.d + p.d_v
    summarise = tiles.most(lambda r, c: (r + c) * w + r * c + 2 * r + p.mask_tile(r, c))
    return max(summarise, blocks.B_r * (2 * p.d_v + 5))


def rabe_staats_backward_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Algorithm 4's, but dK and dV are only written once."""
    arrays = flash.backward_traffic(p, blocks, tiles)
    return {
        **arrays,
        **p.array("dK", "output", writes=p.N_k * p.d),
        **p.array("dV", "output", writes=p.N_k * p.d_v),
    }


def rabe_staats_backward_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Algorithm 4's, less its D_i, plus O_ij and five columns."""
    return flash.backward_peak(p, blocks, tiles) + blocks.B_r * (p.d_v + 4)
