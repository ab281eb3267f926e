"""Dropout: the generator is Philox4x32-10, an element's fate is its own, and Z is 1/(1 − p) or
0.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim.algorithms import FORWARD, backward_passes
from flashsim.attention.masks import dropout
from flashsim.attention.masks.dropout import keep_mask, philox4x32_10
from tests.helpers.cases import Array, Case

DROPPING = tuple(name for name in FORWARD if "dropout" in FORWARD[name].parts)

# Random123's kat_vectors, philox4x32, 10 rounds
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_philox_gives_the_published_answers(counter: str, key: str, output: str) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    drawn = philox4x32_10((c0, c1, c2, c3), (k0, k1))
    assert [int(word) for word in drawn] == words(output)


def philox_slowly(counter: list[int], key: list[int]) -> list[int]:
    """One counter at a time, in Python's own integers, as the paper's figure prints it."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * c0, 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0 = high_1 ^ c1 ^ k0
        c1 = low_1
        c2 = high_0 ^ c3 ^ k1
        c3 = low_0
        k0 = (k0 + 0x9E3779B9) % 2**32
        k1 = (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


@given(
    seed=st.integers(0, 2**64 - 1),
    row=st.integers(0, 40),
    col=st.integers(0, 70),
    head=st.integers(0, 2**32 - 1),
)
def test_an_element_is_kept_if_its_own_half_word_is_at_least_p(
    seed: int, row: int, col: int, head: int
) -> None:
    down, r = divmod(row, 16)
    across, c = divmod(col, 32)
    counter = [16 * down + r % 8, 32 * across + c % 8, head, 0]
    drawn = philox_slowly(counter, [seed % 2**32, seed >> 32])
    word = drawn[2 * (r >= 8) + (c % 16 >= 8)]
    half = word // 2**16 if c < 16 else word % 2**16
    u = half / 2**16
    for p in (
        0.0,
        0.1,
        0.5,
        0.999,
        u,
        min(np.nextafter(u, 1), np.nextafter(1.0, 0.0)),
        min(u + 2**-16, 1 - 2**-20),
    ):
        assert keep_mask(seed, p, 41, 71, head)[row, col] == (u >= p)


def test_the_eight_elements_of_a_call_are_as_independent_as_others() -> None:
    """Of all pairs among the 16 × 32 elements that share their calls: over many heads each pair
    agrees as two fair coins do.
    """
    heads = 600
    of_heads = [keep_mask(11, 0.5, 16, 32, head) for head in range(heads)]
    masks = np.array(of_heads).reshape(heads, -1)
    signs = np.where(masks, 1.0, -1.0)
    agreement = signs.T @ signs
    pairs = np.abs(agreement[np.triu_indices(len(agreement), 1)])
    # Hoeffding, for all pairs together
    most = np.sqrt(2 * heads * np.log(2 * len(pairs) * 1e9))
    assert pairs.max() <= most


def test_p_0_keeps_all_and_p_close_to_1_keeps_next_to_nothing() -> None:
    assert keep_mask(3, 0.0, 50, 60).all()
    assert not keep_mask(3, np.nextafter(1.0, 0.0), 50, 60).any()
    assert keep_mask(3, 0.5, 50, 60).shape == (50, 60)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9, 0.999])
def test_as_many_are_kept_as_chance_allows(p: float) -> None:
    """Chernoff: a count of n kept with probability 1 − p is off by √(n·ln(2·10⁹)/2) with
    probability below 10⁻⁹.
    """
    n = 1000 * 1000
    kept = keep_mask(round(1000 * p), p, 1000, 1000).sum()
    off = abs(int(kept) - round(n * (1 - p)))
    assert off <= np.sqrt(n * np.log(2e9) / 2)


def test_rows_columns_heads_and_seeds_do_not_repeat_one_another() -> None:
    """Each pair of masks agrees where two fair coins do, within the same bound."""
    first = keep_mask(5, 0.5, 400, 400)
    others = {
        "seed": keep_mask(6, 0.5, 400, 400),
        "seed's high word": keep_mask(5 + 2**32, 0.5, 400, 400),
        "head": keep_mask(5, 0.5, 400, 400, head=1),
        "transposed": first.T,
        "next row": np.roll(first, 1, axis=0),
        "next column": np.roll(first, 1, axis=1),
        "next diagonal": np.roll(first, (1, -1), axis=(0, 1)),
        "all kept": np.ones_like(first),
    }
    n = first.size
    most = np.sqrt(n * np.log(2e9) / 2)
    for name, other in others.items():
        agreeing = int((first == other).sum())
        assert abs(agreeing - n / 2) <= most, name


@given(
    p=st.sampled_from((0.1, 0.7)),
    seed=st.integers(0, 2**64 - 1),
    n=st.integers(1, 30),
    k=st.integers(1, 30),
    more=st.integers(0, 9),
)
def test_a_longer_mask_begins_with_the_shorter(
    p: float, seed: int, n: int, k: int, more: int
) -> None:
    longer = keep_mask(seed, p, n + more, k + more)
    assert np.array_equal(longer[:n, :k], keep_mask(seed, p, n, k))


def test_a_tile_of_few_elements_is_a_part_of_the_same_mask() -> None:
    rows = np.array([0, 31, 32, 70])
    cols = np.array([5, 33])
    heads = np.array([0, 1, 1, 2])
    few = dropout._keep_few((3, 4), 0.5, rows, cols, heads)
    assert np.array_equal(few, dropout.keep((3, 4), 0.5, rows, cols, heads))


# --------------------------------------------------------------------------------------------------
# as algorithms drop


def weights(name: str, p: float, seed: int, **options: Any) -> Array:
    """With Q = 0 and V the identity, O is the dropped weights themselves: Z / N_k."""
    n = 7
    k = 11
    Q = np.zeros((n, 2))
    K = np.zeros((k, 2))
    V = np.eye(k)
    run = flashsim.forward(name, Q, K, V, dropout_p=p, seed=seed, **options)
    O: Array = run.O
    return O * k


@pytest.mark.parametrize("name", DROPPING)
def test_each_weight_is_dropped_or_divided_by_1_minus_p_whatever_the_tiles(name: str) -> None:
    p = 0.4
    seed = 9
    want = keep_mask(seed, p, 7, 11) / (1 - p)
    assert 0 < np.count_nonzero(want) < want.size
    for options in (
        {"M": 10**4},
        {"M": 60},
        {"M": 14, "sizing": "paper"},
        {"M": 10**4, "blocks": (2, 3)},
        {"M": 10**4, "blocks": (5, 1)},
    ):
        result = weights(name, p, seed, **options)
        assert np.array_equal(result == 0, want == 0)
        assert (
            np.abs(result - want).max() <= 40 * 2**-53 * want.max()
        )  # N_k + a few roundings of each


@pytest.mark.parametrize("name", DROPPING)
def test_p_next_to_1_drops_all_and_gives_zeros(name: str) -> None:
    case = Case("gaussian", 9, 14, 4, 3, "float64", 0, 1, 1)
    almost_1 = float(np.nextafter(1.0, 0.0))
    run = flashsim.forward(name, *case.inputs(), M=70, sizing="paper", dropout_p=almost_1)
    passes = [flashsim.backward(back, run, case.dO()) for back in backward_passes(name)]
    for values in (
        run.O,
        *(part for result in passes for part in (result.dQ, result.dK, result.dV)),
    ):
        assert (values == 0).all()
