"""Independent pieces of work, in this process or over several; by joblib, whose backends reach Dask's and Ray's clusters."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_any_order(work: Callable[[T], R], items: Sequence[T], jobs: int | None) -> Iterator[tuple[int, R]]:
    """Yield (an item's number, what `work` returns of it) for each item, as they come.

    `jobs` is how many processes; None: as many as `joblib.parallel_config` says, which may be those of a cluster. `work` and
    the items are pickled where there are several.
    """
    if jobs == 1 or len(items) == 1:
        yield from ((number, work(item)) for number, item in enumerate(items))
        return
    from joblib import Parallel, delayed

    how: dict[str, Any] = {"n_jobs": jobs, "batch_size": 1, "pre_dispatch": "n_jobs", "max_nbytes": None}
    calls = [delayed(_numbered)(work, number, item) for number, item in enumerate(items)]
    try:
        parallel = Parallel(return_as="generator_unordered", **how)
    except ValueError:  # a backend that returns all at the end
        yield from Parallel(**how)(calls)
        return
    with parallel, warnings.catch_warnings(), ExitStack() as stack:
        warnings.filterwarnings("ignore", r"\d+ tasks which were still being processed")  # interrupted, as asked
        with _deaf_to_interrupts():
            results = stack.enter_context(closing(parallel(calls)))
        yield from results


def _numbered(work: Callable[[T], R], number: int, item: T) -> tuple[int, R]:
    return number, work(item)


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
