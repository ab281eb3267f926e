"""A run says what it costs by formula, `plan.exact()`, whatever kind of program ran: it is what was
counted.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms.program import MatrixProgram
from flashsim.attention.matrices import Kind
from flashsim.simulate.matrices import run_program
from flashsim.simulate.results import Result
from flashsim.theory import NoClosedForm, matrices
from flashsim.theory.matrices import MatrixForm
from tests.contract.attention import arguments_of_count
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
    with pytest.raises(NoClosedForm, match="no closed form of 'thrice'"):
        run.plan.exact()


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
