"""Standard attention's passes over a whole N_q × N_k matrix, by element, in tiles as large as
fit.
"""

from bisect import bisect_right

from flashsim.theory.problem import OneHead, Tiles, ceil_div


def dropping_peak(p: OneHead) -> int:
    """Two tiles of a pass over all of P (or dP) and Z."""
    return _tiles(p, 2).most(lambda r, c: 2 * r * c) if p.dropout else 0


def learning_tiles(p: OneHead) -> Tiles:
    """The tiles of the pass that adds dS to a bias's gradient; none without a bias."""
    return Tiles({}) if p.learns is None else _tiles(p, 2)


def masking_tiles(p: OneHead) -> Tiles:
    """The tiles of the pass that masks S, which hold their blocks of masks, and their words of a
    tree's bitmask.

    A whole row has all words; a piece of c keys has ⌈(c − 1)/32⌉ + 1 at most, and is the longest
    that surely fits.
    """
    held = 1 + len(p.dense)
    if not p.tree:
        return _tiles(p, held)
    rows = p.M // (held * p.N_k + p.tree_words)
    if rows >= 1:
        return p.tiles(min(rows, p.N_q), p.N_k)
    pieces = range(1, p.N_k + 1)
    fit = bisect_right(
        pieces, p.M, key=lambda c: held * c + min(ceil_div(c - 1, 32) + 1, p.tree_words)
    )
    return p.tiles(1, max(fit, 1))


def _tiles(p: OneHead, held: int) -> Tiles:
    """The tiles of an element-wise pass that holds so many at a time: whole rows, as many as M
    allows, or pieces of one.
    """
    rows = p.M // (held * p.N_k)
    if rows >= 1:
        return Tiles.of(p.N_q, p.N_k, min(rows, p.N_q), p.N_k)
    return Tiles.of(p.N_q, p.N_k, 1, max(p.M // held, 1))
