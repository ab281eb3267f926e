"""Exercise 8: tiles that a causal mask empties are not loaded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flashsim.exercises.judging import expect_count
from flashsim.exercises.work import Work, Wrong

NUMBER, TITLE = 8, "skip what a causal mask empties"
TEXT = '''
About half of the tiles of causal attention are masked whole. What a tile gives
then is known without looking: nothing. So its loads are skipped, and that is
where causal FlashAttention gains.

Say whether the tile (i, j) is live: whether any of its queries sees any of its
keys. Query q sees the keys k <= q + N_k - N_q. Block i holds the B_r queries
from i * B_r on, block j the B_c keys from j * B_c on. (The last block of
queries may be cut short. Why does that change nothing here?)

It is judged by what it makes of the counts: each live tile costs the loads of
K_j and V_j, a skipped one nothing.
"""


def live(i, j, B_r, B_c, N_q, N_k):
    last_query = ...  # of block i
    first_key = ...  # of block j
    return ...
'''
HINTS = (
    "The last query of the block sees the most, and the first key is the first to be seen.",
    "The last query is (i + 1) * B_r - 1. Where that is N_q or more, the block sees the last key, and so all of them.",
    "return first_key <= last_query + N_k - N_q",
)
D = 4
Sizes = tuple[int, int, int, int]
Live = Callable[[int, int, int, int, int, int], bool]
Tiles = dict[tuple[int, int], bool]
SHAPES: tuple[Sizes, ...] = ((8, 8, 2, 2), (7, 12, 3, 2), (5, 9, 2, 4), (9, 4, 4, 2), (6, 6, 4, 3))


def grade(work: Work) -> str:
    live = work.function("live")
    tiles = 0
    answers = {shape: tiles_of(live, shape) for shape in SHAPES}
    for said in (said for chosen in answers.values() for said in chosen.values()):
        if not isinstance(said, bool | np.bool_):
            raise Wrong(f"live returned {said!r}; expected True or False.", "A comparison, such as a <= b, is one.")
    hint = hint_of(answers)
    for shape, chosen in answers.items():
        for at, said in chosen.items():
            count = scores_in(at, shape)
            if count and not said:
                raise Wrong(f"{_shape(shape)}: tile {at} is skipped, but {count} of its scores count.", hint)
        got, needed = reads(chosen, shape), reads({at: bool(scores_in(at, shape)) for at in chosen}, shape)
        expect_count(f"{_shape(shape)}, d = {D}: elements of K and V read", got, needed, {hint: got})
        tiles += len(chosen)
    return f"{tiles} tiles of {len(SHAPES)} shapes: no score is lost, and the reads of K and V are the least, =="


def tiles_of(live: Live, shape: Sizes) -> Tiles:
    """Return what `live` says of each tile."""
    N_q, N_k, B_r, B_c = shape
    T_r, T_c = -(-N_q // B_r), -(-N_k // B_c)
    return {(i, j): live(i, j, B_r, B_c, N_q, N_k) for i in range(T_r) for j in range(T_c)}


def scores_in(at: tuple[int, int], shape: Sizes) -> int:
    """Return how many scores of a tile count."""
    N_q, N_k, B_r, B_c = shape
    allowed = np.arange(N_k) <= np.arange(N_q)[:, None] + N_k - N_q
    i, j = at
    return int(allowed[i * B_r : (i + 1) * B_r, j * B_c : (j + 1) * B_c].sum())


def reads(chosen: Tiles, shape: Sizes) -> int:
    """Return the elements of K and V that are read for these tiles."""
    _, N_k, _, B_c = shape
    return sum(2 * D * min(B_c, N_k - j * B_c) for (_, j), on in chosen.items() if on)


def _shape(shape: Sizes) -> str:
    N_q, N_k, B_r, B_c = shape
    return f"N_q = {N_q}, N_k = {N_k}, blocks ({B_r}, {B_c})"


def hint_of(answers: dict[Sizes, Tiles]) -> str:
    """Return the mistake that chooses these very tiles, with the last block of queries cut short or not; else nothing."""
    fits: dict[str, list[bool]] = {}
    for cut in (True, False):
        for shape, chosen in answers.items():
            for at, said in chosen.items():
                for hint, wrong in _wrongs(at, shape, cut).items():
                    fits.setdefault(f"{hint}{' ' * cut}", []).append(wrong == said)
    return next((hint.strip() for hint, agrees in fits.items() if all(agrees)), "")


def _wrongs(at: tuple[int, int], shape: Sizes, cut: bool) -> dict[str, bool]:
    """Return what each mistake says of a tile."""
    (i, j), (N_q, N_k, B_r, B_c) = at, shape
    first, last = i * B_r, min((i + 1) * B_r, N_q if cut else N_q + B_r) - 1  # queries
    key, last_key = j * B_c, min((j + 1) * B_c, N_k) - 1
    more = N_k - N_q
    return {
        "No tile is skipped.": True,
        "N_k - N_q is missing: with more keys than queries, the queries are the last ones.": key <= last,
        "Blocks are compared by their numbers, j <= i. That holds for B_r = B_c and N_q = N_k alone.": j <= i,
        "It goes by the block's first query. The last one sees more.": key <= first + more,
        "It goes by the block's last key, so it skips tiles that are masked in part. The first key decides.": (
            last_key <= last + more
        ),
        "The diagonal counts: a query sees itself, so <= and not <.": key < last + more,
        "(i + 1) * B_r is the query after the last one of the block.": key <= last + 1 + more,
        "With more queries than keys N_k - N_q is negative: the first queries see no key.": key <= last + max(more, 0),
        "The sign of N_k - N_q is the other one.": key <= last - more,
        "Past and future are exchanged: a query sees the keys up to it.": key >= last + more,
    }
