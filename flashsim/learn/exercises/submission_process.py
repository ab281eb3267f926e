"""`SubmissionProcess`: a student's file that runs in a process of its own, which returns numbers. The
grader never imports the file.

with SubmissionProcess(path, exercise) as submission:
    exercise.grade(submission)  # as with a `Submission` in this process

What a function does to a memory comes back as a list of loads, stores and turns. The grader repeats
it on a memory of its own: so counts and values are the grader's, whatever the file does to the
simulator in its own process.
"""

from __future__ import annotations

import ast
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashsim.learn.exercises.messages import pack, receive, send, unpack
from flashsim.learn.exercises.record import Exercise
from flashsim.learn.exercises.submission import Mistake, Submission
from flashsim.memory.hbm import HBM, Block, Matrix
from flashsim.memory.sram import SRAM, Event

MODULES = ("numpy", "math", "typing", "__future__")
"""Modules that every file may import, besides those that the exercise's text imports."""


@dataclass(frozen=True)
class Limits:
    """Limits of a process: seconds, bytes of memory, bytes of a file that it writes."""

    seconds: int = 60
    memory: int = 2**32
    size: int = 2**24


class SubmissionProcess(Submission):
    """A student's file in a process of its own. Raises Mistake if the file does not run, or if the
    process sends something else than results.
    """

    def __init__(self, path: Path, exercise: Exercise, limits: Limits = Limits()) -> None:
        self.path = path
        self._limits = limits
        self._timed_out = False
        self._folder = tempfile.TemporaryDirectory(prefix="flashsim-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-X", "utf8", "-m", "flashsim.learn.exercises.subprocess_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
            env=_environment(),
            start_new_session=True,
        )
        self._timer = threading.Timer(limits.seconds, self._stop)
        self._timer.start()
        request = {
            "file": str(path.resolve()),
            "modules": [*MODULES, *imported_modules(exercise)],
            "limits": {
                "memory": limits.memory,
                "size": limits.size,
                "seconds": limits.seconds + 1,
            },
        }
        try:
            self._request(request)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SubmissionProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and all processes that it has started."""
        self._timer.cancel()
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        self._folder.cleanup()

    def function(self, name: str) -> Callable[..., Any]:
        """Return the student's function of that name, as `Submission` does. A call is made in the
        process.
        """

        def call(*args: Any, when: Mapping[str, str] | None = None) -> Any:
            hbm = next((argument for argument in args if isinstance(argument, HBM)), None)
            sram = next((argument for argument in args if isinstance(argument, SRAM)), None)
            matrices = []
            if hbm is not None:
                for matrix in hbm.traffic.by_array:
                    matrices.append([matrix, pack(np.array(hbm.peek(matrix)))])
            request = {
                "function": name,
                "arguments": [pack(argument) for argument in args],
                "when": dict(when or {}),
                "matrices": matrices,
                "M": None if sram is None else sram.capacity,
            }
            return self._request(request, hbm, sram)

        return call

    def _request(
        self, request: dict[str, Any], hbm: HBM | None = None, sram: SRAM | None = None
    ) -> Any:
        """Send a request to the process, and return the value of its answer. Raises Mistake for a
        mistake of the file, and if there is no answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        nonce = secrets.token_hex(16)
        try:
            send(self._process.stdin, {**request, "nonce": nonce})  # type: ignore[arg-type]
            answer = receive(self._process.stdout)  # type: ignore[arg-type]
            if answer["to"] != nonce:
                raise ValueError("an answer to another request")
            if hbm is not None and sram is not None:
                for entry in answer["log"]:
                    replay(hbm, sram, entry)
            if "wrong" in answer:
                message, hint = answer["wrong"]
                raise Mistake(str(message), str(hint))
            return unpack(answer.get("value", ["plain", None]))
        except (EOFError, OSError):
            raise Mistake(self._message_of_end()) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError):
            raise Mistake(
                "It answered what is not an answer: something wrote where the grader reads."
            ) from None

    def _message_of_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        status = self._process.returncode
        if self._timed_out or status == -getattr(signal, "SIGXCPU", 0):
            return f"It was stopped after {self._limits.seconds} s. Does a loop end?"
        return (
            f"It ended its process (status {status}) before it answered. A function returns its "
            "answer."
        )

    def _stop(self) -> None:
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        with suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return the environment of the process: it finds this flashsim, and computes on one core."""
    paths = [str(Path(__file__).parents[3])]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def imported_modules(exercise: Exercise) -> list[str]:
    """Return the modules that an exercise's text imports."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(exercise.starting_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module or "")
    return modules


def replay(hbm: HBM, sram: SRAM, entry: Any) -> None:
    """Repeat an entry of the process's log on the grader's memory. Raises ValueError or TypeError
    for an entry that is not possible.
    """
    match entry:
        case ["load", str() as name, [int(), int(), int(), int()] as bounds, None]:
            sram.evict(sram.load(block(hbm.matrix(name), bounds)))
        case ["store", str() as name, [int(), int(), int(), int()] as bounds, values]:
            tile = unpack(values)
            target = block(hbm.matrix(name), bounds)
            if not isinstance(tile, np.ndarray) or tile.shape != target.shape:
                raise ValueError("a store of another shape")
            tile = sram.on_chip(tile.astype(sram.dtype))
            sram.store(target, tile)
            sram.evict(tile)
        case ["compute", str() as name, values]:
            tile = unpack(values)
            if not isinstance(tile, np.ndarray):
                raise ValueError("no tile")
            notify(sram, Event("compute", name, tile.size, tile, 1, (), ("", 0), sram))
        case ["turn end", [*loops]]:
            indices = tuple((str(variable), int(index)) for variable, index in loops)
            innermost, _ = indices[-1]
            notify(sram, Event("turn end", innermost, 0, None, 1, indices, ("", 0), sram))
        case _:
            raise ValueError("no event")


def block(matrix: Matrix, bounds: list[int]) -> Block:
    """Return a block of a matrix. `bounds` are its first row, the row after its last, and its
    columns likewise. Raises ValueError for a block that is not within the matrix.
    """
    top, bottom, left, right = bounds
    rows, columns = matrix.shape
    if not (0 <= top < bottom <= rows and 0 <= left < right <= columns):
        raise ValueError("no such block")
    return Block(matrix._storage, matrix.name, (slice(top, bottom), slice(left, right)))


def notify(sram: SRAM, event: Event) -> None:
    """Notify a memory's observers of an event that happened in the process."""
    for observer in sram._observers:
        observer(event)
