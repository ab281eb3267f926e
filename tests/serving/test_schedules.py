"""q_outer_pinned, snake, small_cache_hybrid: counted by hand, what they save, where each is
best, and bugs in them are caught.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import FORWARD, q_outer_pinned, small_cache_hybrid
from flashsim.analysis.tune import best_of
from flashsim.attention.shapes import Blocks
from flashsim.tracing.planting import mutated
from tests.helpers.counting import moved

SHAPE: dict[str, Any] = {
    "N_q": 5,
    "N_k": 7,
    "d": 2,
    "d_v": 4,
}

# --------------------------------------------------------------------------------------------------
# counted by hand


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_pinned_counts_by_hand(counted: Any) -> None:
    """Blocks of 2 × 1: Q_i and O_i 12, K_j and V_j 6, S_ij 2, ℓ_i, m_i, m_i^new 6, so of M = 40
    room for 14, two rows of 6.
    """
    by_hand = counted("q_outer_pinned", **SHAPE, M=40, blocks=(2, 1))
    assert moved(by_hand) == {
        "Q": (10, 0),
        "K": ((2 + 3 * 5) * 2, 0),
        "V": ((2 + 3 * 5) * 4, 0),
        "O": (0, 20),
        "L": (0, 5),
    }
    assert by_hand.sram.peak == 12 + 6 + 2 + 6 + 12
    everything = counted("q_outer_pinned", **SHAPE, M=68, blocks=(2, 1))
    assert moved(everything)["V"] == (28, 0)
    assert everything.sram.peak == 68 - 6  # all seven rows are pinned: none is streamed


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_snake_counts_by_hand(counted: Any) -> None:
    """N_q = 5 in 2, 2, 1 rows, N_k = 7 in 3, 3, 1: 7 rows of keys, then 3 + 3 without the last
    one, 3 + 1 without the first.
    """
    by_hand = counted("snake", **SHAPE, M=1000, blocks=(2, 3))
    assert moved(by_hand) == {
        "Q": (10, 0),
        "K": (17 * 2, 0),
        "V": (17 * 4, 0),
        "O": (0, 20),
        "L": (0, 5),
    }
    assert by_hand.sram.peak == 3 * 6 + 2 * 6 + 3 * 2 + 2 * 3
    even = counted("snake", **SHAPE, M=1000, blocks=(3, 3))
    assert moved(even)["K"] == ((7 + 6) * 2, 0)  # two turns: the second begins with the last block
    whole = counted("snake", **SHAPE, M=1000, blocks=(2, 7))
    assert moved(whole)["K"] == (14, 0)  # one block of keys: read once


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_hybrid_counts_by_hand(counted: Any) -> None:
    """M = 20: O in tiles of 2 × 4 reads 35·1 + 3·28 = 119 of S and V; of 4 × 2, 35·2 + 2·28 =
    126; of 5 × 1, 35·4 + 28 = 168.
    """
    by_hand = counted("small_cache_hybrid", **SHAPE, M=20, blocks=(2, 1))
    assert small_cache_hybrid.line_3(20, 5, 4) == (2, 4)
    assert moved(by_hand) == {
        "Q": (10, 0),
        "K": (3 * 14, 0),
        "V": (3 * 28, 0),
        "S": (35, 35),
        "O": (0, 20),
        "L": (5, 5),
    }
    assert by_hand.sram.peak == max(2 * 5 + 2 + 2, 2 * 6 + 4)
    assert by_hand.hbm.extra == 35 + 5


@given(
    M=st.integers(1, 400),
    N_q=st.integers(1, 60),
    d_v=st.integers(1, 30),
)
def test_no_tile_of_O_that_fits_reads_less(M: int, N_q: int, d_v: int) -> None:
    def size(b_r: int, b_c: int) -> int:
        return b_r * (b_c + 2) + b_c

    def read(b_r: int, b_c: int) -> int:
        return -(-d_v // b_c) * N_q + -(-N_q // b_r) * d_v

    tiles = product(range(1, N_q + 1), range(1, d_v + 1))
    reads_of_fitting = [read(*tile) for tile in tiles if size(*tile) <= M]
    blocks = small_cache_hybrid.line_3(M, N_q, d_v)
    assert read(*blocks) == min(reads_of_fitting, default=read(1, 1))
    assert not reads_of_fitting or size(*blocks) <= M


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_the_width_of_V_takes_no_time(counted: Any) -> None:
    """Of 10⁹ widths of a tile few are tried: all 10 rows fit with 11·b_c + 20 ≤ M, so V is read
    once, and S in 10⁹/b_c pieces.
    """
    M = 7 * 10**6
    d_v = 10**9
    tally = counted("small_cache_hybrid", N_q=10, N_k=3, d=1, d_v=d_v, M=M, blocks=(10, 1))
    assert moved(tally)["V"] == (3 * d_v, 0)
    b_c = (M - 20) // 11
    pieces = -(-d_v // b_c)
    assert moved(tally)["S"] == (30 * pieces, 30)


# --------------------------------------------------------------------------------------------------
# what they save


@given(
    N_q=st.integers(1, 50),
    N_k=st.integers(1, 50),
    d=st.integers(1, 8),
    M=st.integers(20, 900),
    B_r=st.integers(1, 20),
    B_c=st.integers(1, 9),
)
def test_pinned_and_snake_never_move_more_than_q_outer(
    N_q: int, N_k: int, d: int, M: int, B_r: int, B_c: int
) -> None:
    how: dict[str, Any] = {
        "N_q": N_q,
        "N_k": N_k,
        "d": d,
        "M": M,
        "blocks": (B_r, B_c),
    }
    of = {name: theory.exact(name, **how) for name in ("q_outer", "q_outer_pinned", "snake")}
    assert of["q_outer_pinned"].accesses <= of["q_outer"].accesses
    assert of["snake"].accesses <= of["q_outer"].accesses
    if of["q_outer"].sram.peak <= M:
        assert of["q_outer_pinned"].sram.peak <= M
        assert of["snake"].sram.peak <= M


def test_pinning_saves_8_percent_in_a_large_sram_and_nothing_for_long_sequences() -> None:
    def saved(N: int, M: int) -> float:
        plain = best_of("q_outer", N=N, d=64, M=M)
        pinned = best_of("q_outer_pinned", N=N, d=64, M=M)
        assert plain is not None
        assert pinned is not None
        return 1 - pinned.accesses / plain.accesses

    assert saved(1024, 98_304) == pytest.approx(0.078, abs=5e-4)
    assert saved(1024, 25_600) == pytest.approx(0.015, abs=5e-4)
    assert 0 <= saved(2**16, 25_600) < 1e-4


def test_the_hybrid_moves_a_sixth_less_than_small_cache_between_d_squared_quarters_and_d_squared() -> (
    None
):
    hybrid, small, plain = (
        best_of(name, N=2048, d=64, M=3000)
        for name in ("small_cache_hybrid", "small_cache", "q_outer")
    )
    assert hybrid is not None
    assert small is not None
    assert plain is not None
    assert (hybrid.accesses, small.accesses) == (21_106_688, 25_298_944)
    assert hybrid.accesses < small.accesses < plain.accesses
    # x = √2, so nearly (x + 1)² for each pair
    N = 2**16
    d = 2**10
    M = 2**19
    large = theory.exact("small_cache_hybrid", N=N, d=d, M=M)
    # whole pieces of V: x² + 1 + 1 + x²
    assert large.accesses / N**2 == pytest.approx(2 * 2 + 1 + 1, rel=0.02)


def test_masks_with_arrays_leave_less_to_pin() -> None:
    shape: dict[str, Any] = {
        "N": 40,
        "d": 4,
        "M": 400,
        "blocks": (10, 2),
    }
    plain = flashsim.count("q_outer_pinned", **shape)
    every_pair = np.ones((40, 40), bool)
    masked = flashsim.count("q_outer_pinned", **shape, mask=every_pair)
    assert plain.hbm.by_array["K"].reads < masked.hbm.by_array["K"].reads
    assert masked.sram.peak <= 400


def test_no_backward_pass_is_refused_by_name() -> None:
    X = np.ones((3, 2))
    for name in ("q_outer_pinned", "snake", "small_cache_hybrid"):
        run = flashsim.forward(name, X, X, X)
        with pytest.raises(
            ValueError,
            match=f"'{name}' has no backward pass here; .*'flash'.*Run one of them forward, too",
        ):
            flashsim.backward(name, run, X)
        with pytest.raises(
            ValueError,
            match=f"made by '{name}'; it has no backward pass; run 'q_outer' forward, too",
        ):
            flashsim.backward("q_outer", run, X)


def test_room_that_is_counted_wrong_is_caught() -> None:
    line_4 = mutated(q_outer_pinned.line_4, ("- 3 * B_r", "- 2 * B_r"))
    blocks = Blocks(2, 1, N_q=6, N_k=7)
    assert line_4(40, blocks, 6, 0) == q_outer_pinned.line_4(42, blocks, 6, 0)
    rows = mutated(small_cache_hybrid.rows, ("// (d + 4)", "// (d + 3)"))
    too_large = replace(FORWARD["small_cache_hybrid"], rows=rows)
    tally = flashsim.count(too_large, N=100, d=10, M=200, sizing="paper")
    assert tally.sram.peak > 200


def test_what_is_pinned_leaves_room_for_words_of_a_tree_that_tiles_cut() -> None:
    """Keys 30 to 37 of the tree lie in one tile of 8, and in two words of 32 for each of its 4
    rows.
    """
    sizes: dict[str, Any] = {
        "N_q": 40,
        "N_k": 42,
        "d": 2,
        "blocks": (4, 8),
        "mask": flashsim.Tree([*range(-1, 39)]),
    }
    peaks = []
    for M in range(100, 170):
        tally = flashsim.count("q_outer_pinned", M=M, **sizes)
        peaks.append(tally.sram.peak)
    assert peaks == [100] * 32 + [132] * 32 + [164] * 6  # a block more of K and V whenever it fits
