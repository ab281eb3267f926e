"""Which suspects, models of bugs, give the same wrong numbers as a kernel."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain

import numpy as np

from flashsim.testing.case import Case
from flashsim.testing.diagnosis.exhibits import (
    Exhibit,
    Suspicion,
    aspects,
    failing_cases,
    of_gradients_too,
)
from flashsim.testing.running import Finding
from flashsim.testing.subject import Subject
from flashsim.testing.suspects import Arrays, Suspect, suspects

FEW_SCORES = 4096  # the most scores of a passing case on which models are tried
ALIBIS = 200  # the most passing cases on which models are tried


def by_model(
    subject: Subject,
    exhibits: dict[int, Exhibit],
    findings: Sequence[Finding],
    passing: Sequence[Case],
) -> list[Suspicion]:
    """Return the suspects that give the kernel's numbers wherever they are wrong, the best of each
    family.

    One case clears a suspect: one in which it is wrong, and the kernel is right, or wrong in
    another way, beyond rounding. Failing cases are also tried with N_q and N_k exchanged, which may
    speak for a suspect or against it.
    """
    failing = [finding.case for finding in findings]
    ordered = sorted(
        exhibits.items(), key=lambda item: math.prod(item[1].question.problem.score_shape)
    )
    seen = cache(partial(_seen, subject, findings[0]))
    turned = _turned(failing)
    alibis = _alike(passing, failing)
    best: dict[str, Suspicion] = {}
    for suspect in suspects(subject.spec):
        matched = _matched(suspect, ordered)
        if not matched:
            continue
        beside = (other for n in matched for other in exhibits[n].beside)
        # computed when needed
        others = chain(
            beside, *(chain.from_iterable(map(seen, cases)) for cases in (turned, alibis))
        )
        if any(other.right and other.refutes(_answers(suspect, other)) for other in others):
            continue
        wrong_too = (other for case in turned for other in seen(case) if not other.right)
        verdicts = [other.verdict(_answers(suspect, other)) for other in wrong_too]
        if False in verdicts:
            continue
        wrong_in = {exhibits[n].question.aspect for n in matched}
        says = (
            f"In the backward pass: {suspect.says}" if wrong_in == {"gradients"} else suspect.says
        )
        shown = ", not in the one shown" if 0 in exhibits and 0 not in matched else ""
        of = f"{len(matched)} of {failing_cases(len(exhibits))}{shown}"
        evidence = f"a model with this bug gives the same wrong numbers in {of}"
        known = best.get(suspect.family)
        if known is None or len(matched) > len(known.explains):
            best[suspect.family] = Suspicion(
                says, suspect.threads, evidence, frozenset(matched), verdicts.count(True)
            )
    return list(best.values())


def _matched(suspect: Suspect, ordered: Sequence[tuple[int, Exhibit]]) -> set[int]:
    """Return the numbers of the exhibits that a suspect explains, or none if an exhibit
    contradicts it.
    """
    matched = set()
    for number, exhibit in ordered:
        verdict = exhibit.verdict(_answers(suspect, exhibit))
        if verdict is False:
            return set()
        if verdict:
            matched.add(number)
    return matched


def _answers(suspect: Suspect, exhibit: Exhibit) -> list[Arrays]:
    try:
        return suspect.answers(exhibit.question)
    except Exception:  # the model does not fit this case
        return []


def _seen(subject: Subject, finding: Finding, case: Case) -> list[Exhibit]:
    """Return the kernel's results in the pass that failed. The other pass may have another bug,
    or none.
    """
    finding = replace(finding, case=case)
    try:
        found = [*aspects(subject, finding, case.problem(subject.spec))]
    except Exception:
        return []
    if of_gradients_too(subject, finding):
        found = [exhibit for exhibit in found if exhibit.question.aspect == "gradients"]
    return [exhibit for exhibit in found if np.any(exhibit.asked[0].at)]


def _alike(passing: Sequence[Case], failing: Sequence[Case]) -> list[Case]:
    """Return small passing cases, those most similar to failing ones first."""
    small = [case for case in dict.fromkeys(passing) if 1 < case.scores <= FEW_SCORES]
    traits = [_traits(case) for case in failing]
    small.sort(key=lambda case: -max(len(_traits(case) & other) for other in traits))
    return small[:ALIBIS]


def _traits(case: Case) -> set[tuple[object, object]]:
    given = (case.mask is not None, case.scale is not None, case.dropout_p > 0, case.group > 1)
    return {
        ("causal", case.causal),
        ("dtype", case.dtype),
        ("regime", case.regime),
        *enumerate(given),
    }


def _turned(failing: Sequence[Case]) -> list[Case]:
    """Return small failing cases with N_q and N_k exchanged."""
    turned = (
        replace(case, N_q=case.N_k, N_k=case.N_q)
        for case in failing
        if case.N_k and case.N_q != case.N_k
    )
    return [case for case in dict.fromkeys(turned) if case.scores <= FEW_SCORES]
