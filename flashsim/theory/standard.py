"""Algorithms 0 and 3: standard attention, forward and backward.

Products keep a panel of B_r rows on chip and stream the other operand past it in B_c rows. T_r = ⌈N_q/B_r⌉ counts panels
of queries, U_c = ⌈N_k/B_r⌉ panels of keys (Algorithm 3's lines 1 and 5). With p = 1 if a row fits (forward N_k + 2 ≤ M,
backward 2N_k + 1 ≤ M), else 2:

    forward   reads   Q: N_q·d   K: T_r·N_k·d   S: p·N_q·N_k   P: N_q·N_k   V: T_r·N_k·d_v
              writes  S: N_q·N_k   P: N_q·N_k   O: N_q·d_v
    backward  reads   line 1, dV: P N_q·N_k, dO U_c·N_q·d_v      line 2, dP: dO N_q·d_v, V T_r·N_k·d_v
                      line 3, dS: P and dP p·N_q·N_k each
                      line 4, dQ: dS N_q·N_k, K T_r·N_k·d        line 5, dK: dS N_q·N_k, Q U_c·N_q·d
              writes  dP, dS: N_q·N_k each, dQ: N_q·d, dK: N_k·d, dV: N_k·d_v

With T_r = U_c = p = 1 that is the proof's accounting, each operand read once for each product: forward reads 3Nd + 2N²,
writes Nd + 2N²; backward reads 5Nd + 5N², writes 3Nd + 2N².

A mask of whatever kind adds a pass that reads and writes S. Dropout adds one that reads P and writes Z and P^dropped, which
line 3 (and Algorithm 3's line 1) then read for P; backward, one that reads Z and reads and writes dP.
"""

from __future__ import annotations

from bisect import bisect_right

from flashsim.records import Blocks
from flashsim.theory.problem import Arrays, Problem, Tiles, ceil_div


def proportions(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): Algorithm 1's, exchanged, as here the panel of queries decides how often K and V are read."""
    return rows, min(rows, d)


def forward_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Algorithm 0."""
    square, dropped = p.N_q * p.N_k, int(p.dropout) * p.N_q * p.N_k
    masking = square if p.masked else 0
    passes = 1 if p.N_k + 2 <= p.M else 2
    dropped_arrays = p.array("P_dropped", "extra", reads=dropped, writes=dropped) | p.array(
        "Z", "extra", writes=dropped
    )
    return {
        **p.array("Q", "input", reads=p.N_q * p.d),
        **p.array("K", "input", reads=blocks.T_r * p.N_k * p.d),
        **p.array("V", "input", reads=blocks.T_r * p.N_k * p.d_v),
        **p.masks(_masking(p)),
        **p.array("S", "extra", reads=masking + passes * square, writes=square + masking),
        **p.array("P", "extra", reads=square, writes=square),
        **p.array("O", "output", writes=p.N_q * p.d_v),
        **(dropped_arrays if p.dropout else {}),
    }


def forward_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """Line 1's or 3's panel, block and tile of S; rows of S with m and ℓ; S with the mask; P with Z."""
    B_r, B_c, n, k = blocks.B_r, blocks.B_c, p.N_q, p.N_k
    product = (B_r + B_c) * max(p.d, p.d_v) + B_r * B_c
    softmax = min(n, p.M // (k + 2)) * (k + 2) if k + 2 <= p.M else min(k, max(p.M - 3, 1)) + 3
    masking = _masking(p).most(lambda r, c: r * c + p.mask_tile(r, c)) if p.masked else 0
    return max(product, softmax, masking, _dropping(p))


def backward_traffic(p: Problem, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Algorithm 3. A mask costs nothing: it is in P."""
    n, k, square, dropped = p.N_q, p.N_k, p.N_q * p.N_k, int(p.dropout) * p.N_q * p.N_k
    U_c = -(-k // blocks.B_r)
    passes = 1 if 2 * k + 1 <= p.M else 2
    dropped_arrays = p.array("P_dropped", "input", reads=dropped) | p.array("Z", "input", reads=dropped)
    return {
        **p.array("Q", "input", reads=U_c * n * p.d),
        **p.array("K", "input", reads=blocks.T_r * k * p.d),
        **p.array("V", "input", reads=blocks.T_r * k * p.d_v),
        **p.array("dO", "input", reads=(U_c + 1) * n * p.d_v),
        **p.array("P", "input", reads=(square - dropped) + passes * square),
        **(dropped_arrays if p.dropout else {}),
        **p.array("dP", "extra", reads=dropped + passes * square, writes=square + dropped),
        **p.array("dS", "extra", reads=2 * square, writes=square),
        **p.array("dQ", "output", writes=n * p.d),
        **p.array("dK", "output", writes=k * p.d),
        **p.array("dV", "output", writes=k * p.d_v),
    }


def backward_peak(p: Problem, blocks: Blocks, tiles: Tiles) -> int:
    """The widest of lines 2 and 4 (panels of queries), 1 and 5 (of keys), and line 3: rows of P, dP and their sum."""
    n, k, M, width = p.N_q, p.N_k, p.M, max(p.d, p.d_v)
    B, b = blocks.B_r, blocks.B_c
    panel, streamed = min(B, k), min(b, n)
    queries, keys = (B + b) * width + B * b, (panel + streamed) * width + panel * streamed
    row = 2 * k + 1
    softmax = min(n, M // row) * row if row <= M else 2 * min(k, max((M - 1) // 2, 1)) + 1
    return max(queries, keys, softmax, _dropping(p))


def _dropping(p: Problem) -> int:
    """Two tiles of a pass over all of P (or dP) and Z."""
    return _pass(p, 2).most(lambda r, c: 2 * r * c) if p.dropout else 0


def _masking(p: Problem) -> Tiles:
    """The tiles of the pass that masks S, which hold their blocks of masks, and their words of a tree's bitmask.

    A whole row has all words; a piece of c keys has ⌈(c − 1)/32⌉ + 1 at most, and is the longest that surely fits.
    """
    held = 1 + len(p.dense)
    if not p.tree:
        return _pass(p, held)
    rows = p.M // (held * p.N_k + p.tree_words)
    if rows >= 1:
        return p.tiles(min(rows, p.N_q), p.N_k)
    pieces = range(1, p.N_k + 1)
    fit = bisect_right(pieces, p.M, key=lambda c: held * c + min(ceil_div(c - 1, 32) + 1, p.tree_words))
    return p.tiles(1, max(fit, 1))


def _pass(p: Problem, held: int) -> Tiles:
    """The tiles of an element-wise pass that holds so many at a time: whole rows, as many as M allows, or pieces of one."""
    rows = p.M // (held * p.N_k)
    if rows >= 1:
        return Tiles.of(p.N_q, p.N_k, min(rows, p.N_q), p.N_k)
    return Tiles.of(p.N_q, p.N_k, 1, max(p.M // held, 1))
