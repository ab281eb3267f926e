"""`Problem`: one, checked once, for everybody who asks about it."""

from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import Problem
from flashsim.analysis.tune import tune

LENGTHS: dict[str, Any] = {
    "N_q": 9,
    "N_k": 12,
    "d": 4,
    "d_v": 3,
    "M": 300,
    "dtype": "float64",
    "causal": True,
}
HEADS: dict[str, Any] = {"heads": 4, "kv_heads": 2, "gqa": "grouped", "dropout_p": 0.25}


def test_it_asks_what_its_arguments_ask() -> None:
    of_heads = Problem.of(**LENGTHS, **HEADS)
    of_one = Problem.of(**LENGTHS)
    assert (of_heads.heads, of_heads.group, of_heads.gqa, of_heads.dropout_p) == (
        4,
        2,
        "grouped",
        0.25,
    )
    for direction in ("forward", "backward"):
        assert flashsim.count("flash", of_heads, direction=direction) == flashsim.count(
            "flash", **LENGTHS, **HEADS, direction=direction
        )
        exact = flashsim.theory.exact("flash", of_heads, direction=direction)
        assert exact == flashsim.theory.exact("flash", **LENGTHS, **HEADS, direction=direction)
        assert flashsim.prove(of_one, direction=direction) == flashsim.prove(
            **LENGTHS, direction=direction
        )
        assert tune(of_one, direction=direction) == tune(**LENGTHS, direction=direction)
    small: dict[str, Any] = {"N": 3, "d": 2, "M": 15}
    assert (
        flashsim.optimum(Problem.of(**small)).certificate()
        == flashsim.optimum(**small).certificate()
    )


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
def test_a_run_has_the_problem_that_it_was_asked(gqa: str) -> None:
    Q, K, V = (
        np.random.default_rng(0).normal(size=shape)
        for shape in ((2, 4, 9, 4), (2, 2, 12, 4), (2, 2, 12, 3))
    )
    run = flashsim.forward("flash", Q, K, V, M=300, causal=True, dropout_p=0.25, gqa=gqa)
    asked = Problem.of(**LENGTHS, heads=8, kv_heads=4, gqa=gqa, dropout_p=0.25)
    assert run.problem.heads == asked.heads
    assert flashsim.count("flash", run.problem).hbm == flashsim.count("flash", asked).hbm == run.hbm
    assert flashsim.prove(run.problem) == flashsim.prove(**LENGTHS)
    assert tune(run.problem, algorithms=[]).best == tune(**LENGTHS, dropout_p=0.25).best


def test_what_makes_no_sense_is_refused() -> None:
    one = Problem.of(N=8, d=2)
    with pytest.raises(
        ValueError,
        match=r"^N is 8, and a problem is given, which has its own; expected one of the two$",
    ):
        flashsim.count("flash", one, N=8)
    with pytest.raises(ValueError, match=r"^mask is array\(.*, and a problem is given"):
        flashsim.prove(one, mask=np.ones((8, 8), bool))
    with pytest.raises(
        ValueError,
        match=r"^problem is 8; expected a flashsim.Problem, or lengths by name: N=1024, d=64$",
    ):
        tune(8)  # type: ignore[arg-type]
    X = np.ones((2, 8, 2))
    each = flashsim.forward("flash", X, X, X, mask=np.ones((2, 8, 8), bool)).problem
    with pytest.raises(
        ValueError, match="which may differ between heads; expected one mask for all heads"
    ):
        flashsim.count("flash", each)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_sweep_takes_problems_as_its_points(direction: str) -> None:
    problems = [
        Problem.of(
            N_q=24,
            N_k=40,
            d=4,
            d_v=6,
            M=700,
            heads=4,
            kv_heads=2,
            gqa="grouped",
            causal=True,
            dtype="float16",
        ),
        Problem.of(N=32, d=8, M=900, dropout_p=0.5),
    ]
    rows = flashsim.sweep(["flash", "q_outer"], points=problems, direction=direction)
    assert rows.checked == len(rows) == 4
    for row, (problem, name) in zip(
        rows, [(p, n) for p in problems for n in ("flash", "q_outer")], strict=True
    ):
        assert (
            row["accesses_elements"]
            == flashsim.count(name, problem, direction=direction).hbm.accesses
        )
    [alone] = flashsim.sweep("flash", points=problems[1], direction=direction)
    assert alone["accesses_elements"] == rows[2]["accesses_elements"]
