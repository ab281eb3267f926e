"""`Report` and `Failure`: the results of a kernel's check-up, as text and as JSON."""

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
from flashsim.testing.kernel import Kernel
from flashsim.testing.mismatches import Mismatch
from flashsim.testing.problem import Problem
from flashsim.testing.spec import FP8
from flashsim.testing.survey import Finding, Tally, size
from flashsim.testing.unchecked import incomplete
from flashsim.testing.wrapping import Wrapped

NOT_SHRUNK = "the simplest drawn, not shrunk"
WIDTH = 80  # of a terminal
NOT_OF_NUMPY = ("bfloat16", *FP8)  # types that ml_dtypes has
PRINTED = 64  # the most elements of q, k and v together that a failure prints


@dataclass(frozen=True)
class Failure:
    """A check that failed, the simplest case on which it did, and which bug the kernel may have.

    finding     the case, the worst element, the kernel's number there, the right one, and the
    budget failed, tried  how many cases of the survey failed, of how many suspicions  known bugs
    that explain the failure, the likeliest first message     all of that in words, with code that
    shows the failure again
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
    """The results of a check-up.

    name, spec, examples, seed  the kernel, its spec, the number of cases, and their seed
    tallies    of each check: cases tried and failed, and the worst error divided by its budget
    left_out   checks that do not apply, and why
    failures   failures that were not expected
    expected   checks that are expected to fail, and why
    mismatches differences between the spec and the kernel's first calls: cases are drawn without
               these features, or no case is drawn
    undeclared keywords of the kit that the function has and the spec does not declare, each with
               the values with which a call is right
    defaulted  the function's other parameters, which the kit never gives
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
        """Whether the kernel fits its spec, and all checks passed but those that are expected to
        fail, which failed.
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
        """The largest error divided by its budget, over the checks that are not expected to
        fail.
        """
        tallies = [tally for name, tally in self.tallies.items() if name not in self.expected]
        return max((tally.worst for tally in tallies), default=0.0)

    def verdict(self, name: str) -> str:
        """Return the result of a check, in a few words."""
        tally = self.tallies[name]
        if not tally.tried:
            return "no case"
        if name not in self.expected:
            return "FAILS" if tally.failed else "passes"
        words = "fails, as expected" if tally.failed else "passes, though expected to fail"
        reason = self.expected[name]
        return f"{words}: {reason}" if reason else words

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
        """Return the differences between the spec and the kernel's first calls, as text; empty if
        there are none.
        """
        if not self.mismatches:
            return ""
        stops = any(mismatch.stops for mismatch in self.mismatches)
        result = "So nothing was checked" if stops else "The checks leave these out"
        head = f"A few first calls show that {self.name} does not fit its spec. {result}."
        lines = [_wrapped(head)]
        for mismatch in self.mismatches:
            lines.append(_wrapped(f"* {mismatch}", "  "))
        return "\n".join(lines)

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
        if not others:
            return [simplest.message]
        lines = ["Other checks that fail, in brief (--check NAME shows one in full):"]
        for failure in others:
            line = f"  {failure.check}: {_difference(failure.finding).splitlines()[0]}"
            lines.append(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…")
        return [simplest.message, "\n".join(lines)]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        checks = {}
        for name, tally in self.tallies.items():
            checks[name] = {
                "cases": tally.tried,
                "failed": tally.failed,
                "first": tally.first,
                "worst": tally.worst if np.isfinite(tally.worst) else "inf",
            }
        return {
            "kernel": self.name,
            "spec": self.spec,
            "examples": self.examples,
            "seed": self.seed,
            "ok": self.ok,
            "complete": self.complete,
            "checks": checks,
            "left_out": self.left_out,
            "expected_failures": self.expected,
            "mismatches": [str(mismatch) for mismatch in self.mismatches],
            "undeclared": list(self.undeclared),
            "defaulted": list(self.defaulted),
            "failures": [failure.as_json() for failure in self.failures],
        }


def _wrapped(text: str, indent: str = "") -> str:
    """Return text in lines of `WIDTH`; `indent` is before all but the first."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


# --------------------------------------------------------------------------------------------------
# in words


def describe(
    kernel: Kernel, finding: Finding, tally: Tally, suspicions: Sequence[Suspicion], origin: str
) -> str:
    """Return the message of a failure. `origin` says where its case comes from."""
    verb = "fails" if tally.failed == 1 else "fail"
    count = f"{tally.failed} of {tally.tried} cases drawn {verb}"
    difference = _difference(finding).splitlines()
    parts = [
        _wrapped(f"{kernel.name} fails {finding.check!r}: {CHECKS[finding.check].about}"),
        f"  {finding.case}\n  ({origin}; {count})",
        "\n".join(_wrapped(f"  {line}", "    ") for line in difference),
    ]
    if origin == NOT_SHRUNK:
        return "\n\n".join(parts)
    for suspicion in suspicions:
        known = f" Known: {', '.join(suspicion.threads)}." if suspicion.threads else ""
        text = f"  Likely: {suspicion.says} ({suspicion.evidence}.){known}"
        parts.append(_wrapped(text, "    "))
    parts.append("  To see it again:\n\n" + textwrap.indent(code(kernel, finding), "    "))
    return "\n\n".join(parts)


def _difference(finding: Finding) -> str:
    """Say how the kernel's worst number differs from the right one."""
    if finding.broken:
        return f"it {finding.broken}"
    comparison = finding.comparison
    assert comparison is not None
    index = finding.index
    actual = float(np.asarray(comparison.actual)[index])
    expected = float(np.asarray(comparison.expected)[index])
    budgets = np.broadcast_to(comparison.budget, np.shape(comparison.expected))
    budget = float(budgets[index])
    element = f"{comparison.label} {list(index)}" if index else comparison.label
    if np.isnan(actual):
        return f"{element} is nan; expected {expected:.9g}"
    if budget == 0:
        text = f"{element} is {actual:.9g}; expected exactly {expected:.9g}"
        if actual and expected and np.isfinite(actual) and np.isfinite(expected):
            text += f"\n{_first_bit(actual, expected)}"
        return text
    error = abs(actual - expected)
    return (
        f"{element} is {actual:.9g}; expected {expected:.9g} ± {budget:.2g}\n"
        f"off by {error:.3g}, which is {finding.ratio:.3g} × its budget"
    )


def _first_bit(actual: float, expected: float) -> str:
    """Say where two numbers first differ, from the sign on."""
    actual_bits = int(np.float64(actual).view(np.uint64))
    expected_bits = int(np.float64(expected).view(np.uint64))
    last = (actual_bits ^ expected_bits).bit_length()
    if last == 64:
        place = "the sign"
    elif last > 52:
        place = "the exponent"
    else:
        place = f"bit {53 - last} of the fraction"
    return f"{actual.hex()} and {expected.hex()} first differ in {place}"


def code(kernel: Kernel, finding: Finding) -> str:
    """Return Python that shows a failure again: by its case and, if there are few, by its
    numbers.
    """
    name = kernel.name if kernel.name.isidentifier() else "my_attention"
    imports = _import_lines(name, kernel.fn)
    options = ""
    for option, function in (("backward", kernel.back), ("dropout", kernel.keep_mask)):
        if function is not None and option in CHECKS[finding.check].asks:
            expression, lines = _function_expression(name, kernel.fn, option, function)
            options += f", {option}={expression}"
            imports += lines
    wrap = ", wrap" if isinstance(kernel.fn, Wrapped) else ""
    lines = [
        f"from flashsim.testing import Case, Spec, replay{wrap}",
        *imports,
        f"spec = {kernel.spec!r}",
        f"replay({name}, spec, {finding.check!r}, {finding.case!r}{options})",
    ]
    problem = None if finding.comparison is None else finding.comparison.problem
    if problem is not None and problem.q.size + problem.k.size + problem.v.size <= PRINTED:
        lines += ["", *_literal_call(name, problem, kernel.spec.layout == "BNHD")]
    return "\n".join(lines)


def _function_expression(
    kernel_name: str, kernel_fn: Any, option: str, function: Any
) -> tuple[str, list[str]]:
    """Return Python for a backward function or a keep mask, and the lines that import it."""
    for attribute in (option, "keep"):
        if getattr(kernel_fn, attribute, None) == function:
            return f"{kernel_name}.{attribute}", []
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        name = f"my_{option}"
    return name, _import_lines(name, function)


def _import_lines(name: str, function: Any) -> list[str]:
    """Return lines that import a function under that name, or a comment if it cannot be
    imported.
    """
    if isinstance(function, Wrapped):
        lines = _import(getattr(function.fn, "__name__", ""), function.fn)
        if lines:
            lines.append(f"{name} = {function.code()}")
    else:
        lines = _import(name, function)
    return lines or [f"# {name}: the one under test"]


def _import(name: str, function: Any) -> list[str]:
    """Return the import of a function, from its own module or, for one in C, from a public
    module that has it.
    """
    home = getattr(function, "__module__", None) or ""
    if not name.isidentifier() or home == "__main__":
        return []
    modules = [module for module in sys.modules if not _is_private(module)]
    modules.sort(key=lambda module: (len(module), module))
    modules.append(home)
    if not _is_private(home):
        modules.insert(0, home)
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            continue
        if vars(sys.modules.get(module) or object).get(name) is function:
            return [*_path_to(module), f"from {module} import {name}"]
    return []


def _is_private(module: str) -> bool:
    return any(part.startswith("_") for part in module.split("."))


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


def _literal_call(kernel_name: str, problem: Problem, swapped: bool) -> list[str]:
    """Return lines that call a kernel with the problem's numbers."""
    dtype = problem.q.dtype.name
    arrays = {"q": problem.q, "k": problem.k, "v": problem.v}
    if swapped:
        arrays = {name: a.swapaxes(1, 2) for name, a in arrays.items()}
    arguments = ["q", "k", "v"]
    for name, value in problem.options.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
            arguments.append(f"{name}={name}")
        else:
            arguments.append(f"{name}={value!r}")
    lines = ["import numpy as np"]
    if dtype in NOT_OF_NUMPY:
        lines.append(f"from ml_dtypes import {dtype}")
    lines.append("nan, inf = np.nan, np.inf")
    for name, a in arrays.items():
        lines.append(f"{name} = {_literal(a)}")
    lines.append(f"print({kernel_name}({', '.join(arguments)}))")
    return lines


def _literal(array: Array) -> str:
    """Return Python that makes an array."""
    if array.dtype == bool:
        return f"np.array({array.tolist()})" if array.size else f"np.zeros({array.shape}, bool)"
    dtype = array.dtype.name
    if dtype not in NOT_OF_NUMPY:
        dtype = f"np.{dtype}"
    if not array.size:
        return f"np.zeros({array.shape}, {dtype})"
    native = array if array.dtype.itemsize == 4 else array.astype(np.float64)
    # the shortest decimals that round to these very numbers
    decimals = [float(str(x)) for x in native.ravel()]
    return f"np.array({np.array(decimals).reshape(array.shape).tolist()}, {dtype})"
