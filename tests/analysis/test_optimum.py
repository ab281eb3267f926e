"""The row game: its optima against a plain Dijkstra, replayed on the memory, and certificates
that prove them.
"""

import ast
import json
import random
import re
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.analysis.games import checker, game
from flashsim.analysis.games.checker import check, nothing_below, text_of
from flashsim.analysis.games.game import Game
from flashsim.analysis.games.search import Search
from flashsim.analysis.optima import Optimum
from flashsim.cli import main
from tests.helpers.cases import Arguments, with_trace

# --------------------------------------------------------------------------------------------------
# a plain Dijkstra


def plain(N_q: int, N_k: int, d: int, d_v: int, M: int, allowed: Any = None) -> int:
    """The optimum by the rules alone, one step at a time: no normal form, no symmetry, nothing to
    guide it.

    A state: what is on chip, which rows of O have begun, which products are done. Bits: Q, O of
    each row; K, V of each column.
    """
    rows = range(N_q)
    columns = range(N_k)
    size = [d, d_v + 2] * N_q + [d, d_v] * N_k
    pairs = [(i, j) for i in rows for j in columns]
    every = [(i, j) for i, j in pairs if allowed is None or allowed[i][j]]
    use = {}
    of_row = [0] * N_q
    for n, (i, j) in enumerate(every):
        use[n] = 3 << 2 * i | 3 << 2 * (N_q + j)
        of_row[i] |= 1 << n
    idle = sum(not of for of in of_row) * (d_v + 1)
    best = {(0, 0, 0): idle}
    heap = [(idle, (0, 0, 0))]
    while heap:
        cost, state = heappop(heap)
        if cost > best[state]:
            continue
        chip, begun, done = state
        written = [i for i in rows if of_row[i] and of_row[i] & ~done == 0]
        all_done = done == (1 << len(every)) - 1
        if all_done and not any(chip >> 2 * i + 1 & 1 for i in written):
            return cost
        used = sum(s for n, s in enumerate(size) if chip >> n & 1)
        nexts = []
        for unit, elements in enumerate(size):
            i = unit // 2
            bit = 1 << unit
            is_O = unit < 2 * N_q and unit % 2 == 1
            if chip & bit:
                write = 0 if not is_O else d_v + 1 if i in written else d_v + 2
                nexts.append((write, (chip & ~bit, begun, done)))
            elif used + elements <= M and not (is_O and i in written):
                read = elements if not is_O or begun >> i & 1 else 0
                started = begun | 1 << i if is_O else begun
                nexts.append((read, (chip | bit, started, done)))
        if used < M:
            for n, need in use.items():
                if need & ~chip == 0:
                    nexts.append((0, (chip, begun, done | 1 << n)))
        for step, then in nexts:
            if cost + step < best.get(then, 1 << 60):
                best[then] = cost + step
                heappush(heap, (cost + step, then))
    raise AssertionError("no schedule")


def optimum(**problem: Any) -> Optimum:
    best: Optimum = flashsim.optimum(**problem)
    return best


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize(("N_q", "N_k"), [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_the_optimum_is_a_plain_dijkstra_s(N_q: int, N_k: int, d: int) -> None:
    least = 2 * d + (d + 1) + (d + 3) + 1
    for M in range(least, least + 3 * d + 4):
        widths: Arguments = {"d": d, "d_v": d + 1}
        best = optimum(N_q=N_q, N_k=N_k, **widths, M=M)
        assert best.lower == best.upper
        assert best.upper == plain(N_q, N_k, d, d + 1, M)


def test_rows_are_alike_only_if_their_products_are_of_the_same_columns() -> None:
    """Two rows of two products each, of which K_0 helps one: each product may be the next."""
    todo = frozenset({(0, 0), (0, 1), (1, 1), (1, 2)})
    rules = Game(Q=1, K=1, V=1, O=3, out=2, room=99)
    state = game.State(frozenset({("K", 0)}), todo)
    assert {pair for pair, _ in game.moves(rules, state, 99)} == todo
    square = frozenset({(0, 0), (0, 1), (1, 0), (1, 1)})
    same = game.State(frozenset(), square)
    assert {pair for pair, _ in game.moves(rules, same, 99)} == {(0, 0)}


def test_the_same_under_masks_and_with_three_rows() -> None:
    allowed = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]], bool)
    masked = optimum(N=3, d=1, M=8, mask=allowed)
    assert masked.upper == plain(3, 3, 1, 1, 8, allowed)
    three_rows = optimum(N_q=3, N_k=2, d=1, M=7)
    assert three_rows.upper == plain(3, 2, 1, 1, 7)


@pytest.mark.slow
def test_the_same_of_three_by_three() -> None:
    """But for two products: each doubles Dijkstra's time."""
    allowed = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool)
    best = optimum(N=3, d=1, M=7, mask=allowed)
    assert best.upper == plain(3, 3, 1, 1, 7, allowed)


# --------------------------------------------------------------------------------------------------
# known optima


@pytest.mark.slow
@pytest.mark.parametrize(
    ("N", "room", "K", "V", "expected"),
    [  # rows as units; V of no size: K_j and V_j move as one
        (3, 7, 2, 0, 14),
        (4, 4, 2, 0, 34),
        (4, 5, 2, 0, 28),
        (5, 10, 2, 0, 26),
        (5, 11, 2, 0, 24),
        (4, 7, 2, 0, 22),
        (4, 7, 1, 1, 21),
    ],
)
def test_optima_in_rows(N: int, room: int, K: int, V: int, expected: int) -> None:
    """Found before by another program; its optimality is proved anew."""
    todo = frozenset((i, j) for i in range(N) for j in range(N))
    rules = Game(Q=1, K=K, V=V, O=1, out=1, room=room)
    search = Search(rules, todo)
    search.run()
    assert search.lower == search.upper == expected
    table = {text_of(state): evicted for state, evicted in search.prices.items()}
    nothing_below(search.game, search.first, expected, table)
    with pytest.raises(ValueError, match="not in the table"):
        nothing_below(search.game, search.first, expected + 1, table)


def test_larger_memories_never_cost_more_and_the_bound_is_below() -> None:
    optima = [optimum(N=3, d=2, M=M) for M in range(11, 32, 4)]
    accesses = [each.upper for each in optima]
    assert accesses == sorted(accesses, reverse=True)
    assert accesses[-1] == optima[-1].compulsory
    for each in optima:
        assert each.proof.bound.accesses <= each.upper
        for tiles in (each.tiles("q_outer"), each.tiles("snake")):
            assert tiles is None or each.upper <= tiles.hbm.accesses


# --------------------------------------------------------------------------------------------------
# replay

PROBLEMS: list[dict[str, Any]] = [
    {"N": 4, "d": 4, "M": 36},
    {"N": 4, "d": 3, "M": 20, "causal": True},
    {"N_q": 2, "N_k": 5, "d": 2, "d_v": 3, "M": 13},
    {"N_q": 4, "N_k": 2, "d": 2, "M": 14, "causal": True},  # two queries attend to no key
]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_schedules_are_run_with_real_numbers(problem: dict[str, Any], dtype: str) -> None:
    best = optimum(**problem)
    shape = best.shape
    rng = np.random.default_rng(3)
    Q = rng.normal(size=(shape.N_q, shape.d)).astype(dtype)
    K = rng.normal(size=(shape.N_k, shape.d)).astype(dtype)
    V = rng.normal(size=(shape.N_k, shape.d_v)).astype(dtype)
    run, run_trace = with_trace(best.replay, Q, K, V)
    assert run.hbm.accesses == best.upper == best.moved[-1]
    assert run.sram.enforced
    assert run.sram.peak <= best.M
    assert best.off(run) <= 1
    products = {step.tile for step in run_trace.steps if step.label == "line 11"}
    # the player's picture shows the product's own tile
    assert products == set(zip(*np.nonzero(best.allowed), strict=True))


def test_a_schedule_that_spills_O_brings_it_back() -> None:
    best = Optimum(N=2, d=3, d_v=2, M=13)
    best.search.steps = [
        ((0, 0), ()),
        ((1, 0), (("O", 0), ("Q", 0))),
        ((0, 1), (("O", 1), ("Q", 1))),
        ((1, 1), ()),
    ]
    rng = np.random.default_rng(1)
    Q = rng.normal(size=(2, 3))
    K = rng.normal(size=(2, 3))
    V = rng.normal(size=(2, 2))
    run = best.replay(Q, K, V)
    spill = 2 * (3 + 2 * 4)
    assert run.hbm.accesses == best.moved[-1] == best.compulsory + spill
    rules = best.search.game
    evicted = sum(game.price(rules, gone) for _, gone in best.search.steps)
    assert run.hbm.accesses == best.compulsory + evicted  # the game's prices are the memory's
    assert best.off(run) <= 1
    with pytest.raises(ValueError, match="expected"):
        best.replay(Q, K, Q)
    with pytest.raises(ValueError, match=r"V is \[\[1\], \[1, 2\]\]; expected an array"):
        best.replay(Q, K, [[1], [1, 2]])


# --------------------------------------------------------------------------------------------------
# certificates


def a_certificate(**changed: Any) -> dict[str, Any]:
    certificate = optimum(N=3, d=4, M=24).certificate()
    copied: dict[str, Any] = json.loads(json.dumps(certificate))
    return copied | changed


def test_the_checker_is_short_and_knows_no_search() -> None:
    """Its length is that of its syntax: a limit on statements would have lines filled."""
    for module, most, names in (
        (checker, 1300, {"flashsim.analysis.games.game", "flashsim.theory.bounds.certificate"}),
        (game, 1450, set()),
    ):
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        nodes = [*ast.walk(ast.parse(source))]
        imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert {name for name in imported if name and name.startswith("flashsim")} == names
        assert len(nodes) < most


def test_a_certificate_that_holds() -> None:
    certificate = a_certificate()
    assert (
        f"move {certificate['optimum']} elements, and no schedule of the row game moves fewer"
        in check(certificate)
    )
    nothing = np.zeros((2, 2), bool)
    of_nothing = optimum(N=2, d=2, M=90, mask=nothing).certificate()
    assert "0 steps move 6 elements" in check(of_nothing)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"optimum": 1}, "its .* steps cost"),
        ({"optimum": "75"}, "expected a whole number"),
        ({"d": 0}, "d is 0; expected a whole number from 1"),
        ({"d": 3}, "its .* steps cost"),
        ({"M": 22}, "does not fit on chip"),
        ({"M": 25}, "not in the table"),
        ({"N_q": 2}, "allowed is"),
        ({"N_k": 99}, "expected at most 8"),
        ({"allowed": ["111", "111", "110"]}, "not possible there"),
        ({"allowed": [1, 2, 3]}, "allowed is"),
        ({"steps": []}, "leave 9 products"),
        ({"steps": [[0, 0, ["K0"]]]}, "step 0"),
        ({"steps": [[[], {}, 5]]}, "step 0"),
        ({"steps": [7]}, "step 0"),
        ({"steps": ["3" * 60]}, f"^step 0, {50 * '3'}, is not possible there"),
        ({"steps": {}}, "steps, a list"),
        ({"table": {}}, "not in the table"),
        ({"table": {"": 1.5}}, "whole numbers"),
        ({"table": None}, "whole numbers"),
    ],
)
def test_why_a_certificate_proves_nothing(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check(a_certificate(**change))


def test_a_certificate_has_its_fields_and_none_but_them() -> None:
    certificate = a_certificate()
    assert check({**certificate, "command": "flashsim prove --exact"}) == check(certificate)
    for name in certificate.keys() - {"kind"}:
        with pytest.raises(ValueError, match=f"it has no {name}$"):
            check({key: value for key, value in certificate.items() if key != name})
    with pytest.raises(ValueError, match="it has 'bound'; expected"):
        check({**certificate, "bound": 1})
    with pytest.raises(ValueError, match="allowed is"):
        check({**certificate, "allowed": ["11x", "111", "111"]})


def test_every_entry_of_the_table_is_needed_and_none_may_be_higher() -> None:
    certificate = a_certificate()
    assert len(certificate["table"]) > 9
    for state, evicted in certificate["table"].items():
        less = {name: value for name, value in certificate["table"].items() if name != state}
        for table in (less, {**less, state: evicted + 1}):
            with pytest.raises(ValueError, match="not in the table"):
                check({**certificate, "table": table})


def test_a_worse_schedule_is_not_called_the_optimum() -> None:
    """Steps that are legal, said to be optimal at what they cost: the table does not bear it
    out.
    """
    certificate = a_certificate()
    steps = [*certificate["steps"][:1], [1, 0, ["O0", "Q0"]]]
    pairs = frozenset((i, j) for i in range(3) for j in range(3))
    search = Search(checker.game_of(4, 4, 24), pairs)
    state = game.after(search.first, (0, 0), ())
    spilled = (("O", 0), ("Q", 0))
    state = game.after(state, (1, 0), spilled)
    chooser = random.Random(0)
    while state.todo:
        moves = list(game.moves(search.game, state, 10**6))
        pair, gone = chooser.choice(moves)
        steps.append([*pair, [f"{X}{n}" for X, n in gone]])
        state = game.after(state, pair, gone)
    with pytest.raises(ValueError, match="steps cost") as refused:
        check({**certificate, "steps": steps})
    cost = int(re.findall(r"cost (\d+)", str(refused.value))[0])
    assert cost > certificate["optimum"]
    with pytest.raises(ValueError, match="not in the table"):
        check({**certificate, "steps": steps, "optimum": cost})


# --------------------------------------------------------------------------------------------------
# the search


def test_bounds_hold_while_the_search_goes_on() -> None:
    calls: list[tuple[int, int]] = []
    best = Optimum(N=4, d=4, M=24)
    states, _ = best.estimate
    with pytest.raises(ValueError, match="expected a finished search"):
        best.certificate()
    best.run(lambda search: calls.append((search.lower, search.upper)))
    assert len(calls) > 5
    assert calls == sorted(calls)
    assert all(lower <= best.upper <= upper for lower, upper in calls)
    assert len(best.search.prices) <= 1.5 * states


def test_the_estimate_is_no_less_than_what_is_searched() -> None:
    small: list[dict[str, Any]] = [
        *PROBLEMS,
        {"N": 3, "d": 2, "M": 12},
        {"N_q": 3, "N_k": 6, "d": 4, "M": 19},
    ]
    for problem in small:
        best = Optimum(**problem)
        states, _ = best.estimate
        best.run()
        assert len(best.search.prices) <= 1.5 * states


def test_sizes_that_make_no_sense_or_would_not_end() -> None:
    problems: list[tuple[dict[str, Any], str]] = [
        ({"N": 9, "d": 2}, "N is 9; expected at most 8"),
        ({"N_q": 2, "N_k": 9, "d": 2}, "N_k is 9; expected at most 8"),
        ({"N": 4, "d": 4, "M": 18}, "M is 18; expected at least 19"),
        ({"N": 8, "d": 4, "M": 40}, "hours"),
        ({"N": 4, "d": 0}, "d"),
        ({"N": 4, "d": 2, "mask": np.ones((3, 3), bool)}, "mask"),
    ]
    for problem, message in problems:
        with pytest.raises(ValueError, match=message):
            Optimum(**problem)


# --------------------------------------------------------------------------------------------------
# the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = tmp_path / "optimum.json"
    page = tmp_path / "optimum.html"
    assert (
        main(
            [
                "prove",
                "--exact",
                "--N",
                "3",
                "--d",
                "4",
                "--M",
                "24",
                "--json",
                str(proof),
                "-o",
                str(page),
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert re.search(r"optimum of the row game +75\n", out)
    assert "75 elements were counted" in " ".join(out.split())
    assert "states to search" in err
    assert max(map(len, out.partition("Saved")[0].splitlines())) <= 80
    assert "row game" in page.read_text(encoding="utf-8")
    assert main(["prove", "--check", str(proof)]) == 0
    assert "75 elements, and no schedule of the row game moves fewer" in " ".join(
        capsys.readouterr().out.split()
    )
    claim = json.loads(proof.read_text(encoding="utf-8")) | {"optimum": 76}
    proof.write_text(json.dumps(claim), encoding="utf-8")
    assert main(["prove", "--check", str(proof)]) == 1
    assert "proves nothing: the optimum is said to be 76" in " ".join(
        capsys.readouterr().out.split()
    )
    for command, message in (
        (["--exact", "--check", str(proof)], "--check takes no other options"),
        (["--N", "4", "--d", "4", "-o", str(page)], "needs --exact"),
        (["--exact", "--N", "4", "--d", "4", "-o", str(tmp_path / "x.pdf")], "no suffix"),
        (["--exact", "--N", "9", "--d", "4"], "at most 8"),
        (["--exact"], "--d"),
    ):
        assert main(["prove", *command]) == 2
        assert message in capsys.readouterr().err


def test_an_interrupted_search_tells_its_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(search: Search, *_: Any) -> None:
        search.lower += 8
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", stopped)
    assert main(["prove", "--exact", "--N", "4", "--d", "4", "--M", "24"]) == 130
    out, err = capsys.readouterr()
    assert "The optimum is between 76 and 128 elements" in out
    assert err.splitlines()[-1] == "interrupted"
