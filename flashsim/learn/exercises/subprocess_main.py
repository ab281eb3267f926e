"""The process that runs a student's file, for `submission_process`. It returns numbers, and grades
nothing.

    python -m flashsim.learn.exercises.subprocess_main

It reads requests from its standard input, and writes answers to its standard output. What the file
prints is dropped.
"""

import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

from flashsim.learn.exercises.messages import pack, receive, send, unpack
from flashsim.learn.exercises.submission import Mistake, Submission
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM, Event


def main() -> None:
    """Answer requests until the standard input ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # the file can neither read requests nor write answers
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    serve(requests, answers)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Run the file that the first request names, then call its functions. Each answer repeats the
    nonce of its request.
    """
    submission: Submission | None = None
    while True:
        try:
            request = receive(requests)
        except EOFError:
            return
        log: list[Any] = []
        answer: dict[str, Any] = {"to": request["nonce"], "log": log}
        try:
            if submission is None:
                limit(**request["limits"])
                submission = Submission(Path(request["file"]), request["modules"])
                sys.addaudithook(refuse_flashsim)
            else:
                answer["value"] = pack(call(submission, request, log))
        except Mistake as mistake:
            answer["wrong"] = [mistake.message, mistake.hint]
        except ValueError as error:  # of `pack`: one of the student's code is a Mistake
            answer["wrong"] = [f"It gave {error}.", ""]
        try:
            send(answers, answer)
        except ValueError as error:
            send(answers, {"to": request["nonce"], "log": [], "wrong": [f"It gave {error}.", ""]})


def limit(memory: int, size: int, seconds: int) -> None:
    """Limit the memory and the processor time of this process, and the size of files that it
    writes, if the system can do so.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
    }
    for kind, largest in limits.items():
        resource.setrlimit(kind, (largest, largest))


def refuse_flashsim(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to import modules of flashsim that are not imported yet: the reference is not for the
    student. An audit hook of Python.
    """
    if event == "import" and str(arguments[0]).startswith("flashsim"):
        raise ImportError(f"{arguments[0]} is not for this exercise")


def call(submission: Submission, request: dict[str, Any], log: list[Any]) -> Any:
    """Call a student's function, on a new memory if it takes one. Events of the memory are
    logged.
    """
    hbm = HBM()
    sram = SRAM(hbm, request["M"] or 1, observers=[Log(log)])
    for name, values in request["matrices"]:
        array = unpack(values)
        hbm.empty(name, array.shape, array.dtype)._storage.values = array

    def of_memory(value: list[Any]) -> Any:
        if value[0] != "matrix":
            return hbm if value[0] == "HBM" else sram
        _, name, rows, cols, window = value
        return Matrix(hbm.matrix(name)._storage, rows, cols, window and tuple(window))

    arguments = [unpack(value, of_memory) for value in request["arguments"]]
    function = submission.function(request["function"])
    return function(*arguments, when=request["when"])


class Log:
    """An observer that logs loads, stores, computed tiles and ends of turns."""

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def __call__(self, event: Event) -> None:
        """Log one event."""
        if event.kind in ("load", "store") and event.where is not None:
            rows, columns = event.where
            bounds = [rows.start, rows.stop, columns.start, columns.stop]
            values = pack(event.tile) if event.kind == "store" else None
            matrix = event.name.partition("[")[0]
            self._log.append([event.kind, matrix, bounds, values])
        elif event.kind == "compute":
            self._log.append([event.kind, event.name, pack(event.tile)])
        elif event.kind == "turn end":
            self._log.append([event.kind, event.loops])


if __name__ == "__main__":
    main()
