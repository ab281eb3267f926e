"""What tests read of counts."""

import flashsim
from flashsim import theory


def moved(tally: flashsim.Result | theory.Exact) -> dict[str, tuple[int, int]]:
    """Return (reads, writes) by array."""
    arrays = tally.hbm.by_array
    return {name: (array.reads, array.writes) for name, array in arrays.items()}
