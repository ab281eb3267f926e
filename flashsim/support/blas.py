"""One BLAS thread while algorithms run: tiles are too small to share. On busy cores BLAS's
threads made a run 70 times slower.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from threading import Lock, get_ident
from typing import Any


class _Callers:
    """The callers that are inside `one_blas_thread`, by thread, and the limit that the first of
    them set.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = Counter[int]()
        self.limit: Any = None

    def __enter__(self) -> None:
        with self.lock:
            self.inside[get_ident()] += 1
            if self.limit is None:
                self.settle()

    def __exit__(self, *_: object) -> None:
        self.add(-1)

    def add(self, times: int) -> None:
        with self.lock:
            self.inside[get_ident()] += times
            self.settle()

    def forked(self) -> None:
        """In a child process only the thread that forked goes on. So the others leave, and the
        lock is made new.
        """
        times = self.inside[get_ident()]
        self.lock = Lock()
        self.inside = Counter({get_ident(): times})
        self.settle()

    def settle(self) -> None:
        """Have one BLAS thread while a caller is inside. From threadpoolctl 3.8 on, whoever
        limits must give up control.
        """
        if (self.limit is None) == (self.inside.total() > 0):
            pool, give_up_control = _blas()
            give_up_control(force=True)
            if self.limit is None:
                self.limit = pool.limit(limits=1, user_api="blas")
            else:
                self.limit.restore_original_limits()
                self.limit = None
            give_up_control(force=True)


_callers = _Callers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_callers.forked)


def one_blas_thread() -> _Callers:
    """Limit BLAS to one thread. When the last caller that is inside leaves, in any thread, the
    number is again what it was.

    There is one number for the process. So callers are counted: a second caller would otherwise
    find the first one's limit, and later restore that.
    """
    return _callers


@cache
def _blas() -> tuple[Any, Any]:
    from threadpoolctl import OpenBLASController, ThreadpoolController

    give_up_control = getattr(OpenBLASController, "clear_controlling_thread", _do_nothing)
    return ThreadpoolController(), give_up_control


def _do_nothing(*, force: bool) -> None:
    """Stand for threadpoolctl's `clear_controlling_thread`, which versions before 3.8 lack."""
