"""What a check is: a function that yields comparisons of what a kernel returns on a case with what
it should return.

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
from flashsim.testing.problem import Problem, Solution
from flashsim.testing.spec import FP8
from flashsim.testing.subject import Output, Subject


class Comparison(NamedTuple):
    """Arrays of one shape: |got − want| ≤ budget is asked of each element where `at` is true. A
    budget of 0 means equal.
    """

    what: str
    got: Array
    want: Array
    budget: Array | float
    at: Array | bool = True
    problem: Problem | None = None

    def parts(self, answer: Array | None = None) -> Array:
        """Return each error of `got`, or of another answer, as a part of its budget; −1 where
        nothing is asked.
        """
        want = np.asarray(self.want)
        budget = np.broadcast_to(np.asarray(self.budget, float), want.shape)
        return np.where(
            self.at, parts_of_bound(self.got if answer is None else answer, want, budget), -1.0
        )


Comparisons = Iterator[Comparison]
Three = tuple[Array, ...]


def of_gradients(
    what: str,
    got: Three,
    want: Three,
    budgets: Three,
    problem: Problem,
    at: Sequence[Array | bool] = (True,) * 3,
) -> Comparisons:
    """Yield what to compare of dq, dk, dv, and dsink if there is one, each being {} in `what`."""
    names = ("dq", "dk", "dv", "dsink")[: len(got)]
    for name, g, w, budget, where in zip(
        names, got, want, budgets, (*at, True)[: len(got)], strict=True
    ):
        yield Comparison(what.format(name), g, w, budget, where, problem)


def of_outputs(
    what: str,
    got: Output,
    want: Output | Solution,
    budgets: Sequence[Array | float],
    at: Sequence[Array],
    problem: Problem,
) -> Comparisons:
    """Yield what to compare of O, and of lse if both have one, each being {} in `what`; `at` are
    those of O and of lse.
    """
    yield Comparison(what.format("O"), got.O, want.O, budgets[0], at[0], problem)
    if got.lse is not None and want.lse is not None:
        yield Comparison(what.format("lse"), got.lse, want.lse, budgets[1], at[1], problem)


class Trial:
    """One case, and one kernel to try on it. What several checks need is computed once."""

    def __init__(self, subject: Subject, case: Case) -> None:
        self.subject, self.case, self.spec = subject, case, subject.spec

    @cached_property
    def problem(self) -> Problem:
        """The case's arrays, with the oracle's answer."""
        return self.case.problem(self.spec)

    @cached_property
    def out(self) -> Output:
        """What the kernel returns for the case."""
        return self.subject.forward(self.problem, self.case.strides)

    @cached_property
    def gradients(self) -> tuple[Array, ...]:
        """What the kernel's backward function returns for the case."""
        return self.subject.backward(self.problem, self.case.strides)

    @cached_property
    def rng(self) -> np.random.Generator:
        """For choices that a check makes: the same for the same case."""
        return np.random.default_rng((self.case.seed, 3))

    @property
    def defined(self) -> Array:
        """Rows, (B, H_q, N_q, 1), whose output does not come from masked keys and is promised."""
        live = ~self.problem.empty
        return np.asarray(
            live if self.spec.empty_rows in ("undefined", "mean") else np.ones_like(live)
        )[..., None]

    @property
    def takes_backward(self) -> bool:
        """Whether the backward function takes the case: it takes no 8-bit inputs, and N_k = 0
        only if the spec says so.
        """
        return (
            self.case.N_k > 0 or self.spec.zero_keys != "forward"
        ) and self.case.dtype not in FP8

    @property
    def gradients_promised(self) -> bool:
        """Whether the spec says what the gradients are. It does if there are no empty rows, or
        if these are 0.
        """
        if not self.takes_backward:
            return False
        return self.spec.empty_rows == "zero" or not self.problem.empty.any()

    def forward(self, problem: Problem) -> Output:
        """Return what the kernel returns for a problem made of the case's."""
        return (
            self.out
            if problem is self.problem
            else self.subject.forward(problem, self.case.strides)
        )

    def alike(self, what: str, problem: Problem, other: Problem) -> Comparison:
        """Return the comparison of the kernel with itself, on two problems that have the same O."""
        got = self.forward(problem).O
        want = self.forward(other).O
        return Comparison(what, got, want, both_budgets(problem, other), self.defined, problem)


def both_budgets(one: Problem, other: Problem) -> Array:
    """Return the sum of the budgets of two problems' O."""
    return one.solution.O_budget + other.solution.O_budget


Run = Callable[[Trial], Comparisons]
Needs = str | Callable[[Subject], str]
Fit = Callable[[Case, Subject], Case | None]


# whether a kernel has it, and what is said if it does not
NEEDS: dict[str, tuple[Callable[[Subject], object], str]] = {
    "cross": (lambda subject: subject.spec.cross, "the spec declares N_q = N_k"),
    "strides": (
        lambda subject: subject.spec.strides != "contiguous",
        "the spec declares contiguous arrays",
    ),
    "deterministic": (
        lambda subject: subject.spec.deterministic,
        "the spec declares it not deterministic",
    ),
    "backward": (lambda subject: subject.back, "no backward was given"),
    "dropout": (lambda subject: subject.keep_mask, "no dropout was given"),
}


def _lacks(subject: Subject, needed: Needs) -> str:
    """Return why a kernel lacks what is needed: what `NEEDS` says of the name, or else its spec;
    or "".
    """
    if callable(needed):
        return needed(subject)
    has, why = NEEDS.get(
        needed,
        (lambda subject: getattr(subject.spec, needed), f"the spec does not declare {needed}"),
    )
    return "" if has(subject) else why


@dataclass(frozen=True)
class Check:
    """A property. `fit` makes a case fit, or returns None; `both`: it looks at a backward function
    too, if there is one.

    `computes`: it makes other arrays by arithmetic or in another order, which 8 bits with scales do
    not allow.
    """

    name: str
    run: Run
    conditions: tuple[Needs, ...]
    fit: Fit
    both: bool = False
    computes: bool = False

    def needs(self, subject: Subject) -> str:
        """Return why it does not apply to a kernel, or ""."""
        return next((why for needed in self.conditions if (why := _lacks(subject, needed))), "")

    @property
    def asks(self) -> tuple[str, ...]:
        """What it asks besides the forward function, or may ask: "backward", "dropout"."""
        return ("backward",) * (self.both or "backward" in self.conditions) + ("dropout",) * (
            "dropout" in self.conditions
        )

    def fitted(self, case: Case, subject: Subject) -> Case | None:
        """Return the case, made to fit, or None where it cannot be one for this check."""
        fitted = self.fit(case, subject)
        only_forward = fitted is not None and fitted.dtype in FP8
        return None if only_forward and (self.computes or (self.asks and not self.both)) else fitted

    def compare(self, trial: Trial) -> Comparisons:
        """Yield what to compare; nothing where that would be gradients that the spec does not
        promise.
        """
        if "backward" not in self.conditions or trial.gradients_promised:
            yield from self.run(trial)

    @property
    def about(self) -> str:
        """What it checks, in a line."""
        said = inspect.getdoc(self.run) or self.name  # python -OO drops what it says
        first_paragraph = said.partition("\n\n")[0]
        return " ".join(first_paragraph.split())


CHECKS: dict[str, Check] = {}


def check(
    *conditions: Needs,
    fit: Fit = lambda case, subject: case,
    both: bool = False,
    computes: bool = False,
) -> Callable[[Run], Run]:
    """Register a function as the check of that name, under these conditions: see `NEEDS`; a
    function says why not, or "".
    """

    def register(run: Run) -> Run:
        CHECKS[run.__name__] = Check(run.__name__, run, conditions, fit, both, computes)
        return run

    return register
