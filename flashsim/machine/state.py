"""What can decide what a turn of a user's loop does, besides the numbers: all that its code can see when the turn begins.

That is the variables of the frames above it, what these hold, the globals that their code names, what functions they call have
of both, and what is on chip. Two turns that begin in equal states, and do not look at their index, do the same. What cannot be
looked into, such as an iterator or a random generator, is equal to nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections import OrderedDict, defaultdict, deque
from functools import cache
from types import CodeType, FrameType
from typing import Any

import numpy as np

from flashsim.machine.shape_only import ShapeOnly
from flashsim.machine.source import PACKAGE
from flashsim.machine.user_code import names_in

MOST_OBJECTS = 5_000
MOST_BYTES = 2**20
STATELESS = {
    "flashsim", "numpy", "builtins", "math", "cmath", "operator", "functools", "itertools", "collections", "typing", "types",
    "dataclasses", "abc", "enum", "numbers", "fractions", "contextlib", "copy", "string", "re", "__future__", "statistics",
}  # fmt: skip
"""Modules that keep nothing from one call to the next that an algorithm could see."""
PLAIN = (type(None), bool, int, str, bytes, type(...), type(NotImplemented), range)
CONTAINERS = (list, tuple, dict, set, frozenset, deque, int, float, complex, str, bytes, bytearray)
OF_A_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__static_attributes__", "_abc_impl"}


class Unseen(Exception):
    """There is something that cannot be looked into."""


class State:
    """The state at the beginning of a turn, as a list of tokens that is equal to another turn's where all that it sees is.

    Objects are numbered as they are met, so that two names of one list are told from two lists.
    """

    def __init__(self, sram: Any, frame: FrameType, end: CodeType) -> None:
        self.tokens: list[Any] = []
        self.unseen = ""
        self._sram = sram
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other object gets the identity of one that is gone
        self._codes: set[tuple[int, int]] = set()
        try:
            self._add_frames(frame, end)
            self._add_memory()
        except Unseen as unseen:
            self.unseen = str(unseen)

    def _add_frames(self, frame: FrameType, end: CodeType) -> None:
        above: FrameType | None = frame
        while above is not None and above.f_code is not end:
            self.tokens.append(("frame", id(above.f_code), above.f_lasti))
            variables = above.f_locals
            if variables is above.f_globals:
                raise Unseen("a module's own code runs a loop")
            for name, value in variables.items():
                if not name.startswith("."):  # the iterator of a comprehension, which has no other name
                    self._name(name)
                    self.add(value)
            if not above.f_code.co_filename.startswith(PACKAGE):
                self._add_code(above.f_code, above.f_globals)
            above = above.f_back

    def _add_memory(self) -> None:
        self._name("what is on chip")
        for tile, size, _, _ in self._sram._resident.values():
            self.tokens.append(size)
            self.add(tile)
        self._name("what is in HBM")
        for name, storage in self._sram.hbm._arrays.items():
            self.tokens.append((name, storage.shape, storage.role))
        for memory in (self._sram, self._sram.hbm):
            for name in sorted(vars(memory).keys() - memory._fields):
                self._name(name)
                self.add(vars(memory)[name])

    def _name(self, name: str) -> None:
        self.tokens.append(("name", name))

    # ---------------------------------------------------------------------------------------------------- kinds of values

    def add(self, value: Any) -> None:
        """Add a value, and all that it holds."""
        kind = type(value)
        if kind in PLAIN:
            self.tokens.append((kind, value))
            return
        if kind is float or kind is complex:
            self.tokens.append((kind, repr(value)))
            return
        number = self._numbers.get(id(value))
        if number is not None:
            self.tokens.append(("again", number))
            return
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        if len(self._kept) > MOST_OBJECTS:
            raise Unseen("there is too much to compare")
        self._add_new(kind, value)

    def _add_new(self, kind: type, value: Any) -> None:
        of_memory = getattr(kind, "_turn_state", None)
        if of_memory is not None:
            self.tokens.append(of_memory(value))
        elif value is self._sram or value is self._sram.hbm:
            self.tokens.append("memory")
        elif kind is ShapeOnly:
            self.tokens.append(("tile", value.shape, id(value) in self._sram._resident))
            self.add(value.base)
        elif issubclass(kind, np.ndarray | np.generic):
            self._add_array(kind, value)
        elif issubclass(kind, types.ModuleType):
            self._add_module(value)
        elif issubclass(kind, type):
            self._add_class(value)
        elif kind is types.FunctionType:
            self._add_function(value)
        elif not self._add_callable(kind, value):
            self._add_object(kind, value)

    def _add_array(self, kind: type, value: Any) -> None:
        if kind is not np.ndarray and not isinstance(value, np.generic):
            raise Unseen(f"a {kind.__name__} cannot be compared")
        if value.dtype.hasobject or value.nbytes > MOST_BYTES:
            raise Unseen("an array is too large to compare")
        self.tokens.append((kind, value.dtype.str, value.shape, value.tobytes()))
        if isinstance(value, np.ndarray):
            self.tokens.append((value.strides, value.flags.writeable))
            if isinstance(value.base, np.ndarray):
                offset = value.__array_interface__["data"][0] - value.base.__array_interface__["data"][0]
                self.tokens.append(offset)
                self.add(value.base)
            elif value.base is not None:
                raise Unseen("an array is part of what cannot be compared")

    def _add_module(self, module: types.ModuleType) -> None:
        name = module.__name__.partition(".")[0]
        self.tokens.append(id(module))
        if name.lstrip("_") in STATELESS:
            return
        file = getattr(module, "__file__", None) or ""
        if name in sys.stdlib_module_names or f"{os.sep}site-packages{os.sep}" in file:
            raise Unseen(f"module {name} cannot be looked into")
        self._add_variables(vars(module))

    def _add_class(self, kind: type) -> None:
        self.tokens.append(id(kind))
        if _is_stateless(kind):
            return
        self.add(type(kind))
        for base in kind.__bases__:
            self.add(base)
        self._add_variables(vars(kind))

    def _add_variables(self, variables: Any) -> None:
        """Add the variables of a module or a class."""
        for name, value in variables.items():
            if name in OF_A_CLASS or (name.startswith("__") and not callable(value)):
                continue
            self._name(name)
            self.add(value)

    def _add_function(self, function: types.FunctionType) -> None:
        self.tokens.append((id(function.__code__), id(function.__globals__)))
        for value in (function.__defaults__, function.__kwdefaults__, function.__dict__):
            self.add(value)
        for cell in function.__closure__ or ():
            self.add(cell)
        if not _is_stateless(function) and not function.__code__.co_filename.startswith(PACKAGE):
            self._add_code(function.__code__, function.__globals__)

    def _add_code(self, code: CodeType, variables: dict[str, Any]) -> None:
        """Add the globals that a user's code names."""
        key = id(code), id(variables)
        if key in self._codes:
            return
        self._codes.add(key)
        names, telling = names_in(code)
        if telling:
            raise Unseen(telling)
        for name in names:
            if name in variables:
                self._name(name)
                self.add(variables[name])

    def _add_callable(self, kind: type, value: Any) -> bool:
        """Add what can be called, or describes an attribute; return whether it is such."""
        parts: tuple[Any, ...]
        if kind is types.CellType:
            parts = _contents(value)
        elif kind is types.MethodType:
            parts = value.__func__, value.__self__
        elif kind is slice:
            parts = value.start, value.stop, value.step
        elif kind is functools.partial:
            parts = value.func, value.args, value.keywords
        elif kind is property:
            parts = value.fget, value.fset, value.fdel
        elif kind in (staticmethod, classmethod):
            parts = (value.__func__,)
        elif kind is types.BuiltinFunctionType:
            owner = value.__self__
            parts = value.__name__, owner
        elif kind is types.MethodWrapperType:
            parts = value.__name__, value.__self__
        elif kind in DESCRIPTORS or _is_stateless(value):
            self.tokens.append(id(value))
            return True
        else:
            return False
        self.tokens.append((kind.__name__, len(parts)))
        for part in parts:
            self.add(part)
        return True

    def _add_object(self, kind: type, value: Any) -> None:
        container, members = _layout(kind)
        if members is None:
            raise Unseen(f"a {kind.__name__} cannot be looked into")
        self.add(kind)
        if container is dict:
            self.tokens.append(len(value))
            for key, each in dict.items(value):
                self.add(key)
                self.add(each)
        elif container in (list, tuple, set, frozenset, deque):
            self.tokens.append(len(value))
            for each in container.__iter__(value):
                self.add(each)
            if container is deque:
                self.add(value.maxlen)
        elif container is bytearray:
            self.tokens.append(bytes(value))
        elif container is not object:
            self.tokens.append(container.__repr__(value))  # type: ignore[call-arg]
        if hasattr(kind, "default_factory"):  # a defaultdict
            self.add(value.default_factory)
        if kind.__dictoffset__:
            self.add(object.__getattribute__(value, "__dict__"))
        for member in members:
            self._add_slot(member, value)

    def _add_slot(self, member: Any, value: Any) -> None:
        self._name(member.__name__)
        try:
            self.add(member.__get__(value))
        except AttributeError:
            self.tokens.append("unset")


DESCRIPTORS = (
    types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.CodeType, np.ufunc, np.dtype, types.GenericAlias,
)  # fmt: skip


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


def _is_stateless(value: Any) -> bool:
    """Return whether a function or class is of a module that keeps nothing; a class, also of Python's own library."""
    if isinstance(value, types.FunctionType):
        module = value.__globals__.get("__name__", "")
    elif isinstance(value, type | functools._lru_cache_wrapper) or _is_of_numpy(value):
        module = value.__module__
    else:
        return False
    room = module.partition(".")[0]
    return room in STATELESS or (isinstance(value, type) and room in sys.stdlib_module_names)


def _is_of_numpy(value: Any) -> bool:
    """Return whether NumPy made it: `np.where` is an object of a class of its own."""
    return type(value).__module__.partition(".")[0] == "numpy" and type(value).__name__ == "_ArrayFunctionDispatcher"


@cache
def _layout(kind: type) -> tuple[type, tuple[Any, ...] | None]:
    """Return which container an object of this class is, and its slots; None, if it holds anything besides these.

    An object that C code made has room for more than what can be seen.
    """
    container = next((each for each in CONTAINERS if issubclass(kind, each)), object)
    if kind is container:
        return container, ()
    members = [
        member
        for each in kind.__mro__
        for member in vars(each).values()
        if type(member) is types.MemberDescriptorType and not issubclass(container, each)
    ]
    has_dict = kind.__dictoffset__ > 0 or (kind.__dictoffset__ < 0 and kind.__itemsize__ > 0)  # else it lies before the object
    words = len(members) + has_dict + (kind.__weakrefoffset__ > 0)
    visible = kind.__basicsize__ <= container.__basicsize__ + 8 * words and kind.__itemsize__ == container.__itemsize__
    if container is dict and any(each in (OrderedDict, defaultdict) for each in kind.__mro__):
        visible = True
    return container, tuple(members) if visible else None


def difference(before: State, after: State) -> str:
    """Return in words what two states differ in; nothing if they are equal."""
    unseen = before.unseen or after.unseen
    if unseen:
        return f"{unseen}, which may differ"
    if before.tokens == after.tokens:
        return ""
    name = "what the function knows"
    for one, other in zip(before.tokens, after.tokens, strict=False):
        if one != other:
            break
        if type(one) is tuple and one and one[0] == "name":
            name = one[1]
    return f"{name} changes"
