"""Runs checks, which are independent of each other, in this process or over several."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from flashsim.blas import one_blas_thread
from flashsim.verify.claim import Check, Claim

OnClaim = Callable[[list[int]], None]


def run(
    checks: Sequence[Check], full: bool = False, *, jobs: int | None = 1, on_claim: OnClaim | None = None
) -> list[Claim]:
    """Return the checks' claims, in their order; the same from one process as from many.

    jobs      processes; None: as many as `joblib.parallel_config` says, which may be those of a Dask or Ray cluster
    on_claim  called after each claim with the numbers of the checks that are left, in order
    """
    found: dict[int, Claim] = {}
    for number, claim in _claims(checks, full, jobs):
        found[number] = claim
        if on_claim is not None:
            on_claim([left for left in range(len(checks)) if left not in found])
    return [claim for _, claim in sorted(found.items())]


def _claims(checks: Sequence[Check], full: bool, jobs: int | None) -> Iterator[tuple[int, Claim]]:
    """Yield each claim with the number of its check, as they come."""
    if jobs == 1 or len(checks) == 1:
        yield from (_claim(number, check, full) for number, check in enumerate(checks))
        return
    from joblib import Parallel, delayed

    how = {"n_jobs": jobs, "batch_size": 1, "pre_dispatch": "n_jobs", "max_nbytes": None}
    work = [delayed(_claim)(number, check, full) for number, check in enumerate(checks)]
    try:
        parallel = Parallel(return_as="generator_unordered", **how)
    except ValueError:  # a backend that returns all at the end
        yield from Parallel(**how)(work)
        return
    with parallel, warnings.catch_warnings(), ExitStack() as stack:
        warnings.filterwarnings("ignore", r"\d+ tasks which were still being processed")  # interrupted, as asked
        with _deaf_to_interrupts():
            claims = stack.enter_context(closing(parallel(work)))
        yield from claims


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Have processes that start here not hear Ctrl-C, which a terminal sends to all: this one does, and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # once it runs, it leaves the mask alone
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _claim(number: int, check: Check, full: bool) -> tuple[int, Claim]:
    with one_blas_thread():
        return number, check(full)
