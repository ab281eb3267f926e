"""Writing files whole or not at all.

What is interrupted, or runs out of room, leaves the file that was there before, or none.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any


def path_of(path: str | os.PathLike[str]) -> Path:
    """Return a path as a `Path`. Raises TypeError for what is none."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is {path!r}; expected a str or a pathlib.Path")
    return Path(path)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return the path if a file can be written there: to ask before the work of which the file is to tell.

    Raises OSError for one in a folder that is not there, for a folder, and for a file that may not be written.
    """
    path = path_of(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(f"{path} cannot be written: it is read-only")
    if not path.exists() and not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written: its folder takes no new files")
    return path


def name_of(path: str | os.PathLike[str]) -> str:
    r"""Return a path as text that UTF-8 can hold: a byte of the name that is no UTF-8 as \xff."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def what_is_there(path: Path) -> str:
    """Say, for a message, what a path is that is no regular file."""
    if path.is_dir():
        return "a folder"
    return "a pipe or a device" if path.exists() else "not there"


def read_record(path: Path, *needs: str) -> dict[str, Any]:
    """Return what a JSON file says. Raises ValueError for one that is no JSON object with the entries `needs`."""
    if not path.is_file():
        raise ValueError(f"{path} is {what_is_there(path)}; expected a JSON file")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    missing = [name for name in needs if not isinstance(record, dict) or name not in record]
    if missing:
        raise ValueError(f"{path} has no {' and no '.join(missing)}; expected a JSON object with {', '.join(needs)}")
    found: dict[str, Any] = record
    return found


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file, text as UTF-8, and return its path; if anything goes wrong, the file stays as it was.

    The content goes to a new file in the same folder, which then takes the name. A file that was there keeps its mode, and a
    link still points at it. A pipe or a device, such as /dev/stdout, is written to as it is; and so, with no such promise, is
    a file in a folder that takes no new ones. Raises OSError as `check_target` does, and for what fails on the way.
    """
    path = check_target(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = _end_of_links(path)
    try:
        before = target.stat()
    except FileNotFoundError:
        before = None
    if _is_stream(target) or (before is not None and not stat.S_ISREG(before.st_mode)):
        path.write_bytes(data)
        return path
    beside = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    except PermissionError:
        if before is None:
            raise PermissionError(f"{path} cannot be written: its folder takes no new files") from None
        path.write_bytes(data)
        return path
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if before is not None:
            if hasattr(os, "chown"):
                with suppress(PermissionError):
                    os.chown(beside, before.st_uid, before.st_gid)
            beside.chmod(stat.S_IMODE(before.st_mode))
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return path


def _end_of_links(path: Path) -> Path:
    """Return what a chain of links ends at, as far as it is one of names: /dev/stdout ends at /proc/self/fd/1."""
    for _ in range(40):
        if _is_stream(path) or not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return path


def _is_stream(path: Path) -> bool:
    """Say whether a name is an open file's, whatever that is: such a name is not to be given to another file."""
    folder = path.parent.resolve()
    return folder.parts[1:2] == ("proc",) or folder in (Path("/dev"), Path("/dev/fd"))
