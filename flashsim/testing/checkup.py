"""`check_attention`: a kernel's whole check-up in one call; `replay`: one check on one case; and
the same for pytest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from flashsim.attention.arguments import (
    check_callback,
    check_choice,
    check_count,
    check_flag,
    is_one_of,
    shown,
)
from flashsim.testing.case import Case, Keep
from flashsim.testing.checks import CHECKS
from flashsim.testing.diagnosis import Suspicion, diagnose
from flashsim.testing.mismatches import Mismatch, mismatches
from flashsim.testing.report import NOT_SHRUNK, Failure, Report, describe
from flashsim.testing.running import Progress, Survey, Tally, applicable, shrink, survey, try_check
from flashsim.testing.spec import Spec, check_spec
from flashsim.testing.strategies import pool
from flashsim.testing.subject import Subject
from flashsim.testing.unchecked import at_their_defaults, undeclared

if TYPE_CHECKING:
    import pytest

SHRUNK = 3  # failing checks whose cases are shrunk; of the others the simplest case drawn is shown
EXHIBITS = 8  # failing cases that a diagnosis looks at


class AttentionCheckFailed(AssertionError):
    """A kernel failed a check; `report` says all that was found."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


# of which pytest hides the kit's own lines
VERDICT = methodcaller("errisinstance", AttentionCheckFailed)


def check_attention(
    fn: Callable[..., Any],
    spec: Spec,
    *,
    max_examples: int = 300,
    backward: Callable[..., Any] | None = None,
    dropout: Keep | None = None,
    checks: Iterable[str] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    fail_fast: bool = False,
    on_fail: str = "raise",
    seed: int = 0,
    progress: Progress | None = None,
    on_try: Callable[[str, Case], None] | None = None,
) -> Report:
    """Check an attention kernel against what its spec says, on cases that Hypothesis draws, and
    shrink what fails.

    A few calls come first, one for each thing that the spec declares. What the kernel does not take
    at all, or returns in another form, is reported once and left out of the cases. If no call fits
    the spec, no cases are drawn.

    fn            fn(q, k, v, **kw) -> O, or (O, lse) where the spec declares lse. NumPy arrays q
                  (B, H_q, N_q, d), k (B, H_kv, N_k, d), v (B, H_kv, N_k, d_v), or as the spec's
                  layout says; kw holds what the case uses of causal=True, scale=float,
                  mask=booleans that broadcast to (B, H_q, N_q, N_k), and only what the spec
                  declares
    backward      backward(q, k, v, do, **kw) -> (dq, dk, dv), the gradients of the sum of do · O.
                  Adds checks
    dropout       dropout(shape, dropout_p, seed) -> booleans of that shape (B, H_q, N_q, N_k), True
                  = kept: the mask that fn, and backward, use when they are given dropout_p= and
                  seed=. Adds checks
    checks        names of checks, each tried on every case. None: all that apply, of which on each
                  case those against the oracle and a few of the others in turn
    expected_failures  names of checks that are known to fail, with the reason; they must fail
    fail_fast     whether to stop at the first case that fails a check that is not expected to fail
    on_fail       "raise": AttentionCheckFailed, an AssertionError, with the shrunken case.
                  "return": the report says it
    seed          of the cases drawn
    progress      called after each case with (cases done, max_examples)
    on_try        called with a check's name and a case before each try, so that a case that ends
                  the process is known

    Returns a report. Warns where fn takes what the spec does not declare, if "raise" has nothing to
    raise and all checks are tried. Raises ValueError for arguments that make no sense.
    """
    __tracebackhide__ = VERDICT
    check_choice("on_fail", on_fail, ("raise", "return"))
    max_examples = check_count("max_examples", max_examples)
    seed = check_count("seed", seed, 0, 2**64 - 1)
    fail_fast = check_flag("fail_fast", fail_fast)
    progress = check_callback("progress", progress)
    on_try = check_callback("on_try", on_try)
    subject = replace(subject_of(fn, spec, backward, dropout), on_try=on_try)
    names = _names(checks)
    expected = _check_expected(subject, expected_failures, names)
    apply, undeclared_for = applicable(subject, names)
    if not apply:
        name, why = next(iter(undeclared_for.items()))
        raise ValueError(f"{name!r} is asked for, but does not apply: {why}")
    unchecked = undeclared(subject), at_their_defaults(subject)
    missed = mismatches(subject)
    subject = _without(subject, missed)
    if any(mismatch.stops for mismatch in missed):
        found = Survey({}, {})
    else:
        found = survey(subject, max_examples, seed, names, progress, fail_fast, expected)
    expected = {name: reason for name, reason in expected.items() if name in found.tallies}
    failing = [
        name for name, tally in found.tallies.items() if tally.failed and name not in expected
    ]
    failures = [
        _failure(subject, name, found, shrunk=number < SHRUNK)
        for number, name in enumerate(failing[:1] if on_fail == "raise" else failing)
    ]
    left_out = {
        name: undeclared_for.get(name, "the first calls show that they fail")
        for name in found.left_out
    }
    counted = (subject.name, repr(spec), found.examples, seed, found.tallies, left_out)
    report = Report(*counted, failures, expected, missed, *unchecked)
    if on_fail == "raise" and (failures or missed):
        said = [
            report.missed(),
            *(f"{failure.message}\n\n{report.table()}" for failure in failures[:1]),
        ]
        raise AttentionCheckFailed("\n\n".join(filter(None, said)), report)
    if on_fail == "raise" and report.unexpected_passes:
        which = ", ".join(report.unexpected_passes)
        raise AttentionCheckFailed(
            f"{subject.name} was expected to fail, and passes: {which}", report
        )
    if on_fail == "raise" and checks is None and not report.complete:
        warnings.warn(report.incomplete(), stacklevel=2)
    return report


def replay(
    fn: Callable[..., Any],
    spec: Spec,
    check: str,
    case: Case,
    *,
    backward: Callable[..., Any] | None = None,
    dropout: Keep | None = None,
) -> None:
    """Run one check on one case, as a failure's message says. Raises AttentionCheckFailed where it
    fails.

    Raises ValueError where the check does not apply to what the spec declares.
    """
    __tracebackhide__ = VERDICT
    subject = subject_of(fn, spec, backward, dropout)
    if not isinstance(case, Case):
        raise ValueError(f"case is {shown(case)}; expected a flashsim.testing.Case")
    if reason := CHECKS[_known(check)].needs(subject):
        raise ValueError(f"check {check!r} does not apply: {reason}")
    finding = try_check(CHECKS[check], subject, case)
    if finding is None or not finding.failed:
        return
    tally = Tally()
    tally.add(finding, 1)
    failure = Failure(check, finding, 1, 1, (), describe(subject, finding, tally, (), "replayed"))
    report = Report(subject.name, repr(spec), 1, case.seed, {check: tally}, {}, [failure], {})
    raise AttentionCheckFailed(failure.message, report)


def _without(subject: Subject, missed: Sequence[Mismatch]) -> Subject:
    """Return the kernel with a spec that leaves out what its first calls did not fit."""
    changes = {
        name: value
        for mismatch in missed
        if not mismatch.stops
        for name, value in mismatch.changes.items()
    }
    back = subject.back if changes.pop("backward", True) else None
    fitting = subject_of(subject.fn, replace(subject.spec, **changes), back, subject.keep_mask)
    return replace(fitting, on_try=subject.on_try) if missed else subject


def subject_of(fn: Any, spec: Any, backward: Any, dropout: Any) -> Subject:
    """Return the kernel under test. Raises ValueError for what is not a function, or not a spec."""
    check_spec(spec)
    for name, given in (("fn", fn), ("backward", backward), ("dropout", dropout)):
        if not callable(given) and (name == "fn" or given is not None):
            raise ValueError(f"{name} is {shown(given)}; expected a function")
    return Subject(
        fn, spec, backward, dropout, pool(spec).allowed if spec.max_shapes is not None else None
    )


def _known(name: Any) -> str:
    if not is_one_of(name, CHECKS):
        raise ValueError(f"there is no check {shown(name)}; expected one of {', '.join(CHECKS)}")
    return name


def _names(checks: Any) -> list[str] | None:
    if checks is None or isinstance(checks, str):
        return None if checks is None else [_known(checks)]
    names = list(checks) if isinstance(checks, Iterable) and getattr(checks, "ndim", True) else []
    if not names:
        raise ValueError(
            f"checks is {shown(checks)}; expected names of checks, or None for all that apply"
        )
    return [_known(name) for name in names]


def _check_expected(subject: Subject, given: Any, names: Sequence[str] | None) -> dict[str, str]:
    expected = {} if given is None else given
    if not isinstance(expected, Mapping) or not all(
        isinstance(reason, str) for reason in expected.values()
    ):
        raise ValueError(
            f"expected_failures is {shown(given)}; expected a dictionary of checks' names and "
            "reasons"
        )
    _, left_out = applicable(subject, names)
    for name in expected:
        _known(name)
        if name in left_out:
            raise ValueError(f"{name!r} is expected to fail, but does not apply: {left_out[name]}")
        if names is not None and name not in names:
            raise ValueError(f"{name!r} is expected to fail, but is not among the checks asked for")
    return dict(expected)


def _failure(subject: Subject, name: str, found: Survey, shrunk: bool) -> Failure:
    check = CHECKS[name]
    tally = found.tallies[name]
    suspicions = list[Suspicion]()
    finding = tally.simplest
    how = NOT_SHRUNK
    assert finding is not None
    if shrunk:
        again = shrink(check, subject, finding.case)
        how = (
            "the simplest drawn; tried once more it passed, so the kernel may not be deterministic"
        )
        if again is not None and again.failed:
            finding = again
            how = "simplest found"
        verdicts = [(case, passed) for case, passed, tried in found.verdicts if tried == name]
        failing = (try_check(check, subject, case) for case, passed in verdicts if not passed)
        suspicions = diagnose(
            subject, [finding, *islice(filter(None, failing), EXHIBITS)], verdicts, _passing(found)
        )
    return Failure(
        name,
        finding,
        tally.failed,
        tally.tried,
        suspicions,
        describe(subject, finding, tally, suspicions, how),
    )


def _passing(found: Survey) -> list[Case]:
    """Return the cases on which the kernel's answers passed whatever check was tried."""
    failed = {case for case, passed, _ in found.verdicts if not passed}
    return [case for case, passed, _ in found.verdicts if passed and case not in failed]


# --------------------------------------------------------------------------------------------------
# pytest


def _check(name: str, fn: Callable[..., Any], spec: Spec, **options: Any) -> None:
    """Run one check in a test. Raises AttentionCheckFailed; skips where no case of the spec is
    one for it.
    """
    import pytest

    __tracebackhide__ = VERDICT
    if not check_attention(fn, spec, checks=[name], **options).tallies[name].tried:
        pytest.skip(f"no case that this spec allows is one for {name!r}")


def parametrize_with_checks(
    fn: Callable[..., Any],
    spec: Spec,
    *,
    expected_failures: Mapping[str, str] | None = None,
    max_examples: int = 300,
    backward: Callable[..., Any] | None = None,
    dropout: Keep | None = None,
    seed: int = 0,
) -> pytest.MarkDecorator:
    """Return a pytest decorator that makes a test for each check that applies: `def
    test_conforms(check): check()`.

    Arguments as for `check_attention`; max_examples is for each check. Those in `expected_failures`
    are marked xfail, strictly: one that passes is reported.
    """
    import pytest

    subject = subject_of(fn, spec, backward, dropout)
    seed = check_count("seed", seed, 0, 2**64 - 1)
    max_examples = check_count("max_examples", max_examples)
    expected = _check_expected(subject, expected_failures, None)
    options = {"max_examples": max_examples, "backward": backward, "dropout": dropout, "seed": seed}
    marks = {
        name: pytest.mark.xfail(reason=reason, raises=AttentionCheckFailed, strict=True)
        for name, reason in expected.items()
    }
    found = [
        pytest.param(
            partial(_check, name, fn, spec, **options),
            id=name,
            marks=[marks[name]] if name in marks else [],
        )
        for name in (check.name for check in applicable(subject)[0])
    ]
    return pytest.mark.parametrize("check", found)
