"""Counts of one's own algorithms equal an executed run by `==`: what is counted in one go was shown to be alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flashsim
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.machine.turns import Watch, count_alike
from flashsim.problem.shapes import Blocks

from . import own_loops
from .own import module_of

M = 10**6


def blocks_of(N: int, B_r: int, B_c: int) -> Blocks:
    return Blocks(B_r, B_c, -(-N // B_r), -(-N // B_c))


def placed(hbm: HBM, N: int, d: int, blocks: Blocks, divide: bool) -> list[Matrix]:
    rng = np.random.default_rng(0)
    matrices = [hbm.place(name, rng.normal(size=(N, d))) for name in "QKV"]
    if divide:
        rows = blocks.B_r, blocks.B_c, blocks.B_c
        matrices = [matrix.divide(n) for matrix, n in zip(matrices, rows, strict=True)]
    return matrices


def executed(function: Callable[..., Any], N: int, d: int, blocks: Blocks, divide: bool = True) -> Any:
    hbm = HBM()
    sram = SRAM(hbm, M)
    try:
        with np.errstate(all="ignore"):
            function(hbm, sram, *placed(hbm, N, d, blocks, divide), blocks)
    except Exception as error:
        return type(error), str(error)
    return hbm.traffic, sram.peak


def memories(
    function: Callable[..., Any], N: int, d: int, blocks: Blocks, divide: bool = True, observers: Sequence[Any] = ()
) -> tuple[HBM, SRAM]:
    def run(watch: Watch, observers: Sequence[Any]) -> tuple[HBM, SRAM]:
        hbm = HBM(arithmetic=False)
        sram = SRAM(hbm, M, watch=watch, observers=observers)
        watch.call(function, hbm, sram, *placed(hbm, N, d, blocks, divide), blocks)
        return hbm, sram

    return count_alike(run, observers)


def counted(function: Callable[..., Any], *problem: Any, divide: bool = True) -> Any:
    try:
        hbm, sram = memories(function, *problem, divide)
    except Exception as error:
        return type(error), str(error)
    return hbm.traffic, sram.peak


ATTENTION = ("algorithm_1", "algorithm_1_backwards", "q_outer_backwards", "first_turn_makes", "causal_by_continue")


@pytest.mark.parametrize(
    ("name", "blocks", "accesses"),
    [
        ("algorithm_1_backwards", (64, 88), 2_607_104),
        ("q_outer_backwards", (64, 89), 2_293_760),
        ("first_turn_makes", (64, 64), 3_274_752),
        ("causal_by_continue", (64, 64), 1_245_184),
    ],
)
def test_what_an_index_decides_is_counted_as_it_is_executed(name: str, blocks: tuple[int, int], accesses: int) -> None:
    function = getattr(own_loops, name)
    problem = 1024, 64, blocks_of(1024, *blocks)
    assert counted(function, *problem, divide=False)[0].accesses == accesses
    assert counted(function, *problem, divide=False) == executed(function, *problem, divide=False)


@pytest.mark.parametrize("name", ["algorithm_1", "algorithm_1_backwards", "q_outer_backwards", "first_turn_makes"])
def test_count_forward_tune_and_sweep_say_the_same(name: str) -> None:
    function = getattr(own_loops, name)
    Q, K, V = np.random.default_rng(0).normal(size=(3, 50, 4))
    run = flashsim.forward(function, Q, K, V, M=300, blocks=(6, 7))
    assert np.allclose(run.O, flashsim.reference.attention(Q, K, V))
    tally = flashsim.count(function, N=50, d=4, M=300, dtype="float64", blocks=(6, 7))
    assert (tally.hbm, tally.sram) == (run.hbm, run.sram)


@pytest.mark.parametrize("N", [30, 31, 33])
@pytest.mark.parametrize("function", own_loops.EVERY, ids=lambda function: function.__name__)
def test_a_count_of_any_loop_equals_its_run(function: Callable[..., Any], N: int) -> None:
    problem = N, 2, blocks_of(N, 3, 4)
    divide = function.__name__ not in ATTENTION
    assert counted(function, *problem, divide=divide) == executed(function, *problem, divide=divide)


# ------------------------------------------------------------------------------------------- composed by Hypothesis

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
    *["x = sram.load(K[{v}])", "sram.load(Q[{v}])", "sram.load(S[{v}, {w}])", "y = sram.load(V[{v}], K[{w}])"] * 2,
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
    """The lines of a loop, or of several: each a statement that uses its indices, or a loop inside it."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 2 if depth else 3))):
        variable = "ijk"[depth] if depth < 3 else "k"
        inside = (*around, variable)

        def filled(template: str, inside: tuple[str, ...] = inside, variable: str = variable) -> list[str]:
            some = draw(st.sampled_from(inside))
            return template.format(v=variable, w=some, c=draw(st.integers(1, 3)), T="T").splitlines()

        header = filled(draw(st.sampled_from(LOOPS)))[0].replace(f"min(T, {variable} + 2)", f"min(T, {around[-1]} + 2)")
        lines.append(header)
        for _ in range(draw(st.integers(1, 4))):
            lines += ["    " + line for line in filled(draw(st.sampled_from(STATEMENTS)))]
        if depth < 2 and draw(st.booleans()):
            lines += ["    " + line for line in draw(bodies(depth + 1, inside))]
            lines += ["    " + line for line in filled(draw(st.sampled_from(STATEMENTS)))]
    return lines


def text_of(lines: list[str]) -> str:
    """The composed function; an iterator among its variables hides what is to come, so it has one only where it uses one."""
    cycle = ["cycle = itertools.cycle([0, 0, 1])"] if any("cycle" in line for line in lines) else []
    return HEADER + "\n".join("    " + line for line in [*cycle, *lines]) + "\n"


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(lines=bodies(), N=st.sampled_from([20, 22, 23]))
def test_whatever_is_composed_is_counted_as_it_runs(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], N: int
) -> None:
    function = module_of(text_of(lines), tmp_path_factory.mktemp("own") / "composed.py").composed
    problem = N, 2, blocks_of(N, 3, 3)
    assert counted(function, *problem) == executed(function, *problem)
