"""Runs in several threads at once: their results are their own, and the process's settings
afterwards what they were.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import flashsim
from flashsim.memory.debuggers import stepping_over_memory

THREADS = 8
BLAS = ThreadpoolController().select(user_api="blas")
rng = np.random.default_rng(0)
Q, K, V = rng.normal(size=(3, 2, 12, 4))


def limits() -> list[int]:
    return [library["num_threads"] for library in BLAS.info()]


def give_blas(*threads: int) -> None:
    """Set its number of threads, and leave every thread free to set another: threadpoolctl gives
    that to one alone.
    """
    for library, number in zip(
        BLAS.lib_controllers, threads * len(BLAS.lib_controllers), strict=False
    ):
        library.set_num_threads(number)
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


@pytest.fixture(autouse=True)
def two_blas_threads() -> Iterator[None]:
    """On a machine with one core, too, so that a limit of one shows."""
    before = limits()
    give_blas(2)
    if 2 not in limits():
        pytest.skip("this BLAS has one thread, whatever it is told")
    yield
    give_blas(*before)


def test_blas_has_its_threads_back_after_runs_at_once() -> None:
    """All are inside at the same time, and leave in an order of their own; one leaves by an
    exception, one goes in twice.
    """
    before = limits()
    everywhere = np.geterr()
    together = threading.Barrier(THREADS)
    want = flashsim.forward("flash", Q, K, V).O

    def on_head(number: int, done: int, heads: int) -> None:
        if done == 1:
            together.wait(10)
            assert set(limits()) == {1}
        elif number == 0:
            raise KeyError("an observer's own")
        elif number == 1:
            flashsim.forward("flash", Q, K, V)

    def one(number: int) -> Any:
        with np.errstate(all="raise"):
            mine = np.geterr()
            try:
                run = flashsim.forward(
                    "flash", Q, K, V, on_head=lambda done, heads: on_head(number, done, heads)
                )
            except KeyError:
                return None
            finally:
                assert np.geterr() == mine
        return flashsim.backward("flash", run, V) and run.O

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(one, range(THREADS)))
    assert results[0] is None
    assert all(np.array_equal(O, want) for O in results[1:])
    assert (limits(), np.geterr()) == (before, everywhere)


FORK = """
import os, threading
import flashsim
from flashsim.memory.debuggers import stepping_over_memory
from tests.simulate.test_threads import K, Q, V, give_blas, limits

def fork() -> bool:
    if os.fork():
        os.wait()
        return False
    inside = limits()
    flashsim.forward("flash", Q, K, V)
    print(inside, limits(), flush=True)
    return True

def in_a_run(then):
    seen = []
    flashsim.forward("flash", Q, K, V, on_head=lambda done, heads: seen.append(then()) if done == 1 else None)
    return seen[0]

give_blas(2)
arrived, leave = threading.Event(), threading.Event()
other = threading.Thread(target=in_a_run, args=(lambda: (arrived.set(), leave.wait(30)),))
other.start()
arrived.wait(30)
for forking in (fork, lambda: in_a_run(fork)):
    if forking():
        print(limits(), flush=True)
        os._exit(0)
leave.set()
other.join()
print(limits())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_meanwhile_has_no_limit_of_threads_that_it_lacks() -> None:
    """Outside of a run it has none; inside it has that run's own, until it leaves it."""
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr == ""
    outside = ["[2] [2]", "[2]"]
    inside = ["[1] [1]", "[2]"]
    parent = ["[2]"]
    assert ran.stdout.splitlines() == [*outside, *inside, *parent]


def test_breakpoint_is_python_s_own_again_after_runs_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    first = stepping_over_memory()
    second = stepping_over_memory()
    first.__enter__()
    assert sys.breakpointhook is not sys.__breakpointhook__
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert sys.breakpointhook is sys.__breakpointhook__
