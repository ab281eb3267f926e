"""Run checks over cases that Hypothesis draws. A survey tries every check, whether others fail or
not; `shrink` then makes the case of a failing check simpler.
"""

import time
import warnings
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis.errors import NoSuchExample

from flashsim.testing.case import FEATURES, Case
from flashsim.testing.checks import CHECKS, Check, Comparison, Trial
from flashsim.testing.kernel import Broken, Kernel, OutsidePool
from flashsim.testing.spec import Spec
from flashsim.testing.strategies import cases

ALWAYS = ("oracle", "log_sum_exp", "gradients")
# how many of the other checks a survey tries on a case, and on one with more scores than LARGE
ROTATING = 5
ROTATING_LARGE = 2
LARGE = 4096


@dataclass(frozen=True)
class Finding:
    """The result of a check on a case.

    ratio       the worst error divided by its budget; above 1 the check has failed
    comparison  the comparison that has it
    index       of the worst element, in `comparison.actual`
    broken      if there is no valid result: what the kernel raised, or what is wrong with the shape
                of its result
    """

    check: str
    case: Case
    ratio: float
    comparison: Comparison | None = field(default=None, repr=False)
    index: tuple[int, ...] = ()
    broken: str = ""

    @property
    def failed(self) -> bool:
        """Whether an error is larger than its budget."""
        return not self.ratio <= 1


def try_check(
    check: Check, kernel: Kernel, case: Case, trial: Trial | None = None
) -> Finding | None:
    """Run a check on a case, changed so that the check applies. Return the finding, or None if the
    check does not apply.
    """
    fitted = check.fitted(case, kernel)
    if fitted is None:
        return None
    if kernel.on_try is not None:
        kernel.on_try(check.name, fitted)
    if trial is None or fitted != trial.case:
        trial = Trial(kernel, fitted)
    worst: Finding | None = None
    try:
        with np.errstate(all="ignore"):
            for comparison in check.compare(trial):
                ratios = comparison.error_ratios()
                ratio = float(ratios.max(initial=-1.0))
                if ratio > (-1.0 if worst is None else worst.ratio):
                    index = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
                    worst = Finding(check.name, fitted, ratio, comparison, tuple(map(int, index)))
    except OutsidePool:
        return worst
    except KeyboardInterrupt as stop:
        stop.add_note(f"in the check {check.name} on {fitted!r}")
        raise
    except Broken as broken:
        return Finding(check.name, fitted, float("inf"), broken=str(broken))
    return worst


@dataclass
class Tally:
    """Counts of one check in a survey.

    tried, failed  cases
    first          the number, from 1, of the first case that failed; 0 if none did
    worst          the largest error divided by its budget
    simplest       the finding with the simplest case that failed
    """

    tried: int = 0
    failed: int = 0
    first: int = 0
    worst: float = 0.0
    simplest: Finding | None = None

    def add(self, finding: Finding, number: int) -> None:
        """Count a finding of the case of that number."""
        self.tried += 1
        self.worst = max(self.worst, finding.ratio)
        if finding.failed:
            self.failed += 1
            self.first = self.first or number
            if self.simplest is None or size(finding.case) < size(self.simplest.case):
                self.simplest = finding


def size(case: Case) -> tuple[int, int]:
    """Return a key that sorts cases, the simplest first: by elements, then by features."""
    extras = sum(getattr(case, name) != getattr(Case, name) for name in FEATURES)
    return case.B * case.H_kv * case.group * (case.N_q + case.N_k) * case.d, extras


@dataclass
class Survey:
    """The results of a survey.

    tallies   of each check that applies
    left_out  why the other checks do not apply
    verdicts  (case, whether it passed, the check's name) of each try
    examples  how many cases were drawn
    """

    tallies: dict[str, Tally]
    left_out: dict[str, str]
    verdicts: list[tuple[Case, bool, str]] = field(default_factory=list, repr=False)
    examples: int = 0


Progress = Callable[[int, int], None]


def applicable(
    kernel: Kernel, names: Iterable[str] | None = None
) -> tuple[list[Check], dict[str, str]]:
    """Return the checks that apply to the kernel, and why the others do not."""
    checks = []
    reasons = {}
    for name in CHECKS if names is None else names:
        if reason := CHECKS[name].needs(kernel):
            reasons[name] = reason
        else:
            checks.append(CHECKS[name])
    return checks, reasons


def survey(
    kernel: Kernel,
    max_examples: int,
    seed: int,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
    until_failure: bool = False,
    expected: Container[str] = (),
) -> Survey:
    """Draw cases, and try the checks on each. By default some checks are tried on every case, and
    the others in turn.

    names          checks that are each tried on every case
    until_failure  whether to stop after the first case that fails a check, unless the check is
                   `expected` to fail
    """
    checks, left_out = applicable(kernel, names)
    result = Survey({check.name: Tally() for check in checks}, left_out)

    def ends() -> bool:
        if not until_failure:
            return False
        return any(tally.failed for name, tally in result.tallies.items() if name not in expected)

    def try_case(case: Case) -> bool:
        if ends():  # Hypothesis tries the case that ends the search once more
            return True
        result.examples += 1
        trial = Trial(kernel, case)
        for check in _checks_of_case(checks, case) if names is None else checks:
            finding = try_check(check, kernel, case, trial)
            if finding is not None:
                result.tallies[check.name].add(finding, result.examples)
                result.verdicts.append((finding.case, not finding.failed, check.name))
        if progress is not None:
            progress(result.examples, max_examples)
        return ends()

    search = settings(
        max_examples=max_examples,
        database=None,
        deadline=None,
        derandomize=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    with warnings.catch_warnings(), suppress(NoSuchExample):
        warnings.simplefilter("ignore")
        find(cases(kernel.spec), try_case, settings=search, random=Random(seed))
    return result


def _checks_of_case(checks: Sequence[Check], case: Case) -> list[Check]:
    """Return the checks that a survey tries on a case: those of `ALWAYS`, and a few others, which
    depend on the case alone.
    """
    always = [check for check in checks if check.name in ALWAYS]
    rotating = [check for check in checks if check.name not in ALWAYS]
    count = min(ROTATING_LARGE if case.scores > LARGE else ROTATING, len(rotating))
    rng = np.random.default_rng(zlib.crc32(repr(case).encode()))
    indices = rng.choice(len(rotating), count, replace=False)
    return [*always, *(rotating[i] for i in sorted(indices))]


ATTEMPTS = 600  # of `shrink`, to lower a value
SEEDS = 8  # that `shrink` tries with a lowered value


def shrink(
    check: Check,
    kernel: Kernel,
    case: Case,
    attempt: Callable[[Check, Kernel, Case], Finding | None] = try_check,
    seconds: float = float("inf"),
) -> Finding | None:
    """Lower the values of a failing case, one after the other, while it still fails. Return the
    last finding.

    If the case itself does not fail again, return its finding, which passes, or None. The search
    ends after ATTEMPTS attempts, or after so many seconds.
    """
    end = time.monotonic() + seconds
    best = attempt(check, kernel, case)
    if best is None or not best.failed:
        return best
    candidates = _simpler(best.case, kernel.spec)
    for _ in range(ATTEMPTS):
        candidate = next(candidates, None) if time.monotonic() < end else None
        if candidate is None:
            break
        finding = attempt(check, kernel, candidate)
        if finding is not None and finding.failed and finding.case == candidate:
            best = finding
            candidates = _simpler(candidate, kernel.spec)
    return best


def _simpler(case: Case, spec: Spec) -> Iterator[Case]:
    """Yield the case with one value lowered; then the same with other seeds, whose numbers may fail
    where the case's own do not.
    """
    simpler = [*_with_one_value_lowered(case, spec)]
    yield from simpler
    for seed in range(SEEDS):
        for other in simpler:
            if other.seed == case.seed:
                yield replace(other, seed=seed)


def _with_one_value_lowered(case: Case, spec: Spec) -> Iterator[Case]:
    plain = Case(block=case.block, dtype=spec.dtypes[0])
    for name in (*FEATURES, "d_v", "dtype", "regime"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    widths = sorted(spec.head_dims) if spec.head_dims else None
    for name in ("B", "H_kv", "group", "N_q", "N_k", "d", "d_v", "seed"):
        value = getattr(case, name)
        if value is None:
            continue
        lowest = 0 if name == "seed" else 1
        names = [name]
        if name in ("N_q", "N_k"):
            step = spec.lengths(1, 1)[0 if name == "N_q" else 1]
            steps = (*range(1, 6), value // step // 2, value // step - 1)
            candidates = [step * n for n in steps]
            if not spec.cross:
                names = ["N_q", "N_k"]
        elif widths and name in ("d", "d_v"):
            candidates = widths
        else:
            candidates = [*range(lowest, lowest + 5), value // 2, value - 1]
        for lower in sorted({n for n in candidates if lowest <= n < value}):
            changes: dict[str, Any] = dict.fromkeys(names, lower)
            yield replace(case, **changes)
