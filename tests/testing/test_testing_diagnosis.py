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


def keep(shape: tuple[int, ...], dropout_p: float, seed: int) -> Array:
    return np.random.default_rng(seed).random(shape) >= dropout_p


def problem_of(
    q: Array, k: Array, v: Array, options: dict[str, Any], spec: Spec
) -> tuple[Problem, Array | None]:
    problem = Problem(q, k, v, spec, **options)
    return problem, keep(
        problem.score_shape, problem.dropout_p, problem.seed
    ) if problem.dropout_p else None


def kernel_with(model: BugModel | None, back: BugModel | None = None, spec: Spec = SPEC) -> Kernel:
    """Return a kernel that computes what the model does, in the forward or the backward pass,
    and is right otherwise.
    """

    def forward(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
        problem, keep_mask = problem_of(q, k, v, options, spec)
        right = problem.solution
        suspicions = [right.O if keep_mask is None else problem.dropped(keep_mask)[0], right.lse]
        for n, aspect in enumerate(("O", "lse")):
            if model is not None and (
                answers := model.answers(Inputs(problem, keep_mask, aspect, (suspicions[n],)))
            ):
                suspicions[n] = answers[0][0]
        return suspicions[0].astype(q.dtype), suspicions[1]

    def backward(q: Array, k: Array, v: Array, do: Array, **options: Any) -> list[Array]:
        problem, keep_mask = problem_of(q, k, v, options, spec)
        exact = problem.gradients(keep_mask).exact
        problem.__dict__["dO"] = do
        answers = (
            [] if back is None else back.answers(Inputs(problem, keep_mask, "gradients", exact))
        )
        return [a.astype(q.dtype) for a in (answers[-1] if answers else exact)]

    return Kernel(forward, spec, backward, keep)


def gathered(
    kernel: Kernel, check: str, examples: int = 60
) -> tuple[list[Finding], list[tuple[Case, bool]]]:
    suspicions = survey(kernel, examples, 0, [check])
    if not suspicions.tallies[check].failed:
        suspicions = survey(kernel, 5 * examples, 1, [check])
    simplest = suspicions.tallies[check].simplest
    assert simplest is not None, "no case fails"
    verdicts = [(case, passed) for case, passed, _ in suspicions.verdicts]
    with np.errstate(all="ignore"):
        others = [
            try_check(CHECKS[check], kernel, case) for case, passed in verdicts if not passed
        ][:8]
    return [simplest, *(f for f in others if f is not None)], verdicts


def diagnosed(kernel: Kernel, check: str, examples: int = 60) -> list[Suspicion]:
    return diagnose(kernel, *gathered(kernel, check, examples))


def families(suspicions: list[Suspicion]) -> list[str]:
    by_words = {s.says: s.family for s in MODELS}
    return [by_words.get(s.says.removeprefix("In the backward pass: "), s.says) for s in suspicions]


def check_for(model: BugModel) -> tuple[str, bool]:
    """Return the check that shows the bug, and whether it is one of the backward pass."""
    problem = Case(B=2, H_kv=2, group=2, N_q=5, N_k=7, d=3, dropout_p=0.5).problem(SPEC)
    inputs = Inputs(
        problem, keep(problem.score_shape, 0.5, 0), "gradients", problem.gradients().exact
    )
    with np.errstate(all="ignore"):
        of_gradients = bool(model.answers(inputs))
    forward = bool(model.answers(Inputs(problem, inputs.keep, "O", (problem.solution.O,))))
    dropout = "dropout" in model.says.lower()
    if of_gradients and not forward:
        return ("dropout_gradients" if dropout else "gradients"), True
    if dropout:
        return "dropout", False
    if model.family in IN_EMPTY_ROWS:
        return "empty_rows", False
    return ("log_sum_exp" if model.family.startswith(("lse", "sum_in_16")) else "oracle"), False


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
    suspicions = diagnosed(
        kernel_with(None if backward else model, model if backward else None), check
    )
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
    check = {"backward": "gradients", "dropout": "dropout_gradients"}.get(
        mutant.part, CHECK_OF.get(name, "oracle")
    )
    suspicions = diagnosed(Kernel(built.forward, built.spec, built.backward, built.keep), check, 25)
    assert MUSEUM[name] in suspicions[0].says, suspicions


def right(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    solution = Problem(q, k, v, SPEC, **options).solution
    return solution.O.astype(q.dtype), solution.lse


def one_percent_off(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    O, lse = right(q, k, v, **options)
    return (O * 1.01).astype(q.dtype), lse


def off_if_long_and_causal(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    O, lse = right(q, k, v, **options)
    return (O * (1.5 if options.get("causal") and q.shape[1] > k.shape[1] else 1)).astype(
        q.dtype
    ), lse


def garbage(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    O, lse = right(q, k, v, **options)
    return np.random.default_rng().normal(size=O.shape).astype(q.dtype), lse


def beyond_the_end(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    O, lse = right(q, k, v, **options)
    whole = v.base if isinstance(v.base, np.ndarray) else v
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return O + whole.ravel()[-1], lse


def raises(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    raise RuntimeError("no device")


def test_an_unknown_bug_is_no_known_one() -> None:
    for kernel in (one_percent_off, garbage, raises):
        assert diagnosed(Kernel(kernel, SPEC), "oracle", 30 if kernel is raises else 60) == []


@pytest.mark.parametrize("contradicted", [False, True])
def test_one_failing_case_that_contradicts_a_bug_clears_it(contradicted: bool) -> None:
    """Of nine failing cases, eight give the bug's numbers, and one gives others."""
    (model,) = FAMILIES["scale_missing"]
    exact = kernel_with(model)

    def kernel(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
        out = exact.fn(q, k, v, **options)
        return (out[0] * 1.5 if contradicted and q.shape[-1] == 3 else out[0]), out[1]

    cases = [Case(N_q=n, N_k=n, d=4) for n in range(2, 10)] + [Case(N_q=6, N_k=6, d=3)]
    findings = [try_check(CHECKS["oracle"], Kernel(kernel, SPEC), case) for case in cases]
    assert all(finding is not None and finding.failed for finding in findings)
    suspicions = diagnose(Kernel(kernel, SPEC), [f for f in findings if f is not None], [])
    assert families(suspicions) == ([] if contradicted else ["scale_missing"])


def test_a_bug_that_does_not_explain_the_case_that_is_shown_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kernel(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
        """Aligned at the top left where causal, and wrong in a way of its own elsewhere."""
        right = Problem(q, k, v, replace(SPEC, causal="top_left"), **options).solution
        return right.O * (1 if options.get("causal") else 1.37), right.lse

    output = Case(N_q=2, N_k=5, d=4)
    other = Case(N_q=3, N_k=7, d=4, causal=True)
    findings = [try_check(CHECKS["oracle"], Kernel(kernel, SPEC), case) for case in (output, other)]
    in_common = Suspicion("What they have in common", (), "")
    monkeypatch.setattr("flashsim.testing.diagnosis.in_common", lambda *_: [in_common])
    for order, text in ((findings, True), (findings[::-1], False)):
        bug, more = diagnose(Kernel(kernel, SPEC), [f for f in order if f is not None], [])
        assert "aligned at the top left" in bug.says
        assert ("in 1 of 2 examined failing cases, not in the one shown" in bug.evidence) == text
        assert more == in_common
    (bug,) = diagnose(Kernel(kernel, SPEC), [f for f in findings[1:] if f is not None], [])
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
    for case in (Case(), Case(N_k=0), Case(causal=True, mask="rows", dropout_p=0.5)):
        suspicions = diagnose(
            Kernel(kernel, SPEC),
            [tiny, Finding("dropout_gradients", case, 2.0)],
            [(case, False)] * 20,
        )
        assert len(suspicions) <= 3


@pytest.mark.parametrize("check", ["empty_rows", "oracle"])
def test_what_a_check_is_about_is_looked_at_first(check: str) -> None:
    problem = Case(N_q=3, N_k=2, d=2, causal=True).problem(SPEC)
    first = next(
        kernel_results(Kernel(right, SPEC), Finding(check, Case(), 2.0), problem)
    ).comparisons[0]
    assert np.ravel(first.where).tolist() == [
        check == "empty_rows",
        check == "oracle",
        check == "oracle",
    ]


def test_what_is_wrong_in_empty_rows_is_told() -> None:
    mean, keyless = Spec(masks=True, empty_rows="mean"), Spec(zero_keys=True)

    def zero(q: Array, k: Array, v: Array, **options: Any) -> Array:
        problem = Problem(q, k, v, mean, **options)
        return np.asarray(np.where(problem.empty[..., None], 0, problem.solution.O).astype(q.dtype))

    def divides(q: Array, k: Array, v: Array) -> Array:
        return np.asarray(Problem(q, k, v, keyless).solution.O + (0 if k.shape[2] else np.nan))

    def finite(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
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
    q, k, v = (random.standard_normal((1, 1, 5, 4), np.float32) for _ in range(3))
    for mask, causal in product((None, random.random((1, 1, 5, 5)) > 0.4), (False, True)):
        problem = Problem(q, k, v, SPEC, causal=causal, mask=mask)
        inputs = Inputs(problem, None, "O", (problem.solution.O,))
        answered = {name for name in FAMILIES if FAMILIES[name][0].answers(inputs)}
        assert {"mask_ignored", "mask_inverted"} & answered == (
            set() if mask is None else {"mask_ignored", "mask_inverted"}
        )
        assert ("causal_ignored" in answered) == causal


def answer_of(
    family: str, problem: Problem, aspect: str, keep_mask: Array | None = None, number: int = 0
) -> Any:
    right = problem.gradients(keep_mask).exact if aspect == "gradients" else (problem.solution.O,)
    suspicions = FAMILIES[family][number].answers(Inputs(problem, keep_mask, aspect, right))
    return suspicions[0] if suspicions else None


def test_models_of_bugs_compute_what_they_say() -> None:
    """Worked out from scores and weights, of a causal problem."""
    problem = Case(N_q=3, N_k=5, d=2, causal=True).problem(SPEC)
    q, k, v, dO = (a[0, 0].astype(float) for a in (problem.q, problem.k, problem.v, problem.dO))
    allowed = np.tri(3, 5, 2, dtype=bool)
    P = np.where(allowed, np.exp(q @ k.T / math.sqrt(2)), 0)
    l = P.sum(1, keepdims=True)
    dP = dO @ v.T
    D = (dO * (P / l @ v)).sum(1, keepdims=True)
    dQ = np.where(allowed, dP - D, 0) @ k / math.sqrt(2)
    np.testing.assert_allclose(
        answer_of("dS_without_P", problem, "gradients")[0][0, 0], dQ, rtol=1e-6
    )
    assert answer_of("tail_nan", problem, "O") is None
    assert np.isnan(answer_of("tail_nan", problem.but(causal=False), "O")[0]).all()

    dropping = problem.but(dropout_p=0.75)
    keep_mask = np.arange(15).reshape(1, 1, 3, 5) % 3 > 0
    weights = np.where(keep_mask[0, 0], P, 0)
    O = weights @ v / weights.sum(1, keepdims=True)
    answers = [
        answer_of("dropout_renormalised", dropping, "O", keep_mask, number)[0][0, 0]
        for number in (0, 1)
    ]
    for result, want in zip(answers, (O, 4 * O), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5)


# --------------------------------------------------------------- no suspect that a case contradicts


def causal_by(shift: Callable[[int, int], int]) -> Kernel:
    """Return a kernel that is right but for the causal diagonal, which is moved by another
    number.
    """

    def kernel(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
        N_q = q.shape[2]
        N_k = k.shape[2]
        s = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if causal:
            s = np.where(np.tri(N_q, N_k, shift(N_q, N_k), dtype=bool), s, -np.inf)
        m = s.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(m == -np.inf, 0, m))
        l = p.sum(-1, keepdims=True)
        return np.asarray((p / np.where(l == 0, 1, l) @ v.astype(float)).astype(q.dtype))

    return Kernel(kernel, Spec(causal="bottom_right"))


def diagnosis_of(kernel: Kernel, examples: int = 50, **options: Any) -> dict[str, list[str]]:
    """Return what a check-up says of each failing check."""
    suspicions = check_attention(
        kernel.fn, kernel.spec, max_examples=examples, on_fail="return", **options
    )
    return {
        failure.check: [s.says for s in failure.suspicions] for failure in suspicions.failures[:3]
    }


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
    text = diagnosis_of(causal_by(shift), fail_fast=fail_fast, checks=["oracle", "causal_no_leak"])
    assert text
    for check, suspicions in text.items():
        assert bug in suspicions[0], (check, suspicions)
        if not fail_fast:
            assert len(suspicions) == 1, (check, suspicions)


def overflowing(before: bool) -> Kernel:
    """Return a kernel that keeps its scores in float16, before or after they are scaled."""

    def kernel(q: Array, k: Array, v: Array) -> Array:
        tau = np.float32(1 / np.sqrt(q.shape[-1]))
        s = q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2)
        s = (
            s.astype(q.dtype).astype(np.float32) * tau
            if before
            else (s * tau).astype(q.dtype).astype(np.float32)
        )
        m = s.max(-1, keepdims=True)
        p = np.exp(s - np.where(np.isfinite(m), m, 0))
        l = p.sum(-1, keepdims=True)
        return np.asarray((p @ v.astype(np.float32) / np.where(l == 0, 1, l)).astype(q.dtype))

    return Kernel(kernel, Spec(dtypes=("float16",), block=(8, 4), d_v=True, strides="contiguous"))


@pytest.mark.parametrize("before", [False, True])
@np.errstate(all="ignore")
def test_scores_that_overflow_are_no_maximum_that_starts_at_0(before: bool) -> None:
    text = diagnosis_of(overflowing(before), 80, checks=["oracle"])["oracle"]
    assert text[0].startswith(
        "The scores are kept in the inputs' 16 bits" + ", before they are scaled" * before
    )
    assert len(text) == 1, text


# ---------------------------------------------------- what public kernels did, and was told wrongly


def plain(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Return O and the row sums ℓ, in float64."""
    s = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    l = p.sum(-1, keepdims=True)
    return p @ v.astype(float) / l, l


def divided_twice(q: Array, k: Array, v: Array) -> Array:
    O, l = plain(q, k, v)
    return np.asarray((O / l).astype(q.dtype))


def ragged_chunk_dropped(q: Array, k: Array, v: Array) -> Array:
    whole = k.shape[2] // 16 * 16
    if not whole:
        return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    return np.asarray(plain(q, k[:, :, :whole], v[:, :, :whole])[0].astype(q.dtype))


def v_by_k_rows(q: Array, k: Array, v: Array) -> Array:
    rows = [stride // v.itemsize for stride in k.strides]
    whole = v
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    flat = whole.ravel()
    start = (v.__array_interface__["data"][0] - flat.__array_interface__["data"][0]) // v.itemsize
    bound = start + sum(
        np.arange(n).reshape(-1, *[1] * (3 - axis)) * rows[axis] for axis, n in enumerate(v.shape)
    )
    return np.asarray(plain(q, k, flat[np.minimum(bound, flat.size - 1)])[0].astype(q.dtype))


def query_rounded(q: Array, k: Array, v: Array) -> Array:
    scaled = (q.astype(np.float32) / np.float32(np.sqrt(q.shape[-1]))).astype(q.dtype)
    return np.asarray(plain(scaled * np.float32(np.sqrt(q.shape[-1])), k, v)[0].astype(q.dtype))


HALF = Spec(dtypes=("float16",), head_dims=(8, 24), block=(16, 16), strides="contiguous")


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
            return np.asarray(inner(*(a.swapaxes(1, 2) for a in (q, k, v))).swapaxes(1, 2))

    text = diagnosis_of(Kernel(kernel, spec), 100, checks=["oracle"])["oracle"]
    assert text[0].startswith(says), text
    if kernel is query_rounded:  # it passes where stored scores are declared
        assert "oracle" not in diagnosis_of(
            Kernel(query_rounded, replace(HALF, stores="scores")), 100, checks=["oracle"]
        )


def test_under_few_shapes_a_ragged_chunk_is_not_the_batch_s_or_the_head_s_offset() -> None:
    """Three shapes, drawn often, have many things in common."""

    def short(q: Array, k: Array, v: Array) -> Array:
        whole = k.shape[2] // 16 * 16 or k.shape[2]
        return np.asarray(plain(q, k[:, :, :whole], v[:, :, :whole])[0].astype(q.dtype))

    for few in (3, 4):
        text = diagnosis_of(
            Kernel(short, Spec(max_shapes=few, strides="contiguous")), 60, checks=["oracle"]
        )["oracle"]
        assert not [each for each in text if "offset" in each], (few, text)


def test_rows_that_vanish_far_below_0_are_none_of_the_bugs_that_lose_other_rows_too() -> None:
    """Rows of scores about −120 are right, and so are rows with a dropped tail: passing cases
    refute all that is known.
    """

    def far_below(q: Array, k: Array, v: Array) -> Array:
        s = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        return np.asarray(
            np.where(s.max(-1, keepdims=True) < -60_000, 0, plain(q, k, v)[0]).astype(q.dtype)
        )

    text = diagnosis_of(Kernel(far_below, Spec()), 200, checks=["oracle"])["oracle"]
    assert [each.partition(":")[0] for each in text] == ["It fails only with regime negative"]
