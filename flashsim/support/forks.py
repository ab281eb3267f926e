"""A user's own code in a fork of this process: what ends the one, such as an abort in C, leaves
the other to say so.
"""

import ctypes
import mmap
import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from typing import Any, NamedTuple

from flashsim.support.entry import Terminated
from flashsim.support.jobs import ENDING

# there, NumPy's own library does not outlive a fork
POSSIBLE = hasattr(os, "fork") and sys.platform != "darwin"
# bytes that both share: whether the fork is done, its exit status, the length of its last words,
# these
ROOM = 2**16
HEAD = 6
TOO_LATE = "out of time"
ONCE = 1.0  # seconds in which a signal, sent to both processes, counts once
PR_SET_PDEATHSIG = 1  # of Linux: a signal for when the parent ends

_room: mmap.mmap | None = None
_heard = -ONCE


class Ending(NamedTuple):
    """How a fork ended.

    status  what it said it would exit with, or None where it was ended before
    how     that in words: a signal's name, an exit status, or TOO_LATE
    words   its last words
    """

    status: int | None
    how: str
    words: bytes


def last_words(words: bytes) -> None:
    """Leave words for the process that this one is a fork of; without one, or if they are too
    long, nothing.
    """
    if _room is not None and len(words) <= ROOM - HEAD:
        _room[2 : HEAD + len(words)] = len(words).to_bytes(HEAD - 2, "little") + words


def done(status: int) -> int:
    """Tell the process that this one is a fork of, if it is one, that its work is done, and with
    which exit status.
    """
    if _room is not None:
        _room[:2] = bytes((1, status))
    return status


def fork(seconds: float | None = None) -> Ending | None:
    """Fork. Return None in the fork, which is to call `done`; here wait for it, at most
    `seconds`, and return how it ended.
    """
    global _room
    room = mmap.mmap(-1, ROOM)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):
            stream.flush()
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with warnings.catch_warnings():  # Python 3.12 warns of NumPy's threads, which hold nothing now
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        _room = room
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for each in ENDING:
            if signal.getsignal(each) != signal.SIG_IGN:
                signal.signal(each, _hear)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        return None
    before = {each: signal.signal(each, lambda number, _: _send(pid, number)) for each in ENDING}
    signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    try:
        status, late = _waited(pid, seconds)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    code = os.waitstatus_to_exitcode(status)
    how = TOO_LATE if late else signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return Ending(
        room[1] if room[0] else None,
        how,
        room[HEAD : HEAD + int.from_bytes(room[2:HEAD], "little")],
    )


def _hear(number: int, _: Any) -> None:
    """Raise KeyboardInterrupt for a signal that was not heard a moment ago."""
    global _heard
    now = time.monotonic()
    if now - _heard >= ONCE:
        _heard = now
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _waited(pid: int, seconds: float | None) -> tuple[int, bool]:
    if seconds is None:
        return os.waitpid(pid, 0)[1], False
    until = time.monotonic() + seconds
    late = False
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        time.sleep(0.002)
        if time.monotonic() > until:
            _send(pid, signal.SIGKILL)
            late = True
    return ended[1], late
