"""Linear attention: its numbers within derived bounds, its traffic the compulsory one, and bugs that real kernels had."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsim.beyond import linear
from flashsim.reference import linear_attention, linear_attention_bounds

from .cases import operands

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("state", linear.STATES)
@given(
    N=st.integers(1, 40), d=st.integers(1, 9), e=st.integers(1, 9), chunk=st.integers(1, 45), seed=st.integers(0, 99),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
)  # fmt: skip
def test_numbers_are_the_naive_ones_within_their_bound(
    state: str, N: int, d: int, e: int, chunk: int, seed: int, dtype: str
) -> None:
    given = operands(N, d, e, seed, dtype)
    run = linear.attention(*given, state=state, chunk=chunk)
    bound = linear_attention_bounds(*given, chunks=-(-N // chunk), stored=dtype)
    assert (abs(run.O - linear_attention(*given)) <= bound).all()
    assert run.hbm == linear.exact(N=N, d=d, e=e, state=state, chunk=chunk, dtype=dtype).hbm


@pytest.mark.parametrize("state", linear.STATES)
def test_the_bound_holds_where_products_vanish(state: str) -> None:
    """K V is below the smallest float32, Q K V is not."""
    given = [np.full((6, 2), size, np.float32) for size in (1e10, 1e-23, 1e-23)]
    run = linear.attention(*given, state=state, chunk=2)
    bound = linear_attention_bounds(*given, chunks=3, stored="float32")
    assert (abs(run.O - linear_attention(*given)) <= bound).all()


def test_it_is_the_sum_row_by_row() -> None:
    Q, K, V = operands(6, 3, 2)
    for i, row in enumerate(linear_attention(Q, K, V)):
        assert row == pytest.approx(sum((Q[i] @ K[j]) * V[j] for j in range(i + 1)))


def test_a_state_on_chip_moves_what_is_compulsory_at_any_length() -> None:
    for N in (1, 100, 65_536):
        tally = linear.count(N=N, d=64, e=32, M=25_600)
        assert tally.hbm.accesses == N * (64 + 64 + 32 + 32)
        assert tally.hbm.extra == 0
        assert tally.sram.peak <= 25_600


@pytest.mark.parametrize("chunk", [64, 128, 200])
def test_chunks_side_by_side_cost_at_most_K_and_V_twice_more(chunk: int) -> None:
    N, d = 4096, 64
    apart, once = (linear.count(N=N, d=d, M=10**6, chunk=chunk, state=state).hbm for state in ("in_hbm", "on_chip"))
    more = apart.accesses - once.accesses
    assert more == N * 2 * d + 2 * -(-N // chunk) * d * d
    assert more <= 2 * (N * 2 * d)


@pytest.mark.parametrize("counted", [linear.count, linear.exact])
def test_a_buffer_by_hand(counted: Any) -> None:
    """Chunks of 3, 3 and 1 meet 6 + 6 + 1 keys; four rows read S, and two chunks write it. In one chunk there is none."""
    by_array = counted(N=7, d=2, e=3, chunk=3, state="buffered").hbm.by_array
    assert {name: (of.reads, of.writes) for name, of in by_array.items()} == {
        "Q": (14, 0), "K": (13 * 2, 0), "V": (13 * 3, 0), "S": (4 * 6, 2 * 6), "O": (0, 21),
    }  # fmt: skip
    short = counted(N=7, d=2, e=3, chunk=7, state="buffered")
    assert (short.hbm.by_array["S"].accesses, short.hbm.by_array["K"].reads, short.sram.peak) == (0, 28 * 2, 10)
    each = counted(N=7, d=2, e=3, chunk=1, state="buffered").hbm.by_array["S"]
    assert (each.reads, each.writes) == (6 * 6, 6 * 6)


@pytest.mark.parametrize(("d", "e"), [(128, 128), (64, 64), (96, 32)])
def test_its_buffer_is_the_one_of_fewest_accesses(d: int, e: int) -> None:
    def moved(chunk: int | None) -> int:
        return linear.exact(N=27_720, d=d, e=e, chunk=chunk, state="buffered", M=25_600).hbm.accesses

    assert moved(None) == pytest.approx(min(map(moved, range(1, 40))), rel=2e-4)  # the first chunk needs no state
    assert moved(None) < 0.7 * moved(1)


def test_bad_input_is_named() -> None:
    Q, K, V = operands(5, 2, 3)
    for wrong, match in (
        ({"state": "nowhere"}, "state"),
        ({"chunk": 0}, "^chunk is 0; expected at least 1"),
        ({"chunk": 1.5}, "^chunk is 1.5; expected a whole number"),
        ({"M": 3}, "M = 3 elements is too small"),
    ):
        with pytest.raises(ValueError, match=match):
            linear.attention(Q, K, V, **wrong)
    with pytest.raises(ValueError, match="V has shape"):
        linear.attention(Q, K, V[:4])
    with pytest.raises(ValueError, match="O overflows float32"):
        linear.attention(*(np.full((4, 4), 1e30, np.float32) for _ in range(3)))


def test_bounds_are_those_derived() -> None:
    """N = 2, d = 3, in 4 chunks; where V is 0, only the smallest steps are left: Nd + N + d of the chip's, by way
    of Q, one of the store's."""
    Q, K, V = np.full((2, 3), 0.5), np.full((2, 3), -2.0), np.full((2, 1), 3.0)
    u, tiny = 2.0**-24, 2.0**-149
    found = linear_attention_bounds(Q, K, V, chunks=4, stored="float32")
    want = [2 * ((3 + 2 + 4 + 3) * u * size + u * size + 11 * tiny * 4.5 + tiny) for size in (9.0, 18.0)]
    assert found.ravel() == pytest.approx(want, rel=1e-9)
    assert linear_attention_bounds(Q, K, 0 * V, chunks=4, stored="float32") == pytest.approx(2 * 17.5 * tiny, abs=0)
