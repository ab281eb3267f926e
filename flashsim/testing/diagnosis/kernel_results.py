"""`KernelResult`: a kernel's result beside the right one. It says whether a bug model gives the
same wrong numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flashsim.attention.inputs import Array, roundoff
from flashsim.testing.bug_models import Arrays, Inputs
from flashsim.testing.checks import CHECKS, Comparison, of_gradients
from flashsim.testing.kernel import Broken, Kernel, OutsidePool
from flashsim.testing.problem import Problem
from flashsim.testing.survey import Finding

MOST_SCORES = 10**6  # of a case that is examined
CLEARLY = 4  # an error of more than so many budgets is clearly wrong
POISONED = ("masked_kv_poison", "backward_poison")


@dataclass(frozen=True)
class Suspicion:
    """A known bug that a kernel may have.

    says      the bug, in a sentence
    threads   public threads about it
    evidence  why the kernel may have it
    explains  the numbers of the findings that it explains
    besides   how many failing cases with N_q and N_k exchanged it explains
    """

    says: str
    threads: tuple[str, ...]
    evidence: str
    explains: frozenset[int] = frozenset()
    besides: int = 0


def failing_cases(n: int) -> str:
    """Return a number of failing cases in words. They were drawn, or are simpler ones made from
    those.
    """
    return "1 failing case" if n == 1 else f"{n} examined failing cases"


@dataclass(frozen=True, eq=False)
class KernelResult:
    """A kernel's O, log-sum-exp, or all three gradients, beside the right ones.

    inputs       of the bug models that it is compared with
    comparisons  with the right result: one, or one for each gradient
    others       the other results of the call: if the kernel is right there, a model must be right,
                 too
    """

    inputs: Inputs
    comparisons: tuple[Comparison, ...]
    others: tuple[KernelResult, ...] = ()

    @cached_property
    def right(self) -> bool:
        """Whether the kernel is right."""
        return not self._is_off(self.inputs.actual)

    def _is_off(self, answer: Arrays, budgets: int = 1) -> bool:
        """Return whether an answer is wrong by more than so many budgets."""
        pairs = zip(answer, self.comparisons, strict=True)
        return any((comparison.error_ratios(a) > budgets).any() for a, comparison in pairs)

    def refutes(self, answers: Sequence[Arrays]) -> bool:
        """Return whether a model is clearly wrong here; the kernel must not be."""
        return bool(answers) and all(self._is_off(answer, CLEARLY) for answer in answers)

    def verdict(self, answers: Sequence[Arrays]) -> bool | None:
        """Return whether the kernel's result is one of a model's answers; None if the model is
        right here.
        """
        wrong = [answer for answer in answers if self._is_off(answer)]
        if any(map(self._equals, wrong)):
            return True
        return False if answers and len(wrong) == len(answers) else None

    def _equals(self, answer: Arrays) -> bool:
        """Return whether the kernel's result is a model's answer, but for rounding. Its numbers
        must be nearer to the model's than to the right ones.
        """
        from_model = 0.0
        from_right = 0.0
        for a, comparison in zip(answer, self.comparisons, strict=True):
            if not self._is_near(a, comparison):
                return False
            actual = comparison.actual
            expected = comparison.expected
            finite = np.isfinite(a) & np.isfinite(actual) & np.isfinite(expected)
            wrong = (comparison.error_ratios() > 1) & finite
            budget = np.broadcast_to(comparison.budget, actual.shape)
            size = np.where(budget > 0, budget, 1e-30)[wrong]
            from_model += float((np.abs(a - actual)[wrong] / size).sum())
            from_right += float((np.abs(expected - actual)[wrong] / size).sum())
        return from_model <= 0.3 * from_right

    def _is_near(self, a: Array, comparison: Comparison) -> bool:
        """Return whether each element of the kernel's array is near to a model's."""
        actual = comparison.actual
        budget = np.asarray(comparison.budget)
        finite = np.isfinite(a) & np.isfinite(actual)
        if self.inputs.aspect == "lse":  # −∞, +∞ and NaN are different answers
            same = (a == actual) | (np.isnan(a) & np.isnan(actual))
        else:
            same = ~np.isfinite(a) & ~np.isfinite(actual)
        sizes = np.abs(np.where(np.isfinite(actual), actual, 0))
        largest = sizes.max(axis=-1, keepdims=True, initial=0)
        u = roundoff(self.inputs.dtype)
        tolerance = 3 * budget + 4 * u * largest + 1e-3 * np.abs(a)
        near = np.abs(np.where(finite, a - actual, 0)) <= tolerance
        compared = comparison.where & (budget < np.inf)
        return bool((np.where(finite, near, same) | ~compared).all())


def first_wrong_result(kernel: Kernel, finding: Finding) -> KernelResult | None:
    """Return the first wrong result of the kernel in the finding's case, or in the problem that the
    check made of it; None if there is none that models can explain.
    """
    problems = [finding.case.problem(kernel.spec)]
    if finding.comparison is not None and finding.comparison.problem is not None:
        problems.append(finding.comparison.problem)
    for problem in problems:
        if not _can_be_modelled(problem):
            continue
        try:
            for result in kernel_results(kernel, finding, problem):
                if not result.right:
                    return result
        except (Broken, OutsidePool, ValueError, ArithmeticError):
            continue
    return None


def _can_be_modelled(problem: Problem) -> bool:
    """Return whether bug models have all that the problem has, and it is small enough."""
    beyond_models = (problem.softcap, problem.slopes, problem.sink, problem.scales)
    if any(value is not None for value in beyond_models):
        return False
    if math.prod(problem.score_shape) > MOST_SCORES:
        return False
    return finite(problem.q) and finite(problem.k) and finite(problem.v)


def kernel_results(kernel: Kernel, finding: Finding, problem: Problem) -> Iterator[KernelResult]:
    """Yield the kernel's results for a problem, those that the finding's check compares first."""
    keep = kernel.keep(problem) if problem.dropout_p and kernel.keep_mask else None
    rows = ~problem.empty
    spec = kernel.spec
    if may_be_gradients(kernel, finding) and (spec.empty_rows == "zero" or rows.all()):
        exact, budgets = problem.gradients(keep)
        gradients = kernel.backward(problem, finding.case.strides)
        comparisons = of_gradients("{}", gradients, exact, budgets, problem)
        yield KernelResult(Inputs(problem, keep, "gradients", gradients), tuple(comparisons))
    right = problem.solution
    out = kernel.forward(problem, finding.case.strides)
    if keep is None:
        O = right.O
        O_budget = right.O_budget
    else:
        O, O_budget = problem.dropped(keep)
    kinds_of_rows = [rows] if spec.empty_rows == "undefined" else [rows, problem.empty]
    if finding.check == "empty_rows":
        kinds_of_rows.reverse()
    O_inputs = Inputs(problem, keep, "O", (out.O,))
    O_results = []
    for where in kinds_of_rows:
        comparison = Comparison("O", out.O, O, O_budget, where[..., None])
        O_results.append(KernelResult(O_inputs, (comparison,)))
    lse_results = []
    if out.lse is not None:
        lse_inputs = Inputs(problem, keep, "lse", (out.lse,))
        for where in kinds_of_rows if spec.empty_rows == "zero" else [rows]:
            comparison = Comparison("lse", out.lse, right.lse, right.lse_budget, where)
            lse_results.append(KernelResult(lse_inputs, (comparison,), tuple(O_results)))
    if finding.check == "log_sum_exp":
        yield from [*lse_results, *O_results]
    else:
        yield from [*O_results, *lse_results]


def may_be_gradients(kernel: Kernel, finding: Finding) -> bool:
    """Return whether the check of a finding looks at gradients, so that they may be wrong."""
    if not kernel.back or finding.check == "inputs_unmodified":
        return False
    return "backward" in CHECKS[finding.check].asks


def finite(a: Array) -> bool:
    """Return whether all elements are finite."""
    return bool(np.isfinite(a.astype(np.float64)).all())
