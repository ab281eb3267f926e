"""Exercise 8: tiles that a causal mask empties are not loaded."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from flashsim.learn.exercises.checks import common_mistake, expect_count
from flashsim.learn.exercises.submission import Mistake, Submission

NUMBER = 8
TITLE = "skip what a causal mask empties"
TEXT = '''
About half of the tiles of causal attention are masked whole. Such a tile gives
nothing, and this is known without looking at it. So its loads are skipped:
this is what causal FlashAttention saves.

Say whether the tile (i, j) is live: whether any of its queries sees any of its
keys. Query q sees the keys k <= q + N_k - N_q. Block i holds the B_r queries
from i * B_r on, block j the B_c keys from j * B_c on. (The last block of
queries may be cut short. Why does that change nothing here?)

It is judged by the counts that it leads to: a live tile costs the loads of K_j
and V_j, and a skipped tile costs nothing.
"""


def live(i, j, B_r, B_c, N_q, N_k):
    last_query = ...  # of block i
    first_key = ...  # of block j
    return ...
'''
HINTS = (
    "The last query of the block sees the most, and the first key is the first to be seen.",
    (
        "The last query is (i + 1) * B_r - 1. Where that is N_q or more, the block sees the last "
        "key, and so all of them."
    ),
    "return first_key <= last_query + N_k - N_q",
)
D = 4
Tile = tuple[int, int, int, int, int, int]
"""The arguments of `live`: (i, j, B_r, B_c, N_q, N_k)."""
SHAPES = ((2, 2, 8, 8), (3, 2, 7, 12), (2, 4, 5, 9), (4, 2, 9, 4), (4, 3, 6, 6))


def grade(submission: Submission) -> str:
    live = submission.function("live")
    answers: dict[Tile, Any] = {}
    for shape in SHAPES:
        for tile in _tiles(*shape):
            answers[tile] = live(*tile)
    for answer in answers.values():
        if not isinstance(answer, bool | np.bool_):
            raise Mistake(
                f"live returned {answer!r}; expected True or False.",
                "A comparison, such as a <= b, is one.",
            )
    # with the last block of queries cut short, or not
    hint = _hint(answers, cut=True) or _hint(answers, cut=False)
    for shape in SHAPES:
        B_r, B_c, N_q, N_k = shape
        label = f"N_q = {N_q}, N_k = {N_k}, blocks ({B_r}, {B_c})"
        live_tiles = []
        loaded_tiles = []
        for tile in _tiles(*shape):
            count = _scores(*tile)
            if count and not answers[tile]:
                raise Mistake(
                    f"{label}: tile {tile[:2]} is skipped, but {count} of its scores count.", hint
                )
            if count:
                live_tiles.append(tile)
            if answers[tile]:
                loaded_tiles.append(tile)
        reads = _reads(loaded_tiles)
        expected = _reads(live_tiles)
        expect_count(f"{label}, d = {D}: elements of K and V read", reads, expected, {hint: reads})
    return (
        f"{len(answers)} tiles of {len(SHAPES)} shapes: no score is lost, and the reads of K and V "
        "are the least, =="
    )


def _hint(answers: dict[Tile, Any], cut: bool) -> str:
    results = []
    for tile, answer in answers.items():
        results.append((answer, _mistakes(*tile, cut)))
    return common_mistake(results)


def _tiles(B_r: int, B_c: int, N_q: int, N_k: int) -> list[Tile]:
    T_r = -(-N_q // B_r)
    T_c = -(-N_k // B_c)
    return [(i, j, B_r, B_c, N_q, N_k) for i in range(T_r) for j in range(T_c)]


def _scores(i: int, j: int, B_r: int, B_c: int, N_q: int, N_k: int) -> int:
    """Return how many scores of a tile count."""
    mask = np.tri(N_q, N_k, N_k - N_q, int)
    return int(mask[i * B_r : (i + 1) * B_r, j * B_c : (j + 1) * B_c].sum())


def _reads(tiles: Iterable[Tile]) -> int:
    """Return how many elements of K and V the tiles read."""
    return sum(2 * D * min(B_c, N_k - j * B_c) for _, j, _, B_c, _, N_k in tiles)


def _mistakes(i: int, j: int, B_r: int, B_c: int, N_q: int, N_k: int, cut: bool) -> dict[str, bool]:
    """Return hints, each with the answer that a mistake leads to. `cut` says whether the last block
    of queries is cut short.
    """
    first_query = i * B_r
    last_query = min((i + 1) * B_r, N_q if cut else N_q + B_r) - 1
    first_key = j * B_c
    last_key = min((j + 1) * B_c, N_k) - 1
    shift = N_k - N_q
    return {
        "Every tile is live here: none is skipped.": True,
        "N_k - N_q is missing: with more keys than queries, the queries are the last ones.": (
            first_key <= last_query
        ),
        (
            "Blocks are compared by their numbers, j <= i. That holds for B_r = B_c and N_q = N_k "
            "alone."
        ): j <= i,
        "It goes by the block's first query. The last one sees more.": (
            first_key <= first_query + shift
        ),
        (
            "It goes by the block's last key, so it skips tiles that are masked in part. The first "
            "key decides."
        ): last_key <= last_query + shift,
        "The diagonal counts: a query sees itself, so <= and not <.": (
            first_key < last_query + shift
        ),
        "(i + 1) * B_r is the query after the last one of the block.": (
            first_key <= last_query + 1 + shift
        ),
        "With more queries than keys N_k - N_q is negative: the first queries see no key.": (
            first_key <= last_query + max(shift, 0)
        ),
        "The sign of N_k - N_q is wrong.": first_key <= last_query - shift,
        "Past and future are exchanged: a query sees the keys up to it.": (
            first_key >= last_query + shift
        ),
    }
