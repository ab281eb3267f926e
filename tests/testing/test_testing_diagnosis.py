"""Diagnosis: a kernel with a known bug is told by its numbers, one with an unknown bug is not
accused of a known one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from flashsim.attention.inputs import Array
from flashsim.testing import check_attention
from flashsim.testing.bug_models import BugModel, Inputs, models_for
from flashsim.testing.case import Case
from flashsim.testing.checks import CHECKS
from flashsim.testing.diagnosis import Suspicion, diagnose
from flashsim.testing.diagnosis.kernel_results import kernel_results
from flashsim.testing.kernel import Kernel
from flashsim.testing.mutants import ALL
from flashsim.testing.problem import Problem
from flashsim.testing.spec import Spec
from flashsim.testing.survey import Finding, survey, try_check

SPEC = Spec(
    dtypes=("float32", "float16"),
    block=(8, 4),
    causal="bottom_right",
    lse="natural",
    gqa=True,
    masks=True,
    scale=True,
    d_v=True,
    strides="last_contiguous",
)
MODELS = models_for(SPEC)
FAMILIES = {
    family: [s for s in MODELS if s.family == family]
    for family in dict.fromkeys(s.family for s in MODELS)
}
IN_EMPTY_ROWS = {"lse_of_empty_row", "empty_row_nan", "empty_row_mean", "sentinel"}
# what the spec, or the kernel, says; told in other tests
RIGHT_HERE = {"empty_row_zero", "lse_of_empty_row_finite"}
ELSEWHERE = {f for f in FAMILIES if f.startswith(("window_", "bias_"))}  # test_testing_words.py
TOO_SMALL = {"output_in_16_bits"}  # an error that mostly stays within the budget
Answer = tuple[Array, Array]  # O and its log-sum-exp


def keep(shape: tuple[int, ...], dropout_p: float, seed: int) -> Array:
    return np.random.default_rng(seed).random(shape) >= dropout_p


def problem_of(
    q: Array, k: Array, v: Array, options: dict[str, Any], spec: Spec
) -> tuple[Problem, Array | None]:
    problem = Problem(q, k, v, spec, **options)
    if not problem.dropout_p:
        return problem, None
    return problem, keep(problem.score_shape, problem.dropout_p, problem.seed)


def kernel_with(
    model: BugModel | None,
    back: BugModel | None = None,
    spec: Spec = SPEC,
) -> Kernel:
    """Return a kernel that computes what the model does, in the forward or the backward pass,
    and is right otherwise.
    """

    def answer(problem: Problem, keep_mask: Array | None, aspect: str, exact: Array) -> Array:
        if model is None:
            return exact
        answers = model.answers(Inputs(problem, keep_mask, aspect, (exact,)))
        return answers[0][0] if answers else exact

    def forward(q: Array, k: Array, v: Array, **options: Any) -> Answer:
        problem, keep_mask = problem_of(q, k, v, options, spec)
        O = problem.solution.O
        lse = problem.solution.lse
        if keep_mask is not None:
            O = problem.dropped(keep_mask)[0]
        O = answer(problem, keep_mask, "O", O)
        lse = answer(problem, keep_mask, "lse", lse)
        return O.astype(q.dtype), lse

    def backward(q: Array, k: Array, v: Array, do: Array, **options: Any) -> list[Array]:
        problem, keep_mask = problem_of(q, k, v, options, spec)
        gradients = problem.gradients(keep_mask).exact
        problem.__dict__["dO"] = do
        if back is not None:
            answers = back.answers(Inputs(problem, keep_mask, "gradients", gradients))
            gradients = answers[-1] if answers else gradients
        return [gradient.astype(q.dtype) for gradient in gradients]

    return Kernel(forward, spec, backward, keep)


def gathered(
    kernel: Kernel, check: str, examples: int = 60
) -> tuple[list[Finding], list[tuple[Case, bool]]]:
    surveyed = survey(kernel, examples, 0, [check])
    if not surveyed.tallies[check].failed:
        surveyed = survey(kernel, 5 * examples, 1, [check])
    simplest = surveyed.tallies[check].simplest
    assert simplest is not None, "no case fails"
    verdicts = [(case, passed) for case, passed, _ in surveyed.verdicts]
    failing = [case for case, passed in verdicts if not passed]
    with np.errstate(all="ignore"):
        others = [try_check(CHECKS[check], kernel, case) for case in failing]
    findings = [finding for finding in others[:8] if finding is not None]
    return [simplest, *findings], verdicts


def diagnosed(kernel: Kernel, check: str, examples: int = 60) -> list[Suspicion]:
    return diagnose(kernel, *gathered(kernel, check, examples))


def families(suspicions: list[Suspicion]) -> list[str]:
    by_words = {s.says: s.family for s in MODELS}
    return [by_words.get(s.says.removeprefix("In the backward pass: "), s.says) for s in suspicions]


def check_for(model: BugModel) -> tuple[str, bool]:
    """Return the check that shows the bug, and whether it is one of the backward pass."""
    case = Case(B=2, H_kv=2, group=2, N_q=5, N_k=7, d=3, dropout_p=0.5)
    problem = case.problem(SPEC)
    keep_mask = keep(problem.score_shape, 0.5, 0)
    of_gradients = Inputs(problem, keep_mask, "gradients", problem.gradients().exact)
    of_O = Inputs(problem, keep_mask, "O", (problem.solution.O,))
    with np.errstate(all="ignore"):
        backward = bool(model.answers(of_gradients))
    forward = bool(model.answers(of_O))
    dropout = "dropout" in model.says.lower()
    if backward and not forward:
        return ("dropout_gradients" if dropout else "gradients"), True
    if dropout:
        return "dropout", False
    if model.family in IN_EMPTY_ROWS:
        return "empty_rows", False
    of_lse = model.family.startswith(("lse", "sum_in_16"))
    return ("log_sum_exp" if of_lse else "oracle"), False


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f not in RIGHT_HERE | TOO_SMALL | ELSEWHERE]
)
@np.errstate(all="ignore")
def test_a_kernel_with_a_known_bug_is_told_by_it(family: str) -> None:
    model = FAMILIES[family][0]
    backward = family in {
        "gradient_unscaled",
        "gradient_scaled_twice",
        "D_omitted",
        "D_for_ones",
        "dS_without_P",
        "group_not_summed",
        "group_averaged",
        "query_tail_zero",
        "query_tail_dropped",
        "key_tail_zero",
        "statistics_uninitialised",
        "short_K_not_cleared",
        "dS_from_dropped",
        "dv_from_undropped",
        "dP_undropped",
        "dv_undivided",
        "dP_undivided",
    }
    check, _ = check_for(model)
    if backward:
        check = "dropout_gradients" if "dropout" in model.says.lower() else "gradients"
    kernel = kernel_with(None, model) if backward else kernel_with(model)
    suspicions = diagnosed(kernel, check)
    assert family in families(suspicions), (model.says, suspicions)


SLOWER = [
    pytest.param(family, marks=pytest.mark.slow)
    for family in ("mask_ignored", "causal_at_other_corner", "heads_modulo")
]


@pytest.mark.parametrize("family", ["scale_missing", *SLOWER])
@np.errstate(all="ignore")
def test_a_wrong_reading_is_told_from_gradients_too(family: str) -> None:
    model = FAMILIES[family][0]
    for forward in (model, None):
        suspicions = diagnosed(kernel_with(forward, model), "gradients")
        assert families(suspicions)[0] == family
        assert suspicions[0].says.startswith("In the backward pass: ")


# The museum's kernels know nothing of the models: what is said of them, in part.
MUSEUM = {
    "causal_top_left": "aligned at the top left",
    "causal_never_empty": "max(0, N_k − N_q)",
    "causal_mask_on_last_tile_only": "tiles of 8 queries and 4 keys, the causal mask is applied only to the last",
    "causal_loop_ends_at_first_row": "ends where the tile's first row",
    "empty_row_nan": "every key is masked is NaN",
    "max_clamped_by_masked_tile": "first block of 4 keys that are all masked",
    "rescale_inverted": "the inverse of the right factor",
    "no_max_subtracted": "maximum is not subtracted",
    "row_sum_in_16_bits": "ℓ is kept in the inputs' 16 bits",
    "ragged_keys_unmasked": "zeros that pad the last block",
    "nan_in_masked_values": "masked key's value reaches",
    "no_keys_crash": "only with N_k = 0",
    "strides_of_values_ignored": "strides of v are ignored",
    "kv_head_modulo": "h mod H_kv",
    "lse_of_empty_row_positive": "is +∞, not −∞",
    "lse_times_ln_2": "multiplied by ln 2",
    "scale_twice": "applied twice",
    "strides_of_dO_ignored": "strides of do are ignored",
    "backward_always_causal": "although it was not asked for",
    "dQ_scaled_twice": "dq is multiplied by the scale twice",
    "D_omitted": "D = rowsum(dO ∘ O) is left out",
    "group_not_summed": "come from the last query head",
    "statistics_uninitialised": "dk and dv are NaN",
    "dS_from_dropped_P": "P_dropped ∘ (dP − D)",
    "dP_without_dropout": "does not pass through dropout",
    "dropout_factor_p": "multiplied by p",
    "backward_draws_again": "another keep mask",
}
CHECK_OF = {
    "empty_row_nan": "empty_rows",
    "lse_of_empty_row_positive": "empty_rows",
    "nan_in_masked_values": "masked_kv_poison",
    "lse_times_ln_2": "log_sum_exp",
    "row_sum_in_16_bits": "log_sum_exp",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [m.name for m in ALL if m.name in MUSEUM])
def test_kernels_of_the_museum_are_told(name: str) -> None:
    mutant = next(m for m in ALL if m.name == name)
    built = mutant.build()
    check = {
        "forward": CHECK_OF.get(name, "oracle"),
        "backward": "gradients",
        "dropout": "dropout_gradients",
    }[mutant.part]
    kernel = Kernel(built.forward, built.spec, built.backward, built.keep)
    suspicions = diagnosed(kernel, check, 25)
    assert MUSEUM[name] in suspicions[0].says, suspicions


def right(q: Array, k: Array, v: Array, **options: Any) -> Answer:
    solution = Problem(q, k, v, SPEC, **options).solution
    return solution.O.astype(q.dtype), solution.lse


def one_percent_off(q: Array, k: Array, v: Array, **options: Any) -> Answer:
    O, lse = right(q, k, v, **options)
    return (O * 1.01).astype(q.dtype), lse


def off_if_long_and_causal(q: Array, k: Array, v: Array, **options: Any) -> Answer:
    O, lse = right(q, k, v, **options)
    if options.get("causal") and q.shape[1] > k.shape[1]:
        O = O * 1.5
    return O.astype(q.dtype), lse


def garbage(q: Array, k: Array, v: Array, **options: Any) -> Answer:
    O, lse = right(q, k, v, **options)
    numbers = np.random.default_rng().normal(size=O.shape)
    return numbers.astype(q.dtype), lse


def beyond_the_end(q: Array, k: Array, v: Array, **options: Any) -> Answer:
    O, lse = right(q, k, v, **options)
    whole = v.base if isinstance(v.base, np.ndarray) else v
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return O + whole.ravel()[-1], lse


def raises(q: Array, k: Array, v: Array, **options: Any) -> Answer:
    raise RuntimeError("no device")


def test_an_unknown_bug_is_no_known_one() -> None:
    for kernel in (one_percent_off, garbage, raises):
        examples = 30 if kernel is raises else 60
        assert diagnosed(Kernel(kernel, SPEC), "oracle", examples) == []


@pytest.mark.parametrize("contradicted", [False, True])
def test_one_failing_case_that_contradicts_a_bug_clears_it(contradicted: bool) -> None:
    """Of nine failing cases, eight give the bug's numbers, and one gives others."""
    (model,) = FAMILIES["scale_missing"]
    exact = kernel_with(model)

    def fn(q: Array, k: Array, v: Array, **options: Any) -> Answer:
        O, lse = exact.fn(q, k, v, **options)
        if contradicted and q.shape[-1] == 3:
            O = O * 1.5
        return O, lse

    kernel = Kernel(fn, SPEC)
    cases = [Case(N_q=n, N_k=n, d=4) for n in range(2, 10)]
    findings = []
    for case in (*cases, Case(N_q=6, N_k=6, d=3)):
        finding = try_check(CHECKS["oracle"], kernel, case)
        assert finding is not None
        assert finding.failed
        findings.append(finding)
    suspicions = diagnose(kernel, findings, [])
    assert families(suspicions) == ([] if contradicted else ["scale_missing"])


def test_a_bug_that_does_not_explain_the_case_that_is_shown_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fn(q: Array, k: Array, v: Array, **options: Any) -> Answer:
        """Aligned at the top left where causal, and wrong in a way of its own elsewhere."""
        solution = Problem(q, k, v, replace(SPEC, causal="top_left"), **options).solution
        factor = 1 if options.get("causal") else 1.37
        return solution.O * factor, solution.lse

    kernel = Kernel(fn, SPEC)

    output = Case(N_q=2, N_k=5, d=4)
    other = Case(N_q=3, N_k=7, d=4, causal=True)
    findings = []
    for case in (output, other):
        finding = try_check(CHECKS["oracle"], kernel, case)
        assert finding is not None
        findings.append(finding)
    in_common = Suspicion("What they have in common", (), "")
    monkeypatch.setattr("flashsim.testing.diagnosis.in_common", lambda *_: [in_common])
    for order, expected in ((findings, True), (findings[::-1], False)):
        bug, more = diagnose(kernel, order, [])
        assert "aligned at the top left" in bug.says
        not_shown = "in 1 of 2 examined failing cases, not in the one shown"
        assert (not_shown in bug.evidence) == expected
        assert more == in_common
    (bug,) = diagnose(kernel, findings[1:], [])
    assert "aligned at the top left" in bug.says


def test_what_failing_cases_have_in_common_is_said_and_reading_beyond_the_arrays_is_noticed() -> (
    None
):
    suspicions = diagnosed(Kernel(off_if_long_and_causal, SPEC), "oracle", 120)
    assert [s.says.split(":")[0] for s in suspicions] == [
        "It fails only with causal and H_q > H_kv"
    ]
    assert "in 0 of " in suspicions[0].evidence
    assert suspicions[0].threads
    suspicions = diagnosed(Kernel(beyond_the_end, SPEC), "oracle", 40)
    assert suspicions[0].says.startswith("Memory outside of the arrays")


@pytest.mark.parametrize("kernel", [one_percent_off, raises, right, garbage])
def test_nothing_to_go_by_is_no_error(kernel: Callable[..., Any]) -> None:
    assert diagnose(Kernel(kernel, SPEC), [], []) == []
    tiny = Finding("oracle", Case(), 2.0)
    masked = Case(causal=True, mask="rows", dropout_p=0.5)
    for case in (Case(), Case(N_k=0), masked):
        findings = [tiny, Finding("dropout_gradients", case, 2.0)]
        suspicions = diagnose(Kernel(kernel, SPEC), findings, [(case, False)] * 20)
        assert len(suspicions) <= 3


@pytest.mark.parametrize("check", ["empty_rows", "oracle"])
def test_what_a_check_is_about_is_looked_at_first(check: str) -> None:
    problem = Case(N_q=3, N_k=2, d=2, causal=True).problem(SPEC)
    finding = Finding(check, Case(), 2.0)
    results = next(kernel_results(Kernel(right, SPEC), finding, problem))
    where = results.comparisons[0].where
    assert np.ravel(where).tolist() == [
        check == "empty_rows",
        check == "oracle",
        check == "oracle",
    ]


def test_what_is_wrong_in_empty_rows_is_told() -> None:
    mean = Spec(masks=True, empty_rows="mean")
    keyless = Spec(zero_keys=True)

    def zero(q: Array, k: Array, v: Array, **options: Any) -> Array:
        problem = Problem(q, k, v, mean, **options)
        O = np.where(problem.empty[..., None], 0, problem.solution.O)
        return np.asarray(O.astype(q.dtype))

    def divides(q: Array, k: Array, v: Array) -> Array:
        O = Problem(q, k, v, keyless).solution.O
        return np.asarray(O if k.shape[2] else O + np.nan)

    def finite(q: Array, k: Array, v: Array, **options: Any) -> Answer:
        O, lse = right(q, k, v, **options)
        return O, np.where(np.isneginf(lse), -1e30, lse)

    kernels: list[tuple[Callable[..., Any], Spec, str]] = [
        (zero, mean, "A row in which every key is masked is 0."),
        (divides, keyless, "every key is masked is NaN"),  # which is not a mean of values
        (finite, SPEC, "is a finite number, not −∞"),
    ]
    for kernel, spec, text in kernels:
        suspicions = diagnosed(Kernel(kernel, spec), "empty_rows")
        assert text in suspicions[0].says
        assert len(suspicions) == 1 or kernel is not divides


def test_a_diagnosis_is_quick() -> None:
    kernel = kernel_with(FAMILIES["causal_off_by_one"][0])
    findings, verdicts = gathered(kernel, "oracle")
    start = time.perf_counter()
    diagnose(kernel, findings, verdicts)
    assert time.perf_counter() - start < 5  # about 0.3 s on a quiet machine


@np.errstate(all="ignore")  # an inverted mask may leave a row no key
def test_a_mask_or_causal_attention_is_misread_wherever_there_is_one() -> None:
    random = np.random.default_rng(7)
    q, k, v = random.standard_normal((3, 1, 1, 5, 4), np.float32)
    dense = random.random((1, 1, 5, 5)) > 0.4
    of_masks = {"mask_ignored", "mask_inverted"}
    for mask, causal in product((None, dense), (False, True)):
        problem = Problem(q, k, v, SPEC, causal=causal, mask=mask)
        inputs = Inputs(problem, None, "O", (problem.solution.O,))
        answered = {name for name in FAMILIES if FAMILIES[name][0].answers(inputs)}
        assert of_masks & answered == (set() if mask is None else of_masks)
        assert ("causal_ignored" in answered) == causal


def answer_of(
    family: str,
    problem: Problem,
    aspect: str,
    keep_mask: Array | None = None,
    number: int = 0,
) -> Any:
    exact = problem.gradients(keep_mask).exact if aspect == "gradients" else (problem.solution.O,)
    inputs = Inputs(problem, keep_mask, aspect, exact)
    answers = FAMILIES[family][number].answers(inputs)
    return answers[0] if answers else None


def test_models_of_bugs_compute_what_they_say() -> None:
    """Worked out from scores and weights, of a causal problem."""
    problem = Case(N_q=3, N_k=5, d=2, causal=True).problem(SPEC)
    q = problem.q[0, 0].astype(float)
    k = problem.k[0, 0].astype(float)
    v = problem.v[0, 0].astype(float)
    dO = problem.dO[0, 0].astype(float)
    allowed = np.tri(3, 5, 2, dtype=bool)
    scores = q @ k.T / math.sqrt(2)
    P = np.where(allowed, np.exp(scores), 0)
    l = P.sum(1, keepdims=True)
    dP = dO @ v.T
    D = (dO * (P / l @ v)).sum(1, keepdims=True)
    dQ = np.where(allowed, dP - D, 0) @ k / math.sqrt(2)
    of_bug = answer_of("dS_without_P", problem, "gradients")
    np.testing.assert_allclose(of_bug[0][0, 0], dQ, rtol=1e-6)
    assert answer_of("tail_nan", problem, "O") is None
    of_tail = answer_of("tail_nan", problem.but(causal=False), "O")
    assert np.isnan(of_tail[0]).all()

    dropping = problem.but(dropout_p=0.75)
    keep_mask = np.arange(15).reshape(1, 1, 3, 5) % 3 > 0
    weights = np.where(keep_mask[0, 0], P, 0)
    O = weights @ v / weights.sum(1, keepdims=True)
    for number, want in ((0, O), (1, 4 * O)):
        of_bug = answer_of("dropout_renormalised", dropping, "O", keep_mask, number)
        np.testing.assert_allclose(of_bug[0][0, 0], want, rtol=1e-5)


# --------------------------------------------------------------- no suspect that a case contradicts


def scores(q: Array, k: Array) -> Array:
    """S, in float64."""
    S: Array = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return S


def causal_by(shift: Callable[[int, int], int]) -> Kernel:
    """Return a kernel that is right but for the causal diagonal, which is moved by another
    number.
    """

    def kernel(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
        N_q = q.shape[2]
        N_k = k.shape[2]
        s = scores(q, k)
        if causal:
            allowed = np.tri(N_q, N_k, shift(N_q, N_k), dtype=bool)
            s = np.where(allowed, s, -np.inf)
        m = s.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(m == -np.inf, 0, m))
        l = p.sum(-1, keepdims=True)
        O = p / np.where(l == 0, 1, l) @ v.astype(float)
        return np.asarray(O.astype(q.dtype))

    return Kernel(kernel, Spec(causal="bottom_right"))


def diagnosis_of(
    kernel: Kernel,
    examples: int = 50,
    **options: Any,
) -> dict[str, list[str]]:
    """Return what a check-up says of each failing check."""
    report = check_attention(
        kernel.fn, kernel.spec, max_examples=examples, on_fail="return", **options
    )
    says = {}
    for failure in report.failures[:3]:
        says[failure.check] = [suspicion.says for suspicion in failure.suspicions]
    return says


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shift", "bug", "fail_fast"),
    [
        (lambda N_q, N_k: max(0, N_k - N_q), "max(0, N_k − N_q)", False),
        (lambda N_q, N_k: min(0, N_k - N_q), "min(0, N_k − N_q)", False),
        (lambda N_q, N_k: N_q - N_k, "by N_q − N_k, not by N_k − N_q", False),
        (lambda N_q, N_k: N_q - N_k, "by N_q − N_k, not by N_k − N_q", True),
        (lambda N_q, N_k: 0, "aligned at the top left", True),
    ],
    ids=["clamped", "capped", "flipped", "flipped, first failure", "top left, first failure"],
)
def test_a_causal_offset_is_told_as_no_other_that_a_case_contradicts(
    shift: Callable[[int, int], int], bug: str, fail_fast: bool
) -> None:
    says = diagnosis_of(causal_by(shift), fail_fast=fail_fast, checks=["oracle", "causal_no_leak"])
    assert says
    for check, suspicions in says.items():
        assert bug in suspicions[0], (check, suspicions)
        if not fail_fast:
            assert len(suspicions) == 1, (check, suspicions)


def overflowing(before: bool) -> Kernel:
    """Return a kernel that keeps its scores in float16, before or after they are scaled."""

    def kernel(q: Array, k: Array, v: Array) -> Array:
        tau = np.float32(1 / np.sqrt(q.shape[-1]))
        products = q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2)
        if before:
            s = products.astype(q.dtype).astype(np.float32) * tau
        else:
            s = (products * tau).astype(q.dtype).astype(np.float32)
        m = s.max(-1, keepdims=True)
        p = np.exp(s - np.where(np.isfinite(m), m, 0))
        l = p.sum(-1, keepdims=True)
        O = p @ v.astype(np.float32) / np.where(l == 0, 1, l)
        return np.asarray(O.astype(q.dtype))

    spec = Spec(
        dtypes=("float16",),
        block=(8, 4),
        d_v=True,
        strides="contiguous",
    )
    return Kernel(kernel, spec)


@pytest.mark.parametrize("before", [False, True])
@np.errstate(all="ignore")
def test_scores_that_overflow_are_no_maximum_that_starts_at_0(before: bool) -> None:
    says = diagnosis_of(overflowing(before), 80, checks=["oracle"])["oracle"]
    start = "The scores are kept in the inputs' 16 bits"
    if before:
        start += ", before they are scaled"
    assert len(says) == 1, says
    assert says[0].startswith(start)


# ---------------------------------------------------- what public kernels did, and was told wrongly


def plain(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Return O and the row sums ℓ, in float64."""
    s = scores(q, k)
    p = np.exp(s - s.max(-1, keepdims=True))
    l = p.sum(-1, keepdims=True)
    return p @ v.astype(float) / l, l


def divided_twice(q: Array, k: Array, v: Array) -> Array:
    O, l = plain(q, k, v)
    return np.asarray((O / l).astype(q.dtype))


def output_of_first_keys(q: Array, k: Array, v: Array, n: int) -> Array:
    O, _ = plain(q, k[:, :, :n], v[:, :, :n])
    return np.asarray(O.astype(q.dtype))


def ragged_chunk_dropped(q: Array, k: Array, v: Array) -> Array:
    whole = k.shape[2] // 16 * 16
    if not whole:
        shape = (*q.shape[:3], v.shape[3])
        return np.zeros(shape, q.dtype)
    return output_of_first_keys(q, k, v, whole)


def address(array: Array) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


def v_by_k_rows(q: Array, k: Array, v: Array) -> Array:
    rows = [stride // v.itemsize for stride in k.strides]
    whole = v
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    flat = whole.ravel()
    offset = address(v) - address(flat)
    places = np.asarray(offset // v.itemsize)
    for stride, indices in zip(rows, np.indices(v.shape), strict=True):
        places = places + stride * indices
    read = flat[np.minimum(places, flat.size - 1)]
    return np.asarray(plain(q, k, read)[0].astype(q.dtype))


def query_rounded(q: Array, k: Array, v: Array) -> Array:
    root = np.float32(np.sqrt(q.shape[-1]))
    scaled = (q.astype(np.float32) / root).astype(q.dtype)
    O, _ = plain(scaled * root, k, v)
    return np.asarray(O.astype(q.dtype))


HALF = Spec(
    dtypes=("float16",),
    head_dims=(8, 24),
    block=(16, 16),
    strides="contiguous",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "spec", "says"),
    [
        (divided_twice, Spec(), "The output is divided by the row sum ℓ twice."),
        (
            ragged_chunk_dropped,
            Spec(strides="contiguous"),
            "The last keys are left out if N_k is not a multiple of 16.",
        ),
        (
            v_by_k_rows,
            Spec(d_v=True, strides="contiguous"),
            "v is read with k's strides, which differ if d_v ≠ d",
        ),
        (v_by_k_rows, Spec(d_v=True, layout="BNHD", strides="contiguous"), None),
        (query_rounded, HALF, "Q is rounded to the inputs' 16 bits after it is scaled."),
    ],
    ids=[
        "divided twice",
        "ragged chunk",
        "v by k's rows",
        "another layout",
        "scaled query rounded",
    ],
)
def test_what_public_kernels_did_is_told(
    kernel: Callable[..., Any], spec: Spec, says: str | None
) -> None:
    if says is None:
        inner = kernel
        says = "v is read with k's strides"

        def kernel(q: Array, k: Array, v: Array) -> Array:
            O = inner(q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2))
            return np.asarray(O.swapaxes(1, 2))

    says_of_oracle = diagnosis_of(Kernel(kernel, spec), 100, checks=["oracle"])["oracle"]
    assert says_of_oracle[0].startswith(says), says_of_oracle
    if kernel is query_rounded:  # it passes where stored scores are declared
        declared = Kernel(query_rounded, replace(HALF, stores="scores"))
        assert "oracle" not in diagnosis_of(declared, 100, checks=["oracle"])


def test_under_few_shapes_a_ragged_chunk_is_not_the_batch_s_or_the_head_s_offset() -> None:
    """Three shapes, drawn often, have many things in common."""

    def short(q: Array, k: Array, v: Array) -> Array:
        whole = k.shape[2] // 16 * 16 or k.shape[2]
        return output_of_first_keys(q, k, v, whole)

    for few in (3, 4):
        kernel = Kernel(short, Spec(max_shapes=few, strides="contiguous"))
        says = diagnosis_of(kernel, 60, checks=["oracle"])["oracle"]
        assert not [words for words in says if "offset" in words], (few, says)


def test_rows_that_vanish_far_below_0_are_none_of_the_bugs_that_lose_other_rows_too() -> None:
    """Rows of scores about −120 are right, and so are rows with a dropped tail: passing cases
    refute all that is known.
    """

    def far_below(q: Array, k: Array, v: Array) -> Array:
        m = scores(q, k).max(-1, keepdims=True)
        O = np.where(m < -60_000, 0, plain(q, k, v)[0])
        return np.asarray(O.astype(q.dtype))

    says = diagnosis_of(Kernel(far_below, Spec()), 200, checks=["oracle"])["oracle"]
    assert [words.partition(":")[0] for words in says] == ["It fails only with regime negative"]
