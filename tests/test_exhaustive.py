"""The lower bounds against all schedules of attention's scalars, by a search that knows nothing of their proofs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from flashsim.theory import lower_bound, lower_bound_backward

FILE = Path(__file__).parents[1] / "scripts" / "exhaustive.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("exhaustive", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exhaustive"] = module
    spec.loader.exec_module(module)
    return module


exhaustive = script()


@pytest.mark.parametrize(
    ("sizes", "fewest"),
    [
        ((1, 1, 1, 1), None),  # a product takes two words
        ((1, 1, 1, 2), 4),
        ((2, 2, 1, 4), 10),
        ((2, 2, 1, 5), 8),  # all that is compulsory
        ((1, 2, 2, 4), 12),
    ],
)
def test_no_schedule_moves_less(sizes: tuple[int, int, int, int], fewest: int | None) -> None:
    N_q, N_k, d, M = sizes
    found, _ = exhaustive.fewest(*sizes)
    assert found == fewest
    assert found is None or lower_bound(N_q=N_q, N_k=N_k, d=d, M=M).accesses <= found


def test_by_hand() -> None:
    """One query, three words: Q K₁, S over K₁, V₁, O over V₁; K₂, S over Q, V₂, O. Five loads and a store, all compulsory."""
    assert exhaustive.fewest(1, 2, 1, 3)[0] == 6


@pytest.mark.parametrize(("sizes", "fewest"), [((1, 1, 1, 3), 9), ((1, 1, 1, 4), 7)])
def test_no_backward_schedule_moves_less(sizes: tuple[int, int, int, int], fewest: int) -> None:
    N_q, N_k, d, M = sizes
    assert exhaustive.fewest(*sizes, backward=True)[0] == fewest
    assert lower_bound_backward(N_q=N_q, N_k=N_k, d=d, M=M).accesses <= fewest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "fewest"), [((2, 2, 1, 2), 18), ((2, 2, 1, 3), 11), ((2, 2, 2, 6), 18), ((2, 3, 1, 3), 17)]
)
def test_no_schedule_moves_less_in_larger_games(sizes: tuple[int, int, int, int], fewest: int) -> None:
    N_q, N_k, d, M = sizes
    assert exhaustive.fewest(*sizes)[0] == fewest
    assert lower_bound(N_q=N_q, N_k=N_k, d=d, M=M).accesses <= fewest


@pytest.mark.parametrize("sizes", [(1, 2, 1, 2), (2, 1, 1, 3), pytest.param((2, 2, 1, 3), marks=pytest.mark.slow)])
def test_the_heuristic_changes_nothing(sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the search is Dijkstra's; without the order of rows and keys, too, every state is its own."""
    guided, _ = exhaustive.fewest(*sizes)
    monkeypatch.setattr(exhaustive.Game, "least", lambda self, chip, hbm: 0)
    monkeypatch.setattr(exhaustive.Game, "alike", lambda self, chip, hbm: (chip, hbm))
    assert exhaustive.fewest(*sizes)[0] == guided
