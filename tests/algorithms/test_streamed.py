"""streamed, tiles_streamed, hybrid_streamed: counted by hand, the room of one statistic, and
bugs in them are caught.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD, hybrid_streamed, streamed
from flashsim.analysis.tune import best_of
from flashsim.attention.shapes import Blocks
from flashsim.reference import attention, gradients
from flashsim.tracing.planting import mutated, planted
from tests.helpers.cases import Arguments
from tests.helpers.counting import moved

SHAPE: Arguments = {"N_q": 5, "N_k": 7, "d": 2, "d_v": 4}

# --------------------------------------------------------------------------------------------------
# counted by hand


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_streamed_counts_by_hand(counted: Any) -> None:
    """Blocks of 2 × 1: Q_i and O_i 12, S_ij and L_i 4, an element 1, so of M = 29 room for 12,
    two rows of 6.
    """
    by_hand = counted("streamed", **SHAPE, M=29, blocks=(2, 1))
    assert moved(by_hand) == {
        "Q": (10, 0),
        "K": ((2 + 3 * 5) * 2, 0),
        "V": ((2 + 3 * 5) * 4, 0),
        "O": (0, 20),
        "L": (0, 5),
    }
    assert by_hand.sram.peak == 29
    # no element is streamed: its room is not needed
    everything = counted("streamed", **SHAPE, M=7 * 6 + 16, blocks=(2, 1))
    assert moved(everything)["V"] == (28, 0)
    assert everything.sram.peak == 58
    almost = counted("streamed", **SHAPE, M=57, blocks=(2, 1))
    assert moved(almost)["V"] == ((6 + 3) * 4, 0)
    # a column of three
    column = counted("streamed", **SHAPE, M=23, blocks=(2, 3))
    assert column.sram.peak == 12 + 2 + 6 + 3


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_tiles_streamed_counts_by_hand(counted: Any) -> None:
    """It moves what small_cache moves, with room for S_ij 6, L_i 2, Q_ik 2 and an element: 11,
    where that takes 15.
    """
    by_hand = counted("tiles_streamed", **SHAPE, M=1000, blocks=(2, 3))
    small_cache = counted("small_cache", **SHAPE, M=1000, blocks=(2, 3))
    assert moved(by_hand) == moved(small_cache)
    assert by_hand.sram.peak == 6 + 2 + 2 + 1
    assert by_hand.hbm.extra == 2 * 7 + 5


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_hybrid_streamed_counts_by_hand(counted: Any) -> None:
    """M = 19: O in tiles of 3 × 4 reads 35·1 + 2·28 = 91 of S and V; of 4 × 2, 35·2 + 2·28; of 5
    × 1, 35·4 + 28.
    """
    by_hand = counted("hybrid_streamed", **SHAPE, M=19, blocks=(2, 1))
    assert hybrid_streamed.line_3(19, 5, 4) == (3, 4)
    assert moved(by_hand) == {
        "Q": (10, 0),
        "K": (3 * 14, 0),
        "V": (2 * 28, 0),
        "S": (35, 35),
        "O": (0, 20),
        "L": (5, 5),
    }
    assert by_hand.sram.peak == 3 * (4 + 2) + 1
    whole = counted("hybrid_streamed", **SHAPE, M=21, blocks=(5, 1))
    assert whole.sram.peak == 5 * (2 + 2) + 1


# --------------------------------------------------------------------------------------------------
# what room it takes


@pytest.mark.parametrize(
    ("name", "b_r", "room", "accesses"),
    [
        ("streamed", 128, 128 * (64 + 64 + 2) + 1, 2 * 1024 * 64 + 8 * 2 * 1024 * 64 + 1024),
        ("streamed", 1, 1024 * 128 + 128 + 2, 4 * 1024 * 64 + 1024),
        ("tiles_streamed", 4, 4 * 4 + 2 * 4 + 1, 1024**2 * 65 + 1024 * 64 + 1024),
        ("hybrid_streamed", 32, 32 * (64 + 2) + 1, 6 * 1024**2 + 2 * 1024 * 64 + 2 * 1024),
    ],
)
def test_each_takes_a_referee_s_room_and_one_statistic(
    name: str, b_r: int, room: int, accesses: int
) -> None:
    """N = 1,024, d = 64: AccelForge makes these accesses, but for L, in b_r elements less. In
    one less, it cannot be.
    """
    best = best_of(name, N=1024, d=64, M=room)
    short = best_of(name, N=1024, d=64, M=room - 1)
    assert best is not None
    assert best.blocks.B_r == b_r
    assert best.peak == room
    assert best.accesses == accesses
    assert short is None or short.accesses > best.accesses


def test_it_streams_with_less_room_than_two_rows_take() -> None:
    """One query: q_outer needs rows of K and V beside those of Q and O."""
    d = 64
    least = {"streamed": 2 * d + 3, "hybrid_streamed": d + 3, "tiles_streamed": 4}
    for name, room in least.items():
        assert best_of(name, N=9, d=d, M=room) is not None
        assert best_of(name, N=9, d=d, M=room - 1) is None
    assert best_of("q_outer", N=9, d=d, M=4 * d) is None


def test_a_sum_of_weights_that_would_overflow_is_never_made() -> None:
    """Scores to 10⁴, rising and falling: O_i stays divided by the sum, and L_i is its logarithm."""
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(3, 9, 4))
    rising = 100 * K * np.arange(9)[:, None]
    falling = 100 * K * np.arange(9, 0, -1)[:, None]
    for K_now in (rising, falling):
        want = attention(Q, K_now, V)
        for name in ("streamed", "tiles_streamed", "hybrid_streamed"):
            run = flashsim.forward(name, Q, K_now, V, M=40, scale=1.0 / 2)
            np.testing.assert_allclose(run.O, want, rtol=1e-11, atol=1e-11)


def test_room_that_is_counted_wrong_is_caught() -> None:
    line_4 = mutated(streamed.line_4, ("blocks.B_c + 1)", "blocks.B_c)"))
    blocks = Blocks(2, 1, N_q=6, N_k=7)
    assert line_4(29, blocks, 7, 6, 0) == streamed.line_4(31, blocks, 7, 6, 0)
    rows = mutated(hybrid_streamed.rows, ("// (d + 2)", "// (d + 1)"))
    mutant = replace(FORWARD["hybrid_streamed"], rows=rows)
    tally = flashsim.count(mutant, N=100, d=10, M=200, sizing="paper")
    assert tally.sram.peak > 200


# --------------------------------------------------------------------------------------------------
# backward


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_backward_counts_by_hand(counted: Any) -> None:
    """N_q = 5 in 2, 2, 1; N_k = 7 in 3, 3, 1; d = 2 in one piece, d_v = 4 in two of 2. Tiles: 3
    × 2 or 2 × 3, a column of 2.
    """
    tiles = counted("tiles_streamed", **SHAPE, M=1000, blocks=(2, 3), direction="backward")
    assert moved(tiles) == {
        "Q": (2 * 3 * 10, 0),
        "K": (2 * 3 * 14, 0),
        "V": (3 * 28, 0),
        "O": (20, 0),
        "dO": (7 * 20, 0),
        "L": (15, 0),
        "D": (15, 5),
        "P": (3 * 35, 35),
        "dS": (2 * 35, 35),
        "dQ": (0, 10),
        "dK": (0, 14),
        "dV": (0, 28),
    }
    assert tiles.sram.peak == 6 + 2 + 1
    assert tiles.hbm.by_array["P"].size == 5 * 3
    stored = counted("q_outer_stored", **SHAPE, M=1000, blocks=(2, 3), direction="backward")
    assert moved(stored) == {
        "Q": (3 * 10, 0),
        "K": (14 + 3 * 14, 0),
        "V": (28, 0),
        "O": (20, 0),
        "dO": (4 * 20, 0),
        "L": (15, 0),
        "D": (15, 5),
        "dS": (35, 35),
        "dQ": (0, 10),
        "dK": (0, 14),
        "dV": (0, 28),
    }
    assert stored.sram.peak == 3 * 2 * 6 + 6 + 2 + 3  # K_j V_j dK_j dV_j, Q_n dO_n L_n D_n, S_nj


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_hybrid_backward_counts_by_hand(counted: Any) -> None:
    """7 keys in 3, 3, 1. Tiles of dV 3 × 4 in 3, of dK 6 × 2 in 2, of dQ 5 × 2 in 1."""
    hybrid = counted("hybrid_streamed", **SHAPE, M=19, direction="backward")
    assert moved(hybrid) == {
        "Q": (3 * 10 + 2 * 10, 0),
        "K": (14 + 14, 0),
        "V": (28, 0),
        "O": (20, 0),
        "dO": (3 * 20 + 3 * 20, 0),
        "L": (15, 0),
        "D": (10, 5),
        "P": (2 * 35, 35),
        "dS": (2 * 35, 35),
        "dQ": (0, 10),
        "dK": (0, 14),
        "dV": (0, 28),
    }
    assert hybrid.sram.peak == 6 * 2 + 6 + 1  # dK_jc, dS_nj, an element
    # D_n and two elements do not fit
    tight = counted("hybrid_streamed", **SHAPE, M=17, direction="backward")
    assert moved(tight)["D"] == (15, 5)
    assert tight.hbm.by_array["dO"].reads % 20 == 0
    assert tight.sram.peak == 3 * 4 + 3 + 2  # V_j, dP_nj, D_n, P_ne
    fitting = counted("hybrid_streamed", **SHAPE, M=18, direction="backward")
    assert moved(fitting)["D"] == (10, 5)
    assert fitting.sram.peak == 18  # V_j, dP_nj, D_n, dO_nk, O_nk


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_streamed_backward_counts_by_hand(counted: Any) -> None:
    """7 keys in 3, 3, 1: O is read once, dQ and D by all blocks but the first. With all keys on
    chip, each once, and D.
    """
    options: Arguments = {**SHAPE, "direction": "backward"}
    streamed_ = counted("streamed", **options, M=49)
    assert moved(streamed_) == {
        "Q": (3 * 10, 0),
        "K": (14, 0),
        "V": (28, 0),
        "O": (20, 0),
        "dO": (3 * 20, 0),
        "L": (15, 0),
        "D": (10, 5),
        "dQ": (20, 30),
        "dK": (0, 14),
        "dV": (0, 28),
    }
    # K_j V_j dK_j dV_j, P_nj, Q_n dO_n dQ_n, L_n D_n
    assert streamed_.sram.peak == 49 == 3 * 2 * 6 + 3 + 2 + 4 + 2 + 2
    assert counted("streamed", **options, M=48).sram.peak == 49 - 13
    room = counted("streamed", **options, M=7 * 13 + 10)
    assert room.sram.peak == 101
    compulsory = theory.compulsory(5, 7, 2, 4, "backward")
    assert room.hbm.accesses == compulsory + 20 + 5 + 5  # O, L and D


@pytest.mark.parametrize(
    "of", ["dO_elements[n, c * x_V", "Q_elements[n, c * x_K", "K_elements[n, c * x_Q"]
)
def test_hybrid_backward_in_tiles_of_some_columns(of: str) -> None:
    """Tiles of 6 × 3, three of them in a row; not the first one's columns alone."""
    Q, K, V, dO = np.random.default_rng(0).normal(size=(4, 9, 9))
    run = flashsim.forward("hybrid_streamed", Q, K, V, M=25, causal=True)
    values = theory.symbols(
        9, 9, 9, 9, 25, run.blocks, direction="backward", name="hybrid_streamed"
    )
    assert values["U_k"] == 3
    expected = np.hstack([*gradients(Q, K, V, dO, mask=np.tri(9, dtype=bool))])
    original = BACKWARD["hybrid_streamed"]
    mutant = planted(original, (of, of.replace(" c ", " 0 * c ")))
    for algorithm, right in ((original, True), (mutant, False)):
        result = flashsim.backward(algorithm, run, dO)
        computed = np.hstack([result.dQ, result.dK, result.dV])
        assert np.allclose(computed, expected, atol=1e-12) is right


def test_hybrid_backward_takes_the_room_that_a_referee_s_take() -> None:
    """AccelForge's accesses at N = 256, d = 16, and those of L, D and O, which it has not: these
    alone are between.

    With one element more, D_n's, dO is not read again for D, nor D by the first block.
    """
    N = 256
    d = 16
    for M, keys, accelforge in ((138, 8, 1_069_056), (274, 16, 741_376)):
        best = best_of("hybrid_streamed", N=N, d=d, M=M, direction="backward")
        assert best is not None
        assert best.blocks.B_c == keys
        assert best.peak == M
        statistics_and_O = 2 * N * d + N
        logarithms = 2 * (N // keys) * N
        assert best.accesses == accelforge + statistics_and_O + logarithms
        more = best_of("hybrid_streamed", N=N, d=d, M=M + 1, direction="backward")
        assert more is not None
        assert more.peak == M + 1
        assert more.accesses == best.accesses - N * d - N
    best_at = {0.1: "tiles_streamed", 0.6: "hybrid_streamed", 1.5: "q_outer_stored"}
    for part, name in best_at.items():
        M = int(part * 64 * 64)
        known = (
            best_of(name, N=1024, d=64, M=M, direction="backward")
            for name in (
                "tiles_streamed",
                "hybrid_streamed",
                "q_outer_stored",
                "q_outer_streamed",
                "q_outer",
            )
        )
        least = min((choice for choice in known if choice), key=lambda choice: choice.accesses)
        assert least.algorithm == name


def test_backward_tiles_take_the_room_that_a_referee_s_take() -> None:
    """b² + b + 1: AccelForge's accesses at N = 256, d = 16, M = 21, and D, L and O besides. No
    statistic takes more room.
    """
    N = 256
    d = 16
    best = best_of("tiles_streamed", N=N, d=d, M=21, direction="backward")
    assert best is not None
    assert (best.blocks.B_r, best.blocks.B_c) == (4, 4)
    assert best.peak == 21
    assert best.accesses == 2_830_336 + 2 * N * d + N + 2 * 64 * N
    assert best_of("tiles_streamed", N=N, d=d, M=2, direction="backward") is None


def test_ds_in_hbm_moves_less_below_two_and_a_half_d_squared() -> None:
    """At leading order 9 N²d²/M + 2N² against 14 N²d²/M: the border is at 2.5 d²."""
    for d, N in ((64, 16_384), (128, 32_768)):
        for part, less in ((2.0, True), (3.0, False)):
            M = int(part * d * d)
            stored = best_of("q_outer_stored", N=N, d=d, M=M, direction="backward")
            streamed_ = best_of("q_outer_streamed", N=N, d=d, M=M, direction="backward")
            assert stored is not None
            assert streamed_ is not None
            assert (stored.accesses < streamed_.accesses) is less
    sizes: Arguments = {"N": 2**20, "d": 1024, "M": 2**20}
    large = best_of("q_outer_stored", **sizes, direction="backward")
    assert large is not None
    assert large.accesses / 2**40 == pytest.approx(11, rel=0.01)


def test_one_pass_moves_less_with_few_blocks_of_keys() -> None:
    """4T_c + 4 matrices of N × d against 2T_c + 2T_r + 9, T_r about 3T_c/4: less up to T_c = 9."""
    N = 3600
    d = 16
    less_in_one_pass = {1: True, 2: True, 5: True, 9: True, 18: False}
    for T_c, less in less_in_one_pass.items():
        B_c = N // T_c
        M = B_c * (4 * d + 1) + 3 * d + 2
        one = best_of("streamed", N=N, d=d, M=M, direction="backward")
        two = best_of("q_outer_streamed", N=N, d=d, M=M, direction="backward")
        assert one is not None
        assert two is not None
        assert one.blocks.T_c == T_c
        assert one.accesses == (4 * T_c + 4) * N * d + 2 * T_c * N  # and L and D
        assert (one.accesses < two.accesses) is less


@pytest.mark.parametrize("M", [30, 44, 52, 61])
def test_tiles_of_the_backward_hybrid_fit_beside_the_generator_s_state(M: int) -> None:
    Q, K, V, dO = np.random.default_rng(0).normal(size=(4, 10, 4))
    room: Arguments = {"M": M, "sizing": "fit"}
    run = flashsim.forward("hybrid_streamed", Q, K, V, dropout_p=0.3, **room)
    back = flashsim.backward("hybrid_streamed", run, dO, **room)
    options: Arguments = {
        "N": 10,
        "d": 4,
        "M": M,
        "dropout_p": 0.3,
        "dtype": "float64",
        "direction": "backward",
    }
    exact = flashsim.theory.exact("hybrid_streamed", **options, sizing="fit")
    assert (exact.hbm, exact.sram) == (back.hbm, back.sram)
