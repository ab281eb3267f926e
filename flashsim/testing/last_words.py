"""What a kernel that ends the process was doing: an abort in C, or os._exit, leaves nobody else to say it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from flashsim.testing.case import Case

# Reads lines until nobody is left to write one, and prints the last. Ctrl-C is for who writes them.
WITNESS = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
last = "\\n"
for last in sys.stdin:
    pass
sys.stderr.write(last if last.strip() else "")
"""


@contextmanager
def last_words(said: str) -> Iterator[Callable[[str, Case], None]]:
    """Give what is to be told of each check and case before it is tried.

    A second process keeps the last of them, and prints it, behind what is `said`, if this process ends in it.
    """
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", WITNESS]
    witness = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, encoding="utf-8")
    assert witness.stdin is not None
    lines = witness.stdin

    def tell(line: str) -> None:
        with suppress(OSError):  # the witness is gone: nothing hangs on it
            lines.write(f"{line}\n")
            lines.flush()

    try:
        yield lambda check, case: tell(f"{said}, in the check {check} on {case!r}")
    finally:
        tell("")
        with suppress(OSError):
            lines.close()
        witness.wait()
