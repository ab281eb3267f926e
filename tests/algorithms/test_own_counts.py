"""Counts of one's own algorithms equal an executed run by `==`: what is counted in one go was
shown to be alike.
"""

from __future__ import annotations

import copy
import operator
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Algorithm
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Blocks, Sizes
from flashsim.cli import main
from flashsim.memory import turns
from flashsim.memory.alike import count_alike
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM, Event
from flashsim.memory.turns import FEW, Differs, SlowCountWarning, Turn, Watch
from flashsim.simulate.matrices import count_program, run_program
from tests.helpers import own_loops
from tests.helpers.cases import Arguments
from tests.helpers.own import module_of
from tests.helpers.two_sweeps import two_sweeps

M = 10**6


def blocks_of(N: int, B_r: int, B_c: int) -> Blocks:
    return Blocks(B_r, B_c, N_q=N, N_k=N)


def placed(hbm: HBM, N: int, d: int, blocks: Blocks, divide: bool) -> list[Matrix]:
    rng = np.random.default_rng(0)
    Q = hbm.place("Q", rng.normal(size=(N, d)))
    K = hbm.place("K", rng.normal(size=(N, d)))
    V = hbm.place("V", rng.normal(size=(N, d)))
    if not divide:
        return [Q, K, V]
    return [Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)]


def executed(
    function: Callable[..., Any], N: int, d: int, blocks: Blocks, divide: bool = True
) -> Any:
    hbm = HBM()
    sram = SRAM(hbm, M)
    try:
        with np.errstate(all="ignore"):
            function(hbm, sram, *placed(hbm, N, d, blocks, divide), blocks)
    except Exception as error:
        return type(error), str(error)
    return hbm.traffic, sram.peak


def memories(
    function: Callable[..., Any],
    problem: tuple[Any, ...],
    divide: bool = True,
    observers: Sequence[Any] = (),
) -> tuple[HBM, SRAM]:
    def run(watch: Watch, observers: Sequence[Any]) -> tuple[HBM, SRAM]:
        hbm = HBM(arithmetic=False)
        sram = SRAM(hbm, M, watch=watch, observers=observers)
        N, d, blocks = problem
        operands = placed(hbm, N, d, blocks, divide)
        watch.call(function, hbm, sram, *operands, blocks)
        return hbm, sram

    return count_alike(run, observers)


def counted(function: Callable[..., Any], *problem: Any, divide: bool = True) -> Any:
    try:
        hbm, sram = memories(function, problem, divide)
    except Exception as error:
        return type(error), str(error)
    return hbm.traffic, sram.peak


ATTENTION = (
    "algorithm_1",
    "algorithm_1_backwards",
    "q_outer_backwards",
    "first_turn_makes",
    "causal_by_continue",
)


@pytest.mark.parametrize(
    ("name", "blocks", "accesses"),
    [
        ("algorithm_1_backwards", (64, 88), 2_607_104),
        ("q_outer_backwards", (64, 89), 2_293_760),
        ("first_turn_makes", (64, 64), 3_274_752),
        ("causal_by_continue", (64, 64), 1_245_184),
    ],
)
def test_what_an_index_decides_is_counted_as_it_is_executed(
    name: str, blocks: tuple[int, int], accesses: int
) -> None:
    function = getattr(own_loops, name)
    problem = 1024, 64, blocks_of(1024, *blocks)
    assert counted(function, *problem, divide=False)[0].accesses == accesses
    assert counted(function, *problem, divide=False) == executed(function, *problem, divide=False)


@pytest.mark.parametrize(
    "name", ["algorithm_1", "algorithm_1_backwards", "q_outer_backwards", "first_turn_makes"]
)
def test_count_forward_tune_and_sweep_say_the_same(name: str) -> None:
    function = getattr(own_loops, name)
    Q, K, V = np.random.default_rng(0).normal(size=(3, 50, 4))
    tiles: Arguments = {"M": 300, "blocks": (6, 7)}
    run = flashsim.forward(function, Q, K, V, **tiles)
    assert np.allclose(run.O, flashsim.reference.attention(Q, K, V))
    tally = flashsim.count(function, N=50, d=4, dtype="float64", **tiles)
    assert (tally.hbm, tally.sram) == (run.hbm, run.sram)


@pytest.mark.parametrize("N", [30, 31, 33])
@pytest.mark.parametrize("function", own_loops.EVERY, ids=lambda function: function.__name__)
def test_a_count_of_any_loop_equals_its_run(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], N: int
) -> None:
    monkeypatch.setattr(turns, "MORE", turns.FEW)
    monkeypatch.setattr(turns, "PATIENCE", 600.0)
    problem = N, 2, blocks_of(N, 3, 4)
    divide = function.__name__ not in ATTENTION
    assert counted(function, *problem, divide=divide) == executed(function, *problem, divide=divide)


# -------------------------------------------------------------------------------------------
# composed by Hypothesis

LOOPS = [
    "for {v} in sram.loop({T}):",
    "for {v} in sram.loop({T}):",
    "for {v} in sram.loop({T}):",
    "for {v} in reversed(sram.loop({T})):",
    "for {v} in sram.loop(range(0, {T}, {c})):",
    "for {v} in sram.loop(range({T} - 1, -1, -1)):",
    "for {v} in sram.loop({T}, where=np.arange({T}) % 4 != {c}):",
    "for n, {v} in enumerate(sram.loop({T})):",
    "for block, {v} in zip(listed, sram.loop({T})):",
    "for {v} in sram.loop(min({T}, {w} + 2)):",
    "for {v} in sram.loop(3):",
    "for {v} in range({c}):",
    "for {v} in counted(sram, {T}):",
]
STATEMENTS = [
    *[
        "x = sram.load(K[{v}])",
        "sram.load(Q[{v}])",
        "sram.load(S[{v}, {w}])",
        "y = sram.load(V[{v}], K[{w}])",
    ]
    * 2,
    "sram.load(K[T - 1 - {v}])",
    "sram.load(K[({v} + {c}) % T])",
    "sram.load(K[({v} + {w}) % T])",
    "sram.load(V[order[{v}]])",
    "sram.load(V[places[{v}]])",
    "sram.load(K[int(array[{v}])])",
    "sram.load(listed[{v}])",
    "sram.store(S[{v}, {w}], sram.load(S[{v}, {w}]))",
    "x = sram.on_chip(sram.load(K[{v}]) * 2.0)",
    "x = sram.full((3, {c}), 0.0)",
    "held = sram.full((2, 2), 0.0) if held is None else held",
    "if {v} == {c}: sram.load(K[0])",
    "if {v} % 2: continue",
    "if {v} > {w}: continue",
    "if {v} == {w} + {c}: break",
    "if n > 7: break",
    "if not {v}: sram.load(V[1])",
    "if first: sram.load(K[1])",
    "first = False",
    "n += 1",
    "n = {c}",
    "if n % 3 == 1: sram.load(K[2])",
    "seen.append(n)",
    "seen.append({v})",
    "if len(seen) % 5 == 4: sram.load(K[3])",
    "box.number += 1",
    "if box.number > {c} * 4: sram.load(V[2])",
    "if step(): sram.load(Q[1])",
    "if prev is not None: sram.load(K[prev])",
    "prev = {v}",
    "if kept is not None: sram.load(kept)",
    "kept = K[{v}]",
    "if next(cycle): sram.load(Q[2])",
    "if K[{v}].where[0].start > 6: sram.load(Q[0])",
    "if K[{v}] is K[{w}]: sram.load(Q[0])",
    "if K[{v}] in listed: sram.load(Q[0])",
    "if sram.occupancy > 20: sram.load(Q[0])",
    "if sram.peak > 30: sram.load(Q[0])",
    "if hbm.traffic.reads > 100: sram.load(Q[0])",
    "helper(sram, K, {v})",
    "inner(sram, V)",
    "sram.load(listed[{c}])",
    "listed.append(listed.pop(0))",
    "try: sram.load(short[{v}])\nexcept IndexError: sram.load(Q[1])",
    "try: sram.load(short[{v}])\nexcept IndexError: break",
    "try: n += {v}\nexcept BaseException: n = 1",
    "first = f'{{{v}}}' == '{c}'",
]
HEADER = """
import itertools
from types import SimpleNamespace
import numpy as np


def counted(sram, T):
    for index in sram.loop(T):
        yield index


def helper(sram, matrix, index):
    return sram.load(matrix[index])


def inner(sram, matrix):
    for index in sram.loop(len(matrix)):
        sram.load(matrix[index])


def composed(hbm, sram, Q, K, V, blocks):
    T, first, n, seen, box, prev, kept, held = len(K), True, 0, [], SimpleNamespace(number=0), None, None, None
    order, places, array = [*range(T - 1, -1, -1)], {j: (j * 5) % T for j in range(T)}, np.arange(T)[::-1]
    listed, short = [K[j] for j in range(T)], K.rows(0, 3 * blocks.B_c)
    S = hbm.empty("S", (K.shape[0], K.shape[0]), K.dtype).divide(blocks.B_c, blocks.B_c)
    Q, total = Q.divide(blocks.B_c), 0

    def step():
        nonlocal total
        total += 1
        return total % 4 == 3

"""


@st.composite
def bodies(draw: st.DrawFn, depth: int = 0, around: tuple[str, ...] = ("0",)) -> list[str]:
    """The lines of a loop, or of several: each a statement that uses its indices, or a loop
    inside it.
    """
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 2 if depth else 3))):
        variable = "ijk"[depth] if depth < 3 else "k"
        inside = (*around, variable)

        def filled(
            template: str, inside: tuple[str, ...] = inside, variable: str = variable
        ) -> list[str]:
            some = draw(st.sampled_from(inside))
            return template.format(
                v=variable, w=some, c=draw(st.integers(1, 3)), T="T"
            ).splitlines()

        header = filled(draw(st.sampled_from(LOOPS)))[0].replace(
            f"min(T, {variable} + 2)", f"min(T, {around[-1]} + 2)"
        )
        lines.append(header)
        for _ in range(draw(st.integers(1, 4))):
            lines += ["    " + line for line in filled(draw(st.sampled_from(STATEMENTS)))]
        if depth < 2 and draw(st.booleans()):
            lines += ["    " + line for line in draw(bodies(depth + 1, inside))]
            lines += ["    " + line for line in filled(draw(st.sampled_from(STATEMENTS)))]
    return lines


def text_of(lines: list[str]) -> str:
    """The composed function; an iterator among its variables hides what is to come, so it has
    one only where it uses one.
    """
    cycle = ["cycle = itertools.cycle([0, 0, 1])"] if any("cycle" in line for line in lines) else []
    return HEADER + "\n".join("    " + line for line in [*cycle, *lines]) + "\n"


@pytest.mark.parametrize("more", [turns.FEW, turns.MORE])
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(lines=bodies(), N=st.sampled_from([20, 22, 23]))
def test_whatever_is_composed_is_counted_as_it_runs(
    tmp_path_factory: pytest.TempPathFactory, more: int, lines: list[str], N: int
) -> None:
    function = module_of(text_of(lines), tmp_path_factory.mktemp("own") / "composed.py").composed
    problem = N, 2, blocks_of(N, 3, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "PATIENCE", 600.0)
        # so that loops inside of loops that run turn by turn are looked at, too
        patch.setattr(turns, "MORE", more)
        assert counted(function, *problem) == executed(function, *problem)


# -----------------------------------------------------------------------------------------------
# what is counted in one go


def turns_run(function: Callable[..., Any], N: int, B: int, divide: bool = True) -> int:
    """How many turns are run, of all loops."""
    events: list[Event] = []
    problem = (N, 2, blocks_of(N, B, B))
    memories(function, problem, divide, [events.append])
    return sum(event.kind == "turn" for event in events)


@pytest.mark.parametrize(
    ("function", "most"),
    [
        (own_loops.algorithm_1, FEW + FEW * FEW),
        (own_loops.plain, FEW + FEW * FEW),
        (own_loops.there_and_back, FEW + FEW * FEW),
        (own_loops.helper_functions, FEW + 2 * FEW * FEW),
        (own_loops.ragged_in_both, 2 * (FEW + FEW * FEW)),
        (own_loops.reads_occupancy, FEW + FEW * FEW),
        (own_loops.first_by_flag, FEW),
        (own_loops.first_by_none, FEW),
        (own_loops.previous_block, FEW),
        (own_loops.shifted_so_that_the_ragged_is_not_last, FEW + FEW),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_loops_whose_turns_are_alike_are_counted_in_one_go(
    function: Callable[..., Any], most: int
) -> None:
    """At N = 65,536, and with a ragged last block."""
    assert turns_run(function, 65_536 + 5, 64, function.__name__ not in ATTENTION) == most


def test_a_loop_inside_of_one_that_runs_turn_by_turn_is_still_counted_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Algorithm 1 with its keys from the last to the first: 1,025 turns, each with four of the
    inner loop.
    """
    monkeypatch.setattr(turns, "PATIENCE", 60.0)
    assert turns_run(own_loops.algorithm_1_backwards, 65_536 + 5, 64, False) == 1025 + 1025 * FEW


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "record",
    [*FORWARD.values(), *BACKWARD.values()],
    ids=lambda record: f"{record.name}-{record.direction}",
)
def test_flashsim_s_algorithms_are_counted_alike_as_a_user_s(
    record: Algorithm, causal: bool
) -> None:
    if causal and "MASK" not in FORWARD[record.forward_pass].parts:
        return
    arguments: Arguments = {
        "N": 40,
        "d": 3,
        "M": 400,
        "direction": record.direction,
        "causal": causal,
    }
    theirs = flashsim.count(record.name, **arguments)
    more: dict[str, Any] = (
        {} if record.direction == "forward" else {"of": FORWARD[record.forward_pass]}
    )
    tally = flashsim.count(replace(record, name="own", **more), **arguments)
    assert (tally.hbm, tally.sram, tally.flops, tally.blocks) == (
        theirs.hbm,
        theirs.sram,
        theirs.flops,
        theirs.blocks,
    )


# --------------------------------------------------------------------------------------------------
# its index

USES: dict[str, Callable[[Any], object]] = {
    "==": lambda j: j == 0,
    "!=": lambda j: j != 0,
    "in": lambda j: j in (5, 7),
    "in a set": lambda j: j in {5, 7},
    "a list's": lambda j: [0, 1, 2, 3, 4, 5, 6, 7][j],
    "index": lambda j: [0, 1].index(j),
    "range": lambda j: range(j),
    "+": lambda j: j + 1,
    "1 +": lambda j: 1 + j,
    "-": lambda j: -j,
    "abs": abs,
    "~": lambda j: ~j,
    "+ 0.5": lambda j: j + 0.5,
    "divmod": lambda j: divmod(j, 2),
    "round": round,
    "bool": bool,
    "not": lambda j: not j,
    "and": lambda j: j and 1,
    "hash": hash,
    "int": int,
    "float": float,
    "complex": complex,
    "hex": hex,
    "chr": chr,
    "str": str,
    "repr": repr,
    "f": lambda j: f"{j:3}",
    "%": lambda j: "%d" % j,  # noqa: UP031
    "isinstance": lambda j: isinstance(j, int),
    ".real": lambda j: j.real,
    "bit_length": lambda j: j.bit_length(),
    "sorted": lambda j: sorted([j, 3]),
    "max": lambda j: max(j, 3),
    "sum": lambda j: sum([j]),
    "np.array": lambda j: np.array(j),
    "np.arange": lambda j: np.arange(j),
    "np.equal": lambda j: np.arange(3) == j,
    "np.add": lambda j: np.add(np.arange(3), j),
    "np.int64": lambda j: np.int64(3) < j,
    "np.zeros": lambda j: np.zeros(3)[j],
    "slice": lambda j: [1, 2, 3][j:],
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "operator.index": operator.index,
    "format": lambda j: "{}".format(j),  # noqa: UP032
    "join": lambda j: "-".join(map(str, [j])),
    "print": lambda j: print(j, end=""),
    "setattr": lambda j: setattr(j, "mine", 1),
    "dir": dir,
    "key": lambda j: {j: 1},
    "times a list": lambda j: [0] * j,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_whatever_is_done_with_an_index_is_noticed(use: Callable[[Any], object]) -> None:
    watch = Watch()
    watch.begin()
    site = __file__, 1
    turn = Turn(turns._Loop(watch, site, range(8)), range(1, 7))
    with pytest.raises(Differs):
        use(turn)
    assert [*watch.unlike] == [site]
    assert not watch.end()


def test_an_index_that_an_earlier_count_left_somewhere_is_a_number() -> None:
    watch = Watch()
    watch.begin()
    site = (__file__, 1)
    turn: Any = Turn(turns._Loop(watch, site, range(8)), range(7, 8))
    watch.end()
    assert turn == 7
    assert turn + 1 == 8
    assert [*range(8)][turn] == 7
    assert f"{turn:3}" == "  7"


def test_a_debugger_sees_numbers() -> None:
    def follow(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code is own_loops.plain.__code__ and "j" in frame.f_locals:
            kinds.add(type(frame.f_locals["j"]))
        return follow

    kinds: set[type] = set()
    before = sys.gettrace()
    sys.settrace(follow)
    try:
        memories(own_loops.plain, (32, 2, blocks_of(32, 4, 4)))
    finally:
        sys.settrace(before)
    assert kinds == {int}


LEFT: list[Any] = []


def leaves_its_index(hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks) -> None:
    for _ in LEFT:
        if LEFT[0] == 3:
            sram.load(Q[0])
    for j in sram.loop(len(K)):
        sram.load(K[j])
    LEFT[:] = [j]


def test_a_count_comes_to_an_end_whatever_the_one_before_it_left() -> None:
    problem = 32, 2, blocks_of(32, 4, 4)
    for _ in range(3):
        assert counted(leaves_its_index, *problem) == executed(leaves_its_index, *problem)


# ------------------------------------------------------------------------------------------------
# wherever there are counts


def test_reversed_turns_are_run_and_counted_by_any_memory() -> None:
    for arithmetic, fold in ((True, False), (False, False), (False, True)):
        hbm = HBM(arithmetic=arithmetic)
        sram = SRAM(hbm, 100, fold=fold)
        Q = hbm.place("Q", np.ones((31, 1))).divide(4)
        events = []
        for i in reversed(sram.loop(len(Q))):
            sram.load(Q[i])
            events.append(i)
        all_turns = [7, 6, 5, 4, 3, 2, 1, 0]
        assert events == ([7, 6, 0] if fold else all_turns)
        assert hbm.traffic.reads == 31
        where = np.array([True, False, True, True])
        some = [*reversed(sram.loop(4, where=where))]
        assert some == ([3, 0] if fold else [3, 2, 0])


@pytest.mark.parametrize("name", ATTENTION)
def test_observers_hear_of_a_count_once_and_as_often_as_it_happens(name: str) -> None:
    events: list[Event] = []
    function = getattr(own_loops, name)
    problem = (32, 2, blocks_of(32, 3, 5))
    hbm, sram = memories(function, problem, False, [events.append])
    reads = sum(event.elements * event.times for event in events if event.kind == "load")
    assert reads == hbm.traffic.reads
    assert all(type(index) is int for event in events for _, index in event.loops)
    assert {event.sram for event in events} == {sram}


def program_of(function: Callable[..., Any]) -> MatrixProgram:
    return MatrixProgram(
        name="mine",
        title="mine",
        source="mine",
        run=function,
        operands={"X": Kind("N", "d")},
        returns={"Y": Kind("N", "d")},
        blocks={"B": "N"},
        by=("B", "B"),
        plane=("N", "N"),
        words=("rows", "columns"),
    )


def doubled(hbm: HBM, sram: SRAM, X: Matrix, blocks: Sizes) -> Matrix:
    Y = hbm.empty("Y", X.shape, X.dtype, "output")
    X = X.divide(blocks.B)
    out = Y.divide(blocks.B)
    for i in sram.loop(len(X)):
        tile = sram.load(X[i])
        if i % 3 == 1:
            sram.load(X[0])
        sram.store(out[i], sram.on_chip(2 * tile))
    return Y


def test_a_program_of_one_s_own_is_counted_as_it_runs() -> None:
    program = program_of(doubled)
    room: Arguments = {"blocks": (4,), "M": 100}
    run = run_program(program, {"X": np.ones((31, 2))}, **room)
    tally = count_program(program, {"N": 31, "d": 2}, dtype="float64", **room)
    assert (tally.hbm, tally.sram) == (run.hbm, run.sram)
    assert run.hbm.reads == 2 * (31 + 3 * 4)


MINE = Path(own_loops.__file__)
"""Its functions are a user's file to the command line."""


@pytest.mark.parametrize("name", ["algorithm_1_backwards", "q_outer_backwards", "first_turn_makes"])
def test_tune_sweep_and_lines_say_what_is_executed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    function = getattr(own_loops, name)
    Q, K, V = np.random.default_rng(0).normal(size=(3, 40, 4))
    sizes: Arguments = {"N": 40, "d": 4, "M": 200, "dtype": "float64"}
    tuned = flashsim.tune.tune(**sizes, algorithms=[function])
    choices = tuned.by_loops.values()
    (best,) = (choice for choice in choices if choice.algorithm.endswith(name))
    blocks = (best.blocks.B_r, best.blocks.B_c)
    run = flashsim.forward(function, Q, K, V, M=200, blocks=blocks)
    assert best.accesses == run.hbm.accesses
    assert best.peak == run.sram.peak
    swept = flashsim.sweep(algorithms=[function], **sizes, blocks=[(3, 7)])
    (row,) = swept.rows
    run = flashsim.forward(function, Q, K, V, M=200, blocks=(3, 7))
    assert row["accesses_elements"] == run.hbm.accesses
    fit = flashsim.forward(function, Q, K, V, M=200, sizing="fit")
    tally = flashsim.count(function, **sizes, sizing="fit")
    assert tally.hbm == fit.hbm
    assert tally.sram == fit.sram
    assert tally.blocks == fit.blocks
    how = ["--N", "40", "--d", "4", "--M", "200", "--blocks", "3", "7", "--dtype", "float64"]
    assert main(["count", f"{MINE}:{name}", *how]) == 0
    assert f"{run.hbm.by_array['K'].reads:,}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "mask",
    [
        flashsim.Causal(),
        flashsim.SlidingWindow(5, 0),
        flashsim.Dense(np.tri(40, dtype=bool)),
    ],
)
@pytest.mark.parametrize("name", ["flash", "q_outer", "standard", "block_sparse"])
def test_masks_dropout_and_live_tiles_are_counted_as_they_are_executed(
    name: str, mask: Any
) -> None:
    own = replace(FORWARD[name], name="own")
    options: Arguments = {"block_mask": "live"} if name == "block_sparse" else {}
    Q, K, V = np.random.default_rng(0).normal(size=(3, 40, 4))
    arguments: Arguments = {
        "mask": mask,
        "M": 300,
        "blocks": (3, 7),
        "dropout_p": 0.1,
        "enforce": False,
        **options,
    }
    run = flashsim.forward(own, Q, K, V, **arguments)
    tally = flashsim.count(own, N=40, d=4, dtype="float64", **arguments)
    assert (tally.hbm, tally.sram) == (run.hbm, run.sram)


# --------------------------------------------------------------------------------------------------
# how long it takes


def test_a_long_count_says_so_once_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.0)
    with pytest.warns(SlowCountWarning) as caught:
        counted(own_loops.by_continue, 200, 2, blocks_of(200, 3, 3))
    (warning,) = caught
    source = MINE.read_text().splitlines()
    line = next(number for number, code in enumerate(source, 1) if "if j > i:" in code)
    message = str(warning.message)
    assert message.startswith("this count takes about ")
    assert message[:-1].endswith(
        f" seconds, because it runs turn by turn: line {line} of own_loops.py compares "
    )


def test_a_count_in_one_go_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 60.0)
    counted(own_loops.plain, 65_536, 2, blocks_of(65_536, 64, 64))


@pytest.mark.filterwarnings("default")
def test_the_command_line_says_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.0)
    how = ["--N", "40", "--d", "4", "--M", "200", "--blocks", "3", "7"]
    assert main(["count", f"{MINE}:algorithm_1_backwards", *how]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("flashsim count: this count takes about ") for line in lines)


def test_too_many_turns_are_refused_before_they_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_TURNS", 1000)
    message = r"line \d+ of own_loops.py computes with j, so .* here are 1,681 of them, .* expected at most 1,000"
    with pytest.raises(ValueError, match=message):
        flashsim.count(own_loops.causal_by_continue, N=41, d=4, M=10**5, blocks=(1, 1))
    flashsim.count(own_loops.algorithm_1, N=65_536, d=4, M=10**5, blocks=(64, 64))


def comparing(folder: Path) -> Any:
    """Return an algorithm that compares its index, so that each turn runs, in a file of its own."""
    text = Path(two_sweeps.__code__.co_filename).read_text(encoding="utf-8")
    loop = "for j in sram.loop(blocks.T_c):\n"
    assert loop in text
    skipping = f"{loop}            if j < 0:\n                continue\n"
    return module_of(text.replace(loop, skipping), folder / "comparing.py").two_sweeps


def test_blocks_are_found_in_the_time_of_a_few_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial runs a copy of the function's code, in which the same loops are plain ones."""
    monkeypatch.setattr("flashsim.memory.turns.MOST_TURNS", 2_000)
    tally = flashsim.count(two_sweeps, N=65_536, d=64)
    assert tally.blocks.T_r * tally.blocks.T_c > 2_000
    with pytest.raises(ValueError, match="so turns are counted one by one"):
        flashsim.count(comparing(tmp_path), N=65_536, d=64)


def test_a_slow_trial_names_the_user_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashsim.memory.turns.PATIENCE", 0.0)
    with pytest.warns(SlowCountWarning) as caught:
        flashsim.count(comparing(tmp_path), N=64, d=4, M=400)
    assert {warning.filename for warning in caught} == {str(tmp_path / "comparing.py")}
    messages = [str(warning.message) for warning in caught]
    assert any("of comparing.py compares j" in message for message in messages)
    assert not any("trial" in message or ">" in message for message in messages)
