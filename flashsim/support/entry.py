"""How a program of flashsim begins and ends: streams that take any text, errors in one line, an
exit status.

Exit status: 0 all is well. 1 a claim or a check failed. 2 the arguments or the input make no sense,
or a file or a stream cannot be read or written. 3 all that was checked passed, and not all was
checked. 130 interrupted (Ctrl-C). 143 terminated (SIGTERM). 141 whoever read the output has gone,
as in `flashsim verify | head`: what a shell says of a program that SIGPIPE ended.
"""

import codecs
import errno
import io
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import NoReturn

from flashsim.support.install import two_copies

REFUSED = 2
INTERRUPTED = 130
READER_GONE = 141
TERMINATED = 143
_exit = os._exit
_guarding = set[int]()


class LeftEarly(RuntimeError):
    """What `os._exit` raises in a process that is guarded: there a user's code ends in an error,
    not the program.
    """


class Terminated(KeyboardInterrupt):
    """What SIGTERM raises, so that what Ctrl-C tidies up is tidied up."""


def guarded(program: str, work: Callable[[], int | None]) -> int:
    """Run `work`, which returns 0, 1 or None, or raises, and return the exit status; what it raises
    is one line on stderr.

    An exception that is not ours is a bug, and keeps its traceback, unless it has a note that names
    a line of the user's own function (`flashsim.algorithms.own`).
    """
    with _prepared():
        try:
            if sys.stdout is None:
                raise OSError("standard output is closed")
            try:
                status = work() or 0
            except SystemExit as stop:
                if getattr(stop, "__notes__", None):  # a user's own
                    raise
                # of argparse's --help and --version
                status = stop.code if isinstance(stop.code, int) else 0
            sys.stdout.flush()
        except BrokenPipeError:
            status = READER_GONE
        except Terminated as stop:
            _say(f"terminated{_noted(stop)}")
            status = TERMINATED
        except KeyboardInterrupt as stop:
            _say(f"interrupted{_noted(stop)}")
            status = INTERRUPTED
        except (MemoryError, OverflowError) as error:
            _say(
                f"{program}: error: this is too large for this machine"
                + (f": {error}" if str(error) else "")
            )
            status = REFUSED
        except OSError as error:
            if sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None:
                return READER_GONE  # which is no BrokenPipeError there
            what = (
                f"{error.filename}: {error.strerror}"
                if error.filename is not None
                else error.strerror or error
            )
            _say(f"{program}: error: {what}")
            status = REFUSED
        except BaseException as error:  # a user's own need not be an Exception
            ours = isinstance(error, ValueError) or type(error).__module__.startswith("flashsim.")
            notes = _noted(error)
            if not ours and not notes:
                if warning := two_copies():
                    error.add_note(warning)
                raise
            said = error if ours else f"{type(error).__name__}: {error}"
            _say(f"{program}: error: {said}{notes}")
            status = REFUSED
        return status


def _noted(error: BaseException) -> str:
    return "".join(f" ({note})" for note in getattr(error, "__notes__", []))


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` as a script's whole work, as `guarded` does, and exit with its status."""
    sys.exit(guarded(Path(sys.argv[0]).name, main))


@contextmanager
def _prepared() -> Iterator[None]:
    """Make streams spell what their encoding lacks, and SIGTERM raise `Terminated`, until this
    is left.
    """
    with ExitStack() as after:
        if sys.stderr is None:  # it is closed; print would say errors on stdout
            after.enter_context(redirect_stderr(io.StringIO()))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                after.callback(_restore, stream, stream.errors)
                stream.reconfigure(errors="flashsim.spelled")
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _terminate)
            after.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() not in _guarding:
            _guarding.add(os.getpid())
            os._exit = leave
            after.callback(_unguard)
        yield


def leave(status: int) -> NoReturn:
    """Stand in for `os._exit`: end the process, but raise LeftEarly in one that is guarded."""
    if os.getpid() not in _guarding:  # in a child of it, too
        _exit(status)
    raise LeftEarly(f"os._exit({status!r}) was called")


def _unguard() -> None:
    _guarding.clear()
    os._exit = _exit


def _terminate(_number: int, _frame: object) -> NoReturn:
    raise Terminated


def _restore(stream: io.TextIOWrapper, errors: str | None) -> None:
    """Make a stream what it was. If it cannot be written to, drop what it still holds, which
    Python would write at its end.
    """
    try:
        stream.reconfigure(errors=errors)  # which flushes
    except OSError:
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def one_line(text: object) -> str:
    r"""Return text on one line that a terminal can show: other white space as a space, what is
    not printable as \x1b.
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in " ".join(str(text).split()))


def printable(text: object) -> str:
    """Return text in its lines, each as `one_line` shows what is not printable: for a student's
    or a kernel's words.
    """
    return "\n".join(
        "".join(c if c.isprintable() else _escaped(c) for c in line)
        for line in str(text).split("\n")
    )


def _say(message: str) -> None:
    with suppress(OSError):
        print(one_line(message), file=sys.stderr, flush=True)


SPELLED = {
    "×": "x",
    "·": "*",
    "−": "-",
    "–": "-",
    "─": "-",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "⌈": "ceil(",
    "⌉": ")",
    "τ": "tau",
    "∞": "inf",
    "√": "sqrt ",
    "→": "->",
    "←": "<-",
    "↑": "^",
    "↓": "v",
    "⁄": "/",
    "\u0303": "~",
}


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Spell what an encoding lacks: in ASCII letters where there are some, else as an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    if character in SPELLED:
        return SPELLED[character]
    alike = "".join(SPELLED.get(c, c) for c in unicodedata.normalize("NFKD", character))
    return alike.encode("ascii", "ignore").decode() or _escaped(character)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode(
        "unicode_escape" if character.isascii() else "ascii", "backslashreplace"
    ).decode()


codecs.register_error("flashsim.spelled", _spelled)
