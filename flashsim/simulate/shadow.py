"""A function's shadow: a copy that computes the same, and that nobody notices when it runs.

A plan tries blocks by running the algorithm on shapes. Whoever debugs that algorithm wants to stop
in the run on numbers alone, and a trial must not print, ask, or change what the run will find. So a
trial runs the shadow. Its code stands under another file name, for which no debugger has
breakpoints; what it calls of the user's own is copied likewise; `print`, `input` and debuggers say
nothing; and the lists, dicts, sets and arrays that it can change are copies.

It is no sandbox: files that it writes are written, and objects of other packages are the user's
own.
"""

from __future__ import annotations

import builtins
import copy
import functools
import random
import site
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np

from flashsim.algorithms.record import Algorithm
from flashsim.memory.source import PACKAGE, code_of_trial

F = TypeVar("F", bound=Callable[..., Any])
SPEAKERS = {
    "IPython",
    "debugpy",
    "icecream",
    "ipdb",
    "pdb",
    "pdbpp",
    "pprint",
    "pudb",
    "pydevd",
    "pydevd_pycharm",
    "rpdb",
    "web_pdb",
}
"""Packages that stop a run or print: of these, a shadow calls nothing."""


def shadow_of(function: F) -> F:
    """Return the shadow of a function, or of an object that can be called; `function` itself where
    it is not written in Python.

    Its state is that of this moment: take a new shadow for each trial. What it raises has the lines
    of the user's own file in notes and names (`flashsim.memory.source.file_of`).
    """
    shadow: F = _Shadows(_files_of(function)).of(function, frozenset())
    return shadow


def trial_of(algorithm: Algorithm) -> Algorithm:
    """Return an algorithm whose function is the shadow, for a trial that nobody notices."""
    return replace(algorithm, run=shadow_of(algorithm.run))


def _files_of(function: Any) -> frozenset[str]:
    """Return the files of a function and of those that it wraps, which are copied wherever they
    are.
    """
    files = set()
    while function is not None:
        for called in (function, vars(type(function)).get("__call__")):
            code = getattr(called, "__code__", None)
            if code is not None:
                files.add(code.co_filename)
        function = getattr(function, "__wrapped__", getattr(function, "func", None))
    return frozenset(files)


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders of what is not the user's: Python's library, installed packages,
    flashsim.
    """
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return (PACKAGE, *folders, "<frozen", "<string>", "<__array_function__")


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


class _Silent:
    """What stands for a debugger: it has everything, and does nothing."""

    def __getattr__(self, name: str) -> _Silent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


SILENT = _Silent()


class _Shadows:
    """Shadows that belong together: of one thing there is one, however often it is met."""

    def __init__(self, files: frozenset[str]) -> None:
        self._files = files
        # id -> (what it is of, to keep it alive; the shadow)
        self._of: dict[int, tuple[Any, Any]] = {}
        self._globals: dict[int, dict[str, Any]] = {}
        self._filled: set[tuple[int, str]] = set()
        self._builtins = {**vars(builtins), "__import__": self._import}
        for name in ("print", "input", "breakpoint"):
            self._builtins[name] = _silent_input if name == "input" else SILENT

    def of(self, thing: Any, names: frozenset[str]) -> Any:
        """Return what stands for `thing` in the code of a shadow, which uses these names."""
        if id(thing) in self._of:
            return self._of[id(thing)][1]
        if _speaks(thing):
            return SILENT
        for kind, copied in self._copiers().items():
            if isinstance(thing, kind):
                return copied(thing, names)
        if type(thing) is functools._lru_cache_wrapper:
            return self._keep(thing, functools.cache(self.of(thing.__wrapped__, names)))
        if self._is_own_class(type(thing)):
            return self._instance(thing, names)
        return thing

    def _copiers(self) -> Mapping[type, Callable[[Any, frozenset[str]], Any]]:
        return {
            FunctionType: self._function,
            MethodType: self._method,
            ModuleType: self._module,
            functools.partial: self._partial,
            type: self._class,
            list: self._list,
            dict: self._dict,
            tuple: self._tuple,
            deque: self._deque,
            set: self._plain,
            bytearray: self._plain,
            np.ndarray: self._plain,
            random.Random: self._deep,
            np.random.Generator: self._deep,
            np.random.RandomState: self._deep,
        }

    def _keep(self, thing: Any, shadow: Any) -> Any:
        self._of[id(thing)] = thing, shadow
        return shadow

    def _is_own(self, file: str) -> bool:
        return file in self._files or not file.startswith(_installed())

    # ----------------------------------------------------------------------------------------------
    # code

    def _function(self, function: FunctionType, names: frozenset[str]) -> Any:
        code = function.__code__
        if not self._is_own(code.co_filename):
            return self._keep(function, function)
        own = frozenset(_names_in(code))
        cells = function.__closure__
        closure = None if cells is None else tuple(CellType() for _ in cells)
        shadow = FunctionType(
            code_of_trial(code),
            self._globals_of(function.__globals__),
            function.__name__,
            None,
            closure,
        )
        self._keep(function, shadow)
        self._fill(function.__globals__, own)
        for cell, new in zip(cells or (), closure or (), strict=True):
            try:
                contents = cell.cell_contents
            except ValueError:  # nothing is in it yet
                continue
            # `__class__`, for super()
            new.cell_contents = contents if isinstance(contents, type) else self.of(contents, own)
        shadow.__defaults__ = self.of(function.__defaults__, own)
        shadow.__kwdefaults__ = self.of(function.__kwdefaults__, own)
        shadow.__dict__.update(self.of(vars(function), own))
        for name in ("__qualname__", "__module__", "__doc__", "__annotations__"):
            setattr(shadow, name, getattr(function, name))
        return shadow

    def _globals_of(self, variables: dict[str, Any]) -> dict[str, Any]:
        if id(variables) not in self._globals:
            self._globals[id(variables)] = {**variables, "__builtins__": self._builtins}
        return self._globals[id(variables)]

    def _fill(self, variables: dict[str, Any], names: frozenset[str]) -> None:
        """Put shadows under these names of a module; under others, which no shadow uses, its own
        things stay.
        """
        shadow = self._globals_of(variables)
        for name in names & variables.keys():
            if (id(variables), name) not in self._filled:
                self._filled.add((id(variables), name))
                shadow[name] = self.of(variables[name], names)

    def _module(self, module: ModuleType, names: frozenset[str]) -> Any:
        file = getattr(module, "__file__", None)
        if file is None or not self._is_own(file):
            return module
        shadow = ModuleType(module.__name__)
        shadow.__dict__.update(self._globals_of(vars(module)))
        self._fill(vars(module), names)
        # not kept: another function may use other names of it
        shadow.__dict__.update(self._globals_of(vars(module)))
        return shadow

    def _import(self, name: str, *how: Any, **named: Any) -> Any:
        if name.split(".")[0] in SPEAKERS:
            return SILENT
        module = __import__(name, *how, **named)
        return self.of(module, frozenset(vars(module)))

    def _method(self, method: MethodType, names: frozenset[str]) -> Any:
        return MethodType(self.of(method.__func__, names), self.of(method.__self__, names))

    def _partial(self, function: functools.partial[Any], names: frozenset[str]) -> Any:
        arguments = self.of(function.args, names)
        return functools.partial(
            self.of(function.func, names), *arguments, **self.of(function.keywords, names)
        )

    # ----------------------------------------------------------------------------------------------
    # classes, instances

    def _is_own_class(self, kind: type) -> bool:
        return any(self._is_own(code.co_filename) for code in _codes_of(kind))

    def _class(self, kind: type, names: frozenset[str]) -> Any:
        """Return a subclass with shadows of the methods. It is a subclass of its bases' shadows,
        too.
        """
        if not self._is_own_class(kind):
            return self._keep(kind, kind)
        shadows = (self.of(base, names) for base in kind.__bases__)
        bases = (kind, *(shadow for shadow in shadows if shadow not in kind.__bases__))
        try:
            shadow = type(kind)(
                kind.__name__, bases, {"__slots__": (), "__module__": kind.__module__}
            )
        except Exception:  # of an Enum, say, or of what a class does with its subclasses
            return self._keep(kind, kind)
        shadow.__qualname__ = kind.__qualname__
        self._keep(kind, shadow)
        for name, member in vars(kind).items():
            method = self._member(member, names)
            if method is not member:
                setattr(shadow, name, method)
        return shadow

    def _member(self, member: Any, names: frozenset[str]) -> Any:
        if isinstance(member, FunctionType):
            return self.of(member, names)
        if isinstance(member, staticmethod | classmethod):
            return type(member)(self.of(member.__func__, names))
        if isinstance(member, property):
            get, change, delete = (
                self.of(each, names) for each in (member.fget, member.fset, member.fdel)
            )
            return property(get, change, delete, member.__doc__)
        return member

    def _instance(self, thing: Any, names: frozenset[str]) -> Any:
        try:
            shadow = self._keep(thing, copy.copy(thing))
            if shadow is thing:  # an Enum's member, say
                return thing
            if self._is_own_class(type(thing)):
                object.__setattr__(shadow, "__class__", self.of(type(thing), names))
        except (TypeError, AttributeError):  # what cannot be copied
            return self._keep(thing, thing)
        attributes = getattr(shadow, "__dict__", {})
        attributes.update({name: self.of(value, names) for name, value in attributes.items()})
        for name in _slots_of(type(thing)):
            if hasattr(thing, name):
                object.__setattr__(shadow, name, self.of(getattr(thing, name), names))
        return shadow

    # ----------------------------------------------------------------------------------------------
    # data

    def _list(self, items: list[Any], names: frozenset[str]) -> Any:
        shadow = self._keep(items, copy.copy(items))
        shadow[:] = [self.of(each, names) for each in items]
        return shadow

    def _dict(self, table: dict[Any, Any], names: frozenset[str]) -> Any:
        shadow = self._keep(table, copy.copy(table))
        for key, value in table.items():
            shadow[key] = self.of(value, names)
        return shadow

    def _tuple(self, items: tuple[Any, ...], names: frozenset[str]) -> Any:
        if type(items) is not tuple:
            return items
        return tuple(self.of(each, names) for each in items)

    def _deque(self, items: deque[Any], names: frozenset[str]) -> Any:
        return self._keep(items, deque((self.of(each, names) for each in items), items.maxlen))

    def _plain(self, value: Any, names: frozenset[str]) -> Any:
        return self._keep(value, value.copy())

    def _deep(self, value: Any, names: frozenset[str]) -> Any:
        return self._keep(value, copy.deepcopy(value))


def _slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from (
            (slots,)
            if isinstance(slots, str)
            else (name for name in slots if not name.startswith("__"))
        )


def _codes_of(kind: type) -> Iterator[CodeType]:
    for member in vars(kind).values():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if isinstance(function, FunctionType):
            yield function.__code__


def _speaks(thing: Any) -> bool:
    """Say whether it is a debugger, or a function of one, or what prints."""
    if isinstance(thing, ModuleType):
        return thing.__name__.split(".")[0] in SPEAKERS
    if thing is print or thing is breakpoint:
        return True
    if getattr(thing, "__name__", "") == "set_trace":  # pytest puts its own in pdb's place
        return True
    return callable(thing) and str(getattr(thing, "__module__", "")).split(".")[0] in SPEAKERS


def _silent_input(*_: object) -> str:
    return ""
