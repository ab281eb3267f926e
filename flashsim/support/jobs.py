"""Independent pieces of work: in this process, over several, or, through joblib, on a Dask or
Ray cluster.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
ENDING = (signal.SIGINT, signal.SIGTERM)
MOST_ON_WINDOWS = 61  # processes of a pool


def in_any_order(
    work: Callable[[T], R], items: Sequence[T], jobs: int | None
) -> Iterator[tuple[int, R]]:
    """Yield (an item's number, what `work` returns of it) for each item, as they come.

    jobs   processes of this machine, for which a script needs its `if __name__ == "__main__"`, as
           `multiprocessing` says; None: what `joblib.parallel_config` says, such as a Dask or Ray
           cluster
    work   it and the items are pickled where there are several

    Raises ChildProcessError where a process ended too early.
    """
    if jobs is None:
        from joblib import Parallel, delayed

        try:
            parallel = Parallel(return_as="generator_unordered")
        except ValueError:  # a backend that returns all at the end
            parallel = Parallel()
        numbered = delayed(_numbered)
        yield from parallel(numbered(work, number, item) for number, item in enumerate(items))
    elif jobs == 1 or len(items) <= 1:
        yield from ((number, work(item)) for number, item in enumerate(items))
    else:
        most = MOST_ON_WINDOWS if sys.platform == "win32" else jobs
        yield from _over_processes(work, items, min(jobs, len(items), most))


def _numbered(work: Callable[[T], R], number: int, item: T) -> tuple[int, R]:
    return number, work(item)


def _over_processes(
    work: Callable[[T], R], items: Sequence[T], jobs: int
) -> Iterator[tuple[int, R]]:
    """Yield the results of `jobs` processes, which are killed if this is left early, by Ctrl-C
    or by an error in one.
    """
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _end_with_parent)
    try:
        with _interrupts_wait():
            futures = []
            for number, item in enumerate(items):
                futures.append(pool.submit(_numbered, work, number, item))
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        reason = (
            "it was killed, perhaps for want of memory, or its script has no if __name__ == "
            '"__main__"'
        )
        raise ChildProcessError(f"one of {jobs} processes ended too early: {reason}") from None
    finally:
        with _interrupts_wait():
            for process in [*pool._processes.values()]:  # Python 3.14 has kill_workers
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
    """Delay Ctrl-C and SIGTERM until this is left. Processes that start here do not hear them,
    though they are sent to all.
    """
    signals: list[int] = []

    def note(number: int, _frame: object) -> None:
        signals.append(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            handlers[number] = signal.signal(number, note)
    masked = None
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # once it runs, it leaves the mask alone
        # for them; here another thread may hear a signal
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        if masked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for caught in signals:
            signal.raise_signal(caught)
