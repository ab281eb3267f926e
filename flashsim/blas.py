"""One BLAS thread while algorithms run: tiles are too small to share. On busy cores BLAS's threads cost a tiled run 70 times."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


class _Counted:
    """Counts the callers that are inside `one_blas_thread`, and keeps the limit that the first of them set."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.of_thread = threading.local()  # .inside: how many of them are this thread's
        self.limit: Any = None

    def enter(self) -> None:
        with self.lock:
            if not self.inside:
                self.limit = _blas().limit(limits=1, user_api="blas")
            self._add(1)

    def leave(self) -> None:
        with self.lock:
            self._add(-1)

    def _add(self, times: int) -> None:
        self.inside += times
        self.of_thread.inside = getattr(self.of_thread, "inside", 0) + times
        if not self.inside and self.limit is not None:
            _give_up_control()  # of the thread that set the limit, which may not be this one
            self.limit.restore_original_limits()
            _give_up_control()
            self.limit = None

    def forked(self) -> None:
        """In a child process only the thread that forked goes on. So the others leave, and the lock is made new."""
        self.lock = threading.Lock()
        with self.lock:
            self.inside = getattr(self.of_thread, "inside", 0)
            self._add(0)


_counted = _Counted()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_counted.forked)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread. When the last caller that is inside leaves, in any thread, the number is again what it was.

    There is one number for the process. So callers are counted: a second caller would otherwise find the first one's limit, and
    later restore that.
    """
    _counted.enter()
    try:
        yield
    finally:
        _counted.leave()


def _give_up_control() -> None:
    """Let any thread set limits: since threadpoolctl 3.8, only the first thread that set one may set others."""
    for library in _blas().lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
