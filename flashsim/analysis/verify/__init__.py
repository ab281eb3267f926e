"""The ledger: every claim of the paper that flashsim checks, the range on which it was tried, the
result, the verdict.

Each check runs one claim, its docstring, and returns a `Claim`; each public function of `MODULES`
that returns one is a check. A check that raises is a claim that fails. Nothing here is fitted to
pass: counts are compared by `==`, constants are derived in `flashsim.theory`, and rounding bounds
in `flashsim.reference`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from traceback import extract_tb
from typing import Any, get_type_hints

from flashsim.analysis.verify.shared import Check, Claim
from flashsim.support.blas import one_blas_thread
from flashsim.support.jobs import in_any_order

__all__ = ["Check", "Claim", "checks", "named", "run"]

NAMES = (
    "theorems_1_2",
    "propositions",
    "theorem_5",
    "appendices",
    "section_4",
    "beyond_attention",
    "serving",
    "chapter",
    "optimality",
)
MODULES = [import_module(f"flashsim.analysis.verify.{name}") for name in NAMES]

OnClaim = Callable[[list[int]], None]


def checks() -> list[Check]:
    """Return every check, in the order of the paper. Each takes `full`: sweep widely, or keep to
    seconds.
    """
    every_check: list[Check] = []
    for module in MODULES:
        for name, value in vars(module).items():
            is_public = isfunction(value) and not name.startswith("_")
            if is_public and value.__module__ == module.__name__ and _returns_claim(value):
                every_check.append(value)
    return every_check


def _returns_claim(function: Callable[..., Any]) -> bool:
    return get_type_hints(function).get("return") is Claim


def named(names: Sequence[str]) -> list[Check]:
    """Return the checks whose names or sources begin so: "theorem2" is all of Theorem 2's.
    ValueError for a name of none.
    """
    every_check = checks()
    selected: set[Check] = set()
    for name in names:
        matches = [check for check in every_check if _begins_with(check, name)]
        if not matches:
            raise ValueError(_unknown(name, [check.__name__ for check in every_check]))
        selected.update(matches)
    return [check for check in every_check if check in selected]


def _begins_with(check: Check, name: str) -> bool:
    """Return whether a check's name or source begins with a name."""
    beginning = _letters(name)
    source, _ = _source_and_claim(check)
    both = (_letters(check.__name__), _letters(source))
    return bool(beginning) and any(text.startswith(beginning) for text in both)


def _unknown(name: str, names: list[str]) -> str:
    near = get_close_matches(name.lower(), names, 5, cutoff=0.5)
    if not near:
        near = [*names[:3], f"{len(names) - 3} more"]
    verb = "is" if len(near) == 1 else "are"
    return f"there is no claim {name!r}; there {verb} {', '.join(near)}"


def _letters(name: str) -> str:
    return re.sub(r"\W|_", "", name).lower()


def run(
    checks: Sequence[Check],
    full: bool = False,
    *,
    jobs: int | None = 1,
    on_claim: OnClaim | None = None,
) -> list[Claim]:
    """Return the checks' claims, in their order; the same from one process as from many.

    jobs      processes, or None for a cluster's, as in `flashsim.support.jobs.in_any_order`
    on_claim  called after each claim with the numbers of the checks that are left, in order
    """
    claims: dict[int, Claim] = {}
    for number, claim in in_any_order(partial(_claim, full), checks, jobs):
        claims[number] = claim
        if on_claim is not None:
            on_claim([number for number in range(len(checks)) if number not in claims])
    return [claims[number] for number in sorted(claims)]


def _source_and_claim(check: Check) -> tuple[str, str]:
    """Return both parts of a check's docstring, SOURCE. CLAIM. Without a source, it is the name."""
    text = " ".join((check.__doc__ or "").split())
    source, _, claim = text.partition(". ")
    if claim:
        return source, claim
    return check.__name__.replace("_", " ").strip(), text


def _claim(full: bool, check: Check) -> Claim:
    """Return the check's claim. If the check raises, the claim fails: an algorithm may have been
    changed.
    """
    source, claim = _source_and_claim(check)
    try:
        with one_blas_thread():
            result = check(full)
    except Exception as error:
        frames = extract_tb(error.__traceback__)
        inside = [frame for frame in frames if "algorithms" in Path(frame.filename).parts]
        frame = (inside or frames)[-1]
        place = f"line {frame.lineno} of {Path(frame.filename).name}"
        result = Claim("broke off", f"{type(error).__name__}: {error} ({place})", False, {})
    return replace(result, source=source, claim=claim)
