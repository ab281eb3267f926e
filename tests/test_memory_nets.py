"""The simulated memory cannot be beaten: copies die with their turn, free reads and writes are refused, and so is too little."""

from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.machine.memory import MemoryModelError

from .memory_cheats import CHEATS

rng = np.random.default_rng(0)
N, D = 22, 4
Q, K, V = (rng.normal(size=(N, D)) for _ in range(3))
HOW: dict[str, Any] = {"blocks": (4, 5), "M": 300}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_run_that_beats_the_memory_is_refused(cheat: str) -> None:
    with pytest.raises(MemoryModelError) as caught:
        flashsim.forward(CHEATS[cheat], Q, K, V, **HOW)
    print(cheat, "|", caught.value, getattr(caught.value, "__notes__", None))
    assert not isinstance(caught.value, flashsim.SramOverflow)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_count_that_beats_the_memory_is_refused(cheat: str) -> None:
    with pytest.raises((MemoryModelError, TypeError)) as caught:
        flashsim.count(CHEATS[cheat], N=N, d=D, dtype="float64", **HOW)
    print(cheat, "|", caught.value, getattr(caught.value, "__notes__", None))
    assert not isinstance(caught.value, flashsim.SramOverflow)
