"""Planting: a mutated record beside the original, refused where the text to change is not there
once.
"""

import linecache
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD, softmax_rows
from flashsim.attention.masks.rules import SlidingWindow
from flashsim.attention.shapes import Shape
from flashsim.tracing.bugs import BACKWARD_BUGS, BUGS, with_bug
from flashsim.tracing.planting import changed, mutated, planted
from tests.helpers.cases import Arguments

STALE = "l_i * exp(m_i - finite(m_i_new)) * O_i", "l_i * O_i"
KNOWN = dict(FORWARD), dict(BACKWARD)
rng = np.random.default_rng(0)
Q, K, V = rng.normal(size=(3, 13, 4))
SIZES: Arguments = {"M": 400, "blocks": (3, 5)}


def test_a_mutated_record_runs_and_the_original_stays() -> None:
    before = flashsim.forward("flash", Q, K, V, **SIZES)
    wrong = planted(FORWARD["flash"], STALE, what="not rescaled")
    assert wrong.title == f"{FORWARD['flash'].title}: not rescaled"
    run = flashsim.forward(wrong, Q, K, V, **SIZES)
    assert np.abs(run.O - before.O).max() > 0.01
    assert run.hbm == before.hbm
    assert run.algorithm == "flash"
    again = flashsim.forward("flash", Q, K, V, **SIZES)
    assert np.array_equal(again.O, before.O)
    assert (FORWARD, BACKWARD) == KNOWN


def test_a_part_that_an_algorithm_calls_is_changed_for_that_record_alone() -> None:
    wrong = planted(
        FORWARD["standard"],
        ("P_tilde_i / nonzero(l_i)", "P_tilde_i / 2"),
        within=softmax_rows.whole_rows,
    )
    right = flashsim.forward("standard", Q, K, V, **SIZES).O
    changed = flashsim.forward(wrong, Q, K, V, **SIZES).O
    assert np.abs(changed - right).max() > 0.01
    assert np.array_equal(flashsim.forward("standard", Q, K, V, **SIZES).O, right)


@pytest.mark.parametrize(
    ("change", "times"),
    [(("no such text", "x"), "0 times in flash, "), (("on_chip(", "("), "9 times in flash, ")],
)
def test_a_text_that_is_not_there_once_is_refused(change: tuple[str, str], times: str) -> None:
    with pytest.raises(ValueError, match=f"occurs {times}.*algorithm_2_flash.py; expected once"):
        planted(FORWARD["flash"], change)


def test_changes_are_made_in_turn() -> None:
    assert changed("a b", [("a", "c"), ("c b", "d")], "here") == "d"
    with pytest.raises(ValueError, match="'b' occurs 2 times in here"):
        changed("a b", [("a", "b"), ("b", "c")], "here")


def test_what_cannot_be_changed_is_refused() -> None:
    with pytest.raises(ValueError, match="'flash' does not call long_rows"):
        planted(FORWARD["flash"], ("piece = max(", "piece = min("), within=softmax_rows.long_rows)
    with pytest.raises(ValueError, match="no source of len"):
        mutated(len, ("x", "y"))
    with pytest.raises(ValueError, match="no source of"):
        planted(replace(FORWARD["flash"], run=eval("lambda *args: None")), ("x", "y"))


def test_a_mutant_keeps_its_lines_and_shows_its_text() -> None:
    mutant = mutated(FORWARD["flash"].run, STALE, name="stale O")
    code = mutant.__code__
    assert code.co_firstlineno == FORWARD["flash"].run.__code__.co_firstlineno
    assert code.co_filename.endswith("algorithms/algorithm_2_flash with stale O.py")
    assert "l_i * O_i" in "".join(linecache.getlines(code.co_filename))
    again = mutated(mutant, ("O_i_new = on_chip(", "O_i_new = (on_chip)("))
    assert again.__code__.co_filename != code.co_filename


def test_a_method_is_changed_in_its_own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SlidingWindow,
        "band",
        mutated(SlidingWindow.band, ("self.right + shift", "self.right - 1 + shift")),
    )
    window = SlidingWindow(2, 1)
    assert not window.whole(Shape(3, 3, 1, 1), ())[0, 1]


@pytest.mark.parametrize(("direction", "bugs"), [("forward", BUGS), ("backward", BACKWARD_BUGS)])
def test_each_change_of_a_bug_has_a_place_in_some_algorithm(direction: str, bugs: Any) -> None:
    passes = FORWARD if direction == "forward" else BACKWARD
    for bug in bugs.values():
        for change in bug[1:]:
            places = []
            for algorithm in passes.values():
                try:
                    places.append(planted(algorithm, change))
                except ValueError:
                    continue
            assert places, (bug.what, change)
    with pytest.raises(
        ValueError, match=f"unknown bug 'x' of a {direction} pass; known: {next(iter(bugs))}, "
    ):
        with_bug("flash", "x", direction)
