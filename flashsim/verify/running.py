"""Runs checks, which are independent of each other, in this process or over several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from flashsim.blas import one_blas_thread
from flashsim.jobs import in_any_order
from flashsim.verify.claim import Check, Claim

OnClaim = Callable[[list[int]], None]


def run(
    checks: Sequence[Check], full: bool = False, *, jobs: int | None = 1, on_claim: OnClaim | None = None
) -> list[Claim]:
    """Return the checks' claims, in their order; the same from one process as from many.

    jobs      processes, or None for a cluster's, as in `flashsim.jobs.in_any_order`
    on_claim  called after each claim with the numbers of the checks that are left, in order
    """
    found: dict[int, Claim] = {}
    for number, claim in in_any_order(partial(_claim, full), checks, jobs):
        found[number] = claim
        if on_claim is not None:
            on_claim([left for left in range(len(checks)) if left not in found])
    return [claim for _, claim in sorted(found.items())]


def _claim(full: bool, check: Check) -> Claim:
    with one_blas_thread():
        return check(full)
