"""The lower bounds against all schedules of attention's scalars, by a search that knows nothing
of their proofs.
"""

import sys
from heapq import heappop, heappush
from itertools import product
from types import SimpleNamespace
from typing import Any

import exhaustive
import pytest

from flashsim.theory import lower_bound, lower_bound_backward

Word = tuple[Any, ...]


def terms_of(N_q: int, N_k: int, d: int, d_v: int, backward: bool) -> dict[Word, set[Word]]:
    """Return each sum's terms: pairs of factors."""
    I, J, C, D = map(range, (N_q, N_k, d, d_v))
    terms: dict[Word, set[Word]] = {}
    for i, k in product(I, J):
        terms["S", i, k] = {(("Q", i, c), ("K", k, c)) for c in C}
    if not backward:
        for i, c in product(I, D):
            terms["O", i, c] = {(("S", i, k), ("V", k, c)) for k in J}
        return terms
    for i, k in product(I, J):
        terms["dP", i, k] = {(("dO", i, c), ("V", k, c)) for c in D}
        terms["dS", i, k] = {(("S", i, k), ("dP", i, k))}
    for k, c in product(J, D):
        terms["dV", k, c] = {(("S", i, k), ("dO", i, c)) for i in I}
    for k, c in product(J, C):
        terms["dK", k, c] = {(("dS", i, k), ("Q", i, c)) for i in I}
    for i, c in product(I, C):
        terms["dQ", i, c] = {(("dS", i, k), ("K", k, c)) for k in J}
    return terms


def plain(
    N_q: int, N_k: int, d: int, M: int, d_v: int | None = None, *, backward: bool = False
) -> int | None:
    """The fewest accesses by the rules alone, one step at a time: no normal form, no symmetry,
    nothing to guide it.

    A word is an input, or the set of terms in a part of a sum: (name, terms). Recomputing is free
    to happen, of outputs too.
    """
    terms = terms_of(N_q, N_k, d, d if d_v is None else d_v, backward)

    def word(name: Word) -> Word:
        return (name, frozenset(terms.get(name, ())))

    used = {name for of in terms.values() for term in of for name in term}
    inputs = frozenset(word(name) for name in used - {*terms})
    goal = frozenset(word(name) for name in {*terms} - used)
    start: tuple[frozenset[Word], frozenset[Word]] = (frozenset(), inputs)
    best = {start: 0}
    heap = [(0, 0, start)]
    number = 0
    while heap:
        cost, _, state = heappop(heap)
        chip, hbm = state
        if cost > best[state]:
            continue
        if goal <= hbm:
            return cost
        nexts = [(0, (chip - {w}, hbm)) for w in chip]
        if len(chip) < M:
            nexts += [(1, (chip | {w}, hbm)) for w in hbm - chip]
        nexts += [(1, (chip, hbm | {w})) for w in chip - hbm]
        made: list[tuple[tuple[Word, ...], Word]] = []
        for name, of in terms.items():
            parts = [w for w in chip if w[0] == name]
            for term in of:
                if all(word(operand) in chip for operand in term):
                    made.append(((), (name, frozenset({term}))))
                    for part in parts:
                        if term not in part[1]:
                            made.append(((part,), (name, part[1] | {term})))
            for a, b in product(parts, parts):
                if not a[1] & b[1]:
                    made.append(((a, b), (name, a[1] | b[1])))
        for old, new in made:
            nexts += [(0, (chip - {w} | {new}, hbm)) for w in chip]
            if old or len(chip) < M:
                nexts.append((0, (chip - {*old} | {new}, hbm)))
        for step, then in nexts:
            if cost + step < best.get(then, 1 << 30):
                best[then] = cost + step
                number = number + 1
                heappush(heap, (cost + step, number, then))
    return None


@pytest.mark.parametrize(
    "sizes",
    [  # N_q, N_k, d, M, d_v
        (1, 1, 1, 1, 1),
        (1, 1, 1, 2, 1),
        (2, 1, 1, 2, 1),
        (1, 2, 1, 2, 1),
        (1, 2, 1, 3, 1),
        (3, 1, 1, 2, 1),
        (1, 3, 1, 2, 1),
        (1, 1, 1, 2, 2),
        (1, 1, 2, 2, 2),
        (1, 1, 2, 3, 2),
        (1, 2, 1, 2, 2),
        (2, 1, 1, 3, 2),
        pytest.param((2, 2, 1, 2, 1), marks=pytest.mark.slow),
        pytest.param((1, 3, 1, 3, 1), marks=pytest.mark.slow),
        pytest.param((1, 2, 1, 3, 2), marks=pytest.mark.slow),
    ],
)
def test_the_fewest_are_a_plain_dijkstra_s(sizes: tuple[int, int, int, int, int]) -> None:
    N_q, N_k, d, M, d_v = sizes
    assert exhaustive.fewest(N_q, N_k, d, M, d_v=d_v).fewest == plain(*sizes)


@pytest.mark.parametrize("M", [1, 2, 3, 4])
def test_backward_too(M: int) -> None:
    fewest = plain(1, 1, 1, M, backward=True)
    assert exhaustive.fewest(1, 1, 1, M, backward=True).fewest == fewest


def test_by_hand() -> None:
    """One query, three words: Q K₁, S over K₁, V₁, O over V₁; K₂, S over Q, V₂, O. Five loads
    and a store, all compulsory.
    """
    assert exhaustive.fewest(1, 2, 1, 3).fewest == 6


@pytest.mark.parametrize(
    ("sizes", "fewest"),
    [
        ((1, 1, 1, 1), None),  # a product takes two words
        ((2, 2, 1, 2), 18),
        ((2, 2, 1, 3), 11),
        ((2, 2, 1, 4), 10),
        ((2, 2, 1, 5), 8),  # all that is compulsory
        ((1, 2, 2, 4), 12),
        ((2, 3, 1, 3), 17),
        # the bound, 14, is more than what is compulsory
        pytest.param((3, 3, 1, 2), 42, marks=pytest.mark.slow),
    ],
)
def test_no_schedule_moves_less(sizes: tuple[int, int, int, int], fewest: int | None) -> None:
    N_q, N_k, d, M = sizes
    result = exhaustive.fewest(*sizes).fewest
    assert result == fewest
    if result is not None:
        bound = lower_bound(N_q=N_q, N_k=N_k, d=d, M=M)
        assert bound.accesses <= result


@pytest.mark.parametrize(
    ("sizes", "fewest"),
    [
        ((1, 1, 1, 3), 9),
        ((1, 1, 1, 4), 7),
        pytest.param((2, 2, 1, 8), 15, marks=pytest.mark.slow),
    ],
)
def test_no_backward_schedule_moves_less(sizes: tuple[int, int, int, int], fewest: int) -> None:
    N_q, N_k, d, M = sizes
    assert exhaustive.fewest(*sizes, backward=True).fewest == fewest
    assert lower_bound_backward(N_q=N_q, N_k=N_k, d=d, M=M).accesses <= fewest


@pytest.mark.parametrize("most", [1, 30, 100, 1000])
def test_a_search_that_is_cut_off_leaves_a_bound(most: int) -> None:
    result = exhaustive.fewest(2, 3, 1, 3, most=most)
    assert result.fewest is None
    assert 10 <= result.at_least <= 17  # compulsory, and the fewest


@pytest.mark.parametrize(
    ("sizes", "M", "backward"), [((1, 2, 2, 1), 4, False), ((1, 1, 1, 1), 4, True)]
)
def test_what_is_kept_of_a_search_is_what_a_new_one_finds(
    sizes: tuple[int, ...], M: int, backward: bool
) -> None:
    searches = exhaustive.Searches(M, backward, 10**6)
    searches[sizes].fewest()
    for own, search in searches.items():
        for state, at_least in search.rated.items():
            left = exhaustive.Searches(M, backward, 10**6)[own].fewest(state)
            assert at_least <= left
            assert search.exact.get(state, left) == left


def said(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["exhaustive.py", *arguments])
    exhaustive.main()


def test_the_script_holds_the_bound_against_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said(monkeypatch, "1", "2", "1", "3", "1", "1", "1", "1")
    first, second = capsys.readouterr().out.splitlines()
    assert "fewest 6, compulsory 6" in first
    assert "the bound holds" in first
    assert "no schedule" in second
    more = SimpleNamespace(accesses=7, compulsory=6, phases=7)
    monkeypatch.setattr(exhaustive, "lower_bound", lambda **_: more)
    said(monkeypatch, "1", "2", "1", "3")
    assert "IS BROKEN" in capsys.readouterr().out
    said(monkeypatch, "1", "2", "1", "3", "--most", "1")
    assert "cut off" in (out := capsys.readouterr().out)
    assert "is not tried" in out


def test_the_script_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, why in (
        ("1 1 3 4", "two terms at most"),
        ("1 1 1 2 --d-v -1", "d_v is -1; expected at least 1"),
        ("1 1 1 2 --most 0", "from 1"),
        ("1 1 1", "in fours"),
    ):
        with pytest.raises(SystemExit):
            said(monkeypatch, *arguments.split())
        assert why in capsys.readouterr().err
