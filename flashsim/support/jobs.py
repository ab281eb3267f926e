"""Independent pieces of work: in this process, or by joblib over several, or over those of a Dask or Ray cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing.process import current_process
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_any_order(work: Callable[[T], R], items: Sequence[T], jobs: int | None) -> Iterator[tuple[int, R]]:
    """Yield (an item's number, what `work` returns of it) for each item, as they come.

    jobs   1: in this process, without joblib. Else how many workers joblib is to have; None: as `joblib.parallel_config` says.
           That says, too, what they are: processes of this machine, by default, or a Dask or Ray cluster's
    work   it and the items are pickled where there are several

    Raises ChildProcessError where a process ended too early.
    """
    if jobs == 1 or (jobs is not None and len(items) <= 1):
        yield from ((number, work(item)) for number, item in enumerate(items))
        return
    from joblib import Parallel, delayed

    try:
        parallel = Parallel(jobs, return_as="generator_unordered")
    except ValueError:  # a backend that returns all at the end
        parallel = Parallel(jobs)
    try:
        yield from parallel(delayed(_numbered)(work, number, item) for number, item in enumerate(items))
    except BrokenProcessPool:
        raise ChildProcessError("a process ended too early: it was killed, perhaps for want of memory") from None


def _numbered(work: Callable[[T], R], number: int, item: T) -> tuple[int, R]:
    if current_process().name.startswith("LokyProcess"):
        _end_with_parent()
    return number, work(item)


@cache
def _end_with_parent() -> None:
    """End this process soon after the one that started it has ended, were it killed: joblib's goes on to the end of its piece."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
