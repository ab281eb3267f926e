"""Which objects can hold numbers: their kinds, by type. What holds none is `INERT`, and is not
looked at further.
"""

from __future__ import annotations

import random
import sys
import sysconfig
from array import array
from collections import deque
from collections.abc import Callable
from functools import cache
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, cast

import numpy as np

from flashsim.memory.shape_only import ShapeOnly
from flashsim.memory.source import PACKAGE

INERT = 0
ARRAY = 1
SERIES = 2  # a list, tuple, set, deque
TABLE = 3  # a dict
FUNCTION = 4
METHOD = 5
TEXT = 6
BUFFER = 7  # bytes, or an array of another library's
WHOLE = 8  # an int, which may have any number of bits
FLASHSIMS = 9  # an object of flashsim's, on which attributes can be set
OBJECT = 10
LIBRARY = 11  # an object of a library's, which may lead far
CLASS = 12
MODULE = 13
FRAME = 14

WORD = 2**64
"""Below it, a whole number is a register."""
_HOLDERS = (
    "builtins",
    "functools",
    "itertools",
    "collections",
    "types",
    "queue",
    "contextvars",
    "_thread",
    "weakref",
)
_BUFFERS = ("ctypes", "mmap", "_io", "io")
_LIBRARIES = tuple(
    {str(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)

kinds: dict[type, int] = {
    **dict.fromkeys(
        (NoneType, bool, float, complex, range, slice, CodeType, type(...), BuiltinFunctionType),
        INERT,
    ),
    **dict.fromkeys((np.ufunc, np.dtype, ShapeOnly), INERT),
    # their state changes as they are used
    **dict.fromkeys((np.random.Generator, np.random.RandomState, random.Random), INERT),
    np.ndarray: ARRAY,
    **dict.fromkeys((list, tuple, set, frozenset, deque), SERIES),
    dict: TABLE,
    FunctionType: FUNCTION,
    MethodType: METHOD,
    str: TEXT,
    **dict.fromkeys((bytes, bytearray, memoryview, array), BUFFER),
    int: WHOLE,
    type: CLASS,
    ModuleType: MODULE,
    FrameType: FRAME,
}
"""What is known so far; `kind_of` adds to it."""


def kind_of(each: type) -> int:
    """Return how objects of a type are looked at."""
    kind = kinds.get(each)
    if kind is None:
        kind = kinds[each] = _kind_of_new(each)
    return kind


def _kind_of_new(each: type) -> int:
    if issubclass(each, np.generic):
        return INERT
    for known in (
        np.ndarray,
        type,
        ModuleType,
        list,
        tuple,
        set,
        frozenset,
        deque,
        dict,
        str,
        bytes,
        bytearray,
        int,
        float,
    ):
        if issubclass(each, known):
            return kinds[known]
    file = file_of(each)
    if file is not None and file.startswith(PACKAGE):
        return FLASHSIMS if "__dict__" in dir(each) else INERT
    if each.__module__ in _BUFFERS or hasattr(each, "__dlpack__") or hasattr(each, "__array__"):
        return BUFFER
    return OBJECT if is_users_file(file) or each.__module__ in _HOLDERS else LIBRARY


def file_of(each: type) -> str | None:
    """Return the file of a class; None where it has none, as at a prompt."""
    return _file_of_module(each.__module__)


@cache
def _file_of_module(name: str) -> str | None:
    return (
        "<frozen builtins>"
        if name == "builtins"
        else getattr(sys.modules.get(name), "__file__", None)
    )


@cache
def is_users_file(file: str | None) -> bool:
    """Return whether a file is the user's: neither flashsim's nor a library's."""
    if file is None:
        return True
    return not file.startswith(PACKAGE) and not file.startswith(("<frozen", *_LIBRARIES))


@cache
def fields_of(each: Callable[..., Any]) -> set[str]:
    """Return the names of attributes that a class of flashsim's gives its objects."""
    names = set[str]()
    for base in cast(type, each).__mro__:
        names |= {*vars(base), *getattr(base, "__annotations__", {})}
        for value in vars(base).values():
            code = getattr(getattr(value, "fget", value), "__code__", None)
            if code is not None:
                names |= {*code.co_names}
    return names


def is_register(kind: int, value: Any) -> bool:
    """Return whether a value is a whole number of a word at most."""
    return kind == WHOLE and -WORD < value < WORD
