"""Which suspects, models of bugs, answer with the same wrong numbers as a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flashsim.testing.case import Case
from flashsim.testing.diagnosis.exhibits import Exhibit, Suspicion, aspects, failing_cases
from flashsim.testing.running import Finding
from flashsim.testing.subject import Subject
from flashsim.testing.suspects import Arrays, Suspect, suspects

FEW_SCORES = 4096  # of a passing case that a model is held against
ALIBIS = 24  # so many passing cases


def by_model(
    subject: Subject, exhibits: dict[int, Exhibit], findings: Sequence[Finding], passing: Sequence[Case]
) -> list[Suspicion]:
    """Return the suspects whose answers are the kernel's wherever they are wrong, of each family the best."""
    alibis: list[Exhibit] | None = None
    check, failing = findings[0].check, [finding.case for finding in findings]
    ordered = sorted(exhibits.items(), key=lambda item: math.prod(item[1].question.problem.score_shape))
    best: dict[str, Suspicion] = {}
    for suspect in suspects(subject.spec):
        matched, mismatched = set(), 0
        for number, exhibit in ordered:
            verdict = exhibit.verdict(_answers(suspect, exhibit))
            if verdict:
                matched.add(number)
            mismatched += verdict is False
            if mismatched > max(0, (len(ordered) - mismatched) // 4):
                break
        if not matched or len(matched) < 4 * mismatched:
            continue
        if alibis is None:
            alibis = _alibis(subject, check, passing, failing)
        beside = [other for n in matched for other in exhibits[n].beside if other.right]
        if any(alibi.refutes(_answers(suspect, alibi)) for alibi in (*alibis, *beside)):
            continue
        wrong = {exhibits[n].question.aspect for n in matched}
        says = f"In the backward pass: {suspect.says}" if wrong == {"gradients"} else suspect.says
        of = f"{len(matched)} of {failing_cases(len(exhibits))}"
        evidence = f"a model with this bug gives the same wrong numbers in {of}"
        known = best.get(suspect.family)
        if known is None or len(matched) - mismatched > len(known.explains) - known.leaves:
            best[suspect.family] = Suspicion(says, suspect.threads, evidence, frozenset(matched), mismatched)
    return list(best.values())


def _answers(suspect: Suspect, exhibit: Exhibit) -> list[Arrays]:
    try:
        return suspect.answers(exhibit.question)
    except Exception:  # a model that does not go with a case says nothing of it
        return []


def _alibis(subject: Subject, check: str, passing: Sequence[Case], failing: Sequence[Case]) -> list[Exhibit]:
    """Return what the kernel is right about, by the check's first part, in the passing cases most like failing ones."""
    small = [case for case in dict.fromkeys(passing) if 1 < case.scores <= FEW_SCORES]
    traits = [_traits(case) for case in failing]
    small.sort(key=lambda case: -max(len(_traits(case) & other) for other in traits))
    found = []
    for case in small[:ALIBIS]:
        try:
            exhibit = next(aspects(subject, Finding(check, case, 0.0), case.problem(subject.spec)))
        except Exception:
            continue
        if np.any(exhibit.asked[0].at) and exhibit.right:
            found.append(exhibit)
    return found


def _traits(case: Case) -> set[tuple[object, object]]:
    given = (case.mask is not None, case.scale is not None, case.dropout_p > 0, case.group > 1)
    return {("causal", case.causal), ("dtype", case.dtype), ("regime", case.regime), *enumerate(given)}
