"""The loops exchanged, forward and backward, and FlashDecoding: tiles that the mask forbids whole are never loaded.

Over the live tiles, A = Σ of their rows (T_c·N_q if all are live) and C = Σ of their columns (T_r·N_k). w = d + d_v.

    q_outer           reads   Q: N_q·d   K: C·d   V: C·d_v            writes  O: N_q·d_v   L: N_q
                      peak    (b_r + b_c)w + b_r·b_c + 3b_r: Q_i O_i K_j V_j, S_ij, ℓ_i m_i m_i^new; with no live tile
                              B_r·w + 2B_r
    backward, dQ      reads   O: N_q·d_v   dO: N_q·d_v + A·d_v   K, V: N_k·w   Q: A·d   L, D: A each   dQ: A·d
    accumulated       writes  D: N_q   dQ: N_q·d [initial] + A·d   dK, dV: N_k·w
                      peak    2b_c·w + b_r(w + d) + 2b_r·b_c + 2b_r: K_j V_j dK̃_j dṼ_j, Q_i dO_i dQ_i, P_ij dP_ij, L_i D_i;
                              + 2b_r·b_c with dropout, Z_ij and P_ij^dropped; or lines 5 and 6: B_r(2d_v + 1)
    in two passes     reads   O: N_q·d_v   dO: 2N_q·d_v + A·d_v   K: N_k·d + C·d   V: N_k·d_v + C·d_v   Q: A·d + N_q·d
                              L, D: A + N_q each
                      writes  D: N_q   dQ: N_q·d   dK, dV: N_k·w
                      peak    first pass: 2b_c·w + b_r·w + 2b_r·b_c + 2b_r, + 2b_r·b_c with dropout; second: b_c·w +
                              b_r(w + d) + 2b_r·b_c + 2b_r, with no live tile B_r(w + d + 2); or as above
    split_kv          reads   Q: t·N_q·d   K: C·d   V: C·d_v          writes  parts: t·N_q(d_v + 2)   O: N_q·d_v
    t splits          merged in sequence: parts are read once. As a tree: t − 1 merges read two parts and write one; at last
                      one is read without its m
                      peak    as q_outer's; or merging, B_r(2d_v + 5): two parts and a new m
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from flashsim.records import Blocks
from flashsim.theory.problem import Arrays, Problem, Tiles


def proportions(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): Algorithm 1's, exchanged."""
    return rows, min(rows, d)


def square(rows: int, d: int) -> tuple[int, int]:
    """Return B_r = B_c = b: b² + 4bd ≤ 4d·rows is (b + 2d)² ≤ 4d² + 4d·rows."""
    b = max(isqrt(4 * d * d + 4 * d * rows) - 2 * d, 1)
    return b, b


def traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
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


def peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Forward."""
    w = p.d + p.d_v
    return max(blocks.B_r * (w + 2), tiles.most(lambda r, c: (r + c) * w + r * c + 3 * r + p.mask_tile(r, c)))


def backward_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Backward, dQ accumulated."""
    n, A = p.N_q, tiles.rows
    return {
        **p.array("Q", "input", reads=A * p.d),
        **p.array("K", "input", reads=p.N_k * p.d),
        **p.array("V", "input", reads=p.N_k * p.d_v),
        **p.array("O", "input", reads=n * p.d_v),
        **p.array("dO", "input", reads=(n + A) * p.d_v),
        **p.array("L", "input", reads=A),
        **p.generator("backward"),
        **p.masks(tiles),
        **p.array("D", "extra", reads=A, writes=n),
        **p.array("dQ", "output", reads=A * p.d, writes=A * p.d, init=n * p.d),
        **p.array("dK", "output", writes=p.N_k * p.d),
        **p.array("dV", "output", writes=p.N_k * p.d_v),
    }


def backward_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Backward, dQ accumulated."""
    w, squares = p.d + p.d_v, 4 if p.dropout else 2
    tile = tiles.most(lambda r, c: 2 * c * w + r * (w + p.d) + squares * r * c + 2 * r + p.mask_tile(r, c))
    return p.R + max(blocks.B_r * (2 * p.d_v + 1), 2 * blocks.B_c * w, tile)


def two_pass_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Backward in two passes."""
    n, k, A, C = p.N_q, p.N_k, tiles.rows, tiles.columns
    return {
        **p.array("Q", "input", reads=(A + n) * p.d),
        **p.array("K", "input", reads=(k + C) * p.d),
        **p.array("V", "input", reads=(k + C) * p.d_v),
        **p.array("O", "input", reads=n * p.d_v),
        **p.array("dO", "input", reads=(2 * n + A) * p.d_v),
        **p.array("L", "input", reads=A + n),
        **p.generator("backward"),
        **p.masks(tiles, tiles),
        **p.array("D", "extra", reads=A + n, writes=n),
        **p.array("dQ", "output", writes=n * p.d),
        **p.array("dK", "output", writes=k * p.d),
        **p.array("dV", "output", writes=k * p.d_v),
    }


def two_pass_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Backward in two passes."""
    w, squares = p.d + p.d_v, 4 if p.dropout else 2
    first = tiles.most(lambda r, c: 2 * c * w + r * w + squares * r * c + 2 * r + p.mask_tile(r, c))
    second = tiles.most(lambda r, c: c * w + r * (w + p.d) + 2 * r * c + 2 * r + p.mask_tile(r, c))
    untiled = max(blocks.B_r * (2 * p.d_v + 1), 2 * blocks.B_c * w, blocks.B_r * (w + p.d + 2))
    return p.R + max(untiled, first, second)


def split_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """FlashDecoding."""
    n, t = p.N_q, p.splits or blocks.T_c
    merges = 0 if p.merge == "sequence" else t - 1
    arrays = {
        **p.array("Q", "input", reads=t * n * p.d),
        **p.array("K", "input", reads=tiles.columns * p.d),
        **p.array("V", "input", reads=tiles.columns * p.d_v),
        **p.masks(tiles),
        **p.generator("forward"),
        **p.array("O", "output", writes=n * p.d_v),
    }
    for name, width in (("O_parts", p.d_v), ("l_parts", 1), ("m_parts", 1)):
        last = t if p.merge == "sequence" else int(name != "m_parts")
        part = p.array(name, "extra", reads=(2 * merges + last) * n * width, writes=(t + merges) * n * width)
        arrays[name] = replace(part[name], size=t * n * width, itemsize=p.chip)
    return arrays


def split_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """FlashDecoding: a split, or merging."""
    t = p.splits or blocks.T_c
    alone = p.merge == "tree" and t == 1  # nothing to merge: a part is read and divided
    return max(peak(p, blocks, tiles), blocks.B_r * (p.d_v + 1 if alone else 2 * p.d_v + 5))
