"""Functions in the user's own files, FILE.py:NAME: algorithms for most commands, kernels for
`flashsim check`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms.own import algorithm_of
from flashsim.algorithms.program import MatrixProgram
from flashsim.cli.parser import suggestion
from flashsim.profiling.switch import interpret_triton
from flashsim.support.loading import file_of, module_of


@dataclass(frozen=True)
class Kernel:
    """A function of the user's whose kernels are to be counted."""

    function: Callable[..., Any]


KNOWN = tuple(dict.fromkeys([*FORWARD, *BACKWARD]))


def algorithm(text: str) -> str | Algorithm:
    """Read an algorithm: a name of flashsim's, or FILE.py:NAME, a function or a record of the
    user's. Raises ValueError.
    """
    if text in KNOWN:
        return text
    value = _load(text)
    if isinstance(value, Algorithm):
        return value
    return algorithm_of(value)


def algorithm_or_kernel(text: str) -> str | Algorithm | Kernel:
    """Read the same; a function of the user's that is not on the simulated memory is a kernel."""
    if text in KNOWN:
        return text
    interpret_triton()
    value = _load(text)
    if isinstance(value, Algorithm):
        return value
    try:
        parameters = signature(value).parameters
    except (TypeError, ValueError):  # of some functions in C
        return Kernel(value)
    if "sram" in parameters:
        return algorithm_of(value)
    return Kernel(value)


def _load(text: str) -> Any:
    """Return the record or function that FILE.py:NAME names. Raises ValueError."""
    if ":" not in text and not text.endswith(".py"):
        known = f"there are {', '.join(KNOWN)}; yours is FILE.py:NAME"
        raise ValueError(f"there is no algorithm {text!r}{suggestion(text, KNOWN)}; {known}")
    value = load(text, "FILE.py:NAME, such as mine.py:attention")
    if isinstance(value, MatrixProgram):
        raise ValueError(
            f"{text} is a MatrixProgram; expected an algorithm of attention. In Python, "
            "flashsim.run_program and flashsim.count_program take it"
        )
    if not isinstance(value, Algorithm) and (not callable(value) or isinstance(value, type)):
        raise ValueError(
            f"{text} is of type {type(value).__name__}; expected a function, or a flashsim "
            "Algorithm"
        )
    return value


def load(
    where: str,
    form: str = "MODULE:FUNCTION, such as my_kernels:attention or my_kernels.py:attention",
) -> Any:
    """Return the object that "file.py:name" or "module:name" names. The module may import what lies
    beside it. Raises ValueError.
    """
    module_name, _, name = where.rpartition(":")
    if not module_name or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{where!r} is not of the form {form}")
    if module_name.endswith(".py"):
        module = file_of(Path(module_name))
    elif Path(module_name).is_file() or not all(
        part.isidentifier() for part in module_name.split(".")
    ):
        raise ValueError(
            f"{module_name} is neither a .py file nor a module's name; expected {form}"
        )
    else:
        module = module_of(module_name)
    try:
        return attrgetter(name)(module)
    except AttributeError:
        raise ValueError(f"{module_name} has no {name!r}{_names(module)}") from None
    except Exception as error:
        raise ValueError(
            f"cannot get {name!r} of {module_name}: {type(error).__name__}: {error}"
        ) from error


def _names(module: ModuleType) -> str:
    defined = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]
    return f"; it defines {', '.join(defined[:12])}" if defined else ""
