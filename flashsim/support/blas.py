"""One BLAS thread while algorithms run: tiles are too small to share. On busy cores BLAS's threads cost a tiled run 70 times."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock, get_ident
from typing import Any


class _Callers:
    """The callers that are inside `one_blas_thread`, by thread, and the limit that the first of them set."""

    def __init__(self) -> None:
        self.lock, self.inside = Lock(), Counter[int]()
        self.limit: Any = None

    def add(self, times: int) -> None:
        with self.lock:
            if not self.inside.total():
                self.limit = _blas().limit(limits=1, user_api="blas")
            self.inside[get_ident()] += times
            self.restore()

    def forked(self) -> None:
        """In a child process only the thread that forked goes on. So the others leave, and the lock is made new."""
        self.lock, mine = Lock(), self.inside[get_ident()]
        self.inside = Counter({get_ident(): mine})
        self.restore()

    def restore(self) -> None:
        """Once nobody is inside, set the number of threads to what it was."""
        if self.limit is not None and not self.inside.total():
            _give_up_control()  # of the thread that set the limit, which may not be this one
            self.limit.restore_original_limits()
            _give_up_control()
            self.limit = None


_callers = _Callers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_callers.forked)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread. When the last caller that is inside leaves, in any thread, the number is again what it was.

    There is one number for the process. So callers are counted: a second caller would otherwise find the first one's limit, and
    later restore that.
    """
    _callers.add(1)
    try:
        yield
    finally:
        _callers.add(-1)


def _give_up_control() -> None:
    """Let any thread set limits: since threadpoolctl 3.8, only the first thread that set one may set others."""
    for library in _blas().lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
