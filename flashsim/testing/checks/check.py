"""`Check`, `Trial` and `Comparison`: a check is a function that compares a kernel's results on a
case with the right ones.

To add a check:

1. A function with `@check()` in a file of `flashsim/testing/checks/`; the first paragraph of its
   docstring is what users read. Conditions, such as `@check(declares("masks"))`, say to which
   kernels it applies; `fit=` changes a case so that it applies.
2. Correct kernels must pass: `pytest tests/testing/test_testing.py
   tests/testing/test_testing_conformance.py`.
3. It must be able to fail. `python scripts/kit_matrix.py --jobs 2` tries it on every mutant, in two
   hours or more, and `tests/house/test_docs.py` requires that at least one fails it. If none does,
   add one in `flashsim/testing/mutants/`, with the public thread of a bug like it.
4. `python scripts/kit_conformance.py --json figures/kit_conformance.json`.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.reference.rounding import parts_of_bound
from flashsim.testing.case import Case
from flashsim.testing.kernel import Kernel, Output
from flashsim.testing.problem import Problem, Solution
from flashsim.testing.spec import FP8


class Comparison(NamedTuple):
    """A kernel's array beside the right one: |actual − expected| ≤ budget must hold for each
    element where `where` is true. A budget of 0 means equal.

    label    the array's name in messages
    problem  the problem that the kernel was given
    """

    label: str
    actual: Array
    expected: Array
    budget: Array | float
    where: Array | bool = True
    problem: Problem | None = None

    def error_ratios(self, answer: Array | None = None) -> Array:
        """Return each error of `actual`, or of another answer, divided by its budget; −1 where
        `where` is false.
        """
        expected = np.asarray(self.expected)
        budget = np.broadcast_to(np.asarray(self.budget, float), expected.shape)
        ratios = parts_of_bound(self.actual if answer is None else answer, expected, budget)
        return np.where(self.where, ratios, -1.0)


Comparisons = Iterator[Comparison]
Gradients = tuple[Array, ...]  # dq, dk, dv, and dsink if there is a sink


def of_gradients(
    label: str,
    actual: Gradients,
    expected: Gradients,
    budgets: Gradients,
    problem: Problem,
    where: Sequence[Array | bool] = (True, True, True),
) -> Comparisons:
    """Yield a comparison for each of dq, dk, dv, and dsink if there is one. In `label`, {} stands
    for the gradient's name.
    """
    names = ("dq", "dk", "dv", "dsink")
    for i, gradient in enumerate(actual):
        elements = where[i] if i < len(where) else True
        text = label.format(names[i])
        yield Comparison(text, gradient, expected[i], budgets[i], elements, problem)


def of_outputs(
    label: str,
    actual: Output,
    expected: Output | Solution,
    budgets: Sequence[Array | float],
    where: Sequence[Array],
    problem: Problem,
) -> Comparisons:
    """Yield a comparison of O, and one of lse if both have it. In `label`, {} stands for the name.
    `budgets` and `where` are those of O and of lse.
    """
    O_label = label.format("O")
    yield Comparison(O_label, actual.O, expected.O, budgets[0], where[0], problem)
    if actual.lse is not None and expected.lse is not None:
        lse_label = label.format("lse")
        yield Comparison(lse_label, actual.lse, expected.lse, budgets[1], where[1], problem)


class Trial:
    """A kernel and a case to try it on. It computes once what several checks need."""

    def __init__(self, kernel: Kernel, case: Case) -> None:
        self.kernel = kernel
        self.case = case
        self.spec = kernel.spec

    @cached_property
    def problem(self) -> Problem:
        """The case's arrays, and the oracle's answer."""
        return self.case.problem(self.spec)

    @cached_property
    def out(self) -> Output:
        """The kernel's output for the case."""
        return self.kernel.forward(self.problem, self.case.strides)

    @cached_property
    def gradients(self) -> tuple[Array, ...]:
        """The gradients that the kernel's backward function returns for the case."""
        return self.kernel.backward(self.problem, self.case.strides)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers for the choices of a check: the same for the same case."""
        return np.random.default_rng((self.case.seed, 3))

    @property
    def defined_rows(self) -> Array:
        """Rows, booleans (B, H_q, N_q, 1), whose output the spec defines, and without masked
        keys.
        """
        rows = ~self.problem.empty
        if self.spec.empty_rows not in ("undefined", "mean"):
            rows = np.ones_like(rows)
        return np.asarray(rows[..., None])

    @property
    def takes_backward(self) -> bool:
        """Whether the backward function takes the case: no 8-bit inputs, and N_k = 0 only if the
        spec says so.
        """
        if self.case.dtype in FP8:
            return False
        return self.case.N_k > 0 or self.spec.zero_keys != "forward"

    @property
    def gradients_promised(self) -> bool:
        """Whether the spec defines the gradients: it does if no row is empty, or if empty rows
        are 0.
        """
        if not self.takes_backward:
            return False
        return self.spec.empty_rows == "zero" or not self.problem.empty.any()

    def forward(self, problem: Problem) -> Output:
        """Return the kernel's output for a problem that was made from the case's."""
        if problem is self.problem:
            return self.out
        return self.kernel.forward(problem, self.case.strides)

    def same_output(self, label: str, problem: Problem, other: Problem) -> Comparison:
        """Return the comparison of the kernel's O on two problems that have the same answer."""
        actual = self.forward(problem).O
        expected = self.forward(other).O
        budget = sum_of_budgets(problem, other)
        return Comparison(label, actual, expected, budget, self.defined_rows, problem)


def sum_of_budgets(problem: Problem, other: Problem) -> Array:
    """Return the sum of the budgets of two problems' O."""
    return problem.solution.O_budget + other.solution.O_budget


Run = Callable[[Trial], Comparisons]
Condition = str | Callable[[Kernel], str]
Fit = Callable[[Case, Kernel], Case | None]


def _unmet(kernel: Kernel, condition: Condition) -> str:
    """Return why a kernel does not meet a condition, or "".

    A condition is a function that returns this text; or the name of what the kernel must have: a
    field of its spec, "backward" or "dropout".
    """
    spec = kernel.spec
    if callable(condition):
        return condition(kernel)
    if condition == "backward":
        return "" if kernel.back else "no backward was given"
    if condition == "dropout":
        return "" if kernel.keep_mask else "no dropout was given"
    if condition == "cross":
        return "" if spec.cross else "the spec declares N_q = N_k"
    if condition == "deterministic":
        return "" if spec.deterministic else "the spec declares it not deterministic"
    if condition == "strides":
        return "the spec declares contiguous arrays" if spec.strides == "contiguous" else ""
    return "" if getattr(spec, condition) else f"the spec does not declare {condition}"


@dataclass(frozen=True)
class Check:
    """A property of attention, and the kernels and cases that it applies to.

    run         yields the comparisons of a trial
    conditions  what a kernel must have: see `check`
    fit         changes a case so that the check applies, or returns None
    both        whether it also looks at the backward function, if there is one
    computes    whether it makes other arrays by arithmetic or in another order, which 8 bits with
                scales do not allow
    """

    name: str
    run: Run
    conditions: tuple[Condition, ...]
    fit: Fit
    both: bool = False
    computes: bool = False

    def needs(self, kernel: Kernel) -> str:
        """Return why the check does not apply to a kernel, or ""."""
        for condition in self.conditions:
            if reason := _unmet(kernel, condition):
                return reason
        return ""

    @property
    def asks(self) -> tuple[str, ...]:
        """The functions besides the forward function that it calls, or may call: "backward",
        "dropout".
        """
        functions = []
        if self.both or "backward" in self.conditions:
            functions.append("backward")
        if "dropout" in self.conditions:
            functions.append("dropout")
        return tuple(functions)

    def fitted(self, case: Case, kernel: Kernel) -> Case | None:
        """Return the case, changed so that the check applies, or None if that is impossible."""
        fitted = self.fit(case, kernel)
        if fitted is None or fitted.dtype not in FP8:
            return fitted
        # 8-bit inputs: the forward function alone, on the arrays as they are
        needs_more = bool(self.asks) and not self.both
        return None if self.computes or needs_more else fitted

    def compare(self, trial: Trial) -> Comparisons:
        """Yield the comparisons of a trial; none if they are of gradients that the spec does not
        define.
        """
        if "backward" not in self.conditions or trial.gradients_promised:
            yield from self.run(trial)

    @property
    def about(self) -> str:
        """What it checks, in a line: the first paragraph of its docstring."""
        text = inspect.getdoc(self.run) or self.name  # python -OO drops docstrings
        paragraph = text.partition("\n\n")[0]
        return " ".join(paragraph.split())


CHECKS: dict[str, Check] = {}


def check(
    *conditions: Condition,
    fit: Fit = lambda case, kernel: case,
    both: bool = False,
    computes: bool = False,
) -> Callable[[Run], Run]:
    """Register a function as the check of that name.

    `conditions` are what a kernel must have for it: names of fields of its spec, "backward",
    "dropout", or functions that return why a kernel lacks something, or "". The others: see
    `Check`.
    """

    def register(run: Run) -> Run:
        CHECKS[run.__name__] = Check(run.__name__, run, conditions, fit, both, computes)
        return run

    return register
