"""All algorithms are exact, count what theory says, and are written as the paper prints them."""

import ast
import inspect
import pickle
import pkgutil
import re
import sys
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import (
    BACKWARD,
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
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.reference import (
    attention,
    attention_with_statistics,
    error_bound,
    rounding,
    score_reach,
)
from flashsim.tracing.observers import InductionInvariant
from tests.helpers.cases import DTYPES, FEW, Case, cases, full_cases, of_bound, room_for
from tests.helpers.watching import watching_locals

POLICIES = ("paper", "fit", "blocks")


def arguments(case: Case, policy: str) -> dict[str, Any]:
    M = room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k)
    return (
        {"M": M, "blocks": (case.B_r, case.B_c)}
        if policy == "blocks"
        else {"M": M, "sizing": policy}
    )


@pytest.mark.parametrize(
    "parts", [("tau",), ("tau", "MASK"), ("tau", "dropout"), ("tau", "MASK", "dropout")]
)
def test_an_algorithm_is_asked_for_what_it_takes(
    parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORWARD, "flash", replace(FORWARD["flash"], parts=parts))
    case = Case("gaussian", 5, 5, 2, 2, "float64", 0, 2, 2, "causal", 0.3).for_algorithm("flash")
    assert (case.mask, case.dropout_p) == (
        "causal" if "MASK" in parts else "none",
        0.3 if "dropout" in parts else 0.0,
    )


@pytest.mark.parametrize("name", FORWARD)
@given(case=full_cases(), policy=st.sampled_from(POLICIES))
def test_exact_within_the_derived_bound_counted_and_repeatable(
    name: str, case: Case, policy: str
) -> None:
    """For every mask, with and without dropout, in every dtype. No input is touched."""
    case = case.for_algorithm(name)
    Q, K, V = case.inputs()
    options: dict[str, Any] = {**arguments(case, policy), **case.options}
    given_arrays = [array for array in (Q, K, V, options["mask"]) if isinstance(array, np.ndarray)]
    before = [array.copy() for array in given_arrays]
    try:
        run, again = (flashsim.forward(name, Q, K, V, **options) for _ in range(2))
    except ValueError as error:
        # standard attention may refuse scores that overflow the 16-bit type it would keep S in
        if (
            FORWARD[name].stores_scores
            and case.dtype == "float16"
            and "float16 ends at" in str(error)
        ):
            return
        raise
    assert run.O.dtype == Q.dtype
    assert run.O.shape == (case.N_q, case.d_v)
    bound = error_bound(Q, K, V, **rounding(name, run.blocks), **case.oracle)
    assert of_bound(run.O, attention(Q, K, V, **case.oracle), bound) <= 1
    asked: dict[str, Any] = {**case.shape, **arguments(case, policy), "dtype": case.dtype}
    tally = flashsim.count(name, **asked, mask=case.masked()[0], dropout_p=case.dropout_p)
    assert (run.hbm, run.sram, run.blocks) == (tally.hbm, tally.sram, tally.blocks)
    assert np.array_equal(run.O, again.O)
    assert run.hbm == again.hbm
    for array, kept in zip(given_arrays, before, strict=True):
        assert np.array_equal(array, kept)


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in FORWARD), ("split_kv", {"merge": "tree"})]
)
@given(case=full_cases(dtypes=("float64",)))
def test_every_algorithm_has_a_log_sum_exp(name: str, options: dict[str, Any], case: Case) -> None:
    case = case.for_algorithm(name)
    Q, K, V = case.inputs()
    run = flashsim.forward(name, Q, K, V, **arguments(case, "blocks"), **case.options, **options)
    want = attention_with_statistics(Q, K, V, **case.oracle)
    assert run.lse is not None
    assert np.array_equal(np.isneginf(run.lse), want.l == 0)
    rows = want.l > 0
    reach = score_reach(Q, K, scale=run.problem.scale, mask=case.oracle["mask"])[:, 0][rows]
    off = (
        4
        * ((2 * case.d + 2 * run.blocks.T_c + 12) * (reach + 1) + case.N_k + 8 * run.blocks.T_c + 8)
        * 2**-53
    )
    assert (np.abs(run.lse[rows] - want.m[rows] - np.log(want.l[rows])) <= off).all()


def test_the_paper_s_numbers_for_one_shape() -> None:
    """Derived by hand for N = 1024, d = 64, M = 25,600: B_c = 100, B_r = 64, T_c = 11."""
    N = 1024
    d = 64
    T_c = 11
    tally = flashsim.count("flash_basic", N=N, d=d, M=25_600, sizing="paper")
    assert tally.blocks == Blocks(64, 100, N_q=1024, N_k=1024)
    assert tally.hbm.reads == 2 * N * d + T_c * (2 * N * d + 2 * N) == 1_595_392
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
    run = flashsim.forward("flash_basic", Q, K, V, **arguments(case, "blocks"), observers=[steps])
    assert [step.j for step in steps.steps] == list(range(run.blocks.T_c))
    assert [step.keys for step in steps.steps] == [
        min((j + 1) * run.blocks.B_c, case.N_k) for j in range(run.blocks.T_c)
    ]


def test_scale_multiplies_the_scores() -> None:
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(20, 4)) for _ in range(3))
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
    assert {
        a.itemsize for a in flashsim.forward("standard", x, x, x, M=64).hbm.by_array.values()
    } == {2}


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
    shape: dict[str, Any] = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v}
    with pytest.raises(ValueError, match="at least M = ") as caught:
        flashsim.count(name, **shape, M=1, sizing="fit")
    found = re.search(r"at least M = ([\d,]+)", str(caught.value))
    assert found
    least = int(found[1].replace(",", ""))
    assert flashsim.count(name, **shape, M=least, sizing="fit").sram.peak <= least
    if least > 1:
        with pytest.raises(ValueError, match="too small"):
            flashsim.count(name, **shape, M=least - 1, sizing="fit")
    fit = flashsim.count(name, **shape, M=least + extra, sizing="fit")
    assert fit.sram.enforced
    assert fit.sram.peak <= least + extra
    assert fit.blocks == theory.exact(name, **shape, M=least + extra, sizing="fit").blocks


def test_paper_sizing_reports_a_peak_above_m_and_blocks_enforce_it() -> None:
    tally = flashsim.count("flash_basic", N=1024, d=64, M=25_600, sizing="paper")
    assert tally.sram.peak == 27_776 > tally.sram.capacity
    with pytest.raises(flashsim.SramOverflow, match="too many"):
        flashsim.count("flash_basic", N=1024, d=64, M=25_600, blocks=(64, 100))


# --------------------------------------------------------------------------- the code as it is read


ALL = [*FORWARD.values(), *BACKWARD.values()]
FILES = [
    module
    for file in pkgutil.iter_modules(flashsim.algorithms.__path__)
    if "sram.loop("
    in inspect.getsource(module := import_module(f"flashsim.algorithms.{file.name}"))
]
NUMBERED = [
    module for module in FILES if re.search(r"^    1  ", module.__doc__ or "", re.MULTILINE)
]
OTHER_LABELS = {  # the paper has no listing of them
    "appendix_b_memory_efficient": "equation [12]",
    "appendix_b_memory_efficient_backward": "equation [3-6]",
    "appendix_b_rabe_staats": "summarise|combine",
    "appendix_b_rabe_staats_backward": "recompute|differentiate",
    "softmax_rows": "line [23]",  # of Algorithms 0 and 3
    "split_kv_merge": "line 22",  # of split_kv
}


def name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def test_every_file_is_known_by_its_record_or_its_labels() -> None:
    recorded = {algorithm.run.__module__ for algorithm in ALL}
    assert recorded <= {module.__name__ for module in FILES}
    assert {name_of(module) for module in FILES} == {name_of(module) for module in NUMBERED} | set(
        OTHER_LABELS
    )
    for algorithm in ALL:
        assert sys.modules[algorithm.home].ALGORITHM is algorithm
        assert pickle.loads(pickle.dumps(algorithm)) is algorithm


@pytest.mark.parametrize("module", NUMBERED, ids=name_of)
def test_labels_run_from_1_to_n_in_order(module: ModuleType) -> None:
    printed = [int(n) for n in re.findall(r"^    (\d+)  ?", module.__doc__ or "", re.MULTILINE)]
    labels = [int(n) for n in re.findall(r"# line (\d+)", inspect.getsource(module))]
    assert printed == list(range(1, printed[-1] + 1))
    assert sorted(set(labels)) == printed
    assert labels == sorted(labels)


@pytest.mark.parametrize("module", FILES, ids=name_of)
def test_every_line_that_touches_the_memory_is_labelled(module: ModuleType) -> None:
    pattern = rf"# ({OTHER_LABELS.get(name_of(module), 'line [0-9]+')})\b"
    lines = inspect.getsource(module).splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Call) and re.fullmatch(
            r"sram\.(load|store|loop)|on_chip", ast.unparse(node.func)
        ):
            assert re.search(pattern, lines[node.lineno - 1]), (
                f"{module.__name__}, line {node.lineno}"
            )


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
        (function,) = on_the_memory(module)
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


def on_the_memory(module: ModuleType) -> list[ast.FunctionDef]:
    """Return the functions of an algorithm's file that run on the memory: those that take
    `sram`.
    """
    functions = [
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.FunctionDef)
    ]
    return [function for function in functions if "sram" in [a.arg for a in function.args.args]]


def probes_and_flags(function: ast.FunctionDef) -> list[str]:
    """Return what an algorithm must not hold: branches, and calls that look at or into the
    memory.
    """
    return [
        ast.unparse(node)
        for node in ast.walk(function)
        if isinstance(node, ast.If | ast.IfExp | ast.Match | ast.Try)
        or (
            isinstance(node, ast.Attribute)
            and node.attr in ("peek", "traffic", "reads", "writes", "peak", "observers")
        )
        or (isinstance(node, ast.Name) and node.id == "print")
    ]


@pytest.mark.parametrize("module", FILES, ids=name_of)
def test_algorithms_have_no_probes_and_no_flags(module: ModuleType) -> None:
    assert on_the_memory(module)
    for function in on_the_memory(module):
        assert probes_and_flags(function) == []


def test_probes_and_flags_would_be_seen() -> None:
    for line in (
        "if causal: pass",
        "print(S)",
        "S = Q if flag else K",
        "sram.peak",
        "Q.hbm.peek('S')",
    ):
        (function,) = ast.parse(f"def f(sram, Q, K):\n    {line}").body
        assert isinstance(function, ast.FunctionDef)
        assert probes_and_flags(function)


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize(("M", "dropout_p"), [(40, 0.0), (10**4, 0.3)])
def test_no_local_array_escapes_registration(name: str, M: int, dropout_p: float) -> None:
    """With a dense mask and dropout, which bring tiles of their own, and backward, too."""
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(5, 4))
    K = rng.normal(size=(17, 4))
    V = rng.normal(size=(17, 4))
    options: dict[str, Any] = {"M": M, "sizing": "paper"}
    if "MASK" in FORWARD[name].parts and dropout_p:
        options["mask"] = rng.random((5, 17)) < 0.6
    if "dropout" in FORWARD[name].parts:
        options["dropout_p"] = dropout_p
    escaped: list[str] = []
    with watching_locals(escaped):
        run = flashsim.forward(name, Q, K, V, **options)
        if name in BACKWARD:
            flashsim.backward(name, run, rng.normal(size=(5, 4)))
    assert escaped == []


def test_that_watch_does_see_an_escape() -> None:
    source = "def leaky(sram, Q):\n    Q_i = sram.load(Q[0])\n    S = Q_i + 1\n    return S\n"
    scope: dict[str, Any] = {}
    exec(compile(source, "flashsim/algorithms/leaky.py", "exec"), scope)
    hbm = HBM()
    Q: Matrix = hbm.place("Q", np.ones((2, 2)))
    escaped: list[str] = []
    with watching_locals(escaped):
        scope["leaky"](SRAM(hbm, 100), Q)
    assert escaped == ["S at line 4", "S at line 4"]


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
    usual = replace(FORWARD["flash"], run=lambda *given: (), operands=(), parts=())
    assert (usual.operands, usual.parts) == (OPERANDS, PARTS)
