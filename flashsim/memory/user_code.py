"""What can be told of a user's code without running it: which names it uses, and which of its
loops are plain ones.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
from functools import cache
from types import CodeType, FrameType

from flashsim.memory.source import file_of, users_code

TELLING = {
    "id",
    "type",
    "is_",
    "is_not",
    "locals",
    "globals",
    "vars",
    "eval",
    "exec",
    "compile",
    "open",
    "input",
    "__import__",
    "random",
    "getrefcount",
    "_getframe",
    "_weight",
    "_loops",
    "_scope",
    "_resident",
    "_storage",
    "_flops_matmul",
    "_flops_other",
    "_row_blocks",
    "_turns",
    "_watch",
    "_peak",
    "_values",
    "_where",
    "_rows",
    "_name",
}
"""Names of what could tell turns apart unseen: identity, the interpreter, the world outside, and
what is the memory's own.
"""
SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@cache
def names_in(code: CodeType) -> tuple[tuple[str, ...], str]:
    """Return the names that code uses of its module, functions inside it included; and what
    could tell turns apart unseen.
    """
    names = dict.fromkeys(code.co_names)
    telling = next((f"the function uses {name}" for name in code.co_names if name in TELLING), "")
    before = None
    for step in dis.get_instructions(code):
        of_constant = (
            before is not None
            and before.opname == "LOAD_CONST"
            and before.argval in (None, True, False, ...)
        )
        if step.opname == "IS_OP" and not of_constant:
            telling = telling or "the function asks whether two things are one (is)"
        if step.opname != "CACHE":
            before = step
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, of_inner = names_in(inner)
            names |= dict.fromkeys(more)
            telling = telling or of_inner
    return tuple(names), telling


def why_unseen(caller: FrameType, end: CodeType) -> str:
    """Return why what decides a loop's turns cannot be seen in variables; nothing if it can.

    It can in a plain `for … in sram.loop(…)`. Whatever else asks for the next turn, such as `zip`,
    may hold more than that.
    """
    frame: FrameType | None = caller
    while frame is not None and frame.f_code is not end:
        if frame.f_code.co_flags & SUSPENDED:
            return "is in a generator"
        frame = frame.f_back
    if frame is None:
        return "runs outside of the count"
    plain = _source(file_of(caller.f_code)).loop(users_code(caller.f_code), caller.f_lasti)
    if plain == "reversed" and ("reversed" in caller.f_locals or "reversed" in caller.f_globals):
        plain = ""
    return "" if plain else "is no plain `for … in sram.loop(…):`"


class _Source:
    """A file's text, the code that it compiles to, and what its `for` statements loop over."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.lines = lines
        self._known: dict[tuple[CodeType, int], str] = {}
        self._loops: dict[tuple[int | None, ...], str] = {}
        self._codes: set[CodeType] = set()
        text = "".join(lines)
        try:
            tree = ast.parse(text)
            code = compile(text, file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):  # a notebook cell with magics, say
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.For):
                call = node.iter
                kind = "for"
                if _is_reversed(call):
                    call = call.args[0]  # type: ignore[attr-defined]
                    kind = "reversed"
                self._loops[call.lineno, call.end_lineno, call.col_offset, call.end_col_offset] = (
                    kind
                )
        waiting = [code]
        while waiting:
            code = waiting.pop()
            self._codes.add(code)
            waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]

    def loop(self, code: CodeType, instruction: int) -> str:
        """Return "for" if a call is what a `for` statement loops over, "reversed" if its reversed
        is, else nothing.

        Where other code than the text's runs, as after the file was edited, the text says nothing.
        """
        key = code, instruction
        if key not in self._known:
            line, end_line, column, end_column = [*code.co_positions()][instruction // 2]
            kind = self._loops.get((line, end_line, column, end_column), "")
            self._known[key] = kind if code in self._codes else ""
        return self._known[key]


_sources: dict[str, _Source] = {}


def _source(file: str) -> _Source:
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    known = _sources.get(file)
    if known is None or (known.lines is not lines and known.lines != lines):
        known = _sources[file] = _Source(file, lines)
    return known


def _is_reversed(call: ast.expr) -> bool:
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "reversed"
        and len(call.args) == 1
        and not call.keywords
    )
