"""Attention's algorithms: what is the paper's own. What each must satisfy is in tests/contract."""

import ast
import inspect
import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import (
    FORWARD,
    algorithm_2_flash,
    algorithm_4_flash_backward,
    algorithm_5_block_sparse,
    algorithm_5_block_sparse_backward,
    appendix_b_memory_efficient,
    appendix_b_memory_efficient_backward,
)
from flashsim.algorithms.notation import gated
from flashsim.algorithms.record import OPERANDS, PARTS
from flashsim.attention.shapes import Blocks
from flashsim.reference import (
    attention,
    error_bound,
    rounding,
)
from flashsim.tracing.observers import InductionInvariant
from tests.contract.sources import on_the_memory, tree_of
from tests.helpers.cases import DTYPES, FEW, Arguments, Case, cases, of_bound, room_for


def in_its_blocks(case: Case) -> dict[str, Any]:
    M = room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k)
    return {"M": M, "blocks": (case.B_r, case.B_c)}


@pytest.mark.parametrize(
    "parts", [("tau",), ("tau", "MASK"), ("tau", "dropout"), ("tau", "MASK", "dropout")]
)
def test_an_algorithm_is_asked_for_what_it_takes(
    parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORWARD, "flash", replace(FORWARD["flash"], parts=parts))
    case = Case("gaussian", 5, 5, 2, 2, "float64", 0, 2, 2, "causal", 0.3)
    case = case.for_algorithm("flash")
    assert (case.mask, case.dropout_p) == (
        "causal" if "MASK" in parts else "none",
        0.3 if "dropout" in parts else 0.0,
    )


def test_the_paper_s_numbers_for_one_shape() -> None:
    """Derived by hand for N = 1024, d = 64, M = 25,600: B_c = 100, B_r = 64, T_c = 11."""
    N = 1024
    d = 64
    T_c = 11
    tally = flashsim.count("flash_basic", N=N, d=d, M=25_600, sizing="paper")
    assert tally.blocks == Blocks(64, 100, N_q=1024, N_k=1024)
    one_pass = 2 * N * d + 2 * N
    assert tally.hbm.reads == 2 * N * d + T_c * one_pass == 1_595_392
    assert tally.hbm.init_writes == N * d + 2 * N == 67_584
    assert tally.hbm.writes == 67_584 + T_c * (N * d + 2 * N) == 811_008
    assert tally.hbm.extra == 2 * N
    standard = flashsim.count("standard", N=N, d=d, M=10**7, sizing="paper")
    assert (
        (standard.hbm.reads, standard.hbm.writes)
        == theory.proof_accounting(N, d)
        == (2_293_760, 2_162_688)
    )


@given(case=cases(dtypes=("float64", "float32")))
def test_the_induction_holds_after_every_outer_step(case: Case) -> None:
    steps = InductionInvariant()
    Q, K, V = case.inputs()
    options = in_its_blocks(case)
    run = flashsim.forward("flash_basic", Q, K, V, **options, observers=[steps])
    B_c = run.blocks.B_c
    T_c = run.blocks.T_c
    assert [step.j for step in steps.steps] == list(range(T_c))
    assert [step.keys for step in steps.steps] == [min((j + 1) * B_c, case.N_k) for j in range(T_c)]


def test_scale_multiplies_the_scores() -> None:
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(3, 20, 4))
    for name in FORWARD:
        for scale in (None, 0.3, -1.0, 0.0, 2):
            run = flashsim.forward(name, Q, K, V, M=128, scale=scale)
            assert run.problem.scale == (0.5 if scale is None else scale)
            bound = error_bound(Q, K, V, scale=scale, **rounding(name, run.blocks))
            assert of_bound(run.O, attention(Q, K, V, scale=scale), bound) <= 1


def test_default_m_is_100_kb_of_the_dtype() -> None:
    for name, dtype in DTYPES.items():
        x = np.ones((5, 2), dtype)
        assert flashsim.forward("flash_basic", x, x, x).sram.capacity == 102_400 // dtype.itemsize
        assert (
            flashsim.count("flash_basic", N=5, d=2, dtype=name).sram.capacity
            == 102_400 // dtype.itemsize
        )


def test_bytes_count_each_array_at_its_own_item_size() -> None:
    x = np.ones((8, 4), np.float16)
    arrays = flashsim.forward("flash_basic", x, x, x, M=64).hbm.by_array
    assert {name: a.itemsize for name, a in arrays.items()} == {
        "Q": 2,
        "K": 2,
        "V": 2,
        "O": 2,
        "l": 4,
        "m": 4,
    }
    arrays = flashsim.forward("standard", x, x, x, M=64).hbm.by_array
    assert {array.itemsize for array in arrays.values()} == {2}


@given(
    N_q=st.integers(1, 30),
    N_k=st.integers(1, 30),
    d=st.integers(1, 9),
    d_v=st.integers(1, 9),
    extra=st.integers(0, 500),
)
@FEW
@pytest.mark.parametrize("name", FORWARD)
def test_fit_is_the_largest_that_fits_and_its_least_m_is_the_least(
    name: str, N_q: int, N_k: int, d: int, d_v: int, extra: int
) -> None:
    shape: Arguments = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v}
    with pytest.raises(ValueError, match="at least M = ") as caught:
        flashsim.count(name, **shape, M=1, sizing="fit")
    result = re.search(r"at least M = ([\d,]+)", str(caught.value))
    assert result
    least = int(result[1].replace(",", ""))
    assert flashsim.count(name, **shape, M=least, sizing="fit").sram.peak <= least
    if least > 1:
        with pytest.raises(ValueError, match="too small"):
            flashsim.count(name, **shape, M=least - 1, sizing="fit")
    M = least + extra
    fit = flashsim.count(name, **shape, M=M, sizing="fit")
    assert fit.sram.enforced
    assert fit.sram.peak <= M
    assert fit.blocks == theory.exact(name, **shape, M=M, sizing="fit").blocks


def test_paper_sizing_reports_a_peak_above_m_and_blocks_enforce_it() -> None:
    tally = flashsim.count("flash_basic", N=1024, d=64, M=25_600, sizing="paper")
    assert tally.sram.peak == 27_776 > tally.sram.capacity
    with pytest.raises(flashsim.SramOverflow, match="too many"):
        flashsim.count("flash_basic", N=1024, d=64, M=25_600, blocks=(64, 100))


# --------------------------------------------------------------------------- the code as it is read


@pytest.mark.parametrize(
    ("module", "numbers"),
    [(appendix_b_memory_efficient, "12"), (appendix_b_memory_efficient_backward, "3456")],
    ids=["forward", "backward"],
)
def test_equations_are_labelled_in_order(module: ModuleType, numbers: str) -> None:
    labels = re.findall(r"# equation (\d)", inspect.getsource(module))
    assert "".join(sorted(set(labels))) == numbers
    assert labels == sorted(labels)
    assert "".join(re.findall(r"^    \((\d)\)", module.__doc__ or "", re.MULTILINE)) == numbers


def test_algorithm_5_is_algorithm_4_with_a_skip() -> None:
    """Statement for statement, but for `where=` and what brings the block mask."""

    def statements(module: ModuleType) -> str:
        """Return the function's statements, from `on_chip =` on, as Python prints them."""
        (function,) = on_the_memory(tree_of(module))
        text = ast.unparse(function)
        return text[text.index("    on_chip = ") :]

    for plain, sparse in (
        (algorithm_2_flash, algorithm_5_block_sparse),
        (algorithm_4_flash_backward, algorithm_5_block_sparse_backward),
    ):
        text = statements(sparse)
        for skip in (", alike=block_mask.alike", ", where=block_mask.column(j)"):
            assert text.count(skip) == 1
            text = text.replace(skip, "")
        assert text == statements(plain)


def test_what_weighs_nothing_gives_nothing() -> None:
    """`gated` where P is 0, be the other factor NaN or infinite; where P is not, they show."""
    P = np.array([[0.0, 0.0, 0.5, 0.5]], np.float32)
    X = np.array([[np.nan, -np.inf, 4.0, np.inf]], np.float32)
    with np.errstate(invalid="ignore"):
        assert gated(P, X).tolist() == [[0.0, 0.0, 2.0, np.inf]]
        assert gated(P, X).dtype == np.float32


def test_logarithms_are_rounded_twice_for_each_block_of_keys() -> None:
    assert FORWARD["memory_efficient"].rounds_logs(5) == 10


def test_policies_without_parameters_are_equal() -> None:
    assert flashsim.Fit() == flashsim.Fit()
    assert hash(flashsim.Paper()) == hash(flashsim.Paper())


def test_a_function_whose_parameters_say_nothing_takes_what_is_usual() -> None:
    usual = replace(FORWARD["flash"], run=lambda *inputs: (), operands=(), parts=())
    assert (usual.operands, usual.parts) == (OPERANDS, PARTS)
