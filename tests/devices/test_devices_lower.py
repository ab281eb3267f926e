"""What devices must receive at least: below every program's words, below optima that a search
finds, and checked apart.
"""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import devices
from flashsim.attention.problem import Problem
from flashsim.devices import theory
from flashsim.devices.bounds import lower_words, lower_words_backward, most_work
from flashsim.devices.layouts import LAYOUTS, positions
from flashsim.devices.programs import programs
from flashsim.devices.share import Share
from flashsim.theory.bounds import words_certificate as certificate
from flashsim.theory.bounds.words_certificate import check


def bound_of(tally: devices.DevicesResult, S: int | None = None) -> Any:
    """The bound for devices that do as much as this program's."""
    most = most_work(tally.plan.program, tally.share, tally.plan.columns)
    return lower_words(tally.share, most, at_root=tally.plan.program.at_root, S=S)


@pytest.mark.parametrize("name", sorted(programs()))
@given(st.data())
def test_no_program_sends_less(name: str, data: st.DataObject) -> None:
    H_kv = data.draw(st.integers(1, 3))
    g = data.draw(st.integers(1, 3))
    N = data.draw(st.integers(1, 24))
    masks = (
        None,
        flashsim.Causal(),
        flashsim.SlidingWindow(3, 1),
        flashsim.KeyPadding(max(N - 2, 0)),
    )
    tally = devices.count(
        name,
        P=data.draw(st.integers(1, 8)),
        N=N,
        d=data.draw(st.integers(1, 6)),
        d_v=data.draw(st.integers(1, 6)),
        heads=g * H_kv,
        kv_heads=H_kv,
        M=1000,
        blocks=(4, 4),
        mask=data.draw(st.sampled_from(masks)),
        layout=data.draw(st.sampled_from(LAYOUTS)),
    )
    room = 0
    for device in tally.devices:
        in_hbm = sum(array.size for array in device.hbm.by_array.values())
        room = max(room, in_hbm + 1000)
    for S in (None, room):
        bound = bound_of(tally, S)
        assert bound.words <= tally.words
        check(bound.certificate())


WORDS: dict[str, Any] = {
    "ring": partial(theory.ring_words, passes=2),
    "ulysses": theory.ulysses_backward_words,
    "mesh": partial(theory.mesh_words, direction="backward"),
}


def backward_of(name: str, share: Share, columns: int = 1) -> tuple[int, Any]:
    """What a program's devices send, by the formulas that counts equal, and the bound for
    devices that do as much.
    """
    more = (columns,) if name == "mesh" else ()
    words = WORDS[name]
    sent = sum(words(share, p, *more) for p in range(len(share.where)))
    most = most_work(programs("backward")[name], share, columns)
    return sent, lower_words_backward(share, most)


@pytest.mark.parametrize("name", sorted(programs("backward")))
@given(st.data())
def test_no_backward_program_sends_less(name: str, data: st.DataObject) -> None:
    H_kv = data.draw(st.integers(1, 3))
    g = data.draw(st.integers(1, 3))
    N = data.draw(st.integers(1, 60))
    P = data.draw(st.integers(1, 16))
    d = data.draw(st.integers(1, 6))
    d_v = data.draw(st.integers(1, 6))
    masks = (
        None,
        flashsim.Causal(),
        flashsim.SlidingWindow(3, 1),
        flashsim.KeyPadding(max(N - 2, 0)),
    )
    where = positions(data.draw(st.sampled_from(LAYOUTS)), N, P)
    options: dict[str, Any] = {
        "N": N,
        "d": d,
        "d_v": d_v,
        "heads": g * H_kv,
        "kv_heads": H_kv,
        "M": 1000,
    }
    problem = Problem.of(**options, mask=data.draw(st.sampled_from(masks)))
    share = Share(problem, where, where, 1, 1)
    divisors = [C for C in range(1, P + 1) if P % C == 0]
    sent, bound = backward_of(name, share, data.draw(st.sampled_from(divisors)))
    assert bound.words <= sent
    check(bound.certificate())


def test_how_near_backward_programs_come() -> None:
    """A device of the mesh sends 7d(√P − 1)n, and L and D; the bound is 6.49d√P n, less 7dn for
    own rows.
    """
    for name, P, heads, columns, ratio in (
        ("mesh", 16, 1, 4, 1.110),
        ("mesh", 64, 1, 8, 1.093),
        ("ulysses", 16, 16, 1, 1.154),
    ):
        sent, bound = backward_of(name, share_of(65_536, P, heads, 128, 128), columns)
        assert round(sent / bound.words, 3) == ratio


def test_the_least_sum_of_theorem_3_is_least() -> None:
    """By a grid over s, and whether λ holds for fewer terms than c, which its proof says."""
    kappa = 2 / (3 * 3**0.5)
    for share in (
        share_of(64, 4),
        share_of(64, 16),
        share_of(60, 4, 2),
        share_of(640, 64),
        share_of(7, 3),
    ):
        bound = lower_words_backward(share)
        s_0 = bound.q + bound.n
        E_0 = bound.q + 2 * bound.n
        c = 3 * min(bound.pairs, bound.W)
        rate = bound.up / bound.down
        for X in np.linspace(bound.free + 1e-6, c, 50):
            most_s = (X**2 / kappa / E_0) ** (1 / 3)
            s = np.linspace(s_0, max(s_0, most_s), 2000)
            E = np.maximum(X**2 / kappa / s**3, E_0)
            least = (2 * (s - s_0) + E - E_0).min()
            assert rate * (X - bound.free) <= 4 * least + 1e-6
        if rate < 1 / 3 and c > bound.free:
            assert rate * (c - bound.free) == pytest.approx(4 * least, rel=1e-3)


def test_a_backward_certificate_that_says_too_much_is_refused() -> None:
    """Where s is small, and where it is large."""
    for share in (share_of(64, 4), share_of(64, 16, 4), share_of(640, 64)):
        bound = lower_words_backward(share)
        assert bound.words > 0
        assert f"backward, receive at least {bound.words} words" in check(bound.certificate())
        for change in (
            {"words": bound.words + 1},
            {"up": bound.up * 102 // 100 + 1},
            {"s": bound.s + 1},
            {"free": bound.free - 2},
            {"n": 1},
            {"W": 1},
            {"pairs": 10**9},
            {"P": 0},
        ):
            with pytest.raises(ValueError, match=r"proves|too large|too few|no such"):
                check(bound.certificate() | change)


def test_it_is_reached() -> None:
    """By the mesh but for ℓ and m, by Ulysses but for 1/P, by the ring in groups of P; decoding
    by the tree but for ℓ and m.
    """

    def ratio(name: str, **options: Any) -> Any:
        tally = devices.count(name, d=4, M=1000, **options)
        return round(tally.words / bound_of(tally).words, 4)

    assert ratio("mesh", N=256, P=16) == 1 + 1 / (2 * 4)
    assert ratio("ulysses", N=256, P=16, heads=16) == 1 + 1 / 16
    assert ratio("ring", N=256, P=8, heads=64, kv_heads=8) == 1
    assert ratio("tree", N=256, P=8, N_q=1, heads=8, kv_heads=2) == 1 + 1 / 4


@pytest.mark.parametrize(
    ("N", "P", "heads", "d", "d_v"),
    [
        (3, 3, 1, 2, 1),
        (2, 2, 2, 1, 2),
        (2, 2, 3, 1, 1),
    ],
)
def test_it_is_below_the_optimum_of_whole_pairs(
    N: int, P: int, heads: int, d: int, d_v: int
) -> None:
    """Each way to give pairs to devices, as many to each, costs the rows that they touch and do
    not have.
    """
    share = share_of(N, P, heads, d, d_v)
    pairs = [*product(range(heads), range(N), range(N))]
    owner = [p for p, rows in enumerate(share.where) for _ in rows]
    most = -(-len(pairs) // P)
    best = 10**9

    def rows_to_fetch(way: tuple[int, ...]) -> int:
        """Rows of Q, and of K and V, that their pairs' devices do not have."""
        rows = set()
        keys = set()
        for p, (h, i, j) in zip(way, pairs, strict=True):
            if owner[i] != p:
                rows.add((p, h, i))
            if owner[j] != p:
                keys.add((p, h, j))
        return len(rows) + len(keys)

    for way in product(range(P), repeat=len(pairs)):
        if max(map(way.count, range(P))) <= most:
            best = min(best, rows_to_fetch(way) * (d + d_v))
    assert 0 < lower_words(share).words <= best


def share_of(
    N: int,
    P: int,
    heads: int = 1,
    d: int = 4,
    d_v: int = 4,
) -> Share:
    problem = Problem.of(N=N, d=d, d_v=d_v, heads=heads, M=1000)
    where = positions("contiguous", N, P)
    return Share(problem, where, where, 1, 1)


def test_little_room_binds_where_devices_are_many() -> None:
    """Room for twice own rows: the second theorem is above the first from some P on, and a
    certificate of its own holds.
    """
    share = share_of(4096, 512)
    room = 2 * 4 * 8 * 4
    free = lower_words(share)
    bound = lower_words(share, S=room)
    assert bound.words > free.words > 0
    assert "room for 256 words" in check(bound.certificate())
    for change in (
        {"words": bound.words + 1},
        {"S": room * 2},
        {"Y": bound.Y * 2},
    ):
        with pytest.raises(ValueError, match="prove"):
            check(bound.certificate() | change)


def test_a_certificate_that_says_too_much_is_refused() -> None:
    """Whatever case of λ binds: the corner, the curve, an end of it, one's own rows."""
    bounds = [
        lower_words(share)
        for share in (
            share_of(64, 8, 16),
            share_of(64, 8),
            share_of(64, 9),
            share_of(60, 4, 2),
            share_of(8, 4, d=1, d_v=1),
        )
    ]
    for bound in bounds:
        check(bound.certificate())
        near = round(bound.up * 1.07) + 1
        for change in ({"words": bound.words + 1}, {"up": near}):
            with pytest.raises(ValueError, match=r"proves|too large"):
                check(bound.certificate() | change)
    wrong: list[dict[str, Any]] = [
        {"n": 1},
        {"W": 1},
        {"q": 1},
        {"pairs": 10**9},
        {"P": 0},
        {"kind": "lower bound"},
        {"up": 0.5},
    ]
    for other in wrong:
        with pytest.raises(ValueError, match=r"too few|no such|not a certificate|expected a whole"):
            check(bounds[0].certificate() | other)


def test_the_checker_runs_alone(tmp_path: Path) -> None:
    file = tmp_path / "words.json"
    bound = lower_words(share_of(64, 4))
    for words, code in ((bound.words, 0), (bound.words + 1, 1)):
        file.write_text(json.dumps(replace(bound, words=words).certificate()))
        done = subprocess.run(
            [sys.executable, certificate.__file__, str(file)], capture_output=True, check=False
        )
        assert done.returncode == code


def test_the_most_work_by_hand() -> None:
    """Of 5 heads on 2 devices Ulysses gives 3 to one, with all pairs; a ring gives 4 of 7 rows
    of each head.
    """
    problem = Problem.of(N=7, d=2, M=100, heads=5, kv_heads=5)
    where = positions("contiguous", 7, 2)
    share = Share(problem, where, where, 2, 2)
    assert most_work(programs()["ulysses"], share, 1) == 3 * 49
    assert most_work(programs()["ring"], share, 1) == 5 * 4 * 7
