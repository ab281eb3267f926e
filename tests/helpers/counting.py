"""What tests read of counts."""

import flashsim
from flashsim import theory


def moved(tally: flashsim.Result | flashsim.Result | theory.Exact) -> dict[str, tuple[int, int]]:
    return {array: (a.reads, a.writes) for array, a in tally.hbm.by_array.items()}
