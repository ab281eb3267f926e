"""Counts of one's own algorithms equal an executed run by `==`: what is counted in one go was shown to be alike."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flashsim
from flashsim.machine import state, turns
from flashsim.machine.memory import HBM, SRAM, Event, Matrix
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


Outcome = tuple[Any, int] | tuple[type, str]


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
    function: Callable[..., Any], N: int, d: int, blocks: Blocks, observers: Sequence[Any] = (), divide: bool = True
) -> tuple[HBM, SRAM]:
    def run(watch: Watch, observers: Sequence[Any]) -> tuple[HBM, SRAM]:
        hbm = HBM(arithmetic=False)
        sram = SRAM(hbm, M, watch=watch, observers=observers)
        watch.call(function, hbm, sram, *placed(hbm, N, d, blocks, divide), blocks)
        return hbm, sram

    return count_alike(run, observers)


def counted(function: Callable[..., Any], *problem: Any, divide: bool = True) -> Any:
    try:
        hbm, sram = memories(function, *problem, divide=divide)
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
