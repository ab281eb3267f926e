"""What users bring in files of their own, FILE.py:NAME: algorithms for most commands, kernels for `flashsim check`.

Errors are one line that names the file, and the line of it where the error is.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms.own import algorithm_of
from flashsim.cli.values import meant

KNOWN = tuple(dict.fromkeys([*FORWARD, *BACKWARD]))


def algorithm(text: str) -> str | Algorithm:
    """Read an algorithm, for argparse: a name of flashsim's, or FILE.py:NAME, a function or a record of one's own."""
    if text in KNOWN:
        return text
    if ":" not in text and not text.endswith(".py"):
        known = f"there are {', '.join(KNOWN)}; yours is FILE.py:NAME"
        raise ValueError(f"there is no algorithm {text!r}{meant(text, KNOWN)}; {known}")
    found = load(text, "FILE.py:NAME, such as mine.py:attention")
    if isinstance(found, Algorithm):
        return found
    if not callable(found) or isinstance(found, type):
        raise ValueError(f"{text} is of type {type(found).__name__}; expected a function, or a flashsim Algorithm")
    return algorithm_of(found)


def load(where: str, form: str = "MODULE:FUNCTION, such as my_kernels:attention or my_kernels.py:attention") -> Any:
    """Return what "file.py:name" or "module:name" says; what lies in the working directory, or beside the file, is found too.

    Raises ValueError where that cannot be had; `form` is what was expected.
    """
    module_name, _, name = where.rpartition(":")
    if not module_name or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{where!r} is not of the form {form}")
    if module_name.endswith(".py"):
        module = _file(Path(module_name))
    elif Path(module_name).is_file() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{module_name} is neither a .py file nor a module's name; expected {form}")
    else:
        with _importing(module_name, Path.cwd()):
            module = importlib.import_module(module_name)
    try:
        return attrgetter(name)(module)
    except AttributeError:
        raise ValueError(f"{module_name} has no {name!r}{_names(module)}") from None
    except Exception as error:
        raise ValueError(f"cannot get {name!r} of {module_name}: {type(error).__name__}: {error}") from error


def _names(module: ModuleType) -> str:
    defined = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    return f"; it defines {', '.join(defined[:12])}" if defined else ""


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    file = path.resolve()
    name = file.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    if known is not None:  # another module has that name, and keeps it
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
    """Have a module imported, with its folder among those where modules are looked for."""
    if "" not in sys.path and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit's, too
        raise ValueError(f"{_place(name, error, file)}: {type(error).__name__}: {_said(error)}") from error


def _place(name: str, error: BaseException, file: str) -> str:
    """Return the name of what could not be imported, and the line of its file at which it went wrong."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{name if error.filename == file else error.filename}, line {error.lineno}"
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    inside = [line for where, line in frames if where == file]
    return f"{name}, line {inside[-1]}" if inside else f"cannot import {name}"


def _said(error: BaseException) -> str:
    return f"{error.msg}: {(error.text or '').strip()}" if isinstance(error, SyntaxError) else str(error)
