"""What a function's code says of itself: which names it mentions, whether it may write to
arrays, what takes a loop's turns.
"""

from __future__ import annotations

import dis
import inspect
import linecache
import re
from bisect import bisect_right
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType
from typing import TypeVar

from flashsim.memory.holders import is_users_file
from flashsim.memory.source import Site

NAMES_ARE_COMPUTED = {
    "globals",
    "vars",
    "setattr",
    "exec",
    "eval",
    "__dict__",
    "import_module",
    "__import__",
}
"""With one of these, a code may assign to globals that it does not mention."""
_WRITERS = {
    "copyto",
    "put",
    "place",
    "putmask",
    "put_along_axis",
    "fill",
    "itemset",
    "sort",
    "partition",
    "resize",
    "setfield",
    "data",
    "memoryview",
    "readinto",
    "at",
    "getattr",
    "eval",
    "exec",
    "out",
    "__setitem__",
    "setitem",
    "frombuffer",
    "nditer",
    "flat",
}
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


T = TypeVar("T")


def cached_by_code(function: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Return a function that remembers its results by the code's identity: to hash a code takes
    longer than the rest.
    """
    results: dict[int, tuple[CodeType, T]] = {}

    @wraps(function)
    def remembering(code: CodeType) -> T:
        result = results.get(id(code))
        if result is None:
            result = results[id(code)] = code, function(code)
        return result[1]

    return remembering


def is_prompt(frame: FrameType) -> bool:
    """Return whether a frame is of what was typed at a debugger's prompt, or at Python's."""
    code = frame.f_code
    if not code.co_filename.startswith("<") or code.co_name != "<module>":
        return False
    return frame.f_back is None or not is_users_file(frame.f_back.f_code.co_filename)


def collector_of(frame: FrameType) -> str | None:
    """Return what takes the turns of a loop there, if that is not a `for` statement: it could
    keep what turns compute.
    """
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        if code.co_name in _COMPREHENSIONS:
            return "a comprehension"
        collector = _collector_at(code, current.f_lasti)
        if collector is not None:
            return collector
        if not code.co_flags & inspect.CO_GENERATOR:  # its caller does not take its turns
            return None
        current = current.f_back
    return None


def _collector_at(code: CodeType, offset: int) -> str | None:
    collectors = _collectors(code)
    if offset not in collectors:
        collectors[offset] = _collector_of_instruction(code, offset)
    return collectors[offset]


@cached_by_code
def _collectors(code: CodeType) -> dict[int, str | None]:
    """Return what is known of a code's instructions so far."""
    return {}


def _collector_of_instruction(code: CodeType, offset: int) -> str | None:
    instructions = [*dis.get_instructions(code)]
    offsets = [each.offset for each in instructions]
    # Python 3.12 may stand in the cache behind an instruction
    number = bisect_right(offsets, offset) - 1
    name = instructions[number].opname
    if name.startswith("FOR_ITER"):
        end = int(instructions[number].argval)
        body = [each for each in instructions[number + 1 :] if each.offset < end]
        return "a comprehension" if _appends(body) else None
    if name.startswith(("SEND", "YIELD", "RESUME")):
        return None
    near = instructions[max(number - 6, 0) : number]
    return None if any(each.argval == "next" for each in near) else "a call"


def is_discarded(code: CodeType, offset: int) -> bool:
    """Return whether nothing is done with what the call at `offset` returns: it is a statement."""
    known = _calls.get((id(code), offset))
    if known is None:
        words = code.co_code
        following = offset + 2
        while words[following] == _CACHE:
            following += 2
        known = code, words[following] == _POP_TOP
        _calls[id(code), offset] = known
    return known[1]


_CACHE = dis.opmap["CACHE"]
_POP_TOP = dis.opmap["POP_TOP"]
_calls: dict[tuple[int, int], tuple[CodeType, bool]] = {}
"""What `is_discarded` found so far, with the code, so that its id stays its own."""


def _appends(body: list[dis.Instruction]) -> bool:
    """Return whether a loop is a comprehension's, which stands in the function itself from
    Python 3.12 on.
    """
    loops = [(each.offset, int(each.argval)) for each in body if each.opname.startswith("FOR_ITER")]
    for each in body:
        within = sum(start < each.offset < end for start, end in loops)
        if each.opname in ("LIST_APPEND", "SET_ADD", "MAP_ADD") and each.arg == 2 + within:
            return True
    return False


@cached_by_code
def names_of(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a code and those within it mention, and those of globals that they
    assign to.
    """
    mentioned = {*code.co_names}
    assigned = set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_GLOBAL":
            assigned.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_mentioned, inner_assigned = names_of(constant)
            mentioned |= inner_mentioned
            assigned |= inner_assigned
    return frozenset(mentioned), frozenset(assigned)


@cached_by_code
def may_write(code: CodeType) -> bool:
    """Return whether a code, or one within it, may write to an array."""
    if _WRITERS & {*code.co_names}:
        return True
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(("STORE_SUBSCR", "STORE_SLICE")):
            return True
        if instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="):
            return True
    for constant in code.co_consts:
        if isinstance(constant, tuple) and "out" in constant:
            return True
        if isinstance(constant, CodeType) and may_write(constant):
            return True
    return False


def root_of(name: str) -> str:
    """Return the variable of a name such as `kept[0].tile`."""
    return re.split(r"[.\[]", name)[0]


def line_of_name(code: CodeType, name: str) -> Site | None:
    """Return the last line of a code that assigns to a variable or adds to it; else the last
    that mentions it.
    """
    root = re.escape(root_of(name))
    file = code.co_filename
    lines = sorted({line for _, _, line in code.co_lines() if line}, reverse=True)
    assigns = re.compile(rf"\b{root}\b[^=]*(=[^=]|\.append|\.add|\.extend|\.update)")
    for pattern in (assigns, re.compile(rf"\b{root}\b")):
        for line in lines:
            if pattern.search(linecache.getline(file, line)):
                return file, line
    return None
