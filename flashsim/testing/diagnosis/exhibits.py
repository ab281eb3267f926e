"""A kernel's wrong numbers beside the right ones, and whether a model of a bug gives the same
wrong numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flashsim.attention.inputs import Array, roundoff
from flashsim.testing.checks import CHECKS, Comparison, of_gradients
from flashsim.testing.problem import Problem
from flashsim.testing.running import Finding
from flashsim.testing.subject import Broken, OutsidePool, Subject
from flashsim.testing.suspects import Arrays, Question

MOST_SCORES = 10**6  # of a case that is examined
CLEARLY = 4  # an error of more budgets than this is clearly wrong
POISONED = ("masked_kv_poison", "backward_poison")


@dataclass(frozen=True)
class Suspicion:
    """A known bug that a kernel may have.

    says      the bug, in a sentence
    threads   where it was seen
    evidence  what speaks for it
    explains  the numbers of the findings that it explains
    besides   how many failing cases with N_q and N_k exchanged it explains
    """

    says: str
    threads: tuple[str, ...]
    evidence: str
    explains: frozenset[int] = frozenset()
    besides: int = 0


def failing_cases(n: int) -> str:
    """Return that number of them in words. They are cases that were drawn, and simpler ones made
    of them.
    """
    return "1 failing case" if n == 1 else f"{n} examined failing cases"


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A kernel's numbers beside the right ones, for O, the log-sum-exp, or all three gradients.

    beside  the call's other results; if the kernel is right there, a model must be right, too
    """

    question: Question
    asked: tuple[Comparison, ...]
    beside: tuple[Exhibit, ...] = ()

    @cached_property
    def right(self) -> bool:
        """Whether the kernel is right."""
        return not self._off(self.question.got)

    def _off(self, answer: Arrays, budgets: int = 1) -> bool:
        return any(
            (asked.parts(a) > budgets).any() for a, asked in zip(answer, self.asked, strict=True)
        )

    def refutes(self, answers: Sequence[Arrays]) -> bool:
        """Return whether a model is wrong where the kernel is right."""
        return bool(answers) and all(self._off(answer, CLEARLY) for answer in answers)

    def verdict(self, answers: Sequence[Arrays]) -> bool | None:
        """Return whether one of a model's answers is what the kernel returned, or None if the
        model is right here.
        """
        off = [answer for answer in answers if self._off(answer)]
        if any(map(self._same, off)):
            return True
        return False if answers and len(off) == len(answers) else None

    def _same(self, answer: Arrays) -> bool:
        kinds = self.question.aspect == "lse"
        u = roundoff(self.question.problem.q.dtype)
        apart = 0.0
        astray = 0.0
        for a, asked in zip(answer, self.asked, strict=True):
            got = asked.got
            want = asked.want
            budget = np.asarray(asked.budget)
            judged = asked.at & (budget < np.inf)
            both = np.isfinite(a) & np.isfinite(got)
            alike = (
                (a == got) | (np.isnan(a) & np.isnan(got))
                if kinds
                else ~np.isfinite(a) & ~np.isfinite(got)
            )
            largest = np.abs(np.where(np.isfinite(got), got, 0)).max(
                axis=-1, keepdims=True, initial=0
            )
            near = np.abs(
                np.where(both, a - got, 0)
            ) <= 3 * budget + 4 * u * largest + 1e-3 * np.abs(a)
            if not (np.where(both, near, alike) | ~judged).all():
                return False
            count = (asked.parts() > 1) & both & np.isfinite(want)
            size = np.where(budget > 0, budget, 1e-30)[count]
            apart += float((np.abs(a - got)[count] / size).sum())
            astray += float((np.abs(want - got)[count] / size).sum())
        return apart <= 0.3 * astray


def exhibit_of(subject: Subject, finding: Finding) -> Exhibit | None:
    """Return where the kernel is wrong in the finding's case, or in the problem that the check
    made of it.
    """
    problems = [finding.case.problem(subject.spec)]
    if finding.comparison is not None and finding.comparison.problem is not None:
        problems.append(finding.comparison.problem)
    for problem in problems:
        # suspects do not model these
        beyond = problem.softcap, problem.slopes, problem.sink, problem.scales
        if any(each is not None for each in beyond):
            continue
        if math.prod(problem.score_shape) > MOST_SCORES or not all(
            map(finite, (problem.q, problem.k, problem.v))
        ):
            continue
        try:
            for exhibit in aspects(subject, finding, problem):
                if not exhibit.right:
                    return exhibit
        except (Broken, OutsidePool, ValueError, ArithmeticError):
            continue
    return None


def aspects(subject: Subject, finding: Finding, problem: Problem) -> Iterator[Exhibit]:
    """Yield the kernel's results for a problem, beginning with those that the finding's check
    compares.
    """
    keep = subject.keep(problem) if problem.dropout_p and subject.keep_mask else None
    live = ~problem.empty
    empty = problem.empty
    if of_gradients_too(subject, finding) and (subject.spec.empty_rows == "zero" or live.all()):
        exact = problem.gradients(keep)
        got = subject.backward(problem, finding.case.strides)
        yield Exhibit(
            Question(problem, keep, "gradients", got),
            tuple(of_gradients("{}", got, *exact, problem)),
        )
    right = problem.solution
    out = subject.forward(problem, finding.case.strides)
    O, O_budget = (right.O, right.O_budget) if keep is None else problem.dropped(keep)
    promised = [live] if subject.spec.empty_rows == "undefined" else [live, empty]
    if finding.check == "empty_rows":
        promised.reverse()
    question = Question(problem, keep, "O", (out.O,))
    in_O = [
        Exhibit(question, (Comparison("O", out.O, O, O_budget, at[..., None]),)) for at in promised
    ]
    in_lse = []
    if out.lse is not None:
        question = Question(problem, keep, "lse", (out.lse,))
        rows = promised if subject.spec.empty_rows == "zero" else [live]
        lse = (out.lse, right.lse, right.lse_budget)
        in_lse = [Exhibit(question, (Comparison("lse", *lse, at),), tuple(in_O)) for at in rows]
    yield from (*in_lse, *in_O) if finding.check == "log_sum_exp" else (*in_O, *in_lse)


def of_gradients_too(subject: Subject, finding: Finding) -> bool:
    """Return whether the gradients may be what failed."""
    return (
        bool(subject.back)
        and "backward" in CHECKS[finding.check].asks
        and finding.check != "inputs_unmodified"
    )


def finite(a: Array) -> bool:
    """Return whether all elements are finite."""
    return bool(np.isfinite(a.astype(np.float64)).all())
