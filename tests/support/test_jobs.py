"""`flashsim.support.jobs`: pieces of work over processes."""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from flashsim.support import jobs
from flashsim.support.entry import guarded
from flashsim.support.jobs import in_any_order


def test_nothing_to_do_is_done_over_any_number_of_processes() -> None:
    assert list(in_any_order(abs, [], 1)) == []
    assert list(in_any_order(abs, [], 2)) == []


def test_windows_takes_61_processes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []

    class Threads(ThreadPoolExecutor):
        """In place of a pool of processes, which checks its arguments, too."""

        def __init__(self, most: int, context: object, initializer: object) -> None:
            ProcessPoolExecutor(most).shutdown()
            numbers.append(most)
            super().__init__(1)
            self._processes: dict[int, object] = {}

    monkeypatch.setattr(jobs, "ProcessPoolExecutor", Threads)
    for platform in ("linux", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        assert len(list(in_any_order(abs, range(-70, 0), 70))) == 70
    assert numbers == [70, 61]


def test_processes_that_are_not_its_own_go_on() -> None:
    """Its own are ended with it, and no other: neither a caller's, nor those of a second call in
    another thread.
    """
    others = []
    spawn = multiprocessing.get_context("spawn")
    for _ in in_any_order(abs, [-1, -2], 2):
        other = spawn.Process(target=time.sleep, args=(60,))
        other.start()
        others.append(other)
    try:
        assert [other.is_alive() for other in others] == [True, True]
        assert set(multiprocessing.active_children()) == set(others)
    finally:
        for other in others:
            other.kill()
            other.join()


def test_a_process_that_is_killed_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """As Linux does where memory runs out."""

    def run() -> int:
        return len(list(in_any_order(os._exit, [1, 1], 2)))

    assert guarded("flashsim verify", run) == 2
    (text,) = capsys.readouterr().err.splitlines()
    assert text.startswith(
        "flashsim verify: error: one of 2 processes ended too early: it was killed, perhaps for "
        "want"
    )
