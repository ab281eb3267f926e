"""The backward lower bound: each step of its proof tried on random sets, its constant, and the
schedule that comes nearest.
"""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim.analysis.proving import Proof
from flashsim.analysis.tune import best_of
from flashsim.theory import lower_bound_backward
from flashsim.theory.bounds.backward import _phases, most
from flashsim.theory.bounds.certificate import check, most_in_a_phase_backward
from tests.helpers.cases import Arguments

SIDES = st.integers(0, 400)


def test_the_constant() -> None:
    for d, M in ((64, 25_600), (64, 98_304), (128, 98_304), (8, 300)):  # M ≥ 2.7√3 d²
        bound = lower_bound_backward(N=2**17, d=d, M=M)
        constant = bound.accesses * M / (2**34 * d * d)
        assert 8 * 3**0.25 * (1 - 1e-7) <= constant < 10.54
    below = lower_bound_backward(N=2**17, d=64, M=4 * 64 * 64)  # where pairs that wait in HBM help
    assert below.accesses * below.M / (2**34 * 64**2) < 8 * 3**0.25


# --------------------------------------------------------------------------------------------------
# steps of the proof


@given(data=st.data(), N=st.integers(1, 4), d=st.integers(1, 3), d_v=st.integers(1, 3))
def test_no_set_of_entries_gives_more_terms_than_the_proof_allows(
    data: st.DataObject, N: int, d: int, d_v: int
) -> None:
    """Draw what a phase touches, count the terms it can take one by one, and hold them against
    G² of as many entries.
    """

    def some(width: int) -> set[tuple[int, int]]:
        entries = [*product(range(N), range(width))]
        return data.draw(st.sets(st.sampled_from(entries)))

    Q = some(d)
    K = some(d)
    dQ = some(d)
    dK = some(d)
    V = some(d_v)
    dO = some(d_v)
    dV = some(d_v)
    given_pairs = some(N)

    def whole(X: set[tuple[int, int]], width: int) -> set[int]:
        rows = set()
        for i in range(N):
            if all((i, column) in X for column in range(width)):
                rows.add(i)
        return rows

    P = given_pairs | {*product(whole(Q, d), whole(K, d))}
    queries = whole(Q, d) & whole(dO, d_v)
    keys = whole(K, d) & whole(V, d_v)
    dS = given_pairs | {*product(queries, keys)}
    terms = 0
    for i, k in P:
        for column in range(d_v):
            terms += (i, column) in dO and (k, column) in dV
    for i, k in dS:
        for column in range(d):
            terms += (i, column) in Q and (k, column) in dK
            terms += (k, column) in K and (i, column) in dQ
    touched = (Q, K, dQ, dK, V, dO, dV, given_pairs)
    Y = sum(len(entries) for entries in touched)
    assert terms**2 <= most(Y, min(d, d_v)) * (1 + 1e-12)


@given(q=SIDES, o=SIDES, k=SIDES, v=SIDES)
def test_step_6(q: int, o: int, k: int, v: int) -> None:
    s = min(q, o)
    t = min(k, v)
    A = q + o + k + v
    terms = q * k * o + s * t * (q + k)
    assert 432 * terms**2 <= A**6


def test_step_6_has_no_smaller_constant() -> None:
    q = o = 1000
    k = round(1000 * (3**0.5 - 1))  # m : n as in the proof
    terms = q * k * o + q * k * (q + k)
    assert 433 * terms**2 > (2 * q + 2 * k) ** 6


def brute(Y: int, delta: int) -> Any:
    """Return G² by trying every A and c."""

    def squared(A: int, c: int) -> float:
        cubic: float = A**3 / (432**0.5 * delta**2)
        return (Y - A - c) * (cubic + A * c)

    squares = [squared(A, c) for A in range(Y + 1) for c in range(Y + 1 - A)]
    return max(squares)


@given(Y=st.integers(1, 120), delta=st.integers(1, 6))
def test_the_most_of_a_phase_is_found_and_nothing_less_is_let_pass(Y: int, delta: int) -> None:
    largest = brute(Y, delta)
    assert largest <= most(Y, delta) * (1 + 1e-12)
    assert most_in_a_phase_backward(Y, delta, int(most(Y, delta) * (1 + 1e-7)) + 1)
    assert largest < 1 or not most_in_a_phase_backward(
        Y, delta, int(largest * (1 - 1e-9)) - (largest == int(largest))
    )


@pytest.mark.parametrize(
    ("Y", "delta"), [(10, 1), (1000, 10), (50_000, 64), (10**7, 64), (3000, 64), (20_000, 64)]
)
def test_the_most_of_all_reals_is_found(Y: int, delta: int) -> None:
    A = np.linspace(0, Y, 100_001)
    weight = 432**0.5 * delta**2
    c = np.maximum((Y - A - A * A / weight) / 2, 0)
    squared = (Y - A - c) * (A**3 / weight + A * c)
    largest = float(squared.max())
    assert largest == pytest.approx(most(Y, delta), rel=1e-8)


# --------------------------------------------------------------------------------------------------
# prove


def test_masks_and_what_does_not_fit() -> None:
    allowed = np.zeros((20, 30), bool)
    allowed[2:9, 3:5] = True
    sizes: Arguments = {"N_q": 20, "N_k": 30, "d": 4, "M": 500}
    proof = flashsim.prove(**sizes, mask=allowed, direction="backward")
    assert (proof.bound.pairs, proof.queries, proof.keys) == (14, 7, 2)
    assert proof.bound.compulsory == 7 * 8 + 2 * 8 + 20 * 4 + 30 * 8
    assert proof.best is not None
    assert proof.best.accesses >= proof.bound.accesses
    assert "taken as given" in check(proof.certificate())
    assert flashsim.prove(N=64, d=32, M=2, direction="backward").best is None
    with pytest.raises(ValueError, match="direction"):
        flashsim.prove(N=4, d=2, direction="sideways")


# --------------------------------------------------------------------------------------------------
# schedules


def test_two_passes_with_tiles_of_their_own_move_14() -> None:
    """The best schedule that is known: its count by hand, and how near the bound that is."""
    N = 65_536
    d = 64
    M = 25_600
    B_r = 130
    B_c = 99
    proof = flashsim.prove(N=N, d=d, M=M, direction="backward")
    assert proof.best is not None
    assert proof.best.algorithm == "q_outer_streamed"
    assert (proof.best.B_r, proof.best.B_c) == (B_r, B_c)
    T_r = -(-N // B_r)
    T_c = -(-N // B_c)
    passes = (T_c + T_r) * 2 * N * d
    once = 9 * N * d
    statistics = 2 * T_c * N + 3 * N
    assert proof.best.accesses == passes + once + statistics
    assert 14 < proof.best.accesses * M / (N * d) ** 2 < 14.5
    assert proof.ratio is not None
    assert 1 < proof.ratio < 1.371
    q_outer = best_of("q_outer", N=N, d=d, M=M, direction="backward")
    assert q_outer is not None
    assert proof.best.accesses < 0.88 * q_outer.accesses


@pytest.mark.parametrize(("d", "d_v"), [(4, 9), (9, 4)])
def test_of_two_widths_the_smaller_counts(d: int, d_v: int) -> None:
    bound = lower_bound_backward(N=60, d=d, d_v=d_v, M=60)
    A, c = np.mgrid[0 : bound.Y + 1, 0 : bound.Y + 1]
    cubic = A**3 / (12 * math.sqrt(3) * 4 * 4)
    squared = (bound.Y - A - c) * (cubic + A * c)
    largest = squared.max()
    assert bound.n > 2
    assert largest <= bound.H <= 1.01 * largest
    tampered = {
        **Proof(bound, "all", 60, 60, None, "backward").certificate(),
        "H": int(largest * 0.99),
    }
    with pytest.raises(ValueError, match="a phase may have more"):
        check(tampered)


def test_a_phase_more_than_the_terms_need_is_refused() -> None:
    """The most phases that n − 1 of √H terms cannot fill, and not one more."""
    bound = lower_bound_backward(N=300, d=4, M=400)
    terms = 300 * 300 * 3 * 4
    most = math.isqrt((terms * terms - 1) // bound.H) + 1
    record = Proof(bound, "all", 300, 300, None, "backward").certificate()
    for n, wrong in ((most, False), (most + 1, True)):
        charges = bound.Y + (n - 2) * (bound.Y - 400)
        phases = {"n": n, "bound": charges}
        forged = record | phases
        if wrong:
            with pytest.raises(ValueError, match="phases are enough"):
                check(forged)
        else:
            assert str(phases["bound"]) in check(forged)


@pytest.mark.slow
@pytest.mark.parametrize(("N", "d", "M"), [(12, 2, 9), (20, 3, 40), (30, 4, 150), (24, 3, 400)])
def test_the_search_finds_what_the_best_of_all_phases_proves(N: int, d: int, M: int) -> None:
    """A phase may be of any size; also where two phases are all there are."""
    bound = lower_bound_backward(N=N, d=d, M=M)
    T = N * N * 3 * d
    delta = d
    sizes = range(M + 1, 16 * delta * T)
    every = max(_phases(bound, T, Y, delta).phases for Y in sizes)
    assert bound.accesses >= 0.99 * every
