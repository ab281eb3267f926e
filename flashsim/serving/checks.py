"""Checks of ragged batches: what is wrong is named with its argument, its sequence, and its
page.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import LARGEST, check_array, check_count, short_repr
from flashsim.attention.inputs import FLOATS, Array
from flashsim.support.sizes import ceil_div

NONE = 2**32 - 1
"""The word for "none": a page that is not mapped."""


def check_word(name: str, s: int, j: int, word: int, pages: int) -> int:
    """Return the word that a program read for page j of sequence s. Raises ValueError unless it
    is one of so many pages.
    """
    if word >= pages:
        text = "−1 (no page)" if word == NONE else f"{word:,}"
        raise ValueError(
            f"{name}[{s}, {j}] is {text}, but sequence {s} has keys on its page {j}; "
            f"expected one of {pages:,} pages, 0 to {pages - 1:,}"
        )
    return word


def check_mapped(
    table: NDArray[np.uint32], lengths: NDArray[np.uint32], page: int, pages: int
) -> None:
    """Raise ValueError for a word of a table that is needed and none of so many pages."""
    needed = -(-lengths.astype(np.int64) // page)
    wrong = (np.arange(table.shape[1]) < needed[:, None]) & (table >= pages)
    for s, j in np.argwhere(wrong)[:1].tolist():
        check_word("table", s, j, int(table[s, j]), pages)


def check_sequences(
    name: str, values: Any, like: tuple[str, Sequence[Array]] | None = None
) -> list[Array]:
    """Return a list of arrays (heads, length, width), one a sequence, of one type, as many heads
    and columns.

    like  the name of another list, and that: of the same type and number
    """
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(
            f"{name} is {short_repr(values)}; expected a list of arrays (heads, length, width), "
            "one for each sequence"
        )
    arrays = [check_packed(f"{name}[{s}]", array) for s, array in enumerate(values)]
    if like is not None and len(arrays) != len(like[1]):
        raise ValueError(
            f"{name} has {len(arrays)} sequences; expected {len(like[1])}, as {like[0]} has"
        )
    first = like[1][0] if like is not None else arrays[0]
    of = f"{like[0]}[0]" if like is not None else f"{name}[0]"
    for s, array in enumerate(arrays):
        if array.dtype != first.dtype:
            raise ValueError(
                f"{name}[{s}] has dtype {array.dtype}; expected {first.dtype}, as {of} has"
            )
        if (len(array), array.shape[2]) != (len(arrays[0]), arrays[0].shape[2]):
            want = f"({len(arrays[0])}, ·, {arrays[0].shape[2]}), as {name}[0]"
            raise ValueError(f"{name}[{s}] has shape {array.shape}; expected {want}")
    return arrays


def check_items(name: str, values: Any, items: str = "") -> Sequence[Any]:
    """Return what is in a list, tuple or array, those items where they are named, such as "K,
    V".
    """
    listed = values.ndim > 0 if isinstance(values, np.ndarray) else isinstance(values, list | tuple)
    if not listed or (items and len(values) != items.count(",") + 1):
        raise ValueError(
            f"{name} is {short_repr(values)}; expected {f'({items})' if items else 'a list'}"
        )
    return [*values]


def check_packed(name: str, value: Any) -> Array:
    """Return an array (heads, length, width) of floats; the length may be 0."""
    array = check_array(name, value)
    if array.ndim != 3 or 0 in (array.shape[0], array.shape[2]):
        raise ValueError(f"{name} has shape {array.shape}; expected (heads, length, width)")
    if array.dtype.name not in FLOATS:
        raise ValueError(f"{name} has dtype {array.dtype}; expected one of {', '.join(FLOATS)}")
    return array


def check_fit(Q: Array, K: Array, V: Array, names: str = "QKV") -> None:
    """Raise ValueError unless keys and values fit each other and the queries: rows of K and V,
    columns, heads, and types.
    """
    q, k, v = (
        f"{name} has shape {a.shape}"
        for name, a in zip(names.split() if " " in names else names, (Q, K, V), strict=True)
    )
    if K.dtype != Q.dtype or V.dtype != Q.dtype:
        raise ValueError(
            f"dtypes are {Q.dtype}, {K.dtype}, {V.dtype}; expected one dtype for queries, keys and "
            "values"
        )
    if K.shape[:2] != V.shape[:2]:
        raise ValueError(f"{k} and {v}; expected the same number of heads and rows")
    if K.shape[2] != Q.shape[2] or len(Q) % len(K):
        raise ValueError(
            f"{q} and {k}; expected the same d, and a multiple of the KV heads as query heads"
        )


def check_words(
    name: str, value: Any, shape: tuple[int | None, ...], least: int = 0
) -> NDArray[np.uint32]:
    """Return whole numbers from `least`, 0 or −1, to 2³²−1 of that shape, where None is any
    length; −1 gives NONE.
    """
    array = check_array(name, value)
    expected = (
        "("
        + ", ".join("·" if n is None else str(n) for n in shape)
        + ("," if len(shape) == 1 else "")
        + ")"
    )
    if array.ndim != len(shape) or any(
        n not in (None, m) for n, m in zip(shape, array.shape, strict=True)
    ):
        raise ValueError(f"{name} has shape {array.shape}; expected {expected}")
    if array.dtype.kind not in "iu" or np.any((array < least) | (array > NONE)):
        where = name
        if array.dtype.kind in "iu":
            (*position,) = np.argwhere((array < least) | (array > NONE))[0].tolist()
            where = f"{name}{position}"
            array = array[tuple(position)].item()
        raise ValueError(
            f"{where} is {short_repr(array)}; expected whole numbers from {'−1' if least else 0} "
            "to 2³²−1"
        )
    return np.where(array < 0, NONE, array.astype(np.int64)).astype(np.uint32)


def check_pool(name: str, pool: Array, page: int) -> None:
    """Raise ValueError for a pool that is not of whole pages."""
    if pool.shape[1] % page:
        raise ValueError(f"{name} has {pool.shape[1]} rows; expected a multiple of page = {page}")


def check_pages(
    table: Any, lengths: Any, b: int, page: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the table of pages of b sequences, and their lengths, which it must have room for."""
    words = check_words("table", table, (b, None), least=-1)
    n = check_words("lengths", lengths, (b,))
    for s, keys in enumerate(n.tolist()):
        if ceil_div(keys, page) > words.shape[1]:
            most = (
                f"at most {words.shape[1] * page}, as table has {words.shape[1]} pages of {page} "
                "for each sequence"
            )
            raise ValueError(f"lengths[{s}] is {keys}; expected {most}")
    return words, n


def check_by_sequence(name: str, lengths: Any, least: int = 0) -> tuple[int, ...]:
    """Return a length for each sequence, from `least` up."""
    if not isinstance(lengths, list | tuple | np.ndarray | range) or not len(lengths):
        raise ValueError(f"{name} is {short_repr(lengths)}; expected a length for each sequence")
    whole = type(lengths) is tuple and {*map(type, lengths)} == {int}
    if whole and least <= min(lengths) and max(lengths) <= LARGEST:
        return tuple(lengths)
    return tuple(check_count(f"{name}[{s}]", n, least=least) for s, n in enumerate(lengths))


Levels = tuple[tuple[tuple[int, int, int], ...], ...]
"""Of prefixes: levels, and of each its nodes, (first sequence, the one behind the last, keys),
without gaps.
"""


def check_levels(b: int, prefix: Any, levels: Any) -> Levels:
    """Return levels of prefixes of b sequences, gaps filled with empty nodes; `prefix` is one
    level, of one node.
    """
    if prefix is not None:
        if levels:
            raise ValueError(
                f"prefix is {short_repr(prefix)}, and levels are given; expected one of the two"
            )
        levels = [[(0, b, prefix)]]
    result = []
    for number, level in enumerate(levels):
        nodes = list[tuple[int, int, int]]()
        start = 0
        for k, node in enumerate(level):
            name = f"levels[{number}][{k}]"
            if not isinstance(node, tuple | list) or len(node) != 3:
                raise ValueError(
                    f"{name} is {short_repr(node)}; expected (first sequence, the one after the "
                    "last, keys)"
                )
            first, end, n = (
                check_count(f"{name}'s {what}", x, 0)
                for what, x in zip(("first", "end", "keys"), node, strict=True)
            )
            if not start <= first < end <= b:
                raise ValueError(
                    f"{name} has sequences {first} to {end}; expected some of {start} to {b}, "
                    "after those of the node before"
                )
            nodes += [(start, first, 0)] * (start < first) + [(first, end, n)]
            start = end
        result.append((*nodes, *[(start, b, 0)] * (start < b)))
    return tuple(result)


def check_ends(name: str, value: Any, rows: int, of: str) -> NDArray[np.uint32]:
    """Return where sequences begin, and the last one ends: words that do not fall, up to so many
    rows of an array.
    """
    ends = check_words(name, value, (None,))
    if len(ends) < 2:
        raise ValueError(
            f"{name} is {short_repr(value)}; expected where each sequence begins, and where the "
            "last one ends"
        )
    for s, (first, end) in enumerate(itertools.pairwise(ends.tolist())):
        if not first <= end <= rows:
            text = f"{name}[{s + 1}] is {end:,}, where sequence {s} ends"
            raise ValueError(
                f"{text}; expected {first:,}, its beginning, to {rows:,}, the rows of {of}"
            )
    return ends
