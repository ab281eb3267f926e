"""Bad input gets an error that names the argument, the value and what was expected; finite input never gives NaN."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import FORWARD

X = np.ones((6, 4))


def bad(message: str, *qkv: Any, name: str = "flash_basic", **options: Any) -> None:
    with pytest.raises(ValueError, match=message):
        flashsim.forward(name, *qkv, **options)


def test_unknown_algorithm_lists_the_known() -> None:
    for call in (
        lambda: flashsim.forward("flsh", X, X, X),
        lambda: flashsim.count("flsh", N=4, d=2),
        lambda: theory.exact("flsh", N=4, d=2),
    ):
        with pytest.raises(ValueError, match=r"'flsh'.*'standard', 'flash_basic'"):
            call()


def test_ranks_and_shapes_that_disagree_name_both() -> None:
    bad(r"Q has shape \(6,\); expected \(\.\.\., N, d\)", X[:, 0], X, X)
    bad(r"Q has shape \(6, 4\) and K has shape \(6, 3\).*last axis, d", X, X[:, :3], X)
    bad(r"K has shape \(6, 4\) and V has shape \(5, 4\).*N_k", X, X, X[:5])
    bad(r"Q has shape \(2, 6, 4\) and V has shape \(6, 4\); leading axes", np.ones((2, 6, 4)), np.ones((2, 6, 4)), X)
    bad(r"leading axes must be equal", np.ones((2, 6, 4)), np.ones((1, 6, 4)), np.ones((1, 6, 4)))


@pytest.mark.parametrize("shape", [(0, 4), (6, 0), (0, 6, 4)])
def test_empty_axes(shape: tuple[int, ...]) -> None:
    bad(rf"Q has shape {re.escape(str(shape))}; every axis must be at least 1", np.ones(shape), X, X)
    bad("K has shape", X, np.ones(shape), X)


@pytest.mark.parametrize("dtype", [np.int64, np.complex128, bool, np.longdouble, object])
def test_dtypes(dtype: Any) -> None:
    bad(r"V has dtype .*; expected one of float16, bfloat16, float32, float64", X, X, X.astype(dtype))


def test_mixed_dtypes_name_both() -> None:
    bad("Q has dtype float64 and K has dtype float32", X, X.astype(np.float32), X)


def test_lists_are_taken() -> None:
    assert flashsim.forward("flash_basic", [[1.0]], [[2.0]], [[3.0]]).O.tolist() == [[3.0]]
    bad("Q has dtype int64", [[1]], [[2.0]], [[3.0]])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", range(3))
def test_non_finite_input_names_the_first_index(value: float, position: int) -> None:
    arrays = [np.ones((2, 6, 4)) for _ in range(3)]
    arrays[position][1, 3, 2] = arrays[position][1, 5, 0] = value
    bad(rf"{'QKV'[position]}\[1, 3, 2\] is {value}; expected finite.*check_finite=False", *arrays)


def test_check_finite_can_be_turned_off() -> None:
    V = X.copy()
    V[3, 1] = np.nan
    O = flashsim.forward("flash_basic", X, X, V, check_finite=False).O
    assert np.isnan(O[:, 1]).all()
    assert np.isfinite(O[:, 0]).all()


@pytest.mark.parametrize("M", [0, -5, 2.5, True, "100KB"])
def test_m_must_be_a_whole_number_of_elements(M: Any) -> None:
    bad(rf"M is {M!r}; expected (a whole number|at least 1)", X, X, X, M=M)


def test_m_below_the_least_possible_says_the_least() -> None:
    bad("M = 3 elements is too small.*at least 4", X, X, X, M=3)
    bad("M = 3 elements is too small.*needs at least M = 23", X, X, X, M=3, sizing="fit")
    assert flashsim.forward("flash_basic", X, X, X, M=23, sizing="fit").sram.peak == 23


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ((0, 4), "B_r.* is 0; expected at least 1"),
        ((4, -1), "B_c.* is -1"),
        ((4,), r"expected a pair \(B_r, B_c\)"),
        (4, "expected a pair"),
        ((1.5, 2), "whole number"),
    ],
)
def test_blocks(blocks: Any, message: str) -> None:
    bad(message, X, X, X, blocks=blocks)


def test_blocks_that_do_not_fit_overflow() -> None:
    with pytest.raises(flashsim.SramOverflow, match="too many"):
        flashsim.forward("flash_basic", X, X, X, M=24, blocks=(6, 6))


def test_sizing_and_scale() -> None:
    bad("unknown sizing 'best'; known: 'paper', 'fit'", X, X, X, sizing="best")
    for scale in (np.nan, np.inf, "1", 1j, True):
        bad("scale is .*; expected a finite number", X, X, X, scale=scale)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"N": 4}, "missing|d"),
        ({"d": 4}, "a length is missing: give N, or both N_q and N_k"),
        ({"N": 0, "d": 4}, "N is 0; expected at least 1"),
        ({"N": 4, "d": 4, "heads": 0}, "heads is 0"),
        ({"N": 4, "d": 4, "dtype": "int8"}, "dtype int8 is not supported"),
        ({"N": 4, "d": 4, "dtype": "float7"}, "dtype 'float7' is not known"),
        ({"N": 4.0, "d": 4}, "N is 4.0; expected a whole number"),
    ],
)
def test_count_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        flashsim.count("flash_basic", **options)


@pytest.mark.parametrize("name", FORWARD)
def test_finite_input_never_gives_nan(name: str) -> None:
    """Inputs near the end of the range are refused with a reason, or computed; none comes out as NaN."""
    refusals = []
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        top = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        kinds = ((top, top, 1), (1, 1, top), (top, 0, top), (top**0.5, top**0.49, 1), (0, 0, 0), (1e-4, 1e-4, 1))
        for q, k, v in kinds:
            Q, K, V = (np.full((5, 3), x).astype(dtype) for x in (q, k, v))
            K[::2] *= dtype(-1)
            try:
                O = flashsim.forward(name, Q, K, V, scale=1.0).O
            except ValueError as error:
                refusals.append(str(error))
            else:
                assert np.isfinite(O.astype(np.float64)).all()
    assert len(refusals) >= 8
    assert all(re.search(r"too large.*ends at", refusal) for refusal in refusals)


def test_standard_attention_refuses_scores_that_overflow_what_s_is_kept_in() -> None:
    Q = np.full((4, 4), 200, np.float16)
    bad("scores could reach .*float16 ends at 6.55e.04", Q, Q, Q, name="standard", scale=1.0)
    assert np.isfinite(flashsim.forward("flash_basic", Q, Q, Q, scale=1.0).O).all()


def test_importing_flashsim_is_quick_to_do() -> None:
    """Plotting, tables and optional packages are only imported when used."""
    heavy = ("matplotlib", "rich", "ml_dtypes", "safetensors", "threadpoolctl", "cupy", "torch")
    code = f"import sys, flashsim; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
