"""How evenly a layout divides the work."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np


def balance(where: Sequence[Any], allows: Any) -> Fraction:
    """Return the greatest number of allowed pairs of a device, over their mean. `allows(rows,
    cols)` is booleans.
    """
    everywhere = np.sort(np.concatenate([*where]))
    work = [int(allows(rows, everywhere).sum()) for rows in where]
    return Fraction(max(work) * len(work), sum(work))
