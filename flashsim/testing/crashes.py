"""Kernels that end the process, by an abort in C or by a signal. `smallest` finds the smallest case
on which a kernel does so.
"""

import os
from functools import partial
from typing import NamedTuple

from flashsim.support.entry import INTERRUPTED
from flashsim.support.forks import TIMEOUT, run
from flashsim.testing.case import Case
from flashsim.testing.checks import CHECKS, Check
from flashsim.testing.kernel import Kernel
from flashsim.testing.survey import Finding, shrink, try_check

SECONDS = 20.0  # for all attempts


class Attempt(NamedTuple):
    """A call of a kernel: the kernel's name, the check and the case. A child process records it
    before the call.

    note  the result of other attempts
    """

    name: str
    check: str
    case: Case
    note: str = ""

    def __str__(self) -> str:
        note = f": {self.note}" if self.note else ""
        return f"in the check {self.check} on {self.case!r}{note}"


def smallest(kernel: Kernel, attempt: Attempt) -> Attempt:
    """Return the smallest case on which the kernel ends a process. Each case is tried in a child
    process.
    """
    finding = shrink(CHECKS[attempt.check], kernel, attempt.case, try_in_child, SECONDS)
    if finding is None or not finding.failed:
        return attempt._replace(note="tried alone, it did not")
    return attempt._replace(case=finding.case, note="the simplest found")


def try_in_child(check: Check, kernel: Kernel, case: Case) -> Finding | None:
    """Try a check on a case in a child process. The finding has failed if the kernel ends the
    process.
    """
    fitted = check.fitted(case, kernel)
    if fitted is None:
        return None
    ending = run(partial(_try_quietly, check, kernel, fitted), SECONDS)
    if ending.status == INTERRUPTED:
        raise KeyboardInterrupt
    if ending.status is None and ending.how != TIMEOUT:
        return Finding(check.name, fitted, float("inf"), broken="ended the process")
    return Finding(check.name, fitted, -1.0)


def _try_quietly(check: Check, kernel: Kernel, case: Case) -> int:
    """Try a check without output, and drop its finding. Return INTERRUPTED, or 0."""
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # dumps of many crashes would fill the disk
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the first crash has printed its message already
        os.dup2(null, stream)
    try:
        try_check(check, kernel, case)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException:
        return 0
    return 0
