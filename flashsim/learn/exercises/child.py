"""The process that runs a student's file, for `flashsim.learn.exercises.apart`: it answers with
numbers, and judges nothing.

    python -m flashsim.learn.exercises.child

It is asked on its standard input, and answers on its standard output. What the file prints goes
nowhere.
"""

import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

from flashsim.learn.exercises.messages import packed, receive, send, unpacked
from flashsim.learn.exercises.work import Work, Wrong
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM, Event


def main() -> None:
    """Answer until nobody asks any more."""
    asked = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    serve(asked, answers)


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Read the file that the first message names, then call its functions; each answer repeats
    what its question is known by.
    """
    work: Work | None = None
    while True:
        try:
            question = receive(asked)
        except EOFError:
            return
        log: list[Any] = []
        answer: dict[str, Any] = {"to": question["nonce"], "log": log}
        try:
            if work is None:
                limit(**question["limits"])
                work = Work(Path(question["file"]), question["modules"])
                sys.addaudithook(no_more_of_flashsim)
            else:
                answer["value"] = packed(called(work, question, log))
        except Wrong as wrong:
            answer["wrong"] = [wrong.seen, wrong.hint]
        except ValueError as error:  # of `packed`: a student's own is a Wrong
            answer["wrong"] = [f"It gave {error}.", ""]
        try:
            send(answers, answer)
        except ValueError as error:
            send(answers, {"to": question["nonce"], "log": [], "wrong": [f"It gave {error}.", ""]})


def limit(memory: int, size: int, seconds: int) -> None:
    """Let this process have no more memory and processor time, and write no larger files, where
    the system can be told.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    kinds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in kinds.items():
        resource.setrlimit(kind, (most, most))


def no_more_of_flashsim(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse modules of flashsim that are not here yet: the reference is not for the student. An
    audit hook.
    """
    if event == "import" and str(arguments[0]).startswith("flashsim"):
        raise ImportError(f"{arguments[0]} is not for this exercise")


def called(work: Work, question: dict[str, Any], log: list[Any]) -> Any:
    """Call a function of the student's, on a memory of its own where it takes one; what happens
    in that is logged.
    """
    hbm = HBM()
    sram = SRAM(hbm, question["M"] or 1, observers=[Log(log)])
    for name, values in question["matrices"]:
        array = unpacked(values)
        hbm.empty(name, array.shape, array.dtype)._storage.values = array

    def of_memory(value: list[Any]) -> Any:
        if value[0] != "matrix":
            return hbm if value[0] == "HBM" else sram
        _, name, rows, cols, window = value
        return Matrix(hbm.matrix(name)._storage, rows, cols, window and tuple(window))

    arguments = [unpacked(value, of_memory) for value in question["arguments"]]
    return work.function(question["function"])(*arguments, when=question["when"])


class Log:
    """An observer that keeps what is loaded, stored and computed, and where turns end."""

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        if event.kind in ("load", "store") and event.where is not None:
            where = [end for side in event.where for end in (side.start, side.stop)]
            values = packed(event.tile) if event.kind == "store" else None
            self._log.append([event.kind, event.name.partition("[")[0], where, values])
        elif event.kind == "compute":
            self._log.append([event.kind, event.name, packed(event.tile)])
        elif event.kind == "turn end":
            self._log.append([event.kind, event.loops])


if __name__ == "__main__":
    main()
