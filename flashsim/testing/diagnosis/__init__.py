"""Which known bug a failing kernel has: by experiment, by a model with that bug that gives the same wrong numbers, or, failing
those, by what the failing cases have in common."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from flashsim.testing.case import Case
from flashsim.testing.diagnosis.exhibits import MOST_SCORES, exhibit_of
from flashsim.testing.diagnosis.experiments import EXPERIMENTS, ONLY_DROPOUT
from flashsim.testing.diagnosis.features import in_common
from flashsim.testing.diagnosis.models import by_model
from flashsim.testing.diagnosis.suspicion import Conviction, Suspicion
from flashsim.testing.kernel import Kernel
from flashsim.testing.running import Finding

__all__ = ["Suspicion", "diagnose"]


def diagnose(kernel: Kernel, findings: Sequence[Finding], verdicts: Sequence[tuple[Case, bool]]) -> list[Suspicion]:
    """Return up to three bugs that would explain the failing findings, the likeliest first; none if nothing fits.

    `verdicts` says of each case tried whether it passed.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        convictions, exhibits = _convicted(kernel, findings, verdicts)
        found = _explaining(convictions)
        explained = set().union(*(c.matched for c in found)) if found else set()
        suspicions = [c.suspicion for c in found]
        if not suspicions or len(explained) < exhibits:
            suspicions += in_common(kernel.spec, verdicts)
    return suspicions[:3]


def _convicted(
    kernel: Kernel, findings: Sequence[Finding], verdicts: Sequence[tuple[Case, bool]]
) -> tuple[list[Conviction], int]:
    """Return all bugs that fit, the simplest first, and how many findings were looked at."""
    failing = [f for f in findings if f.failed and f.case.scores <= MOST_SCORES]
    found = [bug for experiment in EXPERIMENTS if (bug := experiment.convict(kernel, failing)) is not None]
    exhibits = {n: e for n, f in enumerate(failing) if (e := exhibit_of(kernel, f)) is not None}
    if exhibits:
        found += by_model(kernel, exhibits, failing, [case for case, passed in verdicts if passed])
    if not found and (bug := ONLY_DROPOUT.convict(kernel, failing)) is not None:
        found.append(bug)
    return found, len(failing)


def _explaining(convictions: Sequence[Conviction]) -> list[Conviction]:
    """Return the bugs that explain most, and those that explain what they do not; of equal ones the first three."""
    ranked = sorted(convictions, key=lambda c: (c.mismatched - len(c.matched), c.mismatched))
    chosen: list[Conviction] = []
    for c in ranked:
        so_far = frozenset().union(*(other.matched for other in chosen))
        if c.matched - so_far or c.matched == ranked[0].matched:
            chosen.append(c)
    return chosen[:3]
