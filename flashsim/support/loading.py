"""Modules of users' own, by name or as a file. Errors are one line that names the file, and the
line of it where the error is.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import ModuleType


def module_of(name: str) -> ModuleType:
    """Import a module by its name; what lies in the working directory is found too. Raises
    ValueError where that fails.
    """
    with _importing(name, Path.cwd()):
        return importlib.import_module(name)


def file_of(path: Path, *, anew: bool = False) -> ModuleType:
    """Import a file, or, `anew`, read it again; what lies beside it is found too. Raises
    ValueError where that fails.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    file = path.resolve()
    name = file.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        if not anew:
            return known
    elif known is not None:  # another module has that name, and keeps it
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit's, too
        said = (
            f"{error.msg}: {(error.text or '').strip()}"
            if isinstance(error, SyntaxError)
            else str(error)
        )
        raise ValueError(f"{_place(name, error, file)}: {type(error).__name__}: {said}") from error


def _place(name: str, error: BaseException, file: str) -> str:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{name if error.filename == file else error.filename}, line {error.lineno}"
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    inside = [line for where, line in frames if where == file]
    return f"{name}, line {inside[-1]}" if inside else f"cannot import {name}"
