"""The beginning and the end of a program of flashsim: streams that take any text, errors in one
line, an exit status.

Exit status:

0    all is well
1    a claim or a check failed
2    the arguments or the input make no sense, or a file or a stream cannot be read or written
3    all that was checked passed, and not all was checked
130  interrupted (Ctrl-C, or the user quits the debugger)
143  terminated (SIGTERM)
141  the reader of the output has gone, as in `flashsim verify | head`; a shell has this number for
     a program that SIGPIPE ended
"""

import codecs
import errno
import io
import os
import signal
import sys
import threading
import unicodedata
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import NoReturn

from flashsim.support.install import two_copies

REFUSED = 2
INTERRUPTED = 130
READER_GONE = 141
TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """Raised for SIGTERM, so that whatever tidies up after Ctrl-C does so then, too."""


def guarded(program: str, work: Callable[[], int | None]) -> int:
    """Run `work`, which returns 0, 1 or None, or raises, and return the exit status. An error is
    one line on stderr.

    An exception that is not flashsim's is a bug, and keeps its traceback, unless it has a note that
    names a line of the user's own function (`flashsim.algorithms.own`).
    """
    with _prepared_streams():
        try:
            if sys.stdout is None:
                raise OSError("standard output is closed")
            status = _run(work)
            sys.stdout.flush()
        except BrokenPipeError:
            status = READER_GONE
        except Terminated as stop:
            _print_error(f"terminated{_notes(stop)}")
            status = TERMINATED
        except (KeyboardInterrupt, BdbQuit) as stop:
            _print_error(f"interrupted{_notes(stop)}")
            status = INTERRUPTED
        except (MemoryError, OverflowError) as error:
            reason = f": {error}" if str(error) else ""
            _print_error(f"{program}: error: this is too large for this machine{reason}")
            status = REFUSED
        except OSError as error:
            if sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None:
                return READER_GONE  # which is no BrokenPipeError there
            reason = str(error.strerror or error)
            if error.filename is not None:
                reason = f"{error.filename}: {error.strerror}"
            _print_error(f"{program}: error: {reason}")
            status = REFUSED
        except BaseException as error:  # the user's own need not be an Exception
            message = _message(error)
            if message is None:
                if warning := two_copies():
                    error.add_note(warning)
                raise
            _print_error(f"{program}: error: {message}")
            status = REFUSED
        return status


def _run(work: Callable[[], int | None]) -> int:
    """Return the status of `work`; 0 for argparse's --help, which exits."""
    try:
        return work() or 0
    except RuntimeError as error:
        # while a class is made, as in an import, Python before 3.12 wraps what is raised
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise
    except SystemExit as stop:
        if getattr(stop, "__notes__", None):  # the user's function exits
            raise
        return stop.code if isinstance(stop.code, int) else 0


def _message(error: BaseException) -> str | None:
    """Return the message of flashsim's own error, or of an error in the user's function; None for
    another one, which is a bug.
    """
    notes = _notes(error)
    if isinstance(error, ValueError) or type(error).__module__.startswith("flashsim."):
        return f"{error}{notes}"
    if notes:
        return f"{type(error).__name__}: {error}{notes}"
    return None


def _notes(error: BaseException) -> str:
    return "".join(f" ({note})" for note in getattr(error, "__notes__", []))


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` as a script's whole work, as `guarded` does, and exit with its status."""
    sys.exit(guarded(Path(sys.argv[0]).name, main))


@contextmanager
def _prepared_streams() -> Iterator[None]:
    """Within this context, streams spell characters that their encoding lacks, and SIGTERM
    raises `Terminated`.
    """
    with ExitStack() as after:
        if sys.stderr is None:  # it is closed; print would write errors to stdout
            after.enter_context(redirect_stderr(io.StringIO()))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                after.callback(_restore, stream, stream.errors)
                stream.reconfigure(errors="flashsim.spelled")
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _terminate)
            after.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)
        yield


def _terminate(_number: int, _frame: object) -> NoReturn:
    raise Terminated


def _restore(stream: io.TextIOWrapper, errors: str | None) -> None:
    """Give a stream its former handling of errors. If it cannot be written to, drop its buffer,
    which Python would write at its end.
    """
    try:
        stream.reconfigure(errors=errors)  # which flushes
    except OSError:
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def one_line(text: object) -> str:
    r"""Return text on one line that a terminal can show: white space as single spaces, characters
    that are not printable as \x1b.
    """
    return _printable_line(" ".join(str(text).split()))


def printable(text: object) -> str:
    """Return text in its lines, with characters that are not printable as in `one_line`: for the
    output of a student's file or a kernel.
    """
    return "\n".join(_printable_line(line) for line in str(text).split("\n"))


def _printable_line(line: str) -> str:
    return "".join(c if c.isprintable() else _escaped(c) for c in line)


def _print_error(message: str) -> None:
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
    """Replace characters that an encoding lacks, by ASCII letters where there are some, else by
    an escape. A handler of errors for `codecs`.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_plain(character) for character in missing), error.end


def _plain(character: str) -> str:
    if character in SPELLED:
        return SPELLED[character]
    parts = unicodedata.normalize("NFKD", character)
    spelled = "".join(SPELLED.get(part, part) for part in parts)
    return spelled.encode("ascii", "ignore").decode() or _escaped(character)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    encoding = "unicode_escape" if character.isascii() else "ascii"
    return character.encode(encoding, "backslashreplace").decode()


codecs.register_error("flashsim.spelled", _spelled)
