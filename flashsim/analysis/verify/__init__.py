"""The ledger: every claim of the paper that flashsim checks, the range it was tried on, what was
measured, the verdict.

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
from typing import get_type_hints

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
    return [
        check
        for module in MODULES
        for name, check in vars(module).items()
        if isfunction(check) and check.__module__ == module.__name__ and not name.startswith("_")
        if get_type_hints(check).get("return") is Claim
    ]


def named(names: Sequence[str]) -> list[Check]:
    """Return the checks whose names or sources begin so: "theorem2" is all of Theorem 2's.
    ValueError for a name of none.
    """
    known = checks()
    bare = {check: (_bare(check.__name__), _bare(_said(check)[0])) for check in known}
    for name in names:
        if not _bare(name) or not any(
            one.startswith(_bare(name)) for both in bare.values() for one in both
        ):
            there = [check.__name__ for check in known]
            near = get_close_matches(name.lower(), there, 5, cutoff=0.5) or [
                *there[:3],
                f"{len(there) - 3} more",
            ]
            raise ValueError(
                f"there is no claim {name!r}; there {'is' if len(near) == 1 else 'are'} "
                f"{', '.join(near)}"
            )
    return [
        check
        for check in known
        if any(one.startswith(_bare(name)) for name in names for one in bare[check])
    ]


def _bare(name: str) -> str:
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
    found: dict[int, Claim] = {}
    for number, claim in in_any_order(partial(_claim, full), checks, jobs):
        found[number] = claim
        if on_claim is not None:
            on_claim([left for left in range(len(checks)) if left not in found])
    return [claim for _, claim in sorted(found.items())]


def _said(check: Check) -> tuple[str, str]:
    said = " ".join((check.__doc__ or "").split())
    source, _, claim = said.partition(". ")
    return (source, claim) if claim else (check.__name__.replace("_", " ").strip(), said)


def _claim(full: bool, check: Check) -> Claim:
    """Return what the check says. If it raises, the claim fails: what it runs may have been
    changed.
    """
    source, claim = _said(check)
    try:
        with one_blas_thread():
            found = check(full)
    except Exception as error:
        frames = extract_tb(error.__traceback__)
        at = next(
            (frame for frame in reversed(frames) if "algorithms" in Path(frame.filename).parts),
            frames[-1],
        )
        found = Claim(
            "broke off",
            f"{type(error).__name__}: {error} (line {at.lineno} of {Path(at.filename).name})",
            False,
            {},
        )
    return replace(found, source=source, claim=claim)
