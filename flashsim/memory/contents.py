"""How many numbers an object holds, whether they look like tiles, and how they are overwritten."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

LONG_TEXT = 100
"""Characters of a text that may be numbers in some code; a shorter one counts where it has
digits of a number.
"""
_DIGITS = re.compile(r"\d[\d.]{7,}")


def owner_of(value: Any) -> Any:
    """Return the array whose memory a view shows."""
    base = value.base
    while isinstance(base, np.ndarray):
        value = base
        base = base.base
    return value


def overwrite(value: Any, number: Any) -> bool:
    """Overwrite the memory that an array shows; return whether that could be done."""
    owner = owner_of(value)
    if owner.base is not None and not owner.flags.writeable:  # bytes, say
        return False
    writeable = owner.flags.writeable
    try:
        owner.flags.writeable = True
        owner.fill(number)
        owner.flags.writeable = writeable
    except (TypeError, ValueError):
        return False
    return True


def is_gone(value: Any) -> bool:
    """Return whether an array is NaN throughout, as a tile that was evicted."""
    return value.dtype.kind in "fc" and np.count_nonzero(np.isnan(value)) == value.size


def print_of(value: Any) -> int:
    """Return a number that differs, most likely, once the array has changed."""
    if value.flags.c_contiguous and value.dtype.itemsize in (1, 2, 4, 8):
        words = value.reshape(-1).view(f"u{value.dtype.itemsize}")
        return int(np.bitwise_xor.reduce(words)) ^ (int(np.add.reduce(words, dtype=np.uint64)) << 1)
    return hash(value.tobytes())


def items_of(value: Any) -> tuple[Any, ...]:
    """Return the parts of a series, of a table, or of an array of objects."""
    if isinstance(value, dict):
        return tuple(value.values())
    return tuple(value.ravel().tolist()) if isinstance(value, np.ndarray) else tuple(value)


def new_numbers(value: Any, before: tuple[Any, ...]) -> int:
    """Return how many numbers a series or a table has that it had not before."""
    items = items_of(value)
    if len(items) == len(before) and all(
        item is old for item, old in zip(items, before, strict=True)
    ):
        return 0
    known = {*map(id, before)}
    return sum(_is_number(item) for item in items if id(item) not in known)


def _is_number(item: Any) -> bool:
    if isinstance(item, float | complex | np.inexact):
        return True
    if isinstance(item, np.ndarray):
        return item.size == 1 and item.dtype.kind in "fc"
    return isinstance(item, int | np.integer) and abs(int(item)) >= 2**31


def digits_of(text: str) -> int:
    """Return how many characters of a text may be numbers."""
    return len(text) if len(text) > LONG_TEXT or _DIGITS.search(text) else 0


def is_noise(value: Any) -> bool:
    """Return whether booleans are like the bits of numbers rather than a mask's: they change
    more often than every 4th.
    """
    flat = value.reshape(-1)
    return bool(4 * np.count_nonzero(flat[1:] != flat[:-1]) > flat.size > 64)


def is_of_two_values(value: Any) -> bool:
    """Return whether numbers are a constant, such as ones, or a mask's, such as 0 and −∞: two
    values at most, and not noise.
    """
    smallest = value.min()
    is_smallest = value == smallest
    return bool((is_smallest | (value == value.max())).all()) and not is_noise(is_smallest)


def is_sorted(value: Any) -> bool:
    """Return whether whole numbers are like a table of indices: sorted along their last axis, or
    their first.
    """
    axis = -1 if value.shape[-1] > 1 else 0
    steps = np.diff(value.astype(np.int64), axis=axis)
    return bool((steps >= 0).all() or (steps <= 0).all())


def bytes_of(value: Any) -> int:
    """Return how many bytes a buffer has, or an array of another library's."""
    try:
        return memoryview(value).nbytes
    except (TypeError, ValueError, BufferError):
        pass
    try:
        return len(value.getvalue())  # io.BytesIO
    except (AttributeError, TypeError, ValueError):
        return int(getattr(value, "nbytes", 0) or 0)
