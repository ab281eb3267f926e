"""Sink tokens and a window: which tiles are live and full, and what a decoding step moves."""

import numpy as np
import pytest

import flashsim
from flashsim import Streaming
from flashsim.attention.shapes import Shape
from tests.helpers.cases import Arguments, swap, tile_ends

SIZES = [(8, 8), (5, 13), (13, 5), (1, 29), (12, 30)]


def tiles_of(N_q: int, N_k: int, sinks: int, window: int) -> None:
    """Compare live, full and the number of live tiles of each row block with all elements."""
    mask = Streaming(sinks, window)
    shape = Shape(N_q, N_k, 2, 2)
    B_r = 3
    B_c = 4
    whole = mask.whole(shape, ())
    for top in range(0, N_q, B_r):
        end = min(top + B_r, N_q)
        live = 0
        for left in range(0, N_k, B_c):
            right = min(left + B_c, N_k)
            ends = tile_ends(top, end, left, right)
            tile = whole[top:end, left:right]
            (is_live,) = mask.live(*ends, shape, ())
            (is_full,) = mask.full(*ends, shape, ())
            assert bool(is_live) == tile.any()
            assert bool(is_full) == tile.all()
            live += int(tile.any())
        first = top + N_k - N_q
        last = end - 1 + N_k - N_q
        if first >= 0:
            a = max(first - window + 1, 0) // B_c
            z = last // B_c
            of_window = z - a + 1
            of_sinks = min(a, -(-min(sinks, last + 1) // B_c))
            assert live == of_window + of_sinks


@pytest.mark.parametrize(("N_q", "N_k"), SIZES)
def test_live_and_full_tiles_are_those_of_the_elements(N_q: int, N_k: int) -> None:
    for sinks in (0, 1, 4, 6, 40):
        for window in (1, 3, 4, 9, 40):
            tiles_of(N_q, N_k, sinks, window)


@pytest.mark.parametrize("N_k", [64, 4096])
def test_a_decoding_step_moves_sinks_and_window_however_long_the_cache(N_k: int) -> None:
    tiles: Arguments = {"M": 400, "blocks": (1, 4)}
    mask = Streaming(4, 16)
    tally = flashsim.count("q_outer", N_q=1, N_k=N_k, d=4, mask=mask, **tiles)
    assert tally.hbm.by_array["K"].reads == (4 + 16) * 4


@pytest.mark.parametrize(
    ("method", "before", "after"),
    [
        ("allows", "back < self.window", "back <= self.window"),
        ("allows", "cols < self.sinks", "cols <= self.sinks"),
        ("live", "cols < self.sinks", "col_ends < self.sinks"),
        ("full", "np.maximum(cols, self.sinks)", "cols + 0"),
    ],
)
def test_a_streaming_mask_that_is_wrong_is_noticed(
    method: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.arange(8)[:, None]
    columns = np.arange(12)
    is_sink = columns < 4
    in_window = columns > rows + 4 - 3
    allowed = (columns <= rows + 4) & (is_sink | in_window)
    swap(getattr(Streaming, method), before, after, monkeypatch)
    if method == "allows":
        whole = Streaming(4, 3).whole(Shape(8, 12, 2, 2), ())
        assert (whole != allowed).any()
    else:
        with pytest.raises(AssertionError):
            test_live_and_full_tiles_are_those_of_the_elements(12, 30)


def test_what_is_no_streaming_mask_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Streaming's window is 0; expected"):
        Streaming(4, 0)
    with pytest.raises(ValueError, match="Streaming's sinks is -1; expected"):
        Streaming(-1, 4)
    assert repr(Streaming(4, 2) & flashsim.KeyPadding(3)) == "Streaming(4, 2) & KeyPadding(3)"
