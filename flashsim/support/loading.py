"""Modules of users' own, by name or as a file. Errors are one line that names the file, and the
line of it where the error is.
"""

import importlib
import importlib.util
import sys
from bdb import BdbQuit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import ModuleType


def module_of(name: str) -> ModuleType:
    """Import a module by its name, also one in the working directory. Raises ValueError where that
    fails.
    """
    with _importing(name, Path.cwd()):
        return importlib.import_module(name)


def file_of(path: Path, *, anew: bool = False) -> ModuleType:
    """Import a file, or, `anew`, read it again. It can import the files beside it.

    Raises ValueError where that fails.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    file = path.resolve()
    name = file.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        if not anew:
            return loaded
    elif loaded is not None:  # another module has that name, and keeps it
        name = f"{name} ({file.parent})"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importing(str(path), file.parent, str(file)):
            spec.loader.exec_module(module)
    except ValueError:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importing(name: str, folder: Path, file: str = "") -> Iterator[None]:
    if "" not in sys.path and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        yield
    except (KeyboardInterrupt, BdbQuit):
        raise
    except BaseException as error:  # sys.exit's, too
        message = str(error)
        if isinstance(error, SyntaxError):
            message = f"{error.msg}: {(error.text or '').strip()}"
        kind = type(error).__name__
        raise ValueError(f"{_place(name, error, file)}: {kind}: {message}") from error


def _place(name: str, error: BaseException, file: str) -> str:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{name if error.filename == file else error.filename}, line {error.lineno}"
    frames = walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    return f"{name}, line {lines[-1]}" if lines else f"cannot import {name}"
