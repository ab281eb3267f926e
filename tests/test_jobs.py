"""`flashsim.support.jobs`: pieces of work over processes."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from flashsim.support.entry import guarded
from flashsim.support.jobs import in_any_order


def test_nothing_to_do_is_done_over_any_number_of_processes() -> None:
    assert [list(in_any_order(abs, [], jobs)) for jobs in (1, 2)] == [[], []]


@pytest.mark.filterwarnings("ignore:.* tasks which were still being processed")
def test_processes_that_are_not_its_own_go_on() -> None:
    """A caller's are not ended where a call is left early, and the next call finds its own."""
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        for _ in in_any_order(abs, [-1, -2, -3, -4], 2):
            break
        assert sorted(in_any_order(abs, [-3, -4], 2)) == [(0, 3), (1, 4)]
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


def test_a_process_that_is_killed_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """As Linux does where memory runs out."""
    assert guarded("flashsim verify", lambda: len(list(in_any_order(os._exit, [1, 1], 2)))) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said == "flashsim verify: error: a process ended too early: it was killed, perhaps for want of memory"
