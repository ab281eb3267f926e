"""A user's own code in a child process. What ends the child, such as an abort in C, leaves this
process to report it.
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from flashsim.support.jobs import ENDING

POSSIBLE = hasattr(os, "fork") and sys.platform != "darwin"
"""Whether there are forks, and NumPy's own library survives them."""
TIMEOUT = "out of time"
GRACE = 0.5
"""Seconds for a child to end of a signal that a terminal sent to both processes."""
PR_SET_PDEATHSIG = 1  # of Linux: a signal for when the parent ends

_file: IO[bytes] | None = None  # in a child: for its status and its last words
_words: Any = None


class Ending(NamedTuple):
    """How a child process ended.

    status  what its work returned, or None where the process ended before
    how     that in words: a signal's name, an exit status, or TIMEOUT
    words   its last words
    """

    status: int | None
    how: str
    words: Any


def last_words(words: Any) -> None:
    """Keep words, which are pickled, for the parent of this process. Without one, do nothing."""
    global _words
    if _file is not None:
        _words = words
        _write(None)


def run(work: Callable[[], int], seconds: float | None = None) -> Ending:
    """Run `work` in a fork of this process, for at most so many seconds; return how it ended."""
    with TemporaryFile() as file:
        child = multiprocessing.get_context("fork").Process(target=_child, args=(work, file))
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        with warnings.catch_warnings():  # Python 3.12 warns of NumPy's threads, which are idle
            warnings.simplefilter("ignore")
            child.start()
        signals: list[int] = []
        before = {
            number: signal.signal(number, lambda number, _: signals.append(number))
            for number in ENDING
        }
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            on_time = _join(child, seconds, signals)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        file.seek(0)
        report = file.read()
    status, words = pickle.loads(report) if report else (None, None)
    return Ending(status, _how(child) if on_time else TIMEOUT, words)


def _join(child: BaseProcess, seconds: float | None, signals: list[int]) -> bool:
    """Wait for a child, and pass on the signals that this process hears. Return False where it
    took too long, and was killed.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while child.is_alive():  # a grandchild may keep a join waiting
        child.join(0.05)
        if signals:
            child.join(GRACE)
            if child.is_alive():
                process_id = child.pid
                assert process_id is not None
                os.kill(process_id, signals[0])
            signals.clear()
        if end is not None and time.monotonic() > end:
            child.kill()
            child.join()
            return False
    return True


def _how(child: BaseProcess) -> str:
    code = child.exitcode
    assert code is not None
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _child(work: Callable[[], int], file: IO[bytes]) -> None:
    global _file, _words
    _file = file
    _words = None
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (multiprocessing closes it; pdb reads it)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    _write(work())


def _write(status: int | None) -> None:
    """Write how far this child is, for its parent, over what was there: a pickle says its end."""
    assert _file is not None
    os.pwrite(_file.fileno(), pickle.dumps((status, _words)), 0)
