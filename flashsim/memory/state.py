"""What can decide what a turn of a user's loop does, besides the numbers: all that its code can see
when the turn begins.

That is the variables of the frames above it, what these hold, the globals that their code names,
what functions they call have of both, and what is on chip. Two turns that begin in equal states,
and do not look at their index, do the same. What cannot be looked into, such as an iterator or a
random generator, is equal to nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

import numpy as np

from flashsim.memory.shape_only import ShapeOnly
from flashsim.memory.source import PACKAGE
from flashsim.memory.user_code import names_in

MOST_OBJECTS = 5_000
MOST_BYTES = 2**20
STATELESS = {
    "flashsim",
    "numpy",
    "builtins",
    "math",
    "cmath",
    "operator",
    "functools",
    "itertools",
    "collections",
    "typing",
    "types",
    "dataclasses",
    "abc",
    "enum",
    "numbers",
    "fractions",
    "contextlib",
    "copy",
    "string",
    "re",
    "__future__",
    "statistics",
}
"""Modules that keep nothing from one call to the next that an algorithm could see."""
PLAIN = (type(None), bool, int, str, bytes, type(...), type(NotImplemented), range)
CONTAINERS = (list, tuple, dict, set, frozenset, deque, int, float, complex, str, bytes, bytearray)
OF_A_CLASS = {
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__annotations__",
    "__static_attributes__",
    "_abc_impl",
}


class Unseen(Exception):
    """There is something that cannot be looked into."""


class State:
    """The state at the beginning of a turn, as a list of tokens that is equal to another turn's
    where all that it sees is.

    Objects are numbered as they are met, so that two names of one list are told from two lists.
    """

    def __init__(self, sram: Any, frame: FrameType, end: CodeType) -> None:
        self.tokens: list[Any] = []
        self.unseen = ""
        self._sram = sram
        self._numbers = {id(sram): 0, id(sram.hbm): 1}  # what these hold is added apart
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
                # the iterator of a comprehension, which has no other name
                if not name.startswith("."):
                    self._name(name)
                    self.add(value)
            if not above.f_code.co_filename.startswith(PACKAGE):
                self._add_code(above.f_code, above.f_globals)
            above = above.f_back

    def _add_memory(self) -> None:
        self._name("what is on chip")
        for tile, size, *_ in self._sram._in_order():
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

    # ----------------------------------------------------------------------------------------------
    # kinds of values

    def add(self, value: Any) -> None:
        """Add a value, and all that it holds."""
        kind: type = type(value)
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
        _adder_of(kind)(self, kind, value)

    def _add_of_memory(self, kind: Any, value: Any) -> None:
        self.tokens.append(kind._turn_state(value))

    def _add_tile(self, _: type, tile: ShapeOnly) -> None:
        last = self._sram._last_in.get(id(tile))  # what took its room
        is_resident = id(tile) in self._sram._resident
        self.tokens.append(("tile", tile.shape, is_resident, last is not None))
        if last is not None:
            self.add(self._sram._resident[last][0])
        self.add(tile.base)

    def _add_array(self, kind: type, value: Any) -> None:
        if kind is not np.ndarray and not isinstance(value, np.generic):
            raise Unseen(f"a {kind.__name__} cannot be compared")
        if value.dtype.hasobject or value.nbytes > MOST_BYTES:
            raise Unseen("an array is too large to compare")
        self.tokens.append((kind, value.dtype.str, value.shape, value.tobytes()))
        if isinstance(value, np.ndarray):
            self.tokens.append((value.strides, value.flags.writeable))
            if isinstance(value.base, np.ndarray):
                offset = (
                    value.__array_interface__["data"][0] - value.base.__array_interface__["data"][0]
                )
                self.tokens.append(offset)
                self.add(value.base)
            elif value.base is not None:
                raise Unseen("an array is part of what cannot be compared")

    def _add_module(self, _: type, module: types.ModuleType) -> None:
        name = module.__name__.partition(".")[0]
        self.tokens.append(id(module))
        if name.lstrip("_") in STATELESS:
            return
        file = getattr(module, "__file__", None) or ""
        if name in sys.stdlib_module_names or f"{os.sep}site-packages{os.sep}" in file:
            raise Unseen(f"module {name} cannot be looked into")
        self._add_variables(vars(module))

    def _add_class(self, _: type, kind: type) -> None:
        self.tokens.append(id(kind))
        room = _room_of(kind.__module__)
        if room in STATELESS or room in sys.stdlib_module_names:
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

    def _add_function(self, _: type, function: types.FunctionType) -> None:
        code = function.__code__
        variables = function.__globals__
        self.tokens.append((id(code), id(variables)))
        for value in (function.__defaults__, function.__kwdefaults__, function.__dict__):
            self.add(value)
        for cell in function.__closure__ or ():
            self.add(cell)
        if _room_of(
            variables.get("__name__", "")
        ) not in STATELESS and not code.co_filename.startswith(PACKAGE):
            self._add_code(code, variables)

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

    def _add_parts(self, kind: type, value: Any) -> None:
        """Add what a callable, a cell, a slice or a property is made of."""
        parts = PARTS[kind](value)
        self.tokens.append((kind.__name__, len(parts)))
        for part in parts:
            self.add(part)

    def _add_identity(self, _: type, value: Any) -> None:
        self.tokens.append(id(value))

    def _add_library_function(self, kind: type, value: Any) -> None:
        if _room_of(value.__module__) in STATELESS:
            self.tokens.append(id(value))
        else:
            self._add_object(kind, value)

    def _add_object(self, kind: type, value: Any) -> None:
        container, members = _layout(kind)
        if members is None:
            raise Unseen(f"a {kind.__name__} cannot be looked into")
        self.add(kind)
        if container is not object:
            self._add_contents(container, value)
        if hasattr(kind, "default_factory"):  # a defaultdict
            self.add(value.default_factory)
        if kind.__dictoffset__:
            self.add(object.__getattribute__(value, "__dict__"))
        for member in members:
            self._add_slot(member, value)

    def _add_contents(self, container: Any, value: Any) -> None:
        """Add what a container holds, be it a builtin's or of a class that is made from it."""
        if container is dict:
            self.tokens.append((dict, len(value)))
            for key, each in dict.items(value):
                self.add(key)
                self.add(each)
        elif container in (list, tuple, set, frozenset, deque):
            self.tokens.append((container, len(value)))
            for each in container.__iter__(value):
                self.add(each)
            if container is deque:
                self.add(value.maxlen)
        elif container is bytearray:
            self.tokens.append((container, bytes(value)))
        else:
            self.tokens.append((container, container.__repr__(value)))

    def _add_slot(self, member: Any, value: Any) -> None:
        self._name(member.__name__)
        try:
            self.add(member.__get__(value))
        except AttributeError:
            self.tokens.append("unset")


DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.CodeType,
    np.ufunc,
    np.dtype,
    types.GenericAlias,
)
DISPATCHER = type(np.where)
"""The class of NumPy's functions that are no ufuncs."""


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    types.CellType: _contents,
    types.MethodType: lambda method: (method.__func__, method.__self__),
    slice: lambda part: (part.start, part.stop, part.step),
    functools.partial: lambda function: (function.func, function.args, function.keywords),
    property: lambda each: (each.fget, each.fset, each.fdel),
    staticmethod: lambda method: (method.__func__,),
    classmethod: lambda method: (method.__func__,),
    types.BuiltinFunctionType: lambda function: (function.__name__, function.__self__),
    types.MethodWrapperType: lambda method: (method.__name__, method.__self__),
}


@cache
def _adder_of(kind: type) -> Callable[[State, type, Any], None]:
    """Return the method by which objects of a class are added."""
    if hasattr(kind, "_turn_state"):
        return State._add_of_memory
    if kind is ShapeOnly:
        return State._add_tile
    if kind is types.FunctionType:
        return State._add_function
    if issubclass(kind, np.ndarray | np.generic):
        return State._add_array
    if issubclass(kind, types.ModuleType):
        return State._add_module
    if issubclass(kind, type):
        return State._add_class
    if kind in PARTS:
        return State._add_parts
    if kind in DESCRIPTORS:
        return State._add_identity
    if kind in CONTAINERS:
        return State._add_contents
    if kind is functools._lru_cache_wrapper or kind is DISPATCHER:
        return State._add_library_function
    return State._add_object


def _room_of(module: str) -> str:
    return module.partition(".")[0]


@cache
def _layout(kind: type) -> tuple[type, tuple[Any, ...] | None]:
    """Return which container an object of this class is, and its slots; None, if it holds anything
    besides these.

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
    # else it lies before the object
    has_dict = kind.__dictoffset__ > 0 or (kind.__dictoffset__ < 0 and kind.__itemsize__ > 0)
    words = len(members) + has_dict + (kind.__weakrefoffset__ > 0)
    visible = (
        kind.__basicsize__ <= container.__basicsize__ + 8 * words
        and kind.__itemsize__ == container.__itemsize__
    )
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
