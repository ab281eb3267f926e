"""A kernel that ends the process, by an abort in C or a signal: the smallest case on which it
does.
"""

import os
import pickle
from typing import NamedTuple, NoReturn

from flashsim.support.entry import INTERRUPTED
from flashsim.support.forks import TOO_LATE, Ending, done, fork, last_words
from flashsim.testing.case import Case
from flashsim.testing.checks import CHECKS, Check
from flashsim.testing.running import Finding, shrink, try_check
from flashsim.testing.subject import Subject

SECONDS = 20.0  # for all tries


class Tried(NamedTuple):
    """With what a kernel ended the process: its name, the check and the case, and what is known
    of the case.
    """

    name: str
    check: str
    case: Case
    known: str = ""

    def __str__(self) -> str:
        return f"in the check {self.check} on {self.case!r}" + f": {self.known}" * bool(self.known)


def leave_word(tried: Tried) -> None:
    """Leave word of what is about to be tried, for the process that this one is a fork of."""
    last_words(pickle.dumps(tried))


def word_left(ending: Ending) -> Tried:
    """Return what a fork left word of."""
    found: Tried = pickle.loads(ending.words)
    return found


def smallest(subject: Subject, tried: Tried) -> Tried:
    """Return the smallest case found on which the kernel ends a process, each tried in a fork of
    this one.
    """
    found = shrink(CHECKS[tried.check], subject, tried.case, in_a_fork, SECONDS)
    if found is None or not found.failed:
        return tried._replace(known="tried alone, it did not")
    return tried._replace(case=found.case, known="the simplest found")


def in_a_fork(check: Check, subject: Subject, case: Case) -> Finding | None:
    """Try a check on a case, as `try_check` does, in a fork: the finding has failed where that
    ends it.
    """
    fitted = check.fit(case, subject)
    if fitted is None:
        return None
    ending = fork(SECONDS)
    if ending is None:
        _try_and_leave(check, subject, fitted)
    if ending.status == INTERRUPTED:
        raise KeyboardInterrupt
    ended = ending.status is None and ending.how != TOO_LATE
    return Finding(
        check.name, fitted, float("inf") if ended else -1.0, broken="ended the process" * ended
    )


def _try_and_leave(check: Check, subject: Subject, case: Case) -> NoReturn:
    import resource  # not on Windows

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # so many cores are of no use
        quiet = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # what the kernel prints has been seen
            os.dup2(quiet, stream)
        try_check(check, subject, case)
        done(0)
    except BaseException as stop:
        done(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else 0)
    finally:
        os._exit(0)
