"""A student's file, run in a process of its own, which hands back numbers. The judge never imports
the file.

with Apart(path, exercise) as work:
    exercise.grade(work)   # as of a `Work` in this process

What a function does to a memory comes back as a list of loads, stores and turns. It is done again
here, on the grader's own memory: so counts and values are the grader's, whatever the file does to
the simulator in its own process.
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

from flashsim.learn.exercises.messages import packed, receive, send, unpacked
from flashsim.learn.exercises.record import Exercise
from flashsim.learn.exercises.work import Work, Wrong
from flashsim.memory.hbm import HBM, Block, Matrix
from flashsim.memory.sram import SRAM, Event

MODULES = ("numpy", "math", "typing", "__future__")
"""What any exercise may import, beside what its file imports at first."""


@dataclass(frozen=True)
class Limits:
    """What a file may take: seconds, bytes of memory, bytes of a file that it writes."""

    seconds: int = 60
    memory: int = 2**32
    size: int = 2**24


class Apart(Work):
    """What a student's file defines, in a process of its own. Raises Wrong where it does not
    run, or answers with nonsense.
    """

    def __init__(self, path: Path, exercise: Exercise, limits: Limits = Limits()) -> None:
        self.path = path
        self._limits = limits
        self._late = False
        self._folder = tempfile.TemporaryDirectory(prefix="flashsim-", ignore_cleanup_errors=True)
        paths = os.pathsep.join(
            [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self._process = subprocess.Popen(
            [sys.executable, "-X", "utf8", "-m", "flashsim.learn.exercises.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            start_new_session=True,
        )
        self._timer = threading.Timer(limits.seconds, self._stop)
        self._timer.start()
        given = {"memory": limits.memory, "size": limits.size, "seconds": limits.seconds + 1}
        try:
            self._ask(
                {
                    "file": str(path.resolve()),
                    "modules": [*MODULES, *imported(exercise)],
                    "limits": given,
                }
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and what it has started."""
        self._timer.cancel()
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        self._folder.cleanup()

    def function(self, name: str) -> Callable[..., Any]:
        """Return the student's function of that name, as `Work` does; it is called over there."""

        def call(*args: Any, when: Mapping[str, str] | None = None) -> Any:
            hbm = next((one for one in args if isinstance(one, HBM)), None)
            sram = next((one for one in args if isinstance(one, SRAM)), None)
            question = {
                "function": name,
                "arguments": [*map(packed, args)],
                "when": dict(when or {}),
            }
            held = (
                []
                if hbm is None
                else [[each, packed(np.array(hbm.peek(each)))] for each in hbm.traffic.by_array]
            )
            return self._ask({**question, "matrices": held, "M": sram and sram.capacity}, hbm, sram)

        return call

    def _ask(
        self, question: dict[str, Any], hbm: HBM | None = None, sram: SRAM | None = None
    ) -> Any:
        """Return what is answered. Raises Wrong for what the file did wrong, and where there is
        no answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        nonce = secrets.token_hex(16)
        try:
            send(self._process.stdin, {**question, "nonce": nonce})  # type: ignore[arg-type]
            answer = receive(self._process.stdout)  # type: ignore[arg-type]
            if answer["to"] != nonce:
                raise ValueError("an answer to something else")
            if hbm is not None and sram is not None:
                for entry in answer["log"]:
                    again(hbm, sram, entry)
            if "wrong" in answer:
                seen, hint = answer["wrong"]
                raise Wrong(str(seen), str(hint))
            return unpacked(answer.get("value", ["plain", None]))
        except (EOFError, OSError):
            raise Wrong(self._ended()) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError):
            raise Wrong(
                "It answered what is not an answer: something wrote where the grader reads."
            ) from None

    def _ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._late or self._process.returncode == -getattr(signal, "SIGXCPU", 0):
            return f"It was stopped after {self._limits.seconds} s. Does a loop end?"
        status = self._process.returncode
        return (
            f"It ended its process (status {status}) before it answered. A function returns its "
            "answer."
        )

    def _stop(self) -> None:
        self._late = True
        self._kill()

    def _kill(self) -> None:
        with suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)


def imported(exercise: Exercise) -> list[str]:
    """Return the modules that an exercise's file imports at first."""
    found: list[str] = []
    for node in ast.walk(ast.parse(exercise.fresh())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found


def again(hbm: HBM, sram: SRAM, entry: Any) -> None:
    """Do on the grader's memory what was done over there. Raises ValueError or TypeError for
    what cannot be.
    """
    match entry:
        case ["load", str() as name, [int(), int(), int(), int()] as where, None]:
            sram.evict(sram.load(block(hbm.matrix(name), where)))
        case ["store", str() as name, [int(), int(), int(), int()] as where, values]:
            tile = unpacked(values)
            to = block(hbm.matrix(name), where)
            if not isinstance(tile, np.ndarray) or tile.shape != to.shape:
                raise ValueError("a store of another shape")
            tile = sram.on_chip(tile.astype(sram.dtype))
            sram.store(to, tile)
            sram.evict(tile)
        case ["compute", str() as name, values]:
            tile = unpacked(values)
            if not isinstance(tile, np.ndarray):
                raise ValueError("no tile")
            tell(sram, Event("compute", name, tile.size, tile, 1, (), ("", 0), sram))
        case ["turn end", [*loops]]:
            around = tuple((str(variable), int(index)) for variable, index in loops)
            tell(sram, Event("turn end", around[-1][0], 0, None, 1, around, ("", 0), sram))
        case _:
            raise ValueError("no event")


def block(matrix: Matrix, where: list[int]) -> Block:
    """Return a block of a matrix by its first and last rows and columns. Raises ValueError for
    one that is not within it.
    """
    top, bottom, left, right = where
    if not (0 <= top < bottom <= matrix.shape[0] and 0 <= left < right <= matrix.shape[1]):
        raise ValueError("no such block")
    return Block(matrix._storage, matrix.name, (slice(top, bottom), slice(left, right)))


def tell(sram: SRAM, event: Event) -> None:
    """Tell a memory's observers of an event that was over there."""
    for observer in sram._observers:
        observer(event)
