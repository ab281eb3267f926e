"""Which known bug a failing kernel has. An experiment shows it, or a model with that bug that gives
the same wrong numbers, or else what the failing cases have in common.
"""

import warnings
from collections.abc import Sequence

import numpy as np

from flashsim.testing.case import Case
from flashsim.testing.diagnosis.exhibits import MOST_SCORES, Suspicion, exhibit_of
from flashsim.testing.diagnosis.experiments import EXPERIMENTS, ONLY_DROPOUT
from flashsim.testing.diagnosis.features import in_common
from flashsim.testing.diagnosis.models import by_model
from flashsim.testing.running import Finding
from flashsim.testing.subject import Subject

__all__ = ["Suspicion", "diagnose"]


def diagnose(
    subject: Subject,
    findings: Sequence[Finding],
    verdicts: Sequence[tuple[Case, bool]],
    tried: Sequence[Case] = (),
) -> list[Suspicion]:
    """Return up to three bugs that would explain the failing findings, the likeliest first; none if
    nothing fits.

    `verdicts` has the check's cases, with whether each passed. `tried` are the cases in which every
    check passed.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failing = [f for f in findings if f.failed and f.case.scores <= MOST_SCORES]
        found = [bug for experiment in EXPERIMENTS for bug in experiment.convict(subject, failing)]
        exhibits = {
            n: e for n, f in enumerate(failing) if (e := exhibit_of(subject, f)) is not None
        }
        if exhibits:
            found += by_model(
                subject, exhibits, failing, [*(case for case, passed in verdicts if passed), *tried]
            )
        told = _explaining(found or ONLY_DROPOUT.convict(subject, failing))
        explained = frozenset().union(*(bug.explains for bug in told))
        return (
            told
            if told and len(explained) == len(failing)
            else [*told, *in_common(subject.spec, verdicts)]
        )[:3]


def _explaining(found: Sequence[Suspicion]) -> list[Suspicion]:
    """Return up to three bugs: those that explain most cases, and those that explain cases left
    over.
    """
    ranked = sorted(found, key=lambda bug: -len(bug.explains) - bug.besides)
    chosen: list[Suspicion] = []
    for bug in ranked:
        so_far = frozenset().union(*(other.explains for other in chosen))
        as_good = (bug.explains, bug.besides) == (ranked[0].explains, ranked[0].besides)
        if bug.explains - so_far or as_good:
            chosen.append(bug)
    return chosen[:3]
