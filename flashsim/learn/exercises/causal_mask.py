"""Exercise 7: the causal mask of one tile."""

from typing import NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.checks import common_mistake, equal, expect
from flashsim.learn.exercises.submission import Submission

NUMBER = 7
TITLE = "a mask, tile by tile"
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


def grade(submission: Submission) -> str:
    causal = submission.function("causal")
    when = {
        "broadcast": "q is a column, k a row, and both are as long as the tile: the last tiles are smaller."
    }
    tiles: list[Tile] = []
    for N_q, N_k, B_r, B_c in SHAPES:
        tiles += _tiles(N_q, N_k, B_r, B_c)
    results = []
    mistakes = []
    for tile in tiles:
        results.append(causal(tile.S.copy(), *tile[1:], when=when))
        mistakes.append(_mistakes(tile))
    hint = common_mistake(zip(results, mistakes, strict=True), equal)
    for tile, result in zip(tiles, results, strict=True):
        label = (
            f"Tile ({tile.i}, {tile.j}) of N_q = {tile.N_q}, N_k = {tile.N_k}, blocks ({tile.B_r}, "
            f"{tile.B_c}): causal(S)"
        )
        right = np.where(_live(tile), tile.S, -np.inf)
        expect(label, result, right, {hint: result})
    return f"all {len(tiles)} tiles of three shapes, N_q at, below and above N_k, ragged ones too"


class Tile(NamedTuple):
    """The arguments of `causal`."""

    S: Array
    i: int
    j: int
    B_r: int
    B_c: int
    N_q: int
    N_k: int


def _tiles(N_q: int, N_k: int, B_r: int, B_c: int) -> list[Tile]:
    S = np.random.default_rng(N_k).normal(size=(N_q, N_k))
    tiles = []
    for i in range(-(-N_q // B_r)):
        rows = slice(i * B_r, (i + 1) * B_r)
        for j in range(-(-N_k // B_c)):
            columns = slice(j * B_c, (j + 1) * B_c)
            tiles.append(Tile(S[rows, columns], i, j, B_r, B_c, N_q, N_k))
    return tiles


def _live(tile: Tile) -> Array:
    """Return which scores count."""
    rows, columns = tile.S.shape
    q = tile.i * tile.B_r + np.arange(rows)[:, None]
    k = tile.j * tile.B_c + np.arange(columns)
    return np.asarray(k <= q + tile.N_k - tile.N_q)


def _mistakes(tile: Tile) -> dict[str, Array]:
    """Return hints, each with what a mistake makes of a tile."""
    S, i, j, B_r, B_c, N_q, N_k = tile
    rows = np.arange(S.shape[0])[:, None]
    columns = np.arange(S.shape[1])
    shift = N_k - N_q
    q = i * B_r + rows
    k = j * B_c + columns
    right = k <= q + shift
    conditions = {
        "The diagonal is masked too: a query sees itself, so <= and not <.": k < q + shift,
        (
            "N_k - N_q is missing: the mask is aligned at the top left, and the last query does "
            "not see the last key."
        ): k <= q,
        "The numbers are those within the tile: add where its block begins, i * B_r and j * B_c.": (
            columns <= rows + shift
        ),
        "Past and future are exchanged: query q sees the keys up to it, k <= q + N_k - N_q.": (
            k >= q + shift
        ),
        "The sign of N_k - N_q is wrong.": k <= q - shift,
        "j belongs to the keys and i to the queries; here they are exchanged.": (
            i * B_c + columns <= j * B_r + rows + shift
        ),
    }
    tiles = {hint: np.where(condition, S, -np.inf) for hint, condition in conditions.items()}
    hint = "Past and future are exchanged: np.where keeps S where its condition is true."
    tiles[hint] = np.where(right, -np.inf, S)
    hint = "Masked scores are 0, and exp(0) = 1 counts. They must be -infinity."
    tiles[hint] = np.where(right, S, 0.0)
    return tiles
