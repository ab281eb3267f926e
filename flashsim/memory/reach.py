"""What the variables of a user's algorithm reach: those of its frames, and what closures,
globals and containers hold.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, ModuleType
from typing import Any, cast

from flashsim.memory import holders
from flashsim.memory.bytecode import NAMES_ARE_COMPUTED, may_write, names_of
from flashsim.memory.contents import is_gone, owner_of, print_of
from flashsim.memory.holders import (
    ARRAY,
    FLASHSIMS,
    INERT,
    METHOD,
    SERIES,
    TABLE,
    WHOLE,
    WORD,
    is_register,
    is_users_file,
    kind_of,
    kinds,
)
from flashsim.memory.source import PACKAGE

MOST_OBJECTS = 4000
"""Of one look: nobody's algorithm has more, but a variable may hold a library's world."""
Entry = tuple[Any, str, int]
"""An object, its name in the user's code, and its kind."""
Globals = list[tuple[dict[str, Any], str]]


class Reach:
    """Finds what is reached from a frame. `maker` is the code that made the memory, where that
    is the user's.
    """

    def __init__(self, memory: Any, maker: CodeType) -> None:
        self._memory = memory
        self._maker = maker
        self._resident: Mapping[int, Any] = memory._resident
        self._globals: dict[int, tuple[CodeType, Globals]] = {}
        self._modules: dict[str, tuple[ModuleType, int]] = {}
        self._fields: dict[int, int] = {}
        self._writes: bool | None = None

    def may_write(self) -> bool:
        """Return whether the code looked at so far may write to arrays."""
        if self._writes is None:
            self._writes = any(may_write(code) for code, _ in self._globals.values())
        return self._writes

    def is_clear(self, frame: FrameType, arrays: Mapping[int, tuple[Any, int | None]]) -> bool:
        """Return whether a frame's variables reach nothing but what is on chip, or NaN, registers,
        and objects of flashsim's; besides `arrays`, if they have not changed.

        It is the quick look, and says False wherever a closer one is due.
        """
        code = frame.f_code
        caller = frame.f_back
        known = self._globals.get(id(code))
        if known is None or known[1] or names_of(code)[0] & NAMES_ARE_COMPUTED:
            return False
        if (
            caller is not None
            and code is not self._maker
            and not caller.f_code.co_filename.startswith(PACKAGE)
        ):
            return False
        for module, fields in self._modules.values():
            if len(module.__dict__) > fields:
                return False
        resident = self._resident
        memory = self._memory
        fields_of = self._fields
        for value in frame.f_locals.values():
            kind = kinds.get(type(value), -1)
            if kind == INERT or (kind == ARRAY and id(value) in resident):
                continue
            if kind == WHOLE and -WORD < value < WORD:
                continue
            if kind == FLASHSIMS and fields_of.get(id(value)) == len(value.__dict__):
                continue
            if kind == METHOD and value.__self__ is memory:
                continue
            if kind != ARRAY or not (_is_same(value, arrays) or is_gone(value)):
                return False
        return True

    def holders(self, frame: FrameType, deep: bool) -> Iterator[tuple[Any, str, int, bool]]:
        """Yield holders of numbers that are not on chip: the object, its name, its kind, and
        whether it is a plain variable.

        A `deep` look goes into objects of libraries, and finds anew which globals the code can use.
        """
        resident = self._resident
        memory = self._memory
        queue = deque[Entry]()
        frames = set[int]()
        current: FrameType | None = frame
        while current is not None and self._is_algorithms(current, frame):
            frames.add(id(current))
            for name, value in current.f_locals.items():
                kind = kinds.get(type(value), -1)
                if kind == INERT or (kind == ARRAY and id(value) in resident):
                    continue
                if kind == WHOLE and -WORD < value < WORD:
                    continue
                if kind == METHOD and value.__self__ is memory:
                    continue
                if kind == -1:
                    kind = kind_of(type(value))
                if kind == ARRAY and value.dtype.kind != "O":
                    if value.size > 1 and id(owner_of(value)) not in resident:
                        yield value, name, kind, True
                elif kind:
                    queue.append((value, name, kind))
            for names, name in self._globals_of(current, deep):
                value = names.get(name)
                kind = kind_of(type(value))
                if kind:
                    queue.append((value, name, kind))
            current = None if current.f_code is self._maker else current.f_back
        for name, (module, fields) in self._modules.items():
            if len(module.__dict__) > fields:
                queue.extend(_fields(dict([*vars(module).items()][fields:]), name))
        yield from self._behind(queue, frames, deep)

    def _is_algorithms(self, current: FrameType, frame: FrameType) -> bool:
        """Return whether a frame is of the algorithm: not of what launched it."""
        code = current.f_code
        if code.co_filename.startswith(PACKAGE):
            return False
        return current is frame or (is_users_file(code.co_filename) and code.co_name != "<module>")

    def _globals_of(self, frame: FrameType, deep: bool) -> Globals:
        code = frame.f_code
        if deep or id(code) not in self._globals or names_of(code)[0] & NAMES_ARE_COMPUTED:
            used, modules = _used_globals(code, frame.f_globals)
            self._globals[id(code)] = code, used
            for name, module in modules.items():
                self._modules.setdefault(name, (module, len(vars(module))))
        return self._globals[id(code)][1]

    def _behind(
        self, queue: deque[Entry], frames: set[int], deep: bool
    ) -> Iterator[tuple[Any, str, int, bool]]:
        """Yield the holders of numbers behind these objects, nearest first."""
        resident = self._resident
        visited = set[int]()
        while queue and len(visited) < MOST_OBJECTS:
            value, name, kind = queue.popleft()
            if id(value) in visited:
                continue
            visited.add(id(value))
            if kind == ARRAY and value.dtype.kind != "O":
                if id(value) not in resident and id(owner_of(value)) not in resident:
                    yield value, name, kind, False
            elif kind in (SERIES, ARRAY):
                yield value, name, SERIES, False
                queue.extend(_parts(value.ravel().tolist() if kind == ARRAY else value, name))
            elif kind == TABLE:
                yield value, name, kind, False
                queue.extend(_parts(value.keys(), name))
                queue.extend(_values(value, name))
            elif kind in (holders.TEXT, holders.BUFFER) or (
                kind == WHOLE and not is_register(kind, value)
            ):
                yield value, name, kind, False
            else:
                queue.extend(self._inside(value, name, kind, frames, deep))

    def _inside(
        self, value: Any, name: str, kind: int, frames: set[int], deep: bool
    ) -> Iterator[Entry]:
        """Yield what an object holds that is neither a container nor a buffer."""
        if kind == holders.FUNCTION:
            yield from _of_function(value, name)
        elif kind == METHOD:
            yield value.__self__, name, kind_of(type(value.__self__))
        elif kind == FLASHSIMS:
            yield from self._set_on(value, name)
        elif kind == holders.FRAME:
            if id(value) not in frames:
                yield from _parts([*value.f_locals.values()], name)
        elif kind == holders.CLASS:
            if is_users_file(holders.file_of(value)):
                yield from _fields(vars(value), name)
        elif kind == holders.OBJECT or (kind == holders.LIBRARY and deep):
            fields = getattr(value, "__dict__", None)
            if isinstance(fields, dict):
                yield fields, name, TABLE
            yield from _parts(gc.get_referents(value), name)

    def _set_on(self, value: Any, name: str) -> Iterator[Entry]:
        """Yield what the user's code has set on an object of flashsim's."""
        fields = value.__dict__
        if self._fields.get(id(value)) == len(fields):
            return
        own = holders.fields_of(cast(Any, type(value)))
        if fields.keys() <= own:
            self._fields[id(value)] = len(fields)
        else:
            yield from _fields({key: each for key, each in fields.items() if key not in own}, name)


def _is_same(value: Any, arrays: Mapping[int, tuple[Any, int | None]]) -> bool:
    known = arrays.get(id(value))
    return known is not None and (known[1] is None or known[1] == print_of(value))


def _parts(values: Any, name: str) -> list[Entry]:
    """Return the parts of a series that can hold numbers."""
    entries = []
    for number, value in enumerate([*values]):
        kind = kind_of(type(value))
        if kind and not is_register(kind, value):
            entries.append((value, f"{name}[{number}]", kind))
    return entries


def _values(table: Mapping[Any, Any], name: str) -> list[Entry]:
    entries = []
    for key, value in [*table.items()]:
        kind = kind_of(type(value))
        if kind and not is_register(kind, value):
            entries.append((value, f"{name}[{key!r:.20}]", kind))
    return entries


def _fields(fields: Mapping[str, Any], name: str) -> list[Entry]:
    entries = []
    for key, value in [*fields.items()]:
        kind = kind_of(type(value))
        if kind and not is_register(kind, value):
            entries.append((value, f"{name}.{key}", kind))
    return entries


def _of_function(function: Any, name: str) -> Iterator[Entry]:
    if function.__dict__:
        yield function.__dict__, name, TABLE
    if not is_users_file(function.__code__.co_filename):
        return
    yield from _parts(
        [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()], name
    )
    for variable, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        try:
            value = cell.cell_contents
        except ValueError:  # it has not been assigned yet
            continue
        yield value, variable, kind_of(type(value))


def _used_globals(code: CodeType, names: dict[str, Any]) -> tuple[Globals, dict[str, ModuleType]]:
    """Return the globals, of the code and of the user's functions that it names, that can hold
    numbers or are assigned to; and the modules among them, on which attributes can be set.
    """
    used: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    modules: dict[str, ModuleType] = {}
    waiting = [(code, names)]
    done = set[tuple[int, int]]()
    while waiting and len(done) < MOST_OBJECTS:
        code, names = waiting.pop()
        if (id(code), id(names)) in done:
            continue
        done.add((id(code), id(names)))
        mentioned, assigned = names_of(code)
        of_library = not is_users_file(names.get("__file__"))
        if mentioned & NAMES_ARE_COMPUTED and not of_library:
            mentioned |= names.keys()
        for name in mentioned | assigned:
            if name not in names and name not in assigned:
                continue
            value: Any = names.get(name)
            kind = kind_of(type(value))
            if of_library and kind not in (ARRAY, SERIES, TABLE, holders.BUFFER, holders.OBJECT):
                continue
            if kind == holders.MODULE:
                modules[name] = value
                waiting.append((code, vars(value)))
            elif kind == holders.FUNCTION and is_users_file(value.__code__.co_filename):
                waiting.append((value.__code__, value.__globals__))
            if name in assigned or not _is_idle(kind, value):
                used[id(names), name] = names, name
    return [*used.values()], modules


def _is_idle(kind: int, value: Any) -> bool:
    """Return whether what a global is bound to has no room for numbers."""
    if kind == holders.FUNCTION:
        return not value.__dict__ and not is_users_file(value.__code__.co_filename)
    if kind == holders.CLASS:
        return not is_users_file(holders.file_of(value))
    return kind in (INERT, holders.TEXT, holders.MODULE) or is_register(kind, value)
