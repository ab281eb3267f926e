"""What a kernel's check-up found, in words."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.support.tables import aligned
from flashsim.testing.checks import CHECKS
from flashsim.testing.diagnosis import Suspicion
from flashsim.testing.mismatches import Mismatch
from flashsim.testing.problem import Problem
from flashsim.testing.running import Finding, Tally, size
from flashsim.testing.spec import FP8
from flashsim.testing.subject import Subject
from flashsim.testing.unchecked import incomplete
from flashsim.testing.wrapping import Wrapped

NOT_SHRUNK = "the simplest drawn, not shrunk"
WIDTH = 80  # of a terminal
PRINTED = 64  # elements of q, k and v together, up to which a failure shows them


@dataclass(frozen=True)
class Failure:
    """A check that failed, on the simplest case found, and what the bug may be.

    finding     the case, the worst element, what the kernel returned there, what was expected, and
                the budget
    failed, tried  how many cases of the survey failed, of how many
    suspicions  known bugs that fit, the likeliest first
    message     all of that in words, with code that shows the failure again
    """

    check: str
    finding: Finding
    failed: int
    tried: int
    suspicions: Sequence[Suspicion]
    message: str = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return the failure as plain values."""
        likely = [
            {"says": bug.says, "threads": bug.threads, "evidence": bug.evidence}
            for bug in self.suspicions
        ]
        return {
            "check": self.check,
            "case": repr(self.finding.case),
            "message": self.message,
            "likely": likely,
        }


@dataclass(frozen=True)
class Report:
    """What a check-up found.

    name, spec, examples, seed  what was checked, on how many cases
    tallies    for each check: cases tried and failed, and the worst error as a part of its budget
    left_out   checks that do not apply, and why
    failures   failures that were not expected
    expected   checks expected to fail, and why
    mismatches what in the spec does not fit the kernel's first calls: cases are drawn without it,
               or no case is drawn
    undeclared keywords of the kit that the function has and the spec does not declare, each with
               the values that fit
    defaulted  its other parameters, which the kit never gives
    """

    name: str
    spec: str
    examples: int
    seed: int
    tallies: dict[str, Tally]
    left_out: dict[str, str]
    failures: Sequence[Failure]
    expected: dict[str, str]
    mismatches: Sequence[Mismatch] = ()
    undeclared: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    defaulted: Sequence[str] = ()

    @property
    def kernel(self) -> str:
        """The former name of `name`."""
        return self.name

    @property
    def ok(self) -> bool:
        """Whether the kernel fits its spec, all checks passed, and those expected to fail did
        fail.
        """
        return not self.mismatches and not self.failures and not self.unexpected_passes

    @property
    def complete(self) -> bool:
        """Whether all parameters were tried, except those that the spec leaves out on purpose."""
        return not self.undeclared and not self.defaulted

    @property
    def simplest(self) -> Failure | None:
        """The first failure with the simplest case, or None."""
        return min(self.failures, key=lambda failure: size(failure.finding.case), default=None)

    @property
    def unexpected_passes(self) -> list[str]:
        """Checks that were expected to fail, were tried and passed."""
        return [
            name
            for name in self.expected
            if self.tallies[name].tried and not self.tallies[name].failed
        ]

    @property
    def worst(self) -> float:
        """The worst error as a part of its budget, over the checks that were not expected to
        fail.
        """
        return max(
            (t.worst for name, t in self.tallies.items() if name not in self.expected), default=0.0
        )

    def verdict(self, name: str) -> str:
        """Return how a check fared, in a few words."""
        tally = self.tallies[name]
        if name in self.expected:
            said = "passes, though expected to fail" if not tally.failed else "fails, as expected"
            reason = f": {self.expected[name]}" if self.expected[name] else ""
            return f"{said}{reason}" if tally.tried else "no case"
        return "no case" if not tally.tried else "FAILS" if tally.failed else "passes"

    def table(self) -> str:
        """Return the checks with their cases, worst errors and verdicts, as text."""
        rows = [("check", "cases", "failed", "worst", "verdict")]
        for name, tally in self.tallies.items():
            worst = f"{tally.worst:.2g}" if tally.tried else "–"
            rows.append((name, str(tally.tried), str(tally.failed), worst, self.verdict(name)))
        lines = aligned(rows, left=(0, 4))
        lines.insert(1, "─" * max(map(len, lines)))
        for reason in dict.fromkeys(self.left_out.values()):
            names = [name for name, why in self.left_out.items() if why == reason]
            lines.append(_wrapped(f"Not checked, because {reason}: {', '.join(names)}"))
        return "\n".join(lines)

    def missed(self) -> str:
        """Return what in the spec does not fit the kernel's first calls, as text; empty if all
        does.
        """
        if not self.mismatches:
            return ""
        stopped = any(mismatch.stops for mismatch in self.mismatches)
        then = "So nothing was checked" if stopped else "The checks leave these out"
        head = _wrapped(f"A few first calls show that {self.name} does not fit its spec. {then}.")
        return "\n".join([head, *(_wrapped(f"* {mismatch}", "  ") for mismatch in self.mismatches)])

    def incomplete(self) -> str:
        """Return what no check tried, as text; empty if everything was tried."""
        return _wrapped(incomplete(self.name, self.undeclared, self.defaulted))

    def __str__(self) -> str:
        head = _wrapped(f"{self.name}, {self.examples} cases, seed {self.seed}")
        parts = [
            self.incomplete() if self.tallies else "",
            f"{head}\n{_wrapped(self.spec, '     ')}",
            self.missed(),
        ]
        if self.tallies:
            parts += [
                self.table(),
                "worst: the largest error ÷ its budget. Above 1, a check fails.",
            ]
        parts += self._failures()
        if self.unexpected_passes:
            parts.append(f"Expected to fail, but passed: {', '.join(self.unexpected_passes)}")
        return "\n\n".join(part.strip("\n") for part in parts if part)

    def _failures(self) -> list[str]:
        simplest = self.simplest
        if simplest is None:
            return []
        others = [failure for failure in self.failures if failure is not simplest]
        lines = (
            f"  {failure.check}: {_what_differs(failure.finding).splitlines()[0]}"
            for failure in others
        )
        short = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines]
        more = (
            ["Other checks that fail, in brief (--check NAME shows one in full):", *short]
            if others
            else []
        )
        return [simplest.message, "\n".join(more)]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        checks = {
            name: {
                "cases": t.tried,
                "failed": t.failed,
                "first": t.first,
                "worst": t.worst if np.isfinite(t.worst) else "inf",
            }
            for name, t in self.tallies.items()
        }
        return {
            "kernel": self.name,
            **{
                name: getattr(self, name) for name in ("spec", "examples", "seed", "ok", "complete")
            },
            "checks": checks,
            "left_out": self.left_out,
            "expected_failures": self.expected,
            "mismatches": [str(mismatch) for mismatch in self.mismatches],
            "undeclared": list(self.undeclared),
            "defaulted": list(self.defaulted),
            "failures": [failure.as_json() for failure in self.failures],
        }


def _wrapped(text: str, then: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )


# --------------------------------------------------------------------------------------------------
# in words


def describe(
    subject: Subject, finding: Finding, tally: Tally, suspicions: Sequence[Suspicion], how: str
) -> str:
    """Return the message of a failure. `how` says how its case was found."""
    drawn = f"{tally.failed} of {tally.tried} cases drawn fail{'s' if tally.failed == 1 else ''}"
    parts = [
        _wrapped(f"{subject.name} fails {finding.check!r}: {CHECKS[finding.check].about}"),
        f"  {finding.case}\n  ({how}; {drawn})",
        "\n".join(_wrapped(f"  {said}", "    ") for said in _what_differs(finding).splitlines()),
    ]
    if how == NOT_SHRUNK:
        return "\n\n".join(parts)
    for suspicion in suspicions:
        known = f" Known: {', '.join(suspicion.threads)}." if suspicion.threads else ""
        parts.append(_wrapped(f"  Likely: {suspicion.says} ({suspicion.evidence}.){known}", "    "))
    parts.append("  To see it again:\n\n" + textwrap.indent(code(subject, finding), "    "))
    return "\n\n".join(parts)


def _what_differs(finding: Finding) -> str:
    if finding.broken:
        return f"it {finding.broken}"
    comparison = finding.comparison
    assert comparison is not None
    at = finding.index
    got, want = (float(np.asarray(a)[at]) for a in (comparison.got, comparison.want))
    budget = float(
        np.broadcast_to(np.asarray(comparison.budget, float), np.shape(comparison.want))[at]
    )
    where = f"{list(at)}" if at else ""
    if np.isnan(got):
        return f"{comparison.what} {where} is nan; expected {want:.9g}"
    if budget == 0:
        bits = (
            f"\n{_first_bit(got, want)}"
            if got and want and np.isfinite(got) and np.isfinite(want)
            else ""
        )
        return f"{comparison.what} {where} is {got:.9g}; expected exactly {want:.9g}{bits}"
    off = abs(got - want)
    return (
        f"{comparison.what} {where} is {got:.9g}; expected {want:.9g} ± {budget:.2g}\n"
        f"off by {off:.3g}, which is {finding.ratio:.3g} × its budget"
    )


def _first_bit(got: float, want: float) -> str:
    """Say where two numbers first differ, from the sign on."""
    one, other = (int(np.float64(x).view(np.uint64)) for x in (got, want))
    last = (one ^ other).bit_length()
    where = (
        "the sign"
        if last == 64
        else "the exponent"
        if last > 52
        else f"bit {53 - last} of the fraction"
    )
    return f"{got.hex()} and {want.hex()} first differ in {where}"


def code(subject: Subject, finding: Finding) -> str:
    """Return Python that shows a failure again, by its case and, if they are few, by its
    numbers.
    """
    call = subject.name if subject.name.isidentifier() else "my_attention"
    fetched = _fetched(call, subject.fn)
    more = ""
    for name, function in (("backward", subject.back), ("dropout", subject.keep_mask)):
        if function is None or name not in CHECKS[finding.check].asks:
            continue
        attribute = next(
            (a for a in (name, "keep") if getattr(subject.fn, a, None) == function), None
        )
        own = getattr(function, "__name__", "")
        said = f"{call}.{attribute}" if attribute else own if own.isidentifier() else f"my_{name}"
        more += f", {name}={said}"
        if not attribute:
            fetched += _fetched(said, function)
    lines = [
        (
            "from flashsim.testing import Case, Spec, "
            f"replay{', wrap' if isinstance(subject.fn, Wrapped) else ''}"
        ),
        *fetched,
        f"spec = {subject.spec!r}",
        f"replay({call}, spec, {finding.check!r}, {finding.case!r}{more})",
    ]
    problem = None if finding.comparison is None else finding.comparison.problem
    if problem is not None and problem.q.size + problem.k.size + problem.v.size <= PRINTED:
        lines += ["", *_literally(call, problem, subject.spec.layout == "BNHD")]
    return "\n".join(lines)


def _fetched(name: str, function: Any) -> list[str]:
    """Return lines that import a function under that name, or a comment if it cannot be
    imported.
    """
    if isinstance(function, Wrapped):
        inner = _import(getattr(function.fn, "__name__", ""), function.fn)
        return (
            [*inner, f"{name} = {function.code()}"] if inner else [f"# {name}: the one under test"]
        )
    return _import(name, function) or [f"# {name}: the one under test"]


def _import(name: str, function: Any) -> list[str]:
    """Return the import of a function, from its own module or, for one in C, from a public
    module that has it.
    """
    own = getattr(function, "__module__", None) or ""
    public = sorted(
        (module for module in sys.modules if "._" not in f".{module}"), key=lambda m: (len(m), m)
    )
    if not name.isidentifier() or own == "__main__":
        return []
    for module in (*([] if "._" in f".{own}" else [own]), *public, own):
        if not all(part.isidentifier() for part in module.split(".")):
            continue
        if vars(sys.modules.get(module) or object).get(name) is function:
            return [*_path_to(module), f"from {module} import {name}"]
    return []


def _path_to(module: str) -> list[str]:
    """Return lines that make a file importable if it is neither in the working directory nor
    installed.
    """
    file = getattr(sys.modules[module], "__file__", None)
    if "." in module or file is None or {"site-packages", "dist-packages"} & set(Path(file).parts):
        return []
    folder = Path(file).resolve().parent
    if folder in (Path.cwd(), Path(os.__file__).resolve().parent):
        return []
    return ["import sys", f"sys.path.insert(0, {str(folder)!r})"]


def _literally(call: str, problem: Problem, swapped: bool) -> list[str]:
    dtype = problem.q.dtype.name
    options = problem.options
    narrow = ("bfloat16", *FP8)  # NumPy does not have these
    arrays = {
        name: a.swapaxes(1, 2) if swapped else a
        for name, a in zip("qkv", (problem.q, problem.k, problem.v), strict=True)
    }
    arrays |= {name: value for name, value in options.items() if isinstance(value, np.ndarray)}
    given = [f"{name}={name if name in arrays else repr(value)}" for name, value in options.items()]
    return [
        "import numpy as np",
        *([f"from ml_dtypes import {dtype}"] if dtype in narrow else []),
        "nan, inf = np.nan, np.inf",
        *(
            f"{name} = {_literal(a, 'np.' * (a.dtype.name not in narrow) + a.dtype.name)}"
            for name, a in arrays.items()
        ),
        f"print({call}({', '.join(['q, k, v', *given])}))",
    ]


def _literal(array: Array, kind: str) -> str:
    if array.dtype == bool:
        return f"np.array({array.tolist()})" if array.size else f"np.zeros({array.shape}, bool)"
    if not array.size:
        return f"np.zeros({array.shape}, {kind})"
    native = array if array.dtype.itemsize == 4 else array.astype(np.float64)
    # the shortest decimals that round to these very numbers
    short = [float(str(x)) for x in native.ravel()]
    return f"np.array({np.array(short).reshape(array.shape).tolist()}, {kind})"
