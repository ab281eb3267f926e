"""Runs checks, which are independent of each other, in this process or over several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager

from flashsim.blas import one_blas_thread
from flashsim.verify.claim import Check, Claim

OnClaim = Callable[[list[int]], None]


def run(
    checks: Sequence[Check], full: bool = False, *, jobs: int | None = 1, on_claim: OnClaim | None = None
) -> list[Claim]:
    """Return the checks' claims, in their order; the same from one process as from many.

    jobs      processes of this machine, for which a script needs its `if __name__ == "__main__"`, as `multiprocessing` says;
              None: what `joblib.parallel_config` says, such as a Dask or Ray cluster
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
    if jobs is None:
        from joblib import Parallel, delayed

        try:
            parallel = Parallel(return_as="generator_unordered")
        except ValueError:  # a backend that returns all at the end
            parallel = Parallel()
        yield from parallel(delayed(_claim)(number, check, full) for number, check in enumerate(checks))
    elif jobs == 1 or len(checks) == 1:
        yield from (_claim(number, check, full) for number, check in enumerate(checks))
    else:
        yield from _over_processes(checks, full, min(jobs, len(checks)))


def _over_processes(checks: Sequence[Check], full: bool, jobs: int) -> Iterator[tuple[int, Claim]]:
    """Yield the claims of `jobs` processes, which are killed where this is left early: by Ctrl-C, or by a check that fails."""
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _end_with_parent)
    try:
        with _interrupts_wait():
            work = [pool.submit(_claim, number, check, full) for number, check in enumerate(checks)]
        for done in as_completed(work):
            yield done.result()
    finally:
        with _interrupts_wait():
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            pool.shutdown()


def _end_with_parent() -> None:
    """Have this process end when its parent does, however that ends."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Have Ctrl-C come after this. Processes that start here do not hear it, though a terminal sends it to all.

    The mask is for them; here, a thread without one may hear it, and Python would raise KeyboardInterrupt amid this all the same.
    """
    heard: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number)) if main else None
    masked = None
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # once it runs, it leaves the mask alone
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if masked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        if main:
            signal.signal(signal.SIGINT, before)
        for number in heard:
            signal.raise_signal(number)


def _claim(number: int, check: Check, full: bool) -> tuple[int, Claim]:
    with one_blas_thread():
        return number, check(full)
