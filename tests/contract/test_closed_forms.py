"""A run says what it costs by formula, `plan.exact()`, whatever kind of program ran: it is what was
counted.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashsim
from flashsim import serving, theory
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms.program import MatrixProgram
from flashsim.attention.matrices import Kind
from flashsim.simulate.matrices import count_program, run_program
from flashsim.simulate.results import Result
from flashsim.theory import NoClosedForm, matrices
from flashsim.theory.matrices import MatrixForm, exact_program
from tests.contract.attention import arguments_of_count
from tests.helpers import own
from tests.helpers.cases import count_equals_theory, same

ids_of_passes = {
    f"{algorithm.name}, {algorithm.direction}": algorithm
    for algorithm in (*FORWARD.values(), *BACKWARD.values())
}
each_pass = pytest.mark.parametrize("algorithm", [*ids_of_passes.values()], ids=[*ids_of_passes])


def check(result: Result) -> None:
    exact = result.plan.exact()
    assert exact.hbm == result.hbm
    assert exact.sram == result.sram
    assert exact.blocks == result.blocks
    if exact.matmul is not None and result.operations is not None:
        assert exact.matmul == result.operations.matmul


def test_attention_with_arrays() -> None:
    Q = np.random.default_rng(0).normal(size=(4, 13, 4))
    run = flashsim.forward("flash", Q, Q[:2], Q[:2], M=150, causal=True)
    check(run)
    check(flashsim.backward("flash", run, Q))


@each_pass
@settings(max_examples=20)  # a mistake in a rare mask shows in few
@given(data=st.data())
def test_a_count_is_the_form_s_or_both_refuse(algorithm: Algorithm, data: st.DataObject) -> None:
    count_equals_theory(algorithm, data.draw(arguments_of_count(algorithm)))


SIZES = [
    (1, 1, 1),
    (1, 64, 64),
    (97, 5, 24),
    (2**16 + 1, 64, 25_600),
    (2**14, 128, 116_736),
    (4097, 257, 300),
]


@each_pass
def test_large_and_small_sizes(algorithm: Algorithm) -> None:
    name = algorithm.name
    for N, d, M in SIZES:
        how: dict[str, Any] = {"N": N, "d": d, "M": M, "direction": algorithm.direction}
        same(flashsim.count(name, **how, sizing="paper"), theory.exact(name, **how, sizing="paper"))
        if not theory.exact(name, **how).sram.over:
            same(flashsim.count(name, **how), theory.exact(name, **how))


def test_no_closed_form_is_said() -> None:
    Q = np.random.default_rng(0).normal(size=(2, 5, 4))
    offsets = flashsim.Causal(offset=(0, 1))
    run = flashsim.forward("flash", Q, Q, Q, M=150, mask=offsets)
    with pytest.raises(NoClosedForm, match="of each head its own"):
        run.plan.exact()


def twice(hbm: Any, sram: Any, A: Any, blocks: Any) -> Any:
    B = hbm.empty("B", A.shape, A.dtype, "output")
    A, B = A.divide(blocks.B_r), B.divide(blocks.B_r)
    for i in sram.loop(len(A)):
        A_i = sram.load(A[i])
        sram.store(B[i], sram.on_chip(2 * A_i, over=A_i))
    return B


TWICE = MatrixProgram(
    name="twice",
    title="Twice",
    run=twice,
    operands={"A": Kind("N", "d")},
    returns={"B": Kind("N", "d")},
    blocks={"B_r": "N"},
)
FORM = MatrixForm(
    name="twice",
    blocks={"B_r": "N"},
    arrays={"A": matrices.given("N", "d"), "B": matrices.returned("N", "d")},
    peak=lambda p, b, options: b.B_r * p.d,
    matmul=lambda p, b, options: 0,
)


def test_a_closed_form_of_the_users_own_stands_beside_its_program() -> None:
    check(run_program(TWICE, {"A": np.ones((7, 3))}, M=30, blocks=(2,)))
    other = replace(TWICE, name="thrice", run=lambda *arguments: twice(*arguments))
    run = run_program(other, {"A": np.ones((7, 3))}, M=30, blocks=(2,))
    lack = "no closed form of 'thrice': its file has a MatrixForm named 'twice' (forward)"
    expected = "; expected one named 'thrice' (forward)"
    with pytest.raises(NoClosedForm, match=re.escape(lack + expected)):
        run.plan.exact()


def test_only_the_paper_s_sizes_need_rows() -> None:
    program = replace(TWICE, line_1=lambda rows, lengths: (rows,))
    form = replace(FORM, line_1=program.line_1)
    sizes = {"N": 70, "d": 3}
    theory = exact_program(form, sizes, M=30)
    tally = count_program(program, sizes, M=30)
    assert theory.blocks == tally.blocks == {"B_r": 10}
    assert theory.hbm == tally.hbm
    with pytest.raises(NoClosedForm, match="sizing is 'paper', and 'twice' has no rows"):
        exact_program(form, sizes, M=30, sizing="paper")
    with pytest.raises(NoClosedForm, match="'twice' has no line_1; expected blocks"):
        exact_program(FORM, sizes, M=30)


WRONG: dict[str, dict[str, Any]] = {
    "reads": {"arrays": {**FORM.arrays, "A": matrices.given("N", "d", reads="2")}},
    "peak": {"peak": lambda p, b, options: b.B_r * p.d + 1},
    "products": {"matmul": lambda p, b, options: 2},
}


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_a_result_says_whether_the_users_closed_form_is_right(
    wrong: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wrong is not None:
        monkeypatch.setitem(globals(), "FORM", replace(FORM, **WRONG[wrong]))
    tally = count_program(TWICE, {"N": 7, "d": 3}, M=30, blocks=(2,))
    run = run_program(TWICE, {"A": np.ones((7, 3))}, M=30, blocks=(2,))
    assert tally.equals_theory is (wrong is None)
    assert run.equals_theory is (wrong in (None, "products"))  # which a run does not count
    for result in (tally, run):
        is_marked = "NOT EQUAL TO THE CLOSED FORM" in repr(result)
        assert is_marked is not result.equals_theory
        assert is_marked is ("NOT EQUAL TO THE CLOSED FORM" in result._repr_html_())


def test_a_closed_form_that_fails_is_said_where_the_result_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "FORM", replace(FORM, peak=lambda p, b, options: b.B_c * p.d))
    tally = count_program(TWICE, {"N": 7, "d": 3}, M=30, blocks=(2,))
    assert "the closed form of 'twice' cannot be evaluated: AttributeError: " in repr(tally)
    with pytest.raises(ValueError, match="there is no size 'B_c'"):
        _ = tally.equals_theory


def test_a_result_without_a_closed_form_says_so() -> None:
    other = replace(TWICE, name="thrice", run=lambda *arguments: twice(*arguments))
    tally = count_program(other, {"N": 7, "d": 3}, M=30, blocks=(2,))
    assert tally.equals_theory is None
    assert "CLOSED FORM" not in repr(tally)


@pytest.mark.parametrize("text", ["2 * blocks.T_r", "3 * blocks.T_r"])
def test_attention_s_results_say_it_in_the_same_way(text: str, tmp_path: Path) -> None:
    module = own.module_of(
        (own.TWO_SWEEPS + own.FORM).replace("2 * blocks.T_r", text), tmp_path / "sweeps_formed.py"
    )
    function = module.two_sweeps
    function.__module__ = module.__name__
    sys.modules[module.__name__] = module
    try:
        tally = flashsim.count(function, N=50, d=8, M=500)
        assert tally.equals_theory is (text == "2 * blocks.T_r")
        assert ("NOT EQUAL TO THE CLOSED FORM" in repr(tally)) is not tally.equals_theory
    finally:
        del sys.modules[module.__name__]


def test_serving_s_and_devices_results_equal_theory() -> None:
    assert serving.count("varlen", queries=[3, 2], keys=[4, 2], d=4, M=200).equals_theory is True
    tally = flashsim.devices.count("ring", N=8, d=4, P=2, M=200)
    assert tally.equals_theory is True
    first = tally.devices[0]
    other = replace(first, hbm=tally.hbm)
    assert replace(tally, devices=[other, *tally.devices[1:]]).equals_theory is False


def test_a_program_of_the_users_own_is_traced() -> None:
    trace = flashsim.trace(TWICE, np.ones((7, 3)), M=30, blocks=(2,))
    reads = {array.name: array.reads for array in trace.about.arrays}
    assert reads == {"A": 21, "B": 0}
    with pytest.raises(
        ValueError, match="'twice' takes A; expected 1 arrays in this order, and got 2"
    ):
        flashsim.trace(TWICE, np.ones((7, 3)), np.ones((7, 3)), M=30)
    with pytest.raises(ValueError, match="expected Q, K, V, and got 2 arrays"):
        flashsim.trace("flash", np.ones((7, 3)), np.ones((7, 3)))
