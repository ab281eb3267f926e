"""The lower bounds of both passes: never above what is counted, their certificates checked apart
from them, and near optimal.

The steps of the backward proof, tried one by one, are in test_proving_backward.py.
"""

import ast
import json
import math
import re
import subprocess
import sys
from bisect import bisect_left
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.analysis.games import checker as certificate_of_optimum
from flashsim.analysis.proving import prove, recount
from flashsim.analysis.tune import best_of
from flashsim.attention.masks.allowed import allowed_pairs
from flashsim.attention.masks.rules import All, Causal
from flashsim.attention.shapes import Shape
from flashsim.cli import main
from flashsim.drawing.proof import picture
from flashsim.memory.errors import SramOverflow
from flashsim.theory.bounds import certificate, lower_bound, lower_bound_backward
from flashsim.theory.bounds.backward import most as most_backward
from flashsim.theory.bounds.certificate import (
    PHASES,
    SIZES,
    check,
    most_in_a_phase,
    most_in_a_phase_backward,
    most_terms,
)
from flashsim.theory.bounds.forward import LowerBound, _about, _by_terms
from tests.helpers.cases import Arguments

LENGTHS = st.integers(1, 200)
WIDTHS = st.integers(1, 24)
PASSES = {"forward": FORWARD, "backward": BACKWARD}
BOUNDS: dict[str, Any] = {"forward": lower_bound, "backward": lower_bound_backward}
both = pytest.mark.parametrize("direction", PASSES)


# --------------------------------------------------------------------------------------------------
# bound and counts


@both
@given(
    N_q=LENGTHS,
    N_k=LENGTHS,
    d=WIDTHS,
    d_v=WIDTHS,
    M=st.integers(8, 4000),
    causal=st.booleans(),
    data=st.data(),
)
def test_no_algorithm_moves_less_than_the_bound(
    direction: str, N_q: int, N_k: int, d: int, d_v: int, M: int, causal: bool, data: st.DataObject
) -> None:
    names = PASSES[direction].keys() - {"sliding_window"}
    name = data.draw(st.sampled_from(sorted(names)))
    sizes: Arguments = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v, "M": M}
    mask = flashsim.Causal() if causal else None
    try:
        tally = flashsim.count(name, **sizes, direction=direction, sizing="fit", mask=mask)
    except (SramOverflow, ValueError):  # nothing fits, or the algorithm needs options
        return
    keys_of_rows = np.full(N_q, N_k)
    if causal:
        keys_of_rows = np.clip(np.arange(N_q) + 1 + N_k - N_q, 0, N_k)
    pairs = int(keys_of_rows.sum())
    queries = int((keys_of_rows > 0).sum())
    bound = BOUNDS[direction](**sizes, pairs=pairs, queries=queries)
    assert bound.compulsory <= bound.accesses <= tally.hbm.accesses


@pytest.mark.parametrize(
    ("d", "M", "N", "ratio"),
    [  # of the best tiles of `q_outer`, computed once from its closed form
        (64, 25_600, 65_536, 1.047),
        (128, 25_600, 1024, 1.488),
    ],
)
def test_q_outer_comes_near_the_bound(d: int, M: int, N: int, ratio: float) -> None:
    proof = flashsim.prove(N=N, d=d, M=M)
    q_outer = best_of("q_outer", N=N, d=d, M=M)
    assert q_outer is not None
    assert q_outer.accesses / proof.bound.accesses == pytest.approx(ratio, abs=2e-3)
    assert proof.best is not None
    assert proof.best.algorithm == "streamed"
    assert 0.95 * q_outer.accesses < proof.best.accesses < q_outer.accesses


@given(N=st.integers(64, 5000), d=st.integers(1, 64), over=st.integers(5, 40))
@example(N=124, d=8, over=8)
def test_the_theorem_s_own_choice_of_Y_is_never_better(N: int, d: int, over: int) -> None:
    M = over * d * d
    phases = -(-4 * N * N * d * d // M**2)
    bound = lower_bound(N=N, d=d, M=M)
    assert bound.phases >= (M * phases if phases >= 2 else 0)


def test_more_memory_never_needs_more_and_more_pairs_never_less() -> None:
    bounds = [lower_bound(N=512, d=32, M=M) for M in range(64, 9000, 1800)]
    by_M = [bound.accesses for bound in bounds]
    # weights are on a grid
    assert all(later <= earlier * 1.01 for earlier, later in pairwise(by_M))
    by_pairs = [
        lower_bound(N=512, d=32, M=2048, pairs=pairs).accesses
        for pairs in range(512, 512**2 + 1, 2**16)
    ]
    assert by_pairs == sorted(by_pairs)


@cache
def brute(Y: int, d: int, M: int, a: int, b: int) -> float:
    """Return the most of a·T₁ + b·T₂, by trying every s and c."""

    def weighted(s: int, c: int) -> float:
        root = math.sqrt(s * s / 4 / d**2 + c)
        root_with_M = math.sqrt(s * s / 4 / d**2 + c + M)
        return a * s / 2 * root_with_M + b * (Y - s - c) / 2 * root

    return max(weighted(s, c) for s in range(Y + 1) for c in range(Y + 1 - s))


@given(
    Y=st.integers(2, 60),
    d=st.integers(1, 8),
    M=st.integers(1, 40),
    a=st.integers(0, 9),
    b=st.integers(1, 9),
)
def test_the_most_of_a_phase_is_found_and_nothing_less_is_let_pass(
    Y: int, d: int, M: int, a: int, b: int
) -> None:
    most = brute(Y, d, M, a, b)
    assert most_in_a_phase(Y, d, M, a, b, math.ceil(most + 1e-3))
    assert not most_in_a_phase(Y, d, M, a, b, math.ceil(most) - 1)


@pytest.mark.parametrize(
    ("Y", "d", "M", "a", "b"), [(60, 8, 40, 9, 11), (90, 2, 10, 3, 17), (80, 5, 64, 1, 19)]
)
def test_the_search_comes_near_the_most_of_a_phase(Y: int, d: int, M: int, a: int, b: int) -> None:
    most = brute(Y, d, M, a, b)
    A = np.array([[a]])
    B = np.array([[b]])
    charges = np.array([[float(Y)]])
    for fine, short in ((12, 1e-6), (3, 1e-4)):
        computed = _about(A, B, charges, d, M, fine)[0, 0]
        assert 1 - short <= computed / most <= 1.002  # of real s and c, brute's are whole


@given(d=st.integers(1, 200), Y=st.integers(3, 10**5))
def test_the_most_terms_of_a_phase(d: int, Y: int) -> None:
    g = most_terms(d, Y)
    assert 16 * d * g <= Y**2 or 27 * g**2 <= Y**3
    assert 16 * d * (g + 1) > Y**2
    assert 27 * (g + 1) ** 2 > Y**3


@pytest.mark.parametrize(
    ("N", "d", "M"), [(24, 3, 36), (9, 2, 7), (7, 5, 40), (40, 1, 5), (2, 1, 2)]
)
def test_the_search_of_the_theorem_misses_nothing_of_a_small_problem(
    N: int, d: int, M: int
) -> None:
    """Every Y is tried, with the last phase's charges one after the other."""
    T = N * N * d
    best = 0
    for Y in range(M + 1, 4 * math.isqrt(d * T) + 2):
        n = -(-T // most_terms(d, Y))
        if n >= 2:
            left = T - (n - 1) * most_terms(d, Y)
            most_charges = Y - M
            last = 1
            while last < most_charges and most_terms(d, M + last) < left:
                last += 1
            best = max(best, Y + (n - 2) * (Y - M) + last)
    problem = LowerBound(N, N, d, d, M, N * N, 0)
    assert _by_terms(problem).phases == best


def points(n: int) -> list[tuple[int, int, int]]:
    return [(x, y, z) for x, y, z in product(range(n), repeat=3)]


@given(chosen=st.sets(st.sampled_from(points(5))))
def test_loomis_and_whitney(chosen: set[tuple[int, int, int]]) -> None:
    shadows = []
    for x, y in ((0, 1), (1, 2), (0, 2)):
        shadows.append(len({(point[x], point[y]) for point in chosen}))
    assert len(chosen) ** 2 <= math.prod(shadows)


# -------------------------------------------------------------------- what a run does in its phases


def test_a_run_s_own_phases_give_no_more_terms_than_the_proof_allows() -> None:
    """Cut a counted run into phases as the proof does, and look at what each touches and
    multiplies.
    """
    N = 24
    d = 4
    M = 200
    B = 6
    rng = np.random.default_rng(0)
    events: list[Any] = []
    Q, K, V = rng.normal(size=(3, N, d))
    tiles: Arguments = {"M": M, "blocks": (B, 2)}
    flashsim.forward("q_outer", Q, K, V, observers=[events.append], **tiles)
    loads = [event for event in events if event.kind == "load" and event.where is not None]
    tiles_of_V = [event for event in loads if event.name.startswith("V")]
    # each tile of V that is loaded serves B rows: B · 2 · d terms
    assert len(tiles_of_V) == (N // B) * (N // 2)
    for X in (M, 2 * M, 3 * M):
        Y = M + X
        charges = 0
        done = 0
        most = 0
        for event in loads:
            charges += event.elements
            if event.name.startswith("V"):
                done += B * 2 * d
            if charges > X:
                most = max(most, done)
                charges = 0
                done = 0
        assert most <= max(Y * Y / (16 * d), (Y / 3) ** 1.5)


# --------------------------------------------------------------------------------------------------
# certificate


@cache
def proved(direction: str) -> str:
    sizes: Arguments = {"N": 512, "d": 64, "M": 6000}
    proof = flashsim.prove(**sizes, direction=direction, causal=True)
    return json.dumps(proof.certificate())


def a_certificate(direction: str = "forward", /, **changed: Any) -> dict[str, Any]:
    return {**json.loads(proved(direction)), **changed}


@both
def test_a_certificate_is_checked_apart_from_what_made_it(direction: str) -> None:
    record = a_certificate(direction)
    assert record.get("a", 1) > 0  # the combined bound
    way = "backward " if direction == "backward" else ""
    assert f"no {way}schedule moves fewer than {record['bound']} elements" in check(record)
    assert "causal" in check(record)
    assert "every input that matters" in check(a_certificate(direction, bound=1000)).lower()
    source = Path(certificate.__file__).read_text(encoding="utf-8")
    tree = ast.parse(source)
    imports = [line for line in source.splitlines() if line.startswith(("import", "from"))]
    imported = [line.split()[1] for line in imports]
    assert not any(name.startswith("flashsim") for name in imported)
    # short enough to read
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    assert len(statements) < 160


def most_that(held: dict[str, Any]) -> tuple[int, int]:
    """Return the most that a certificate's phases prove, or what must be read and written, and the
    last one's charges.

    What a phase gives is tried out.
    """
    sizes = [held[name] for name in SIZES]
    N_q, N_k, d, d_v, M, pairs, queries, keys, _ = sizes
    if held["direction"] == "forward":
        compulsory = queries * d + keys * (d + d_v) + N_q * d_v
        work = pairs * (held["a"] * d + held["b"] * d_v)
        weights = {"a": held["a"], "b": held["b"]}
        gives = partial(brute, d=d, M=M, **weights)
        most_of_one = gives(held["Y"])
    else:
        read = queries * (d + d_v) + keys * (d + d_v)
        written = N_q * d + N_k * (d + d_v)
        compulsory = read + written
        work = pairs * (2 * d + d_v)
        gives = partial(most_of_a_phase_backward, delta=min(d, d_v))
        most_of_one = math.floor(gives(held["Y"]))
    n = held["n"]
    Y = held["Y"]
    left = work - (n - 1) * most_of_one
    if left <= 0 or n < 2:
        return compulsory, 0

    def is_enough(charges: int) -> bool:
        return bool(gives(M + charges) >= left)

    last = max(1, bisect_left(range(Y), True, key=is_enough))
    return max(compulsory, Y + (n - 2) * (Y - M) + last), last


@cache
def most_of_a_phase_backward(Y: int, delta: int) -> float:
    """Return the most terms of a phase backward, by trying every A and c of lower_backward's
    proof.
    """

    def squared(A: int, c: int) -> float:
        cubic = A**3 / (12 * math.sqrt(3) * delta**2)
        return (Y - A - c) * (cubic + A * c)

    squares = [squared(A, c) for A in range(Y + 1) for c in range(Y + 1 - A)]
    return math.sqrt(max(squares))


@cache
def proved_of_few(direction: str) -> str:
    sizes: Arguments = {"N": 40, "d": 5, "d_v": 4, "M": 50}
    proof = flashsim.prove(**sizes, direction=direction, causal=True)
    return json.dumps(proof.certificate())


@pytest.mark.parametrize(
    ("direction", "name"), [(way, name) for way in PASSES for name in (*SIZES, *PHASES[way])]
)
def test_a_certificate_that_is_tampered_with_proves_nothing_more(direction: str, name: str) -> None:
    """Whatever a number is changed to: what is accepted is true, and one element more than it
    proves is refused.
    """
    record = json.loads(proved_of_few(direction))
    assert record.get("a", 1) > 0  # the combined bound
    for value in (
        record[name] + 1,
        record[name] * 2,
        record[name] - 1,
        record[name] // 2,
        -1,
        1.5,
        "7",
        None,
        True,
        10**400,
    ):
        changed = {**record, name: value}
        try:
            check(changed)
        except ValueError:
            continue
        assert type(value) is int
        most, last = most_that(changed)
        assert changed["bound"] <= most, (name, value)
        # as far as it was looked for
        further = [{"bound": most + 1}]
        if last < changed["Y"]:
            further.append({"bound": most + 1, "last": last + 1})
        for more in further:
            with pytest.raises(ValueError, match=r"bound is|enough"):
                check({**changed, **more})


@both
def test_one_element_or_one_phase_more_than_is_proved_is_refused(direction: str) -> None:
    """By the combined bound, of many and of few, by what is compulsory, without phases, and by
    the theorem alone.
    """
    of_the_theorem = flashsim.prove(N=1024, d=64, M=25_600, direction=direction)
    alone = of_the_theorem.certificate()
    small: Arguments = {"N": 2, "d": 2, "M": 90, "causal": True}
    one = flashsim.prove(**small, direction=direction)
    few = json.loads(proved_of_few(direction))
    for true in (a_certificate(direction), few, one.certificate(), alone):
        check(true)
        with pytest.raises(ValueError, match=rf"bound is {true['bound'] + 1}|prove nothing"):
            check({**true, "bound": true["bound"] + 1})
    for record in (a_certificate(direction), alone):
        assert direction == "backward" or (record["a"] > 0) == (record["M"] == 6000)
        with pytest.raises(ValueError, match="are enough"):
            check(
                {
                    **record,
                    "n": record["n"] + 1,
                    "bound": record["bound"] + record["Y"] - record["M"],
                }
            )


@both
def test_a_certificate_has_its_fields_and_none_but_them(direction: str) -> None:
    record = a_certificate(direction)
    assert check({**record, "command": "flashsim prove", "made_with": {}}) == check(record)
    for name in record.keys() - {"kind", "direction"}:
        with pytest.raises(ValueError, match=f"it has no {name}$"):
            check({key: value for key, value in record.items() if key != name})
    with pytest.raises(ValueError, match="its kind is"):
        check({**record, "kind": "optimum"})
    for name in ("Bound", "mask", "x" * 99):
        with pytest.raises(ValueError, match=f"it has '{name[:50]}'; expected .*bound"):
            check({**record, name: 1})
    nothings: list[Any] = [[], None, "bound", {}]
    for module, nothing in product((certificate, certificate_of_optimum), nothings):
        with pytest.raises(ValueError, match=r"certificate is|is not|expected"):
            module.check(nothing)
    others: list[Any] = ["All", "", None, 7, ["all"], {}]
    for allowed in others:
        with pytest.raises(ValueError, match="allowed is"):
            check({**record, "allowed": allowed})


OF_BOTH: list[tuple[dict[str, Any], str]] = [
    ({"bound": 10**9}, "phases of Y"),
    ({"n": 10**6, "bound": 10**9}, "phases are enough"),
    ({"n": 1, "bound": 10**9}, "prove nothing"),
    ({"pairs": 512 * 512}, "pairs are 262144; causal, they are 131328$"),
    ({"allowed": "all"}, "all allowed, they are"),
    ({"keys": 513}, "no such problem"),
    ({"M": 0}, "no such problem"),
    ({"d": "64"}, "expected a whole number"),
    ({"direction": "sideways"}, "direction"),
    ({"direction": None}, "direction"),
    ({"allowed": "given", "queries": 513}, "no such problem"),
    ({"allowed": "given", "pairs": 512 * 512 + 1}, "no such problem"),
    ({"allowed": "given", "pairs": 0, "bound": 1000}, "no such problem"),
    ({"allowed": "given", "pairs": 511, "bound": 1000}, "no such problem"),
]


@pytest.mark.parametrize(
    ("direction", "change", "why"),
    [
        *((direction, *each) for direction in PASSES for each in OF_BOTH),
        ("forward", {"H": 10, "n": 10**7, "bound": 10**9}, "a phase may give more"),
        ("backward", {"H": 10, "n": 10**6, "bound": 10**9}, "a phase may have more"),
        ("forward", {"a": 0, "b": 1, "H": 0, "n": 10**6, "bound": 10**9}, "are enough"),
        ("forward", {"direction": "backward"}, "it has 'a'; expected"),
        ("backward", {"direction": "forward"}, "it has no a"),
    ],
)
def test_why_a_certificate_proves_nothing(direction: str, change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check(a_certificate(direction, **change))


def test_pairs_that_no_mask_allows_prove_nothing() -> None:
    """Seven queries and two keys, each of which attends: from 7 to 14 pairs."""
    mask = np.zeros((20, 30), bool)
    mask[2:9, 3:5] = True
    proof = flashsim.prove(N_q=20, N_k=30, d=4, M=8, mask=mask)
    record = proof.certificate()
    assert "124" in check(record)
    for change in (
        {"queries": 21},
        {"keys": 31},
        {"pairs": 15},
        {"pairs": 0},
        {"pairs": 6},
        {"queries": 1, "pairs": 1},
        {"queries": 1, "keys": 7, "pairs": 6},
    ):
        with pytest.raises(ValueError, match="no such problem"):
            check({**record, **change})


@pytest.mark.parametrize("bound_of", BOUNDS.values(), ids=BOUNDS)
def test_each_query_and_key_that_has_pairs_has_one_at_least_and_each_length_is_said_once(
    bound_of: Any,
) -> None:
    sizes: Arguments = {"N_q": 20, "N_k": 30, "d": 4, "M": 8}
    assert bound_of(**sizes, pairs=7, queries=7, keys=2).compulsory
    for pairs in (0, 6, 15):
        with pytest.raises(ValueError, match=f"pairs is {pairs}|pairs.*{pairs}"):
            bound_of(**sizes, pairs=pairs, queries=7, keys=2)
    with pytest.raises(ValueError, match="N_q is 4, and N is 8; expected N alone"):
        bound_of(N=8, N_q=4, d=4, M=8)
    with pytest.raises(ValueError, match="a length is missing"):
        bound_of(N_q=4, d=4, M=8)


@pytest.mark.parametrize(
    ("holds", "inputs", "most"),
    [
        (most_in_a_phase, (60, 8, 40, 9, 11), brute(60, 8, 40, 9, 11)),
        (most_in_a_phase_backward, (120, 6), most_backward(120, 6)),
    ],
    ids=PASSES,
)
def test_what_takes_too_many_cells_is_not_shown(
    holds: Any, inputs: tuple[int, ...], most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many cells are too many, be the last one of those that are cut or not."""
    verdicts = []
    for cells in range(1, 200):
        monkeypatch.setattr(certificate, "MOST_CELLS", cells)
        verdicts.append(holds(*inputs, math.ceil(most * 1.001)))
    assert verdicts == sorted(verdicts)
    assert len({*verdicts[4:]}) == 2


def test_phases_that_are_just_enough_are_enough() -> None:
    """Two phases of ten terms, and twenty to do; with one more, there must be a third."""
    with pytest.raises(ValueError, match="are enough"):
        certificate.by_phases(1, 1, 1, 10, 2, 3, 1, 1, 1, 10)
    with pytest.raises(ValueError, match="are enough"):
        certificate.by_phases_backward(1, 1, 20, 2, 3, 1, 100)
    # weights of which one is 0 are weights
    with pytest.raises(ValueError, match="may give H = 10"):
        certificate.by_phases(1, 1, 1, 10, 2, 3, 1, 0, 1, 10)
    assert "at least 3" in certificate.by_phases(1, 1, 1, 11, 2, 3, 1, 1, 1, 10)
    assert "at least 3" in certificate.by_phases_backward(1, 1, 21, 2, 3, 1, 100)


def test_the_last_phase_has_the_terms_that_are_left() -> None:
    """Phases of four terms, fifteen to do: the fourth has three, for which it must touch seven
    elements, three beside M.
    """
    assert [most_terms(1, Y) for Y in (8, 7, 6, 4)] == [4, 3, 2, 1]
    assert "the last has 3 charges" in certificate.by_phases(1, 1, 4, 15, 8, 4, 3, 0, 1, 0)
    with pytest.raises(ValueError, match="a last phase of 3 charges is enough"):
        certificate.by_phases(1, 1, 4, 15, 8, 4, 4, 0, 1, 0)
    bounds = {}
    for Y in (9, 6):
        bounds[Y] = next(H for H in range(999) if most_in_a_phase_backward(Y, 1, H))
    most = bounds[9]
    of_six = bounds[6]
    left = math.isqrt(of_six)
    with pytest.raises(
        ValueError, match=f"a last phase of 2 charges is enough: it may have the {left} terms left"
    ):
        certificate.by_phases_backward(1, 4, math.isqrt(most) + left, 9, 2, 3, most)
    # the combined bound: two phases of all that Y = 9 allow; left is what a last phase of two
    # charges gives, or one more
    for Y in (9, 6):
        enough = (H for H in range(1, 99) if most_in_a_phase(Y, 1, 4, 0, 1, H))
        bounds[Y] = next(enough)
    most = bounds[9]
    of_two = bounds[6]
    assert "the last has 3 charges" in certificate.by_phases(
        1, 1, 4, 2 * most + of_two + 1, 9, 3, 3, 0, 1, most
    )
    with pytest.raises(
        ValueError, match=f"a last phase of 2 charges is enough: it may give the {of_two} left"
    ):
        certificate.by_phases(1, 1, 4, 2 * most + of_two, 9, 3, 3, 0, 1, most)


def test_a_picture_of_a_proof_has_its_bars_one_below_the_other() -> None:
    bound = lower_bound(N=64, d=4, M=32)
    cases = [(None, [18, 74, 74]), (2 * bound.accesses, [18, 74, 130, 130])]
    for best, tops in cases:
        bars = re.findall(
            r'<rect x="([\d.]+)" y="([\d.]+)"[^>]*height="18"', picture(bound, best, "flash")
        )
        assert [float(y) for _, y in bars] == tops
        assert {float(x) for x, _ in bars[:-1]} == {0}


def test_the_command_refuses_what_no_certificate_says_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An optimum of another class of schedules; a schedule that is none; a number of 5,000
    digits.
    """
    optimum = flashsim.optimum(N=2, d=2, M=12).certificate()
    record = json.loads(proved_of_few("forward"))
    forged = {
        "its class of schedules is not that of the row game": json.dumps(
            {**optimum, "class": "All schedules."}
        ),
        "its schedule cannot be counted: it is 7; expected its algorithm, B_r, B_c": json.dumps(
            {**record, "schedule": 7}
        ),
        "it has a number of more than 4300 digits": '{"bound": ' + 5000 * "9" + "}",
    }
    for message, text in forged.items():
        (file := tmp_path / "forged.json").write_text(text, encoding="utf-8")
        assert main(["prove", "--check", str(file)]) == 1
        assert f"proves nothing: {message}" in " ".join(capsys.readouterr().out.split())


@both
def test_certificates_of_two_widths(direction: str) -> None:
    """By the theorem and by the combined bound."""
    widths = ((4, 9), (9, 4))
    problems = ((60, 30), (60, 60), (400, 600))
    for (d, d_v), (N, M) in product(widths, problems):
        sizes: Arguments = {"N": N, "d": d, "d_v": d_v, "M": M}
        proof = flashsim.prove(**sizes, direction=direction)
        assert proof.bound.accesses > proof.bound.compulsory
        assert f"{proof.bound.accesses} elements" in check(proof.certificate())


# --------------------------------------------------------------------------------------------------
# prove


def test_masks_are_counted_pair_by_pair() -> None:
    rng = np.random.default_rng(1)
    allowed = rng.random((20, 30)) < 0.3
    allowed[3] = False
    allowed[:, 5] = False
    proof = flashsim.prove(N_q=20, N_k=30, d=4, M=500, mask=allowed)
    queries = int(allowed.any(1).sum())
    keys = int(allowed.any(0).sum())
    assert proof.bound.pairs == int(allowed.sum())
    assert proof.queries == queries
    assert proof.keys == keys
    assert proof.allowed == "given"
    assert proof.bound.compulsory == queries * 4 + keys * 8 + 20 * 4
    assert proof.best is not None
    assert "taken as given" in check(proof.certificate())
    tree = flashsim.Tree([-1, *(node // 2 for node in range(19))])
    both = flashsim.Causal() & flashsim.QueryPadding(9)
    # its right end lies before its left one
    nothing = flashsim.SlidingWindow(1, 0) & flashsim.Causal(offset=-4)
    for mask in (
        flashsim.SlidingWindow(3, 1),
        flashsim.Causal(offset=-4),
        flashsim.KeyPadding(7),
        both,
        tree,
        nothing,
    ):
        shape = Shape(6, 6, 2, 2) if mask is nothing else Shape(20, 30, 4, 4)
        dense = mask.whole(shape, ())
        assert allowed_pairs(mask, shape)[1:] == (
            dense.sum(),
            dense.any(1).sum(),
            dense.any(0).sum(),
        )
    assert not dense.any()


def test_nothing_allowed_and_nothing_that_fits() -> None:
    nothing = np.zeros((4, 4), bool)
    proof = flashsim.prove(N=4, d=2, M=100, mask=nothing)
    assert (proof.bound.accesses, proof.queries) == (8, 0)
    proof = flashsim.prove(N=64, d=32, M=2)
    assert (proof.best, proof.ratio) == (None, None)
    assert proof.bound.accesses > proof.bound.compulsory


def test_causal_pairs_by_formula_are_those_counted_one_by_one() -> None:
    for N_q, N_k in ((5, 5), (3, 8), (8, 3), (1, 4), (4, 1)):
        lengths: Arguments = {"N_q": N_q, "N_k": N_k}
        proof = flashsim.prove(**lengths, d=2, M=100, causal=True)
        rows = np.arange(N_q)
        columns = np.arange(N_k)
        shape = Shape(N_q, N_k, 2, 2)
        dense = flashsim.Causal().allows(rows, columns, shape, ())
        assert proof.allowed == "causal"
        assert (proof.bound.pairs, proof.queries, proof.keys) == (
            dense.sum(),
            dense.any(1).sum(),
            dense.any(0).sum(),
        )
        assert "causal" in check(proof.certificate())


def test_lengths_of_which_no_array_could_be_made() -> None:
    bound = lower_bound(N=2**40, d=64, M=25_600, pairs=2**78)
    assert bound.accesses > 2**70
    shape = Shape(2**40, 2**40, 64, 64)
    assert allowed_pairs(Causal(), shape)[1] == 2**39 * (2**40 + 1)
    assert allowed_pairs(All(), shape)[1] == 2**80


def test_bad_input_is_named() -> None:
    for arguments, message in (
        ({"N": 2**40, "d": 4, "mask": flashsim.SlidingWindow(3, 0)}, "too many to look at each"),
        ({"N": 0, "d": 4}, "N"),
        ({"N": 4, "d": 4, "M": 0}, "M"),
        ({"N": 4, "d": 4, "mask": np.ones((3, 3), bool)}, "mask"),
        ({"N": 4, "d": 1.5}, "d"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            flashsim.prove(**arguments)


def proved_by_command(target: Path, capsys: pytest.CaptureFixture[str], how: str) -> str:
    """Prove one problem, look at what is said whatever it is, and check the certificate by
    command.
    """
    options = [*how.split(), "--d", "64"]
    assert main(["prove", *options, "--json", str(target)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    assert main(["prove", "--check", str(target)]) == 0
    return " ".join((out + capsys.readouterr().out).split())


@pytest.mark.parametrize(
    ("how", "in_rocq", "text"),
    [
        ("--N 1024 --M 25600", True, ("696,678", "no schedule moves fewer than 696678")),
        (
            "--N 1024 --M 25600 --direction backward",
            False,
            ("1,792,005", "dK = dSᵀ Q", "no backward schedule moves fewer than 1792005"),
        ),
        ("--N 64 --M 25600", True, ()),  # compulsory
        ("--N 1024 --M 6000", False, ()),  # the combined bound
        # compulsory, with five queries that have no key
        ("--N-q 9 --N-k 4 --M 25600 --causal", False, ()),
    ],
)
def test_the_command_proves(
    how: str,
    in_rocq: bool,
    text: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And it says what is proved in Rocq; the checker alone says the same."""
    out = proved_by_command(tmp_path / "proof.json", capsys, how)
    assert all(part in out for part in text)
    assert (
        out.count("Proved by hand and in Rocq (scripts/proofs); a program checked the arithmetic.")
        == 2 * in_rocq
    )
    assert out.count("Proved by hand; a program checked the arithmetic.") == 2 * (not in_rocq)
    if text:
        certificate_file = str(tmp_path / "proof.json")
        command = [sys.executable, str(certificate.__file__), certificate_file]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert text[-1].removeprefix("no ").partition(" moves ")[2] in done.stdout


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "proof.json"
    proved_by_command(target, capsys, "--N 1024 --M 25600")
    record = json.loads(target.read_text(encoding="utf-8"))
    more = json.dumps({**record, "bound": record["bound"] + 1})
    twice = json.dumps(record).replace('"n": ', '"n": 1, "n": ')
    for text in (more, twice, "[]", "{}", "{", "[" * 10_000, '{"n": 1e999}'):
        target.write_text(text, encoding="utf-8")
        assert main(["prove", "--check", str(target)]) == 1
        assert "proves nothing" in " ".join(capsys.readouterr().out.split())
    accesses = record["schedule"]["accesses"]
    record["schedule"]["accesses"] = 7
    target.write_text(json.dumps(record), encoding="utf-8")
    assert main(["prove", "--check", str(target)]) == 1
    assert f"counted again, moves {accesses:,}; it is said to move 7" in " ".join(
        capsys.readouterr().out.split()
    )
    target.write_bytes(b"\xa8\xff")
    for command, message in (
        (["--check", str(target)], "proof.json is not text"),
        (["--check", str(target), "--N", "8"], "--check takes no other options"),
        (["--check", str(target), "--backward"], "--check takes no other options"),
        ([], "--d"),
        (["--check", str(tmp_path / "none.json")], "none.json"),
    ):
        assert main(["prove", *command]) == 2
        assert message in capsys.readouterr().err


@both
def test_a_certificate_s_schedule_is_counted_again(direction: str) -> None:
    sizes: Arguments = {"N_q": 20, "N_k": 30, "d": 8, "M": 900}
    proof = prove(**sizes, direction=direction, causal=True)
    record = proof.certificate()
    name, B_r, B_c, accesses = record["schedule"].values()
    assert (
        recount(record) == f"{name} with blocks {B_r} × {B_c}, counted again, moves {accesses:,}."
    )
    assert recount({**record, "schedule": None}) == ""
    with pytest.raises(ValueError, match="its class"):
        recount({**record, "class": "Any schedule."})
    for change in (
        {"accesses": accesses + 1},
        {"B_r": 0},
        {"B_c": "2"},
        {"algorithm": "flush"},
        {"algorithm": [1]},
    ):
        with pytest.raises(ValueError, match="its schedule"):
            recount({**record, "schedule": {**record["schedule"], **change}})
    with pytest.raises(ValueError, match="its schedule"):
        recount({**record, "schedule": 3})


def test_a_schedule_under_a_mask_that_the_certificate_does_not_hold_is_said_not_to_be_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mask = tmp_path / "mask.npy"
    proof = tmp_path / "proof.json"
    causal = np.tri(20, dtype=bool)
    band = causal & ~np.tri(20, k=-4, dtype=bool)
    np.save(mask, band)
    assert (
        main(
            [
                "prove",
                "--N",
                "20",
                "--d",
                "4",
                "--M",
                "50",
                "--mask",
                str(mask),
                "--json",
                str(proof),
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert main(["prove", "--check", str(proof)]) == 0
    assert "is not counted again: the certificate does not hold its mask" in " ".join(
        capsys.readouterr().out.split()
    )
    record = json.loads(proof.read_text(encoding="utf-8"))
    changes: list[dict[str, Any]] = [
        {"accesses": accesses} for accesses in (1, record["bound"] - 1, 1e9)
    ]
    for change in (*changes, {"algorithm": "flush"}, {"B_r": -1}):
        forged = {**record, "schedule": {**record["schedule"], **change}}
        proof.write_text(json.dumps(forged), encoding="utf-8")
        assert main(["prove", "--check", str(proof)]) == 1, change
        assert "its schedule" in " ".join(capsys.readouterr().out.split())


@both
def test_a_schedule_that_leaves_out_tiles_is_counted_again_without_them(direction: str) -> None:
    sizes: Arguments = {"N_q": 5, "d": 5, "M": 50}
    if direction == "backward":
        sizes = {"N_q": 2, "d": 1, "M": 18}
    proof = prove(**sizes, N_k=1, direction=direction, causal=True)
    record = proof.certificate()
    name, B_r, B_c, accesses = record["schedule"].values()
    assert {**FORWARD, **BACKWARD}[name].skips_as
    assert (
        recount(record) == f"{name} with blocks {B_r} × {B_c}, counted again, moves {accesses:,}."
    )
