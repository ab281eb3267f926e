"""What a user's algorithm computed from tiles, and did not put on chip, dies with the turn it was made in.

A tile is a plain array, so a copy of it (`x * 1`, `np.array(x)`, a list of such) would outlive the tile, without room or traffic.
At the end of each turn of a loop in the user's code, and where it evicts a tile or loads over one, its variables are looked
through: those of the function that loops and of its callers, up to the one that launched it, what its closures, its globals and
their containers hold. Whatever was there when the turn began, and has not changed, may stay. What is new and not in SRAM

* is overwritten with NaN, if it is an array of numbers: what is computed with it later is NaN, too;
* is an `Escape`, if it cannot be overwritten: bytes, text, lists of numbers.

Masks of booleans and sorted tables of indices may stay, and so may single numbers, which are registers. What Python cannot show
(a file, another process) is not seen; the lower bound of the accesses catches what that gains (`flashsim.run.lower_bound`).
"""

from __future__ import annotations

import dis
import gc
import linecache
import re
import sysconfig
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from typing import Any

import numpy as np

from flashsim.machine.shape_only import ShapeOnly
from flashsim.machine.source import PACKAGE, Site

FEW_NUMBERS = 16
"""How many numbers lists and the like may take up in a turn: registers, and counters of the user's."""
WORD = 2**64
SHORT_TEXT = 500
FEW_BYTES = 64
SMALL_ARRAY = 4096
"""Elements of an array that is looked at every time for a change; a larger one, only where code may write to arrays."""
MOST_OBJECTS = 4000
"""Of one look."""
EVERY = 64
"""How often a look goes into libraries' objects, and finds the names of globals anew: the first three, then one of so many."""

INERT, ARRAY, SERIES, TABLE, FUNCTION, TEXT, BUFFER, METHOD, OURS, OBJECT, LIBRARY, CLASS, WHOLE, REAL, MODULE, FRAME = range(16)
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NUMBERS_ARE_WRITTEN = {
    "copyto", "put", "place", "putmask", "put_along_axis", "fill", "itemset", "sort", "partition", "resize", "setfield", "data",
    "memoryview", "readinto", "at", "getattr", "eval", "exec", "out", "__setitem__", "setitem", "frombuffer", "nditer", "flat",
}  # fmt: skip
_NAMES_ARE_COMPUTED = {"globals", "vars", "setattr", "exec", "eval", "__dict__", "import_module", "__import__"}


@dataclass(frozen=True)
class Escape:
    """What outlives its turn and cannot be overwritten: which name holds what, and where it was made, if that is known."""

    said: str
    site: Site | None


@dataclass
class Known:
    """What was there when a turn began: arrays with what tells whether they changed, other holders of numbers, series.

    deep   whether libraries' objects were looked into
    """

    deep: bool = True
    arrays: dict[int, tuple[Any, int | None]] = field(default_factory=dict)
    owners: dict[int, Any] = field(default_factory=dict)
    others: dict[int, Any] = field(default_factory=dict)
    series: dict[int, tuple[Any, tuple[Any, ...]]] = field(default_factory=dict)


@dataclass
class Death:
    """An array that was overwritten at the end of its turn."""

    name: str
    shape: tuple[int, ...]
    site: Site | None


def is_users(frame: FrameType | None) -> bool:
    """Return whether a frame is of the user's code, not of flashsim's."""
    return frame is not None and not frame.f_code.co_filename.startswith(PACKAGE)


def is_prompt(frame: FrameType) -> bool:
    """Return whether a frame is of what was typed at a debugger's prompt, or at Python's."""
    code = frame.f_code
    if not code.co_filename.startswith("<") or code.co_name != "<module>":
        return False
    return frame.f_back is None or not _is_users_file(frame.f_back.f_code.co_filename)


def is_collected(frame: FrameType) -> str | None:
    """Return what takes the turns of a loop there, where it is not a `for` statement and could keep what turns make."""
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        if code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
            return "a comprehension"
        taker = _taker(code, current.f_lasti)
        if taker is not None:
            return taker
        if not code.co_flags & 0x20:  # not a generator, whose caller takes its turns
            return None
        current = current.f_back
    return None


@cache
def _taker(code: CodeType, offset: int) -> str | None:
    """Return what takes turns at an instruction, where that is not a `for`, `yield from` or `next(…)`."""
    instructions = [*dis.get_instructions(code)]
    number = next(number for number, each in enumerate(instructions) if each.offset == offset)
    instruction = instructions[number]
    if instruction.opname.startswith("FOR_ITER"):  # from Python 3.12 on, a comprehension's is in the function itself
        body = [each for each in instructions[number + 1 :] if each.offset < int(instruction.argval)]
        loops = [(each.offset, int(each.argval)) for each in body if each.opname.startswith("FOR_ITER")]
        for each in body:
            within = sum(start < each.offset < end for start, end in loops)
            if each.opname in ("LIST_APPEND", "SET_ADD", "MAP_ADD") and each.arg == 2 + within:
                return "a comprehension"
        return None
    if instruction.opname.startswith(("SEND", "YIELD", "RESUME")):
        return None
    near = instructions[max(number - 6, 0) : number]
    return None if any(each.argval == "next" for each in near) else "a call"


class Lifetimes:
    """Looks through the variables of a user's algorithm. `maker` is the code that made the memory, where that is the user's."""

    def __init__(self, memory: Any, maker: CodeType | None) -> None:
        self._memory, self._maker = memory, maker
        self._resident: Mapping[int, Any] = memory._resident
        self._globals: dict[CodeType, list[tuple[dict[str, Any], str]]] = {}
        self._fields: dict[int, int] = {}
        self._modules: dict[str, tuple[ModuleType, int]] = {}
        self._looks = 0
        self._writes: bool | None = None
        self.deaths: dict[str, Death] = {}

    def known(self, frame: FrameType) -> Known:
        """Return what there is now, as a turn begins."""
        known = Known(deep=self._looks < 3 or self._looks % EVERY == 0)
        self._looks += 1
        for value, _, kind, _ in self._reached(frame, known.deep):
            if kind == ARRAY:
                known.arrays[id(value)] = value, self._print_of(value)
                owner = _owner(value)
                known.owners[id(owner)] = owner
            elif kind in (SERIES, TABLE):
                known.series[id(value)] = value, _items(value)
            else:
                known.others[id(value)] = value
        return known

    def end(self, known: Known, frame: FrameType) -> Escape | None:
        """Overwrite what was made since `known`, and is not on chip; return what cannot be overwritten, if there is any."""
        numbers = texts = size = 0
        escape: Escape | None = None
        for value, name, kind, is_local in self._reached(frame, known.deep):
            if kind == ARRAY:
                said = self._end_array(known, value, name, is_local, frame)
                if said and escape is None:
                    escape = Escape(said, _mention(frame, name))
                continue
            if kind in (SERIES, TABLE):
                before = known.series.get(id(value))
                new = _numbers(value, before[1] if before else ())
                numbers += new
                said = f"{name} holds {numbers:,} numbers" if new and numbers > FEW_NUMBERS else ""
            elif id(value) in known.others:
                continue
            elif kind == TEXT:
                texts += len(value)
                said = f"{name} holds a text of {texts:,} characters" if texts > SHORT_TEXT else ""
            elif kind == WHOLE:
                said = f"{name} holds a whole number of {value.bit_length():,} bits"
            else:
                size += _size(value)
                said = f"{name} holds a {type(value).__name__} of {size:,} bytes" if size > FEW_BYTES else ""
            if said and escape is None:
                escape = Escape(said, _mention(frame, name))
        return escape

    def _end_array(self, known: Known, value: Any, name: str, is_local: bool, frame: FrameType) -> str | None:
        before = known.arrays.get(id(value))
        changed = False
        if before is not None:
            changed = before[1] is not None and before[1] != self._print_of(value)
            if not changed:
                return None
        elif id(_owner(value)) in known.owners:
            return None
        kind = value.dtype.kind
        if kind == "b":
            if changed or not _is_noise(value) or (is_local and _overwrite(value, False)):
                return None
            return f"{name} holds {value.size:,} bits"
        if kind in "iu":
            if not changed and _is_sorted(value):
                return None
            if changed or not is_local or not _overwrite(value, np.iinfo(value.dtype).max):
                return f"{name} holds {_shape(value)} whole numbers"
            return None
        if kind in "SUMm" or not _overwrite(value, np.nan):
            return f"{name} holds a {_shape(value)} array that cannot be overwritten"
        if len(self.deaths) < MOST_OBJECTS:
            self.deaths[name] = Death(name, value.shape, _mention(frame, name))
        if before is not None:
            known.arrays[id(value)] = value, self._print_of(value)
        return None

    def death_at(self, site: Site) -> Death | None:
        """Return an array that died, and that the line mentions or loops over; else one of those in a container, if any died."""
        line = linecache.getline(*site)
        in_container = None
        for death in self.deaths.values():
            root = re.split(r"[.\[]", death.name)[0]
            if re.search(rf"\b{re.escape(root)}\b", line):
                return death
            if root != death.name:
                in_container = in_container or death
        return in_container

    # ------------------------------------------------------------------------------------------- what variables reach

    def _reached(self, frame: FrameType, deep: bool) -> Iterator[tuple[Any, str, int, bool]]:
        """Yield holders of numbers that are not on chip: the object, its name, its kind, and whether it is a plain variable."""
        resident, memory = self._resident, self._memory
        queue: deque[tuple[Any, str, int]] = deque()
        current: FrameType | None = frame
        frames = set[int]()
        while current is not None and self._is_looked_through(current, frame):
            code = current.f_code
            frames.add(id(current))
            for name, value in current.f_locals.items():
                kind = _KINDS.get(type(value), -1)
                if kind == INERT:
                    continue
                if kind == WHOLE and -WORD < value < WORD:
                    continue
                if kind == ARRAY and id(value) in resident:
                    continue
                if kind == METHOD and value.__self__ is memory:
                    continue
                if kind == -1:
                    kind = kind_of(type(value))
                if kind == ARRAY and value.dtype.kind != "O":
                    if value.size > 1 and id(_owner(value)) not in resident:
                        yield value, name, kind, True
                elif kind:
                    queue.append((value, name, kind))
            if deep or code not in self._globals or _names_of(code)[0] & _NAMES_ARE_COMPUTED:
                self._globals[code], modules = _watched(code, current.f_globals)
                for name, module in modules.items():
                    self._modules.setdefault(name, (module, len(vars(module))))
            for names, name in self._globals[code]:
                value = names.get(name)
                kind = kind_of(type(value))
                if kind:
                    queue.append((value, name, kind))
            current = None if code is self._maker else current.f_back
        for name, (module, fields) in self._modules.items():
            if len(module.__dict__) > fields:
                queue.extend(_named(dict([*vars(module).items()][fields:]), name))
        seen = set[int]()
        while queue and len(seen) < MOST_OBJECTS:
            value, name, kind = queue.popleft()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if kind == ARRAY:
                if value.dtype.kind == "O":
                    yield value, name, SERIES, False
                    queue.extend(_of(value.ravel().tolist(), name))
                elif id(value) not in resident and id(_owner(value)) not in resident:
                    yield value, name, kind, False
            elif kind == SERIES:
                yield value, name, kind, False
                queue.extend(_of(value, name))
            elif kind == TABLE:
                yield value, name, kind, False
                for key, each in [*value.items()]:
                    inner = f"{name}[{key!r:.20}]"
                    queue.extend((one, inner, kind_of(type(one))) for one in (key, each) if kind_of(type(one)))
            elif kind == FUNCTION:
                queue.extend(self._of_function(value, name))
            elif kind == METHOD:
                queue.append((value.__self__, name, kind_of(type(value.__self__))))
            elif kind == OURS:
                queue.extend(self._of_ours(value, name))
            elif kind == FRAME:
                if id(value) not in frames:
                    queue.extend(_of([*value.f_locals.values()], name))
            elif kind == CLASS:
                if _is_users_file(_file_of(value)):
                    queue.extend(_named(vars(value), name))
            elif kind == OBJECT or (kind == LIBRARY and deep):
                fields = getattr(value, "__dict__", None)
                if isinstance(fields, dict):
                    queue.append((fields, name, TABLE))
                queue.extend(_of(gc.get_referents(value), name))
            elif kind in (BUFFER, TEXT) or (kind == WHOLE and value.bit_length() > 64):
                yield value, name, kind, False

    def _is_looked_through(self, current: FrameType, frame: FrameType) -> bool:
        """Return whether a frame is of the algorithm: not of what launched it."""
        code = current.f_code
        if code.co_filename.startswith(PACKAGE):
            return False
        return current is frame or (_is_users_file(code.co_filename) and code.co_name != "<module>")

    def _of_function(self, function: Any, name: str) -> Iterator[tuple[Any, str, int]]:
        if function.__dict__:
            yield function.__dict__, name, TABLE
        if not _is_users_file(function.__code__.co_filename):
            return
        parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        yield from _of(parts, name)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # it has not been assigned yet
                continue
            yield value, variable, kind_of(type(value))

    def _of_ours(self, value: Any, name: str) -> Iterator[tuple[Any, str, int]]:
        """Yield what the user's code has set on an object of flashsim's."""
        fields = value.__dict__
        if self._fields.get(id(value)) == len(fields):
            return
        own = _fields_of(type(value))
        foreign = {key: each for key, each in fields.items() if key not in own}
        if foreign:
            yield from _named(foreign, name)
        else:
            self._fields[id(value)] = len(fields)

    def _print_of(self, value: Any) -> int | None:
        """Return what changes if the array does, most likely; None where nothing that would write to it is in the code."""
        if not value.flags.writeable and value.base is None:
            return None
        if value.size > SMALL_ARRAY and not self._may_write():
            return None
        if value.flags.c_contiguous and value.dtype.itemsize in (1, 2, 4, 8):
            words = value.reshape(-1).view(f"u{value.dtype.itemsize}")
            return int(np.bitwise_xor.reduce(words)) ^ (int(np.add.reduce(words, dtype=np.uint64)) << 1)
        return hash(value.tobytes())

    def _may_write(self) -> bool:
        if self._writes is None:
            self._writes = any(map(_writes, self._globals))
        return self._writes


def _of(values: Any, name: str) -> list[tuple[Any, str, int]]:
    """Return the parts of a series that can hold numbers."""
    found = []
    for number, value in enumerate([*values]):
        kind = kind_of(type(value))
        if kind and not (kind == WHOLE and -WORD < value < WORD):
            found.append((value, f"{name}[{number}]", kind))
    return found


def _named(fields: Mapping[str, Any], name: str) -> list[tuple[Any, str, int]]:
    found = []
    for key, value in [*fields.items()]:
        kind = kind_of(type(value))
        if kind:
            found.append((value, f"{name}.{key}", kind))
    return found


# ------------------------------------------------------------------------------------------------------ kinds of objects

_KINDS: dict[type, int] = {
    NoneType: INERT, bool: INERT, float: INERT, complex: INERT, range: INERT, slice: INERT, CodeType: INERT, type(...): INERT,
    BuiltinFunctionType: INERT, np.ufunc: INERT, np.dtype: INERT, np.ndarray: ARRAY, list: SERIES, tuple: SERIES, set: SERIES,
    frozenset: SERIES, deque: SERIES, dict: TABLE, FunctionType: FUNCTION, str: TEXT, bytes: BUFFER, bytearray: BUFFER,
    memoryview: BUFFER, array: BUFFER, MethodType: METHOD, int: WHOLE, ModuleType: MODULE, FrameType: FRAME, ShapeOnly: INERT,
}  # fmt: skip


def kind_of(each: type) -> int:
    """Return how objects of a type are looked at."""
    kind = _KINDS.get(each)
    if kind is None:
        kind = _KINDS[each] = _found(each)
    return kind


def _found(each: type) -> int:
    if issubclass(each, np.generic):
        return INERT
    for known in (np.ndarray, type, ModuleType, list, tuple, set, frozenset, deque, dict, str, bytes, bytearray):
        if issubclass(each, known):
            return CLASS if known is type else _KINDS[known]
    if each.__module__.split(".")[0] == "flashsim" and _is_flashsims(each):
        return OURS if "__dict__" in dir(each) else INERT
    if each.__module__ in ("ctypes", "mmap", "_io", "io") or hasattr(each, "__dlpack__") or hasattr(each, "__array__"):
        return BUFFER
    return OBJECT if _is_users_file(_file_of(each)) or each.__module__ in _HOLDERS else LIBRARY


_HOLDERS = ("builtins", "functools", "itertools", "collections", "types", "queue", "contextvars", "_thread", "weakref")


def _is_flashsims(each: type) -> bool:
    return (_file_of(each) or "").startswith(PACKAGE)


@cache
def _file_of(each: type) -> str | None:
    import sys

    return getattr(sys.modules.get(each.__module__), "__file__", None) if each.__module__ != "builtins" else "<frozen builtins>"


@cache
def _is_users_file(file: str | None) -> bool:
    return file is None or not file.startswith((PACKAGE, "<frozen", *_LIBRARIES))


@cache
def _fields_of(each: type) -> set[str]:
    """Return the names of attributes that a class of flashsim's gives its objects."""
    names = set[str]()
    for base in each.__mro__:
        names |= {*vars(base), *getattr(base, "__annotations__", {})}
        for value in vars(base).values():
            code = getattr(getattr(value, "fget", value), "__code__", None)
            if code is not None:
                names |= {*code.co_names}
    return names


# -------------------------------------------------------------------------------------------------------------- globals


def _watched(code: CodeType, names: dict[str, Any]) -> tuple[list[tuple[dict[str, Any], str]], dict[str, ModuleType]]:
    """Return the globals, of the code and of the user's functions that it names, that can hold numbers or are assigned to; and
    the modules among them, on which attributes can be set.
    """
    found: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    modules: dict[str, ModuleType] = {}
    waiting, done = [(code, names)], set[tuple[int, int]]()
    while waiting and len(done) < MOST_OBJECTS:
        code, names = waiting.pop()
        if (id(code), id(names)) in done:
            continue
        done.add((id(code), id(names)))
        mentioned, assigned = _names_of(code)
        library = not _is_users_file(names.get("__file__"))
        if mentioned & _NAMES_ARE_COMPUTED and not library:
            mentioned |= names.keys()
        for name in mentioned | assigned:
            if name not in names and name not in assigned:
                continue
            value = names.get(name)
            kind = kind_of(type(value))
            if library and kind not in (ARRAY, SERIES, TABLE, BUFFER, OBJECT):
                continue
            if kind == MODULE:
                modules[name] = value
                waiting.append((code, vars(value)))
            elif kind == FUNCTION and _is_users_file(value.__code__.co_filename):
                waiting.append((value.__code__, value.__globals__))
            if name in assigned or (kind and kind != MODULE and not _is_idle(kind, value)):
                found[id(names), name] = names, name
    return [*found.values()], modules


def _is_idle(kind: int, value: Any) -> bool:
    """Return whether nothing that a global now is bound to can change: what has no room for numbers."""
    if kind == FUNCTION:
        return not value.__dict__ and not _is_users_file(value.__code__.co_filename)
    if kind == CLASS:
        return not _is_users_file(_file_of(value))
    return kind == TEXT or (kind == WHOLE and -WORD < value < WORD)


@cache
def _names_of(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a code and those within it mention, and those of globals that they assign to."""
    mentioned, assigned = {*code.co_names}, set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_GLOBAL":
            assigned.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _names_of(constant)
            mentioned |= inner[0]
            assigned |= inner[1]
    return frozenset(mentioned), frozenset(assigned)


@cache
def _writes(code: CodeType) -> bool:
    """Return whether a code, or one within it, may write to an array."""
    if _NUMBERS_ARE_WRITTEN & {*code.co_names}:
        return True
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(("STORE_SUBSCR", "STORE_SLICE")):
            return True
        if instruction.opname == "BINARY_OP" and str(instruction.argrepr).endswith("="):
            return True
    for constant in code.co_consts:
        if isinstance(constant, tuple) and "out" in constant:
            return True
        if isinstance(constant, CodeType) and _writes(constant):
            return True
    return False


# ------------------------------------------------------------------------------------------------------- numbers in them


def _owner(value: Any) -> Any:
    """Return the array whose memory a view shows."""
    base = value.base
    while isinstance(base, np.ndarray):
        value, base = base, base.base
    return value


def _overwrite(value: Any, number: Any) -> bool:
    """Overwrite the memory that an array shows; return whether that could be done."""
    owner = _owner(value)
    if owner.base is not None and not owner.flags.writeable:  # bytes, say
        return False
    writeable = owner.flags.writeable
    try:
        owner.flags.writeable = True
        owner.fill(number)
        owner.flags.writeable = writeable
    except (TypeError, ValueError):
        return False
    return True


def _items(value: Any) -> tuple[Any, ...]:
    if isinstance(value, dict):
        return tuple(value.values())
    return tuple(value.ravel().tolist()) if isinstance(value, np.ndarray) else tuple(value)


def _numbers(value: Any, before: tuple[Any, ...]) -> int:
    """Return how many numbers a series or a table has that it had not before."""
    items = _items(value)
    if len(items) == len(before) and all(map(_is, items, before)):
        return 0
    old = {*map(id, before)}
    return sum(map(_is_number, (item for item in items if id(item) not in old)))


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_number(item: Any) -> bool:
    if isinstance(item, float | complex | np.inexact):
        return True
    if isinstance(item, np.ndarray):
        return item.size == 1 and item.dtype.kind in "fc"
    return isinstance(item, int | np.integer) and abs(int(item)) >= 2**31


def _is_noise(value: Any) -> bool:
    """Return whether booleans are like the bits of numbers rather than a mask's: they change more often than every 4th."""
    flat = value.reshape(-1)
    return bool(4 * np.count_nonzero(flat[1:] != flat[:-1]) > flat.size > 64)


def _is_sorted(value: Any) -> bool:
    """Return whether whole numbers are like a table of indices: sorted along their last axis, or their first."""
    axis = -1 if value.shape[-1] > 1 else 0
    steps = np.diff(value.astype(np.int64), axis=axis)
    return bool(steps.size == 0 or (steps >= 0).all() or (steps <= 0).all())


def _shape(value: Any) -> str:
    return "×".join(f"{n:,}" for n in value.shape)


def _size(value: Any) -> int:
    """Return how many bytes a buffer has, or an array of another library's."""
    try:
        return memoryview(value).nbytes
    except (TypeError, ValueError, BufferError):
        pass
    try:
        return len(value.getvalue())  # io.BytesIO
    except (AttributeError, TypeError, ValueError):
        return int(getattr(value, "nbytes", 0) or 0)


def _mention(frame: FrameType, name: str) -> Site | None:
    """Return the line that assigns to a name, or mentions it first, within the code of a frame."""
    root = re.split(r"[.\[]", name)[0]
    file = frame.f_code.co_filename
    lines = sorted({line for _, _, line in frame.f_code.co_lines() if line})
    pattern = re.compile(rf"\b{re.escape(root)}\b")
    assigns = re.compile(rf"\b{re.escape(root)}\b[^=]*(=[^=]|\.append|\.add|\.extend|\.update)")
    for wanted in (assigns, pattern):
        for line in reversed(lines):
            if wanted.search(linecache.getline(file, line)):
                return file, line
    return None
