"""Which bug models give the same wrong numbers as a kernel."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from flashsim.testing.bug_models import Arrays, BugModel, models_for
from flashsim.testing.case import Case
from flashsim.testing.diagnosis.kernel_results import (
    KernelResult,
    Suspicion,
    failing_cases,
    kernel_results,
    may_be_gradients,
)
from flashsim.testing.kernel import Kernel
from flashsim.testing.survey import Finding

FEW_SCORES = 4096  # the most scores of a passing case on which models are tried
MOST_PASSING_CASES = 200  # on which models are tried


def matching_models(
    kernel: Kernel,
    wrong_results: dict[int, KernelResult],
    findings: Sequence[Finding],
    passing: Sequence[Case],
) -> list[Suspicion]:
    """Return the models that give the kernel's numbers wherever these are wrong, the best of each
    family.

    A single case excludes a model: one in which the model is wrong, and the kernel is right, or
    wrong in another way, beyond rounding. Failing cases are also tried with N_q and N_k exchanged,
    which may confirm or exclude a model.

    wrong_results  of the kernel, by the number of the finding
    passing        cases in which the kernel passed
    """
    failing = [finding.case for finding in findings]
    exchanged_cases = _exchanged(failing)
    passing_cases = _most_similar(passing, failing)

    @cache
    def results_in(case: Case) -> list[KernelResult]:
        return _results_in(kernel, findings[0], case)

    def other_results(matched: set[int]) -> Iterator[KernelResult]:
        # each is computed when it is needed
        for n in matched:
            yield from wrong_results[n].others
        for case in [*exchanged_cases, *passing_cases]:
            yield from results_in(case)

    best: dict[str, Suspicion] = {}
    for model in models_for(kernel.spec):
        matched = _matched(model, wrong_results)
        if not matched:
            continue
        others = other_results(matched)
        if any(other.right and other.refutes(_answers(model, other)) for other in others):
            continue
        verdicts = []
        for case in exchanged_cases:
            for other in results_in(case):
                if not other.right:
                    verdicts.append(other.verdict(_answers(model, other)))
        if False in verdicts:
            continue
        known = best.get(model.family)
        if known is None or len(matched) > len(known.explains):
            best[model.family] = _suspicion(model, matched, wrong_results, verdicts.count(True))
    return list(best.values())


def _suspicion(
    model: BugModel, matched: set[int], wrong_results: dict[int, KernelResult], besides: int
) -> Suspicion:
    aspects = {wrong_results[n].inputs.aspect for n in matched}
    says = f"In the backward pass: {model.says}" if aspects == {"gradients"} else model.says
    but = ", not in the one shown" if 0 in wrong_results and 0 not in matched else ""
    evidence = (
        f"a model with this bug gives the same wrong numbers in {len(matched)} of "
        f"{failing_cases(len(wrong_results))}{but}"
    )
    return Suspicion(says, model.threads, evidence, frozenset(matched), besides)


def _matched(model: BugModel, wrong_results: dict[int, KernelResult]) -> set[int]:
    """Return the numbers of the results that a model explains, or none if a result contradicts
    it.
    """
    matched = set()
    for number, result in sorted(wrong_results.items(), key=_scores):  # the cheapest first
        verdict = result.verdict(_answers(model, result))
        if verdict is False:
            return set()
        if verdict:
            matched.add(number)
    return matched


def _scores(item: tuple[int, KernelResult]) -> int:
    _, result = item
    return math.prod(result.inputs.problem.score_shape)


def _answers(model: BugModel, result: KernelResult) -> list[Arrays]:
    try:
        return model.answers(result.inputs)
    except Exception:  # the model does not fit this case
        return []


def _results_in(kernel: Kernel, finding: Finding, case: Case) -> list[KernelResult]:
    """Return the kernel's results in a case, of the pass that failed. The other pass may have
    another bug, or none.
    """
    finding = replace(finding, case=case)
    try:
        results = list(kernel_results(kernel, finding, case.problem(kernel.spec)))
    except Exception:
        return []
    if may_be_gradients(kernel, finding):
        results = [result for result in results if result.inputs.aspect == "gradients"]
    return [result for result in results if np.any(result.comparisons[0].where)]


def _most_similar(passing: Sequence[Case], failing: Sequence[Case]) -> list[Case]:
    """Return small passing cases, those most similar to failing ones first."""
    small = [case for case in dict.fromkeys(passing) if 1 < case.scores <= FEW_SCORES]
    failing_traits = [_traits(case) for case in failing]

    def similarity(case: Case) -> int:
        traits = _traits(case)
        return max(len(traits & others) for others in failing_traits)

    small.sort(key=similarity, reverse=True)
    return small[:MOST_PASSING_CASES]


def _traits(case: Case) -> set[tuple[str, object]]:
    return {
        ("causal", case.causal),
        ("dtype", case.dtype),
        ("regime", case.regime),
        ("mask", case.mask is not None),
        ("scale", case.scale is not None),
        ("dropout", case.dropout_p > 0),
        ("groups", case.group > 1),
    }


def _exchanged(failing: Sequence[Case]) -> list[Case]:
    """Return small failing cases with N_q and N_k exchanged."""
    exchanged = []
    for case in failing:
        if case.N_k and case.N_q != case.N_k:
            exchanged.append(replace(case, N_q=case.N_k, N_k=case.N_q))
    return [case for case in dict.fromkeys(exchanged) if case.scores <= FEW_SCORES]
