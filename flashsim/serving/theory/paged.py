"""Paged attention. A row block loads ⌈e/p⌉ pages: all of them whole but the last, of which the
tiles with a key that is seen.

    reads   Q: R·d   lengths: a word a row block   table: Σ ⌈e_i/p⌉ words
            K: d·Σ k_i   V: d_v·Σ k_i
    writes  O: R·d_v   L: R
    peak    q_outer's, and two words: n, and the page's number

With B_c = p, k_i = cover(e_i, p); with tail = "page", ⌈e_i/p⌉·p.
"""

import numpy as np

from flashsim.serving.batch import Batch
from flashsim.serving.theory.form import (
    BatchForm,
    Ints,
    Moved,
    RowBlocks,
    moves,
    sequences,
    tile_peak,
    whole,
)


def loaded(blocks: RowBlocks, B_c: int, page: int, tail: str) -> Ints:
    """Return k_i, the rows of the pool that each row block loads."""
    before = np.maximum(-(-blocks.e // page) - 1, 0) * page
    there = page if tail == "page" else np.minimum(page, blocks.n - before)
    return np.asarray(before + np.minimum(-(-(blocks.e - before) // B_c) * B_c, there))


def traffic(p: Batch, page: int, tail: str) -> dict[str, Moved]:
    k = T = pages = 0
    for blocks in sequences(p):
        k += whole(loaded(blocks, p.B_c, page, tail))
        pages += whole(-(-blocks.e // page))
        T += len(blocks.e)
    return moves(p, K=k * p.d, V=k * p.d_v, table=pages, lengths=T)


def peak(p: Batch, page: int, tail: str, columns: int = 0) -> int:
    """The largest tile is a row block's first: B_c keys, or those that its first page has."""
    tops = [0]
    for blocks in sequences(p):
        first = np.minimum(p.B_c, page if tail == "page" else np.minimum(page, blocks.n))
        tops.append(
            tile_peak(p, blocks.b, np.where(blocks.e > 0, first, 0), columns=columns, more=1)
            + (len(blocks.b) > 0)
        )
    return max(tops)


FORM = BatchForm(name="paged", traffic=traffic, peak=peak)
