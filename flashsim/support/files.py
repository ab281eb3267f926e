"""Writing a file completely, or not at all.

If writing is interrupted, or the disk is full, the file that was there before stays; where there
was none, there is none.
"""

import errno
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


def path_of(path: str | os.PathLike[str]) -> Path:
    """Return a path as a `Path`. Raises TypeError for what is not a path."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is {path!r}; expected a str or a pathlib.Path")
    return Path(path)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return the path if a file can be written there. Call this before the work whose result goes
    there.

    Raises OSError for one in a folder that is not there, for a folder, and for a file that may not
    be written.
    """
    path = path_of(path)
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder; expected a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(f"{path} cannot be written: it is read-only")
    if mode is None and not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written: its folder takes no new files")
    return path


def _mode(path: Path) -> int | None:
    """Return the mode of what stands at a path; None where nothing does. Raises OSError for a
    name too long, a folder closed.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        return None


def name_of(path: str | os.PathLike[str]) -> str:
    r"""Return a path as text in UTF-8; a byte of the name that is not valid there is written as
    \xff.
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def command_line(arguments: Iterable[str]) -> str:
    """Return a command as it is typed, quoted as this system's shell wants it."""
    if sys.platform == "win32":
        from subprocess import list2cmdline

        return list2cmdline([*arguments])
    return shlex.join(arguments)


def what_is_there(path: Path) -> str:
    """Say, for a message, what stands at a path where there is no regular file. Raises OSError
    where that cannot be known.
    """
    try:
        mode = _mode(path)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "a link that leads back to itself"
    if mode is None:
        return "not there"
    return "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"


def read_record(path: Path, *needs: str) -> dict[str, Any]:
    """Return what a JSON file holds. Raises ValueError unless it is a JSON object with the
    entries `needs`.
    """
    if not path.is_file():
        raise ValueError(f"{path} is {what_is_there(path)}; expected a JSON file")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    missing = list(needs)
    if isinstance(record, dict):
        missing = [name for name in needs if name not in record]
    if missing:
        raise ValueError(
            f"{path} has no {' and no '.join(missing)}; expected a JSON object with "
            f"{', '.join(needs)}"
        )
    entries: dict[str, Any] = record
    return entries


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file, text as UTF-8, and return its path; if anything goes wrong, the file stays as
    it was.

    The content goes to a new file in the same folder, which then takes the name. A file that was
    there keeps its mode, and a link still points at it. A pipe or a device, such as /dev/stdout, is
    written to directly. So is a file in a folder that takes no new ones: then an error loses the
    old content. Raises OSError as `check_target` does, or where writing fails.
    """
    path = check_target(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = _end_of_links(path)
    try:
        old = target.stat()
    except FileNotFoundError:
        old = None
    if _is_stream(target) or (old is not None and not stat.S_ISREG(old.st_mode)):
        path.write_bytes(data)
        return path
    new_file = target.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        file = new_file.open("xb")
    except PermissionError:
        if old is None:
            raise PermissionError(
                f"{path} cannot be written: its folder takes no new files"
            ) from None
        path.write_bytes(data)
        return path
    try:
        with file:
            file.write(data)
        if old is not None:
            if hasattr(os, "chown"):
                with suppress(PermissionError):
                    os.chown(new_file, old.st_uid, old.st_gid)
            new_file.chmod(stat.S_IMODE(old.st_mode))
        new_file.replace(target)
    except BaseException:
        new_file.unlink(missing_ok=True)
        raise
    return path


def _end_of_links(path: Path) -> Path:
    """Return the end of a chain of links. It does not follow links into /proc: /dev/stdout ends at
    /proc/self/fd/1.
    """
    for _ in range(40):
        if _is_stream(path) or not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return path


def _is_stream(path: Path) -> bool:
    """Say whether a name stands for an open file, as /dev/stdout does. Such a name must not be
    given to another file.
    """
    folder = path.parent.resolve()
    is_in_proc = folder.parts[1:2] == ("proc",)
    return is_in_proc or folder in (Path("/dev"), Path("/dev/fd"))
