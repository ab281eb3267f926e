"""Reformer's and SMYRF's clusters: numbers within derived bounds of their formulas, their
counts, hashing, and planted bugs.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsim import reference
from flashsim.extensions import approximate
from flashsim.extensions.parts.clusters import homes, sorted_rows
from flashsim.extensions.programs import programs
from flashsim.reference import of_bound
from flashsim.simulate.matrices import run_program
from flashsim.simulate.results import Result
from flashsim.tracing.planting import planted
from tests.helpers.cases import operands, refused

Array = np.ndarray[Any, Any]
DOORS: dict[str, Any] = {"reformer": approximate.reformer, "smyrf": approximate.smyrf}
FORMULAS: dict[str, Any] = {"reformer": reference.reformer, "smyrf": reference.smyrf}
BOUNDS: dict[str, Any] = {"reformer": reference.reformer_bounds, "smyrf": reference.smyrf_bounds}
each = pytest.mark.parametrize("method", approximate.CLUSTERS)


def rounds_of(
    method: str,
    h: int,
    N: int,
    seed: int = 0,
    different: int = 4,
) -> tuple[Array, ...]:
    """Buckets, or hashes of which some are equal."""
    rng = np.random.default_rng(seed + 1)
    if method == "reformer":
        return (rng.integers(0, different, (h, N)),)
    hashes_Q = rng.integers(0, 2 * N, (h, N))
    hashes_K = rng.normal(size=(h, N))
    return hashes_Q, hashes_K


@each
@given(
    N=st.integers(1, 12),
    d=st.integers(1, 9),
    e=st.integers(1, 9),
    h=st.integers(1, 3),
    C=st.integers(1, 14),
    different=st.integers(1, 9),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    scale=st.sampled_from([None, 0.0, 0.7, -0.3]),
)
def test_the_numbers_are_the_formulas_within_their_bound(
    method: str,
    N: int,
    d: int,
    e: int,
    h: int,
    C: int,
    different: int,
    seed: int,
    dtype: str,
    scale: float | None,
) -> None:
    rounds = rounds_of(method, h, N, seed, different)
    inputs = *operands(N, d, e, seed, dtype), *rounds
    how: dict[str, Any] = {"C": C, "scale": scale}
    run = DOORS[method](*inputs, **how)
    want = FORMULAS[method](*inputs, **how)
    bound = BOUNDS[method](*inputs, **how, stored=dtype)
    assert of_bound(run.O, want, bound) <= 1
    shape = {"N": N, "d": d, "e": e}
    exact = approximate.exact(method, **shape, rounds=h, C=C, dtype=dtype)
    assert run.hbm == exact.hbm
    assert run.sram == exact.sram


@given(
    N=st.integers(1, 3000),
    d=st.integers(1, 99),
    h=st.integers(1, 8),
    C=st.integers(1, 200),
)
def test_accesses_are_those_of_the_two_methods_in_words(N: int, d: int, h: int, C: int) -> None:
    """Each round gathers N queries and S keys and values by S words; parts go out and come back; O
    goes out once.

    SMYRF reads words for its queries, too. Reformer reads each of S rows' homes in h rounds.
    """
    for method, looks_back in (("reformer", True), ("smyrf", False)):
        C = min(C, N)
        S = N + looks_back * (-(-N // C) - 1) * C
        words = h * h * S if looks_back else h * N
        exact = approximate.exact(method, N=N, d=d, rounds=h, C=C, M=10**9)
        gathered = N * d + S * (2 * d + 1)
        parts = N * (d + 1)
        assert exact.hbm.accesses == h * gathered + 2 * h * parts + N * d + words
        assert exact.hbm.extra == h * N * (d + 1)


@each
def test_what_an_order_says_moves_no_more(method: str) -> None:
    arrays = operands(30, 4, 3)
    first = DOORS[method](*arrays, *rounds_of(method, 3, 30, 0), C=7)
    second = DOORS[method](*arrays, *rounds_of(method, 3, 30, 1), C=7)
    shape = {"N": 30, "d": 4, "e": 3}
    counted = approximate.count(method, **shape, rounds=3, C=7, dtype="float64")
    assert first.hbm == second.hbm
    assert first.hbm == counted.hbm


def test_one_cluster_of_one_bucket_is_attention() -> None:
    Q, K, V = operands(9, 4, 3)
    want = reference.attention(Q, K, V)
    want_of_5 = reference.attention(Q[:5], K[:5], V[:5])
    # Reformer divides by how often a pair meets, SMYRF's weights all grow alike
    for rounds in (1, 3):
        zeros = np.zeros((rounds, 9), int)
        assert pytest.approx(want) == approximate.reformer(Q, K, V, zeros, C=100).O
        # the second looks back at the first
        halves = approximate.reformer(Q, K, V, zeros - 5, C=5).O
        assert halves[5:] == pytest.approx(want[5:])
        assert halves[:5] == pytest.approx(want_of_5)
        hashes = rounds_of("smyrf", rounds, 9)
        assert pytest.approx(want) == approximate.smyrf(Q, K, V, *hashes, C=9).O


def test_a_pair_that_meets_twice_counts_once_in_reformer_and_twice_in_smyrf() -> None:
    # all weights are equal
    Q = np.zeros((4, 1))
    K = np.zeros((4, 1))
    V = np.arange(4.0)[:, None]
    buckets = np.array([[0, 0, 1, 1], [0, 0, 0, 1]])
    once = approximate.reformer(Q, K, V, buckets, C=4)
    assert once.O[:, 0] == pytest.approx([1, 1, 6 / 4, 5 / 2])
    hashes_Q = np.array([[0.0, 1, 2, 3], [0, 1, 3, 2]])
    hashes_K = hashes_Q[:, [0, 2, 1, 3]]  # 0 meets 0, 1 twice; 2 meets 2, 3 twice
    twice = approximate.smyrf(Q, K, V, hashes_Q, hashes_K, C=2)
    assert twice.O[:, 0] == pytest.approx([1, 1, 2, 2])


def test_a_home_is_a_bucket_within_a_cluster() -> None:
    buckets = np.array([[1, 0, 1, 1, 2, 1, 3]])
    order, home = homes(buckets, 2)
    assert order.tolist() == [[1, 0, 2, 3, 5, 4, 6]]
    # bucket 1 goes on in the second and the third cluster
    homes_in_order = home[order[0], 0].tolist()
    assert homes_in_order == [0, 2, 3, 3, 4, 6, 8]


@given(
    N=st.integers(1, 30),
    C=st.integers(1, 30),
    different=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_homes_tell_who_meets(N: int, C: int, different: int, seed: int) -> None:
    buckets = np.random.default_rng(seed).integers(0, different, (2, N))
    order, home = homes(buckets, C)
    assert (order == sorted_rows(buckets)).all()
    for a in range(2):
        cluster = np.argsort(order[a]) // C
        for x in range(N):
            for y in range(N):
                shared = buckets[a, x] == buckets[a, y]
                meets = shared and cluster[x] - cluster[y] in (0, 1)
                apart = int(home[x, a]) - int(home[y, a])
                assert (apart in (0, 1)) == meets


def cluster_of_8(hashes: Array) -> Array:
    """The cluster of each row, where they are sorted by hash."""
    places: Array = np.argsort(np.argsort(hashes))
    return places // 8


def test_near_rows_share_buckets_and_clusters() -> None:
    rng = np.random.default_rng(3)
    centres = np.repeat(rng.normal(size=(8, 16)), 8, axis=0)
    near = centres + rng.normal(size=(64, 16)) / 50
    buckets = approximate.lsh_buckets(near, 20, 8, seed=1)
    assert buckets.shape == (20, 64)
    assert set(np.unique(buckets)) <= set(range(8))
    first_of_8 = buckets[:, :-9:8]
    same = (first_of_8 == buckets[:, 1::8][:, :7]).mean()
    other = (first_of_8 == buckets[:, 9::8][:, :7]).mean()
    assert other < 0.5 < 0.9 < same
    huge = near / abs(near).max() * 1e308
    assert (approximate.lsh_buckets(huge, 20, 8, seed=1) == buckets).all()

    Q, K = rng.normal(size=(2, 64, 4)) * 3
    weights = np.exp(Q @ K.T / 2)
    shares = []
    for seed in range(20):
        hashes_Q, hashes_K = approximate.lsh_hashes(Q, K, 1, seed=seed)
        q = cluster_of_8(hashes_Q[0])
        k = cluster_of_8(hashes_K[0])
        weight = (weights * (q[:, None] == k)).sum()
        shares.append(weight / weights.sum())
    assert np.mean(shares) > 2 / 8  # by chance it would be an eighth
    again = approximate.lsh_hashes(Q * 1e200, K * 1e200, 1, seed=seed)
    assert all(np.isfinite(hashes).all() for hashes in again)


def test_hashes_are_the_nearer_the_larger_the_product() -> None:
    """Over many directions, their mean squared distance is ‖F(q) − G(k)‖² = 2r² − 2q · k, of
    what they are divided by.
    """
    Q, K = np.random.default_rng(0).normal(size=(2, 5, 3))
    q, k = approximate.lsh_hashes(Q, K, 4000)
    squares = ((q[:, :, None] - k[:, None, :]) ** 2).mean(axis=0)
    longest_q = (Q * Q).sum(axis=1).max()
    longest_k = (K * K).sum(axis=1).max()
    want = 2 * (longest_q + longest_k) - 2 * Q @ K.T
    divisor = abs(np.stack([Q, K])).max() ** 2
    np.testing.assert_allclose(squares, want / divisor, rtol=0.15)


def test_rounds_bring_reformer_nearer_to_attention() -> None:
    Q, _, V = operands(64, 8, 3)
    K = Q / np.linalg.norm(Q, axis=1, keepdims=True)
    want = reference.attention(Q, K, V)

    def error(rounds: int) -> float:
        buckets = approximate.lsh_buckets(Q, rounds, 8)
        run = approximate.reformer(Q, K, V, buckets, C=16)
        return float(abs(run.O - want).mean())

    assert error(16) < error(1) / 2


def run_of(program: Any, method: str) -> tuple[Result, Array, Array]:
    """A run of a program as the door would run it, what is right, and its bound."""
    inputs = *operands(11, 4, 4), *rounds_of(method, 3, 11, different=2)
    if method == "reformer":
        order, home = homes(inputs[3], 4)
        tables = {"order": order, "home": home}
    else:
        tables = {"order_Q": sorted_rows(inputs[3]), "order_K": sorted_rows(inputs[4])}
    named = {**dict(zip("QKV", inputs, strict=False)), **tables}
    run = run_program(program, named, blocks=(4,), options={"tau": 0.5})
    want = FORMULAS[method](*inputs, C=4)
    bound = BOUNDS[method](*inputs, C=4)
    return run, want, bound


@pytest.mark.parametrize(
    ("method", "bug", "array"),
    [
        (
            "reformer",
            ("else r_i", "else [sram.word(order[a, n]) for n in places(i, C, N)]"),
            "order",
        ),
        ("reformer", ("if back else H_i", "if back else sram.load(home.at(r_j))"), "home"),
        ("smyrf", ("S_i = on_chip(tau", "sram.load(V.at(k_i)); S_i = on_chip(tau"), "V"),
    ],
)
def test_words_that_are_read_twice_are_noticed(
    method: str, bug: tuple[str, str], array: str
) -> None:
    exact = approximate.exact(method, N=11, d=4, rounds=3, C=4, dtype="float64")
    want = exact.hbm.by_array
    run, _, _ = run_of(programs()[method], method)
    assert run.hbm.by_array == want
    with_bug, _, _ = run_of(planted(programs()[method], bug), method)
    by_array = with_bug.hbm.by_array
    assert {name for name in want if by_array[name] != want[name]} == {array}


@each
def test_bad_input_is_named(method: str) -> None:
    Q, K, V = operands(5, 2, 3)
    huge = np.full((5, 2), 1e30, np.float32)
    rounds = rounds_of(method, 2, 5)
    door = DOORS[method]
    first = "buckets" if method == "reformer" else "hashes_Q"
    for wrong, match in (
        ({"C": 0}, "C is 0; expected at least 1"),
        (
            {"M": 20},
            rf"M = 20 elements is too small for '{method}' with C = 64: it needs at least M = \d+, or smaller",
        ),
        ({"scale": float("nan")}, "scale"),
        ({"enforce": 3}, "enforce"),
        ({"observers": 3}, "observers"),
    ):
        with pytest.raises(ValueError, match=match):
            door(Q, K, V, *rounds, **wrong)
    for bad in (
        rounds[0][:, :4],
        rounds[0][0],
        rounds[0][:0],
        rounds[0] + 1j,
        rounds[0] > 0,
        "X",
        [["a"] * 5],
    ):
        with pytest.raises(ValueError, match=rf"^{first} (has shape|is 'X').*"):
            door(Q, K, V, bad, *rounds[1:])
    shape = {"N": 5, "d": 2}
    refused(
        (
            r"K has shape \(4, 2\); expected \(N, d\) with N = 5, as Q has",
            lambda: door(Q, K[:4], V, *rounds),
        ),
        ("Q has shape", lambda: door(Q[0], K, V, *rounds)),
        (
            r"O overflows float32, .* Scale Q and K and V down, or",
            lambda: door(huge, huge, huge, *rounds),
        ),
        (
            r"M = 20 elements is too small",
            lambda: approximate.count(method, **shape, rounds=1, C=3, M=20),
        ),
        (
            r"rounds · N is 137,438,953,472; expected at most 268,435,456, .* `exact` has no such",
            lambda: approximate.count(method, N=2**36, d=2, rounds=2, C=3),
        ),
    )
    forced = door(Q, K, V, *rounds, M=20, enforce=False)
    assert forced.sram.over > 0
    options: tuple[tuple[dict[str, Any], str], ...] = (
        ({"k": 3}, f"k is 3; expected none, as '{method}' has rounds of clusters of C rows"),
        ({"blocks": (1, 1, 1, 1)}, r"blocks is \(1, 1, 1, 1\); expected none"),
        ({"rounds": None}, "rounds is None"),
        ({"C": 0}, "C is 0"),
    )
    options_that_are_right = shape | {"rounds": 1, "C": 3}
    for wrong, match in options:
        for cost in (approximate.count, approximate.exact):
            with pytest.raises(ValueError, match=match):
                cost(method, **options_that_are_right | wrong)


def test_bad_input_of_the_hashes_is_named() -> None:
    Q, K, V = operands(5, 2, 3)
    one = np.ones((1, 5))
    two = np.ones((2, 5))
    refused(
        ("number is 3; expected an even number", lambda: approximate.lsh_buckets(Q, 1, 3)),
        ("rounds is 0", lambda: approximate.lsh_buckets(Q, 0, 2)),
        ("X holds NaN or ∞", lambda: approximate.lsh_buckets(Q * np.nan, 1, 2)),
        (
            r"K has shape \(5, 1\); expected \(N, d\) with d = 2",
            lambda: approximate.lsh_hashes(Q, K[:, :1], 1),
        ),
        ("seed is -1", lambda: approximate.lsh_hashes(Q, K, 1, seed=-1)),
        (
            "hashes_Q has 2 rounds, hashes_K 1; expected as many",
            lambda: approximate.smyrf(Q, K, V, two, one),
        ),
        ("hashes_K holds NaN", lambda: approximate.smyrf(Q, K, V, one, np.nan * one)),
        (
            "C is 4; expected none, as 'linformer' has k mixtures or features",
            lambda: approximate.exact("linformer", N=4, d=2, k=2, C=4),
        ),
    )
