"""Work in a child process: however the child ends, its parent knows how, and its last words."""

import ctypes
import os
import signal
import time
from collections.abc import Callable

import pytest

from flashsim.support import forks

pytestmark = pytest.mark.skipif(not forks.POSSIBLE, reason="no forks here")


def after_words(work: Callable[[], object]) -> Callable[[], int]:
    def words_then_work() -> int:
        forks.last_words("words")
        work()
        return 3

    return words_then_work


def kill_itself() -> None:
    forks.last_words("w" * 100_000)
    forks.last_words("words")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("work", "status", "how"),
    [
        (lambda: None, 3, "exit status 0"),
        (kill_itself, None, "SIGKILL"),
        (lambda: os._exit(7), None, "exit status 7"),
        (lambda: ctypes.CDLL(None).exit(0), None, "exit status 0"),
        (lambda: time.sleep(60), None, forks.TIMEOUT),
    ],
)
def test_the_parent_knows_how_a_child_ended(
    work: Callable[[], object], status: int | None, how: str
) -> None:
    seconds = 0.3 if how == forks.TIMEOUT else None
    assert forks.run(after_words(work), seconds) == (status, how, "words")


def test_a_grandchild_keeps_nobody_waiting() -> None:
    def leave_a_process() -> int:
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(60)
        forks.last_words(grandchild)
        os._exit(7)

    ending = forks.run(leave_a_process)
    assert ending[:2] == (None, "exit status 7")
    os.kill(ending.words, signal.SIGKILL)  # it is still there


def test_in_no_child_last_words_are_for_nobody() -> None:
    forks.last_words("words")
    assert forks.run(lambda: 0).words is None
