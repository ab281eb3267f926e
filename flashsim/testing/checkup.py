"""`check_attention`: a kernel's whole check-up in one call. `replay`: one check on one case.
`parametrize_with_checks`: a test of pytest for each check.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from flashsim.attention.arguments import (
    check_callback,
    check_choice,
    check_count,
    check_flag,
    is_one_of,
    short_repr,
)
from flashsim.testing.case import Case, Keep
from flashsim.testing.checks import CHECKS
from flashsim.testing.diagnosis import Suspicion, diagnose
from flashsim.testing.kernel import Kernel
from flashsim.testing.mismatches import Mismatch, mismatches
from flashsim.testing.report import NOT_SHRUNK, Failure, Report, describe
from flashsim.testing.spec import Spec, check_spec
from flashsim.testing.strategies import pool
from flashsim.testing.survey import (
    Finding,
    Progress,
    Survey,
    Tally,
    applicable,
    shrink,
    survey,
    try_check,
)
from flashsim.testing.unchecked import at_their_defaults, undeclared

if TYPE_CHECKING:
    import pytest

SHRUNK = 3  # failing checks whose cases are shrunk; the others show the simplest case drawn
MOST_DIAGNOSED = 8  # failing cases that a diagnosis examines besides the shrunken one


class AttentionCheckFailed(AssertionError):
    """A kernel failed a check. `report` has all results."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


# pytest calls __tracebackhide__ with an error, and hides a function's lines if it returns true
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
    """Check an attention kernel against its spec, on cases that Hypothesis draws, and shrink the
    cases that fail.

    First come a few calls, one for each feature that the spec declares. A feature that the kernel
    does not take at all, or whose result has another form, is reported once, and no case has it. If
    no call fits the spec, no cases are drawn.

    fn            fn(q, k, v, **kw) -> O, or (O, lse) where the spec declares lse. NumPy arrays q
                  (B, H_q, N_q, d), k (B, H_kv, N_k, d), v (B, H_kv, N_k, d_v), or in the spec's
                  layout; kw has the options of the case: causal=True, scale=float, mask=booleans
                  that broadcast to (B, H_q, N_q, N_k), …; only options that the spec declares
    backward      backward(q, k, v, do, **kw) -> (dq, dk, dv), the gradients of the sum of do · O.
                  Adds checks
    dropout       dropout(shape, dropout_p, seed) -> booleans of that shape (B, H_q, N_q, N_k), True
                  = the weight is kept: the mask that fn, and backward, use when they get dropout_p=
                  and seed=. Adds checks
    checks        names of checks; each is tried on every case. None: all checks that apply; on each
                  case those against the oracle, and a few of the others in turn
    expected_failures  names of checks that are known to fail, with the reason; they must fail
    fail_fast     whether to stop at the first case that fails a check that is not expected to fail
    on_fail       "raise": raise AttentionCheckFailed, an AssertionError, with the shrunken case.
                  "return": return the report
    seed          of the cases
    progress      called after each case with (number of cases so far, max_examples)
    on_try        called with a check's name and a case before each try, so that a case that ends
                  the process is known

    Returns a report. With on_fail="raise" and all checks, it warns if fn takes what the spec does
    not declare. Raises ValueError for invalid arguments.
    """
    __tracebackhide__ = VERDICT
    check_choice("on_fail", on_fail, ("raise", "return"))
    max_examples = check_count("max_examples", max_examples)
    seed = check_count("seed", seed, 0, 2**64 - 1)
    fail_fast = check_flag("fail_fast", fail_fast)
    progress = check_callback("progress", progress)
    on_try = check_callback("on_try", on_try)
    kernel = replace(kernel_of(fn, spec, backward, dropout), on_try=on_try)
    names = _check_names(checks)
    expected = _check_expected(kernel, expected_failures, names)
    apply, inapplicable = applicable(kernel, names)
    if not apply:
        name, reason = next(iter(inapplicable.items()))
        raise ValueError(f"{name!r} is asked for, but does not apply: {reason}")
    undeclared_keywords = undeclared(kernel)
    defaulted = at_their_defaults(kernel)
    differences = mismatches(kernel)
    kernel = _without(kernel, differences)
    if any(mismatch.stops for mismatch in differences):
        result = Survey({}, {})
    else:
        result = survey(kernel, max_examples, seed, names, progress, fail_fast, expected)
    expected = {name: reason for name, reason in expected.items() if name in result.tallies}
    failing = [
        name for name, tally in result.tallies.items() if tally.failed and name not in expected
    ]
    if on_fail == "raise":
        failing = failing[:1]
    failures = []
    for number, name in enumerate(failing):
        failures.append(_failure(kernel, name, result, shrunk=number < SHRUNK))
    left_out = {}
    for name in result.left_out:
        left_out[name] = inapplicable.get(name, "the first calls show that they fail")
    report = Report(
        name=kernel.name,
        spec=repr(spec),
        examples=result.examples,
        seed=seed,
        tallies=result.tallies,
        left_out=left_out,
        failures=failures,
        expected=expected,
        mismatches=differences,
        undeclared=undeclared_keywords,
        defaulted=defaulted,
    )
    if on_fail == "raise":
        _raise_failures(report)
        if checks is None and not report.complete:
            warnings.warn(report.incomplete(), stacklevel=2)
    return report


def _raise_failures(report: Report) -> None:
    """Raise AttentionCheckFailed unless all is as expected."""
    __tracebackhide__ = VERDICT
    if report.failures or report.mismatches:
        parts = [report.missed()] if report.mismatches else []
        for failure in report.failures[:1]:
            parts.append(f"{failure.message}\n\n{report.table()}")
        raise AttentionCheckFailed("\n\n".join(parts), report)
    if report.unexpected_passes:
        names = ", ".join(report.unexpected_passes)
        raise AttentionCheckFailed(
            f"{report.name} was expected to fail, and passes: {names}", report
        )


def replay(
    fn: Callable[..., Any],
    spec: Spec,
    check: str,
    case: Case,
    *,
    backward: Callable[..., Any] | None = None,
    dropout: Keep | None = None,
) -> None:
    """Run one check on one case: the message of a failure has such a call. Raises
    AttentionCheckFailed if the check fails.

    Raises ValueError if the check does not apply to what the spec declares.
    """
    __tracebackhide__ = VERDICT
    kernel = kernel_of(fn, spec, backward, dropout)
    if not isinstance(case, Case):
        raise ValueError(f"case is {short_repr(case)}; expected a flashsim.testing.Case")
    if reason := CHECKS[_check_name(check)].needs(kernel):
        raise ValueError(f"check {check!r} does not apply: {reason}")
    finding = try_check(CHECKS[check], kernel, case)
    if finding is None or not finding.failed:
        return
    tally = Tally()
    tally.add(finding, 1)
    message = describe(kernel, finding, tally, (), "replayed")
    failure = Failure(check, finding, failed=1, tried=1, suspicions=(), message=message)
    report = Report(
        name=kernel.name,
        spec=repr(spec),
        examples=1,
        seed=case.seed,
        tallies={check: tally},
        left_out={},
        failures=[failure],
        expected={},
    )
    raise AttentionCheckFailed(failure.message, report)


def _without(kernel: Kernel, differences: Sequence[Mismatch]) -> Kernel:
    """Return the kernel with a spec that its first calls fit."""
    if not differences:
        return kernel
    changes: dict[str, Any] = {}
    for mismatch in differences:
        if not mismatch.stops:
            changes |= mismatch.changes
    back = kernel.back if changes.pop("backward", True) else None
    spec = replace(kernel.spec, **changes)
    fitting = kernel_of(kernel.fn, spec, back, kernel.keep_mask)
    return replace(fitting, on_try=kernel.on_try)


def kernel_of(fn: Any, spec: Any, backward: Any, dropout: Any) -> Kernel:
    """Return the kernel under test. Raises ValueError for what is not a function, or not a spec."""
    check_spec(spec)
    if not callable(fn):
        raise ValueError(f"fn is {short_repr(fn)}; expected a function")
    for name, function in (("backward", backward), ("dropout", dropout)):
        if function is not None and not callable(function):
            raise ValueError(f"{name} is {short_repr(function)}; expected a function")
    shapes = None if spec.max_shapes is None else pool(spec).allowed
    return Kernel(fn, spec, backward, dropout, shapes)


def _check_name(name: Any) -> str:
    if not is_one_of(name, CHECKS):
        raise ValueError(
            f"there is no check {short_repr(name)}; expected one of {', '.join(CHECKS)}"
        )
    return name


def _check_names(checks: Any) -> list[str] | None:
    if checks is None:
        return None
    if isinstance(checks, str):
        return [_check_name(checks)]
    names = list(checks) if isinstance(checks, Iterable) and getattr(checks, "ndim", True) else []
    if not names:
        raise ValueError(
            f"checks is {short_repr(checks)}; expected names of checks, or None for all that apply"
        )
    return [_check_name(name) for name in names]


def _check_expected(kernel: Kernel, reasons: Any, names: Sequence[str] | None) -> dict[str, str]:
    expected = {} if reasons is None else reasons
    if not isinstance(expected, Mapping) or not all(
        isinstance(reason, str) for reason in expected.values()
    ):
        raise ValueError(
            f"expected_failures is {short_repr(reasons)}; expected a dictionary of checks' names "
            "and reasons"
        )
    _, left_out = applicable(kernel, names)
    for name in expected:
        _check_name(name)
        if name in left_out:
            raise ValueError(f"{name!r} is expected to fail, but does not apply: {left_out[name]}")
        if names is not None and name not in names:
            raise ValueError(f"{name!r} is expected to fail, but is not among the checks asked for")
    return dict(expected)


def _failure(kernel: Kernel, name: str, result: Survey, shrunk: bool) -> Failure:
    """Return the failure of a check in a survey, with a diagnosis if its case is to be shrunk."""
    check = CHECKS[name]
    tally = result.tallies[name]
    finding = tally.simplest
    assert finding is not None
    origin = NOT_SHRUNK
    suspicions: list[Suspicion] = []
    if shrunk:
        shrunken = shrink(check, kernel, finding.case)
        if shrunken is not None and shrunken.failed:
            finding = shrunken
            origin = "simplest found"
        else:
            origin = (
                "the simplest drawn; tried once more it passed, so the kernel may not be "
                "deterministic"
            )
        suspicions = _diagnosis(kernel, finding, result)
    message = describe(kernel, finding, tally, suspicions, origin)
    return Failure(name, finding, tally.failed, tally.tried, suspicions, message)


def _diagnosis(kernel: Kernel, finding: Finding, result: Survey) -> list[Suspicion]:
    """Return the known bugs that explain a finding and other failing cases of its check."""
    check = CHECKS[finding.check]
    verdicts = [(case, passed) for case, passed, name in result.verdicts if name == check.name]
    findings = [finding]
    for case, passed in verdicts:
        if not passed and len(findings) <= MOST_DIAGNOSED:
            repeated = try_check(check, kernel, case)
            if repeated is not None:
                findings.append(repeated)
    return diagnose(kernel, findings, verdicts, _passing(result))


def _passing(result: Survey) -> list[Case]:
    """Return the cases in which every check that was tried passed."""
    failed = {case for case, passed, _ in result.verdicts if not passed}
    return [case for case, passed, _ in result.verdicts if passed and case not in failed]


# --------------------------------------------------------------------------------------------------
# pytest


def _run_check(name: str, fn: Callable[..., Any], spec: Spec, **options: Any) -> None:
    """Run one check in a test. Raises AttentionCheckFailed if it fails. Skips the test if the check
    applies to no case of the spec.
    """
    import pytest

    __tracebackhide__ = VERDICT
    report = check_attention(fn, spec, checks=[name], **options)
    if not report.tallies[name].tried:
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

    Arguments as for `check_attention`; max_examples is for each check. Checks in
    `expected_failures` are marked xfail, strictly: pytest reports one that passes.
    """
    import pytest

    kernel = kernel_of(fn, spec, backward, dropout)
    seed = check_count("seed", seed, 0, 2**64 - 1)
    max_examples = check_count("max_examples", max_examples)
    expected = _check_expected(kernel, expected_failures, None)
    options = {"max_examples": max_examples, "backward": backward, "dropout": dropout, "seed": seed}
    parameters = []
    checks, _ = applicable(kernel)
    for check in checks:
        marks = []
        if check.name in expected:
            reason = expected[check.name]
            marks.append(pytest.mark.xfail(reason=reason, raises=AttentionCheckFailed, strict=True))
        run = partial(_run_check, check.name, fn, spec, **options)
        parameters.append(pytest.param(run, id=check.name, marks=marks))
    return pytest.mark.parametrize("check", parameters)
