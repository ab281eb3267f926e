"""Exercise 7: the causal mask of one tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flashsim.exercises.judging import expect, same
from flashsim.exercises.work import Work
from flashsim.inputs import Array

NUMBER, TITLE = 7, "a mask, tile by tile"
TEXT = '''
Causal attention: a query sees itself and what came before. With N_k keys and
N_q queries, the queries are the last ones, so query q sees the keys

    k <= q + N_k - N_q

Mask the tile S of the queries of block i and the keys of block j: a score that
must not count becomes -infinity, for exp(-infinity) = 0; the others stay.
Row r of the tile is query i * B_r + r, column c is key j * B_c + c. The last
tiles may be smaller than (B_r, B_c): go by S.shape.
"""

import numpy as np


def causal(S, i, j, B_r, B_c, N_q, N_k):
    q = ...  # the queries' numbers, a column
    k = ...  # the keys' numbers, a row
    return np.where(..., S, -np.inf)
'''
HINTS = (
    "np.arange(n) counts 0 … n − 1; [:, None] makes it a column, [None, :] a row.",
    "q = i * B_r + np.arange(S.shape[0])[:, None], and k likewise with j, B_c and S.shape[1].",
    "The condition of np.where is true for what stays: k <= q + N_k - N_q",
)


SHAPES = ((6, 6, 2, 3), (3, 8, 2, 3), (8, 5, 3, 2))


def grade(work: Work) -> str:
    causal = work.function("causal")
    when = {"broadcast": "q is a column, k a row, and both are as long as the tile: the last tiles are smaller."}
    tiles = [tile for shape in SHAPES for tile in _tiles(*shape)]
    got = [causal(t.S.copy(), t.i, t.j, t.B_r, t.B_c, t.N_q, t.N_k, when=when) for t in tiles]
    fitting = [{hint for hint, wrong in _wrongs(t).items() if same(g, wrong)} for g, t in zip(got, tiles, strict=True)]
    hints = set.intersection(*fitting)
    for found, t in zip(got, tiles, strict=True):
        said = f"Tile ({t.i}, {t.j}) of N_q = {t.N_q}, N_k = {t.N_k}, blocks ({t.B_r}, {t.B_c}): causal(S)"
        expect(said, found, np.where(t.k <= t.q + t.more, t.S, -np.inf), dict.fromkeys(hints, found))
    return f"all {len(tiles)} tiles of three shapes, N_q at, below and above N_k, ragged ones too"


class Tile(NamedTuple):
    """A tile of scores: where it is, the numbers of its queries q (a column) and of its keys k, and N_k − N_q."""

    S: Array
    i: int
    j: int
    B_r: int
    B_c: int
    N_q: int
    N_k: int
    q: Array
    k: Array
    more: int


def _tiles(N_q: int, N_k: int, B_r: int, B_c: int) -> Iterator[Tile]:
    S = np.random.default_rng(N_k).normal(size=(N_q, N_k))
    for i in range(-(-N_q // B_r)):
        for j in range(-(-N_k // B_c)):
            q, k = np.arange(N_q)[i * B_r : (i + 1) * B_r, None], np.arange(N_k)[j * B_c : (j + 1) * B_c]
            yield Tile(S[q, k], i, j, B_r, B_c, N_q, N_k, q, k, N_k - N_q)


def _wrongs(t: Tile) -> dict[str, Array]:
    """Return what each mistake makes of a tile."""
    S, i, j, q, k, more = t.S, t.i, t.j, t.q, t.k, t.more
    rows, columns = np.arange(S.shape[0])[:, None], np.arange(S.shape[1])
    kept = {
        "The diagonal is masked too: a query sees itself, so <= and not <.": k < q + more,
        "N_k - N_q is missing: the mask is aligned at the top left, and the last query does not see the last key.": k
        <= q,
        "The numbers are those within the tile: add where its block begins, i * B_r and j * B_c.": columns
        <= rows + more,
        "Past and future are exchanged: query q sees the keys up to it, k <= q + N_k - N_q.": k >= q + more,
        "The sign of N_k - N_q is the other one.": k <= q - more,
        "j belongs to the keys and i to the queries; here they are exchanged.": (
            i * t.B_c + columns <= j * t.B_r + rows + more
        ),
    }
    right = k <= q + more
    return {hint: np.where(stays, S, -np.inf) for hint, stays in kept.items()} | {
        "Past and future are exchanged: np.where keeps S where its condition is true.": np.where(right, -np.inf, S),
        "Masked scores are 0, and exp(0) = 1 counts. They must be -infinity.": np.where(right, S, 0.0),
    }
