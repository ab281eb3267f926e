"""Diagnosis: which known bug a failing kernel has. An experiment shows it, or a bug model gives the
same wrong numbers; otherwise the diagnosis says what the failing cases have in common.
"""

import warnings
from collections.abc import Sequence

import numpy as np

from flashsim.testing.case import Case
from flashsim.testing.diagnosis.experiments import EXPERIMENTS, ONLY_DROPOUT
from flashsim.testing.diagnosis.features import in_common
from flashsim.testing.diagnosis.kernel_results import MOST_SCORES, Suspicion, first_wrong_result
from flashsim.testing.diagnosis.model_matching import matching_models
from flashsim.testing.kernel import Kernel
from flashsim.testing.survey import Finding

__all__ = ["Suspicion", "diagnose"]

MOST = 3  # suspicions that a diagnosis returns


def diagnose(
    kernel: Kernel,
    findings: Sequence[Finding],
    verdicts: Sequence[tuple[Case, bool]],
    passing: Sequence[Case] = (),
) -> list[Suspicion]:
    """Return up to three bugs that explain the failing findings, the likeliest first; none if no
    bug does.

    verdicts  the check's cases, with whether each passed
    passing   cases in which every check passed
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failing = [f for f in findings if f.failed and f.case.scores <= MOST_SCORES]
        suspicions = []
        for experiment in EXPERIMENTS:
            suspicions += experiment.suspicions(kernel, failing)
        wrong_results = {}
        for number, finding in enumerate(failing):
            result = first_wrong_result(kernel, finding)
            if result is not None:
                wrong_results[number] = result
        if wrong_results:
            passed = [case for case, has_passed in verdicts if has_passed]
            suspicions += matching_models(kernel, wrong_results, failing, [*passed, *passing])
        best = _best(suspicions or ONLY_DROPOUT.suspicions(kernel, failing))
        if best and len(_explained_by(best)) == len(failing):
            return best
        return [*best, *in_common(kernel.spec, verdicts)][:MOST]


def _best(suspicions: Sequence[Suspicion]) -> list[Suspicion]:
    """Return up to three bugs: those that explain most cases, and those that explain cases that the
    others do not.
    """
    ranked = sorted(suspicions, key=lambda bug: -len(bug.explains) - bug.besides)
    best: list[Suspicion] = []
    for bug in ranked:
        explains_more = bug.explains - _explained_by(best)
        as_good = (bug.explains, bug.besides) == (ranked[0].explains, ranked[0].besides)
        if explains_more or as_good:
            best.append(bug)
    return best[:MOST]


def _explained_by(suspicions: Sequence[Suspicion]) -> frozenset[int]:
    """Return the numbers of the findings that the suspicions explain."""
    return frozenset().union(*(bug.explains for bug in suspicions))
