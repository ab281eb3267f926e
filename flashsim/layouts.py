"""Where the axis of heads is: (..., H, N, d), as code here has it, or (..., N, H, d), as flash-attn's kernels take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.checking import check_choice

HEADS_FIRST = "BHND"


def check_layout(layout: Any) -> str:
    """Return "BHND" or "BNHD"."""
    return check_choice("layout", layout, (HEADS_FIRST, "BNHD"))


def turned(name: str, array: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return an array of that layout as (..., H, N, d), or back. ValueError for one of two axes, which has no heads."""
    if layout == HEADS_FIRST:
        return array
    if array.ndim < 3:
        raise ValueError(f"{name} has shape {array.shape}; expected (..., N, H, d), as layout is 'BNHD'")
    return np.ascontiguousarray(array.swapaxes(-3, -2))


@contextmanager
def said_heads_first(layout: str) -> Iterator[None]:
    """Have errors say that the shapes and places in them are those of (..., H, N, d)."""
    try:
        yield
    except ValueError as error:
        if layout != HEADS_FIRST:
            error.add_note(f"layout is {layout!r}: shapes here are said heads first, (..., H, N, d)")
        raise
