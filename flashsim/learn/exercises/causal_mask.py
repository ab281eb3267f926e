"""Exercise 7: the causal mask of one tile."""

from collections.abc import Iterator

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.judging import expect, explained, same
from flashsim.learn.exercises.work import Work

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


def grade(work: Work) -> str:
    causal = work.function("causal")
    when = {
        "broadcast": "q is a column, k a row, and both are as long as the tile: the last tiles are smaller."
    }
    tiles = [tile for shape in SHAPES for tile in _tiles(*shape)]
    got = [causal(S.copy(), *at, when=when) for S, *at in tiles]
    masked = [_masked(*tile) for tile in tiles]
    hint = explained(
        ((found, wrongs) for found, (_, wrongs) in zip(got, masked, strict=True)), same
    )
    for found, (want, _), (_, i, j, B_r, B_c, N_q, N_k) in zip(got, masked, tiles, strict=True):
        expect(
            f"Tile ({i}, {j}) of N_q = {N_q}, N_k = {N_k}, blocks ({B_r}, {B_c}): causal(S)",
            found,
            want,
            {hint: found},
        )
    return f"all {len(tiles)} tiles of three shapes, N_q at, below and above N_k, ragged ones too"


def _tiles(
    N_q: int, N_k: int, B_r: int, B_c: int
) -> Iterator[tuple[Array, int, int, int, int, int, int]]:
    S = np.random.default_rng(N_k).normal(size=(N_q, N_k))
    for i in range(-(-N_q // B_r)):
        for j in range(-(-N_k // B_c)):
            yield S[i * B_r : (i + 1) * B_r, j * B_c : (j + 1) * B_c], i, j, B_r, B_c, N_q, N_k


def _masked(
    S: Array, i: int, j: int, B_r: int, B_c: int, N_q: int, N_k: int
) -> tuple[Array, dict[str, Array]]:
    """Return a tile as it should be, and what each mistake makes of it."""
    rows = np.arange(S.shape[0])[:, None]
    columns = np.arange(S.shape[1])
    more = N_k - N_q
    q = i * B_r + rows
    k = j * B_c + columns
    right = k <= q + more
    kept = {
        "The diagonal is masked too: a query sees itself, so <= and not <.": (k < q + more),
        (
            "N_k - N_q is missing: the mask is aligned at the top left, and the last query does "
            "not see the last key."
        ): (k <= q),
        "The numbers are those within the tile: add where its block begins, i * B_r and j * B_c.": (
            columns <= rows + more
        ),
        "Past and future are exchanged: query q sees the keys up to it, k <= q + N_k - N_q.": (
            k >= q + more
        ),
        "The sign of N_k - N_q is wrong.": (k <= q - more),
        "j belongs to the keys and i to the queries; here they are exchanged.": (
            i * B_c + columns <= j * B_r + rows + more
        ),
    }
    return np.where(right, S, -np.inf), {
        hint: np.where(stays, S, -np.inf) for hint, stays in kept.items()
    } | {
        "Past and future are exchanged: np.where keeps S where its condition is true.": np.where(
            right, -np.inf, S
        ),
        "Masked scores are 0, and exp(0) = 1 counts. They must be -infinity.": np.where(
            right, S, 0.0
        ),
    }
