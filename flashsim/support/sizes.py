"""Sizes: arithmetic on them, and sizes as text: "100KB" of a dtype, 25,600 elements, 3.1 MB."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

Size = int | float | str
"""A size of SRAM as users write it: elements, 25_600 or 1e5, or bytes as text, "100KB"."""
UNITS = {
    "": None,
    "B": 1,
    "KB": 1024,
    "KIB": 1024,
    "MB": 1024**2,
    "MIB": 1024**2,
    "GB": 1024**3,
    "GIB": 1024**3,
}


def ceil_div(a: int, b: int) -> int:
    """Return ⌈a / b⌉."""
    return -(-a // b)


def smallest_true(true_from: Callable[[int], bool]) -> int:
    """Return the least n ≥ 1 at which a predicate that stays true becomes true."""
    high = 1
    while not true_from(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if true_from(middle):
            high = middle
        else:
            low = middle
    return high


def largest_that_fits(fits: Callable[[int], bool], longest: int) -> int:
    """Return the largest n, from 1 to `longest`, that fits; 0 if not even 1 does.

    Whatever is smaller than an n that fits must fit, too.
    It begins with the largest, and halves: a run that does not fit ends at once, and one of small
    blocks has the most turns.
    """
    fitting = longest
    too_many = longest + 1
    while fitting and not fits(fitting):
        too_many = fitting
        fitting //= 2
    if not fitting:
        return 0

    def is_too_many(increase: int) -> bool:
        return fitting + increase >= too_many or not fits(fitting + increase)

    return fitting + smallest_true(is_too_many) - 1


def parse_size(text: str, itemsize: int) -> int:
    """Return a size in elements from "25600" or "1e5" (elements), or "100KB" (bytes of a dtype of
    that item size).

    1 KB is 1024 bytes, and so is 1 KiB. Raises ValueError.
    """
    number_and_unit = (
        r"\s*([0-9][0-9_,]{0,30}(?:\.[0-9]{1,30})?(?:e\+?[0-9]{1,2})?)\s*([KMG]?i?B?)\s*"
    )
    match = re.fullmatch(number_and_unit, text, re.ASCII | re.IGNORECASE)
    if not match or match[2].upper() not in UNITS:
        short = text if len(text) <= 40 else f"{text[:40]}…"
        raise ValueError(
            f"{short!r} is not a size; write elements (25600) or bytes with a unit (100KB)"
        )
    number = Fraction(match[1].replace(",", "").replace("_", ""))
    unit = UNITS[match[2].upper()]
    elements = number if unit is None else number * unit // itemsize
    if elements < 1 or elements != int(elements):
        raise ValueError(
            f"{text!r} is {float(elements):g} elements; expected a whole number of at least 1"
        )
    return int(elements)


def human_bytes(count: float) -> str:
    """Return a byte count as a person reads it, in powers of 1024."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.0f} TB" if count >= 1000 else f"{count:.3g} TB"
