"""What a mask allows, checked: a user's own mask may return anything."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.checking import shown
from flashsim.records import Shape
from flashsim.source import at_line, note_line

Bools = NDArray[np.bool_]


def allowed_by(mask: Any, rows: Any, cols: Any, shape: Shape, head: tuple[int, ...]) -> Bools:
    """Return `mask.allows(rows, cols, shape, head)`. Raises TypeError if that is not an array of booleans (rows, columns).

    Errors have a note of the line of the mask's file at which they occurred.
    """
    try:
        found = mask.allows(rows, cols, shape, head)
    except Exception as error:
        note_line(error, type(mask).allows)
        raise
    expected = len(rows), len(cols)
    if not isinstance(found, np.ndarray) or found.dtype != bool or found.shape != expected:
        is_array = isinstance(found, np.ndarray)
        what = f"an array of {found.dtype} of shape {found.shape}" if is_array else shown(found)
        wrong = TypeError(
            f"{mask!r}'s allows returned {what}; expected booleans of shape {expected}, True = attend, such as "
            "rows[:, None] >= cols"
        )
        code = getattr(unwrap(type(mask).allows), "__code__", None)
        if code is not None:
            wrong.add_note(at_line(code.co_filename, code.co_firstlineno))
        raise wrong
    return found
