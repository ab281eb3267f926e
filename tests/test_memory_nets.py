"""The simulated memory cannot be beaten: copies die with their turn, free reads and writes are refused, and so is too little."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.machine.memory import MemoryModelError
from flashsim.reference import attention

from .memory_cheats import CHEATS
from .memory_honest import honest
from .own import module_of

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


HONEST = honest()


def test_there_are_fifty_honest_ones() -> None:
    assert len(HONEST) >= 50


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_algorithm_is_not_accused(name: str, tmp_path: Path) -> None:
    mine = module_of(HONEST[name], tmp_path / "mine.py").mine
    for width, blocks in ((D, (4, 5)), (3, (4, 5)), (D, (1, 1)), (D, (5, 3)), (D, (2, 22))):
        V_ = rng.normal(size=(N, width))
        run = flashsim.forward(mine, Q, K, V_, blocks=blocks, M=400)
        assert np.allclose(run.O, attention(Q, K, V_), rtol=1e-9), blocks
        assert flashsim.count(mine, N=N, d=D, d_v=width, dtype="float64", blocks=blocks, M=400).hbm == run.hbm
