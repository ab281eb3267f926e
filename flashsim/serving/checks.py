"""Checks of ragged batches: what is wrong is named with its argument, its sequence, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.problem.arguments import check_array, check_count, shown
from flashsim.problem.inputs import FLOATS, Array

NONE = 2**32 - 1
"""The word for "none": a page that is not mapped."""


def check_word(name: str, s: int, j: int, word: int, pages: int) -> int:
    """Return the word that a program read for page j of sequence s. Raises ValueError unless it is one of so many pages."""
    if word >= pages:
        said = "2³²−1, which is none" if word == NONE else f"{word:,}"
        raise ValueError(
            f"{name}[{s}, {j}] is {said}, and sequence {s} has keys on its page {j}; expected one of {pages:,} pages, from 0"
        )
    return word


def check_sequences(name: str, given: Any, like: tuple[str, Sequence[Array]] | None = None) -> list[Array]:
    """Return a list of arrays (heads, length, width), one a sequence, of one type, as many heads and columns.

    like  the name of another list, and that: of the same type and number
    """
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"{name} is {shown(given)}; expected a list of arrays (heads, length, width), one a sequence")
    arrays = [check_packed(f"{name}[{s}]", array) for s, array in enumerate(given)]
    if like is not None and len(arrays) != len(like[1]):
        raise ValueError(f"{name} has {len(arrays)} sequences; expected {len(like[1])}, as {like[0]} has")
    first = like[1][0] if like is not None else arrays[0]
    of = f"{like[0]}[0]" if like is not None else f"{name}[0]"
    for s, array in enumerate(arrays):
        if array.dtype != first.dtype:
            raise ValueError(f"{name}[{s}] has dtype {array.dtype}; expected {first.dtype}, as {of} has")
        if (len(array), array.shape[2]) != (len(arrays[0]), arrays[0].shape[2]):
            want = f"({len(arrays[0])}, ·, {arrays[0].shape[2]}), as {name}[0]"
            raise ValueError(f"{name}[{s}] has shape {array.shape}; expected {want}")
    return arrays


def check_packed(name: str, given: Any) -> Array:
    """Return an array (heads, length, width) of floats; the length may be 0."""
    array = check_array(name, given)
    if array.ndim != 3 or 0 in (array.shape[0], array.shape[2]):
        raise ValueError(f"{name} has shape {array.shape}; expected (heads, length, width)")
    if array.dtype.name not in FLOATS:
        raise ValueError(f"{name} has dtype {array.dtype}; expected one of {', '.join(FLOATS)}")
    return array


def check_fit(Q: Array, K: Array, V: Array, names: str = "QKV") -> None:
    """Raise ValueError unless keys and values fit each other and the queries: rows of K and V, columns, heads, and types."""
    q, k, v = (
        f"{name} has shape {a.shape}"
        for name, a in zip(names.split() if " " in names else names, (Q, K, V), strict=True)
    )
    if K.dtype != Q.dtype or V.dtype != Q.dtype:
        raise ValueError(f"dtypes are {Q.dtype}, {K.dtype}, {V.dtype}; expected one for queries, keys and values")
    if K.shape[:2] != V.shape[:2]:
        raise ValueError(f"{k} and {v}; expected as many heads and rows")
    if K.shape[2] != Q.shape[2] or len(Q) % len(K):
        raise ValueError(f"{q} and {k}; expected one d, and query heads that are a multiple of KV heads")


def check_words(name: str, given: Any, shape: tuple[int | None, ...]) -> NDArray[np.uint32]:
    """Return whole numbers from 0 to 2³²−1 of that shape, None where any length will do; −1 is 2³²−1, none."""
    array = check_array(name, given)
    wanted = "(" + ", ".join("·" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        raise ValueError(f"{name} has shape {array.shape}; expected {wanted}")
    if array.dtype.kind not in "iu" or np.any((array < -1) | (array > NONE)):
        raise ValueError(f"{name} is {shown(array)}; expected whole numbers from 0 to 2³²−1")
    return np.where(array < 0, NONE, array).astype(np.uint32)


def check_by_sequence(name: str, given: Any, least: int = 0) -> tuple[int, ...]:
    """Return a length for each sequence, from `least` up."""
    if not isinstance(given, list | tuple | np.ndarray | range) or not len(given):
        raise ValueError(f"{name} is {shown(given)}; expected a length for each sequence")
    return tuple(check_count(f"{name}[{s}]", n, least=least) for s, n in enumerate(given))
