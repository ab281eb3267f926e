"""Sliding-window attention: the numbers of a window mask, the keys of the window loaded and no
others.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import SlidingWindow, theory
from flashsim.attention.shapes import Shape
from flashsim.learn.gallery import pages
from flashsim.reference import (
    attention,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    rounding,
)
from tests.helpers.cases import Arguments, Case, cases, of_bound, room_for

WINDOWS = st.tuples(st.integers(-1, 12), st.integers(-1, 12))
MASKED = ("none", "causal", "padding", "dense")


@given(
    case=cases(24, ("float64", "float32"), MASKED, (0.0, 0.3)),
    window=WINDOWS,
)
def test_numbers_are_those_of_a_window_mask(case: Case, window: tuple[int, int]) -> None:
    """Forward and backward, and counted as on shapes alone."""
    Q, K, V = case.inputs()
    oracle = case.oracle
    shape = Shape(case.N_q, case.N_k, case.d, case.d_v)
    allowed = SlidingWindow(*window).whole(shape, ())
    oracle["mask"] = allowed if oracle["mask"] is None else allowed & oracle["mask"]
    options: Arguments = {
        "M": room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k),
        "window": window,
    }
    tiles = (case.B_r, case.B_c)
    run = flashsim.forward("sliding_window", Q, K, V, blocks=tiles, **options, **case.options)
    bound = error_bound(Q, K, V, **rounding("sliding_window", run.blocks), **oracle)
    assert of_bound(run.O, attention(Q, K, V, **oracle), bound) <= 1
    value = flashsim.backward("sliding_window", run, case.dO())
    want = gradients(Q, K, V, case.dO(), **oracle)
    rounded = backward_rounding("sliding_window", run.blocks)
    bounds = gradient_bounds(Q, K, V, case.dO(), **rounded, **oracle)
    for part, exact, bound in zip(("dQ", "dK", "dV"), want, bounds, strict=True):
        assert of_bound(getattr(value, part), exact, bound) <= 1, part
    counted = {
        **case.shape,
        **options,
        "blocks": (case.B_r, case.B_c),
        "dtype": case.dtype,
        "dropout_p": case.dropout_p,
    }
    for result, direction in ((run, "forward"), (value, "backward")):
        tally = flashsim.count(
            "sliding_window", **counted, mask=case.masked()[0], direction=direction
        )
        assert (tally.hbm, tally.sram) == (result.hbm, result.sram)


def test_k_and_v_are_read_in_proportion_to_the_window_not_to_n() -> None:
    options: Arguments = {"d": 64, "M": 25_600, "window": (1024, 0)}
    short, long = (
        flashsim.count("sliding_window", N=N, **options).hbm.by_array["K"].reads
        for N in (2**16, 2**20)
    )
    assert 15.5 < long / short < 16.5  # all keys: 256
    B_r = flashsim.count("sliding_window", N=2**20, **options).blocks.B_r
    assert long < 2**20 / B_r * (B_r + 1024 + 2 * 64) * 64 * 1.01


def test_without_a_window_it_moves_what_q_outer_does_and_with_one_what_q_outer_does_under_the_mask() -> (
    None
):
    shape: Arguments = {"N_q": 30, "N_k": 41, "d": 4, "M": 300}
    one = SlidingWindow(2, -1)
    for window, mask in (
        (None, None),
        ((3, 1), SlidingWindow(3, 1)),
        (3, SlidingWindow(3, 0)),
        (one, one),
    ):
        for direction in ("forward", "backward"):
            ours = flashsim.count("sliding_window", **shape, window=window, direction=direction)
            assert (
                ours.hbm == flashsim.count("q_outer", **shape, mask=mask, direction=direction).hbm
            )


def test_grouped_heads_keep_their_window() -> None:
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(4, 9, 3))
    K = rng.normal(size=(2, 14, 3))
    V = rng.normal(size=(2, 14, 3))
    options: Arguments = {"window": (2, 1), "blocks": (4, 3), "M": 200}
    apart = flashsim.forward("sliding_window", Q, K, V, gqa="separate", **options)
    together = flashsim.forward("sliding_window", Q, K, V, gqa="grouped", **options)
    assert np.allclose(apart.O, together.O, rtol=1e-12)
    assert together.hbm.by_array["K"].reads < apart.hbm.by_array["K"].reads


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (3.5, r"window is 3\.5; expected \(left, right\), a number, or None"),
        ((1, 2, 3), r"window is \(1, 2, 3\); expected \(left, right\)"),
        ((-2, 0), "SlidingWindow's left is -2; expected at least -1"),
        ((0, 1.5), r"SlidingWindow's right is 1\.5; expected a whole number"),
    ],
)
def test_bad_windows_are_refused(window: Any, message: str) -> None:
    for function in (flashsim.count, theory.exact):
        with pytest.raises(ValueError, match=message):
            function("sliding_window", N=8, d=2, window=window)


def test_a_skip_with_a_wrong_bound_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    live = SlidingWindow.live

    def late(self: SlidingWindow, rows: Any, row_ends: Any, cols: Any, *others: Any) -> Any:
        return live(self, rows, row_ends, cols + 1, *others)

    Q, K, V = np.random.default_rng(0).normal(size=(3, 20, 4))
    options: Arguments = {"window": (3, 2), "blocks": (3, 5), "M": 300}
    right = flashsim.forward("sliding_window", Q, K, V, **options)
    monkeypatch.setattr(SlidingWindow, "live", late)
    with pytest.raises(ValueError, match=r"live\(\) calls the tile .* agree with allows"):
        flashsim.forward("sliding_window", Q, K, V, **options)
    monkeypatch.setattr("flashsim.simulate.planning.check_agreement", lambda *_: None)
    wrong = flashsim.forward("sliding_window", Q, K, V, **options)
    assert abs(wrong.O - right.O).max() > 0.01


def test_the_lesson_s_numbers() -> None:
    """16 queries in blocks of 2, window (4, 0): rows 2i and 2i + 1 reach keys 2i − 4 … 2i + 1,
    three blocks, or fewer above.
    """
    text = pages()["sliding_window"].lesson.text
    assert "visits 21 of 64 tiles, at most 3 in a row of tiles" in " ".join(text.split())
    assert f"costs {(3 * 16 - 3) / 21:.2f} times" in " ".join(text.split())
