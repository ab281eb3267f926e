"""The backward pass of `small_cache`: counted by hand, Θ(N²d/√M) for M < d², and bugs in it are
caught.
"""

from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.attention.shapes import Blocks
from tests.helpers.cases import Arguments
from tests.helpers.counting import moved


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_counts_by_hand(counted: Any) -> None:
    """N_q = 5 in 2, 2, 1 rows; N_k = 7 in 3, 3, 1; d = 2 columns, one piece; d_v = 4 in 3 and 1."""
    shape: Arguments = {
        "N_q": 5,
        "N_k": 7,
        "d": 2,
        "d_v": 4,
        "M": 1000,
        "blocks": (2, 3),
        "direction": "backward",
    }
    by_hand = counted("small_cache", **shape)
    assert by_hand.blocks == Blocks(2, 3, N_q=5, N_k=7)
    assert moved(by_hand) == {
        "Q": (2 * 3 * 10, 0),
        "K": (2 * 3 * 14, 0),
        "V": (3 * 28, 0),
        "O": (20, 0),
        "dO": (20 + 2 * 3 * 20, 0),
        "L": (15, 0),
        "D": (15, 5),
        "P": (3 * 35, 35),
        "dS": (2 * 35, 35),
        "dQ": (30, 40),
        "dK": (0, 14),
        "dV": (0, 28),
    }
    # dV_jc 3·3, P_nj 3, dO_nc 3: more than S_ij 2·3, Q_ik 2, K_jk 3
    assert by_hand.sram.peak == 3 * 3 + 3 + 3
    assert by_hand.hbm.extra == 2 * 5 * 3 + 5


def test_line_2_is_the_largest_square_that_fits() -> None:
    for M in (3, 8, 15, 100, 255, 256, 4096):
        tally = flashsim.count("small_cache", N=300, d=80, M=M, direction="backward")
        b = tally.blocks.B_r
        assert tally.sram.peak == b * b + 2 * b
        assert tally.sram.peak <= M
        assert (b + 1) ** 2 + 2 * (b + 1) > M
        assert (
            tally.blocks
            == flashsim.count(
                "small_cache", N=300, d=80, M=M, direction="backward", sizing="fit"
            ).blocks
        )


def test_below_d_squared_it_moves_least_and_grows_as_saha_and_ye_s_bound() -> None:
    def accesses(name: str, M: int) -> int:
        return flashsim.count(
            name, N=1024, d=64, M=M, direction="backward", sizing="paper"
        ).hbm.accesses

    assert [accesses("small_cache", M) for M in (256, 512, 1024)] == [
        60_042_240,
        45_059_072,
        33_035_264,
    ]
    for M in (256, 512):
        assert accesses("small_cache", M) < min(
            accesses("standard", M), accesses("flash", M), accesses("q_outer", M)
        )
    assert (
        accesses("small_cache", 1024)
        > theory.exact("q_outer", N=1024, d=64, M=8192, direction="backward").accesses
    )
    N = 2**14
    d = 2**13
    M = 2**16
    exact = theory.exact("small_cache", N=N, d=d, M=M, direction="backward")
    per_pair = exact.accesses / N**2
    assert per_pair == pytest.approx(12 * d / M**0.5 + 3, rel=0.03)


def test_strips_are_not_rounded_to_16_bits() -> None:
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(3, 9, 4)).astype(np.float16)
    run = flashsim.forward("small_cache", Q, K, V, M=40)
    arrays = flashsim.backward("small_cache", run, V).hbm.by_array
    assert arrays["P"].itemsize == 4
    assert arrays["dS"].itemsize == 4
    assert arrays["dQ"].itemsize == 2
