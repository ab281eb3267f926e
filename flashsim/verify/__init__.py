"""The ledger: every claim of the paper that flashsim checks, the range it was tried on, what was measured, the verdict.

The last are not the paper's: the systems of the book chapter among the sources, what is optimal, Saha and Ye's, on what
attention costs where M < d², and a lower bound.

Each check runs one claim and returns a `Claim`; each function of `MODULES` that returns one is a check. Nothing here is fitted to
pass: counts are compared by `==`, constants are derived in `flashsim.theory`, and rounding bounds in `flashsim.reference`.
"""

from __future__ import annotations

from inspect import isfunction

from flashsim.verify import (
    appendices,
    beyond,
    chapter,
    figure_3,
    lower,
    practice,
    propositions,
    theorem_5,
    theorems_1_2,
)
from flashsim.verify.claim import Check, Claim
from flashsim.verify.running import run

__all__ = ["Check", "Claim", "checks", "run"]

MODULES = (theorems_1_2, propositions, theorem_5, appendices, beyond, figure_3, chapter, practice, lower)


def checks() -> list[Check]:
    """Return every check, in the order of the paper. Each takes `full`: sweep widely, or keep to seconds."""
    return [
        check
        for module in MODULES
        for check in vars(module).values()
        if isfunction(check) and check.__module__ == module.__name__ and check.__annotations__.get("return") == "Claim"
    ]
