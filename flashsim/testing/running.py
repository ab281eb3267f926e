"""Running checks over drawn cases: a survey first, which tries every check and stops at nothing;
then, where one fails, the shrinking of its case to a simple one.
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
from flashsim.testing.spec import Spec
from flashsim.testing.strategies import cases
from flashsim.testing.subject import Broken, OutsidePool, Subject

ALWAYS = ("oracle", "log_sum_exp", "gradients")
# other checks tried on a case of a survey, and on one with more scores than LARGE
ROTATING = 5
ROTATING_LARGE = 2
LARGE = 4096


@dataclass(frozen=True)
class Finding:
    """What came of a check on a case: the worst error as a part of its budget, and where. Above 1
    the check has failed.

    broken   instead of an answer: what the kernel raised, or what was wrong with the shape of its
             answer
    index    of the worst element, in `comparison.got`
    """

    check: str
    case: Case
    ratio: float
    comparison: Comparison | None = field(default=None, repr=False)
    index: tuple[int, ...] = ()
    broken: str = ""

    @property
    def failed(self) -> bool:
        """Whether the kernel is off by more than its budget."""
        return not self.ratio <= 1


def try_check(
    check: Check, subject: Subject, case: Case, trial: Trial | None = None
) -> Finding | None:
    """Run a check on a case, made to fit; return the finding, or None where it does not apply."""
    fitted = check.fitted(case, subject)
    if fitted is None:
        return None
    if subject.on_try is not None:
        subject.on_try(check.name, fitted)
    if trial is None or fitted != trial.case:
        trial = Trial(subject, fitted)
    worst: Finding | None = None
    try:
        with np.errstate(all="ignore"):
            for comparison in check.compare(trial):
                parts = comparison.parts()
                ratio = float(parts.max(initial=-1.0))
                if ratio > (-1.0 if worst is None else worst.ratio):
                    index = np.unravel_index(int(np.argmax(parts)), parts.shape)
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
    """How a check fared in a survey. `first` counts cases from 1."""

    tried: int = 0
    failed: int = 0
    first: int = 0
    worst: float = 0.0
    simplest: Finding | None = None

    def add(self, finding: Finding, number: int) -> None:
        """Enter a finding."""
        self.tried += 1
        self.worst = max(self.worst, finding.ratio)
        if finding.failed:
            self.failed += 1
            self.first = self.first or number
            if self.simplest is None or size(finding.case) < size(self.simplest.case):
                self.simplest = finding


def size(case: Case) -> tuple[int, int]:
    """Return how simple a case is, for comparing: elements, then features."""
    extras = sum(getattr(case, name) != getattr(Case, name) for name in FEATURES)
    return case.B * case.H_kv * case.group * (case.N_q + case.N_k) * case.d, extras


@dataclass
class Survey:
    """What was tried: a tally for each check that applies, why others do not, and each verdict,
    (case, passed, check).
    """

    tallies: dict[str, Tally]
    left_out: dict[str, str]
    verdicts: list[tuple[Case, bool, str]] = field(default_factory=list, repr=False)
    examples: int = 0


Progress = Callable[[int, int], None]


def applicable(
    subject: Subject, names: Iterable[str] | None = None
) -> tuple[list[Check], dict[str, str]]:
    """Return the checks that apply to the kernel, and why the others do not."""
    asked = [CHECKS[name] for name in (CHECKS if names is None else names)]
    why = {check.name: check.needs(subject) for check in asked}
    return [check for check in asked if not why[check.name]], {
        name: reason for name, reason in why.items() if reason
    }


def survey(
    subject: Subject,
    max_examples: int,
    seed: int,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
    until_failure: bool = False,
    expected: Container[str] = (),
) -> Survey:
    """Draw cases and try the checks on each: all that were asked for by name, or else some on every
    case and others in turn.

    With `until_failure` no case is drawn after the first that fails, but for checks that are
    `expected` to.
    """
    checks, left_out = applicable(subject, names)
    found = Survey({check.name: Tally() for check in checks}, left_out)

    def enough() -> bool:
        return until_failure and any(
            tally.failed for name, tally in found.tallies.items() if name not in expected
        )

    def look(case: Case) -> bool:
        if enough():  # Hypothesis tries the case that ends the search once more
            return True
        found.examples += 1
        trial = Trial(subject, case)
        for check in checks if names is not None else _in_turn(checks, case):
            finding = try_check(check, subject, case, trial)
            if finding is not None:
                found.tallies[check.name].add(finding, found.examples)
                found.verdicts.append((finding.case, not finding.failed, check.name))
        if progress is not None:
            progress(found.examples, max_examples)
        return enough()

    how = settings(
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
        find(cases(subject.spec), look, settings=how, random=Random(seed))
    return found


def _in_turn(checks: Sequence[Check], case: Case) -> list[Check]:
    """Return the checks of a survey's case: some always, of the others a few that depend on the
    case alone.
    """
    always = [check for check in checks if check.name in ALWAYS]
    others = [check for check in checks if check.name not in ALWAYS]
    some = min(ROTATING_LARGE if case.scores > LARGE else ROTATING, len(others))
    picked = np.random.default_rng(zlib.crc32(repr(case).encode())).choice(
        len(others), some, replace=False
    )
    return [*always, *(others[i] for i in sorted(picked))]


ATTEMPTS = 600  # to lower a value
SEEDS = 8  # with other numbers


def shrink(
    check: Check,
    subject: Subject,
    case: Case,
    attempt: Callable[[Check, Subject, Case], Finding | None] = try_check,
    seconds: float = float("inf"),
) -> Finding | None:
    """Lower one value of a failing case after the other while it still fails, and return the last
    finding.

    If the case itself does not fail again, the finding says so, or is None. After so many seconds
    no more values are lowered.
    """
    until = time.monotonic() + seconds
    best = attempt(check, subject, case)
    if best is None or not best.failed:
        return best
    simpler = _simpler(best.case, subject.spec)
    left = ATTEMPTS
    while left and time.monotonic() < until and (tried := next(simpler, None)) is not None:
        left -= 1
        finding = attempt(check, subject, tried)
        if finding is not None and finding.failed and finding.case == tried:
            best = finding
            simpler = _simpler(tried, subject.spec)
    return best


def _simpler(case: Case, spec: Spec) -> Iterator[Case]:
    """Yield the case with one value lowered; then with other numbers besides, as those may fail
    where its own do not.
    """
    lowered = [*_lowered(case, spec)]
    yield from lowered
    yield from (
        replace(other, seed=seed)
        for seed in range(SEEDS)
        for other in lowered
        if other.seed == case.seed
    )


def _lowered(case: Case, spec: Spec) -> Iterator[Case]:
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
        offers = (
            widths
            if widths and name in ("d", "d_v")
            else [*range(lowest, lowest + 5), value // 2, value - 1]
        )
        if name in ("N_q", "N_k"):
            least = spec.lengths(1, 1)[name == "N_k"]
            offers = [least * n for n in (*range(1, 6), value // least // 2, value // least - 1)]
        together = ("N_q", "N_k") if name in ("N_q", "N_k") and not spec.cross else (name,)
        for lower in sorted({n for n in offers if lowest <= n < value}):
            changes: dict[str, Any] = dict.fromkeys(together, lower)
            yield replace(case, **changes)
