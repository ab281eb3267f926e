"""`Problem`: one, checked once, for everybody who asks about it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import Problem
from flashsim.analysis.tune import tune
from flashsim.attention.matrices import MatrixProblem
from flashsim.attention.shapes import Shape, Sizes
from flashsim.serving.batch import Batch
from tests.helpers.cases import Arguments

LENGTHS: Arguments = {
    "N_q": 9,
    "N_k": 12,
    "d": 4,
    "d_v": 3,
    "M": 300,
    "dtype": "float64",
    "causal": True,
}
HEADS: Arguments = {"heads": 4, "kv_heads": 2, "gqa": "grouped", "dropout_p": 0.25}


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
    small: Arguments = {"N": 3, "d": 2, "M": 15}
    assert (
        flashsim.optimum(Problem.of(**small)).certificate()
        == flashsim.optimum(**small).certificate()
    )


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
def test_a_run_has_the_problem_that_it_was_asked(gqa: str) -> None:
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 4, 9, 4))
    K = rng.normal(size=(2, 2, 12, 4))
    V = rng.normal(size=(2, 2, 12, 3))
    how: Arguments = {"gqa": gqa, "dropout_p": 0.25}
    run = flashsim.forward("flash", Q, K, V, M=300, causal=True, **how)
    options = Problem.of(**LENGTHS, heads=8, kv_heads=4, **how)
    assert run.problem.heads == options.heads
    assert flashsim.count("flash", run.problem).hbm == run.hbm
    assert flashsim.count("flash", options).hbm == run.hbm
    assert flashsim.prove(run.problem) == flashsim.prove(**LENGTHS)
    tuned = tune(run.problem, algorithms=[])
    assert tuned.best == tune(**LENGTHS, dropout_p=0.25).best


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
    by_head = np.ones((2, 8, 8), bool)
    each = flashsim.forward("flash", X, X, X, mask=by_head).problem
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


GOOD: Arguments = {"shape": Shape(9, 12, 4, 3), "dtype": np.dtype("float32"), "M": 300}
OF_HEADS: Arguments = {**GOOD, "scale": 0.5, "leading": (2, 4), "group": 2}
SEQUENCES: Arguments = {
    "queries": (3, 0),
    "keys": (5, 2),
    "heads": 4,
    "kv_heads": 2,
    "d": 4,
    "d_v": 3,
    "dtype": "float16",
    "M": "1KB",
    "tau": None,
    "causal": np.True_,
}
FIELDS = [
    (Problem, OF_HEADS, "M", 0, "M is 0; expected at least 1"),
    (Problem, OF_HEADS, "M", "a lot", "M: "),
    (Problem, OF_HEADS, "dtype", "int8", "dtype int8 is not supported"),
    (Problem, OF_HEADS, "shape", Shape(9, 0, 4, 3), "N_k is 0; expected a whole number"),
    (Problem, OF_HEADS, "shape", Shape(9.5, 12, 4, 3), "N_q is 9.5; expected a whole"),  # type: ignore[arg-type]
    (Problem, OF_HEADS, "shape", (9, 12, 4, 3), "expected a Shape"),
    (Problem, OF_HEADS, "leading", (2, 0), r"leading\[1\] is 0"),
    (Problem, OF_HEADS, "group", 3, "group is 3; expected a divisor of 4 query heads"),
    (Problem, OF_HEADS, "group", 0, "group is 0; expected a whole number"),
    (
        Problem,
        GOOD | {"scale": None},
        "group",
        2,
        "group is 2; expected a divisor of 1 query heads",
    ),
    (Problem, OF_HEADS, "scale", float("nan"), "scale is nan"),
    (Problem, OF_HEADS, "dropout_p", 1.0, "dropout_p is 1.0"),
    (Problem, OF_HEADS, "seed", -1, "seed is -1"),
    (Problem, OF_HEADS, "gqa", "shared", "gqa is 'shared'"),
    (Problem, OF_HEADS, "mask", "causal", "mask is 'causal'; expected a mask object"),
    (MatrixProblem, {"lengths": Sizes(N=3), "dtype": "float32", "M": 9}, "M", -1, "M is -1"),
    (
        MatrixProblem,
        {"lengths": Sizes(N=3), "dtype": "float32", "M": 9},
        "lengths",
        Sizes(N=0),
        "N is 0",
    ),
    (Batch, SEQUENCES, "M", 2.5, "M is 2.5"),
    (Batch, SEQUENCES, "queries", (3, -1), r"queries\[1\] is -1"),
    (Batch, SEQUENCES, "keys", (5,), "queries has 2 lengths; expected 1"),
    (Batch, SEQUENCES, "kv_heads", 3, "heads is 4; expected a multiple of kv_heads = 3"),
    (Batch, SEQUENCES, "d", 0, "d is 0"),
    (Batch, SEQUENCES, "d_v", "3", "d_v is '3'"),
    (Batch, SEQUENCES, "tau", float("inf"), "scale is inf"),
    (Batch, SEQUENCES, "causal", 1, "causal is 1; expected True or False"),
    (Batch, SEQUENCES, "B_r", 0, "B_r is 0"),
]


@pytest.mark.parametrize(("kind", "fields", "name", "value", "message"), FIELDS)
def test_a_problem_checks_itself_when_it_is_made(
    kind: Any, fields: dict[str, Any], name: str, value: Any, message: str
) -> None:
    problem = kind(**fields)
    with pytest.raises(ValueError, match=message):
        kind(**{**fields, name: value})
    with pytest.raises(ValueError, match=message):
        replace(problem, **{name: value})


def test_a_problem_keeps_its_fields_in_one_form() -> None:
    batch = Batch(**SEQUENCES)
    assert batch.M == 512
    assert batch.dtype == np.dtype("float16")
    assert batch.tau == 0.5
    assert batch.causal is True
    fields = OF_HEADS | {"seed": np.int64(3)}
    seed = Problem(**fields).seed
    assert (type(seed), seed) == (int, 3)
    assert batch.with_memory(None) is batch
    assert batch.with_memory("2KB").M == 1024
    with pytest.raises(ValueError, match="M is 0"):
        batch.with_memory(0)
