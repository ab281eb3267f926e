"""Planted bugs: the record of an algorithm with a change to its text, beside the original, which
stays as it is.

    wrong = planted(FORWARD["flash"], ("exp(m_i - finite(m_i_new)) * O_i", "O_i"))
    flashsim.forward(wrong, Q, K, V)

The text to change must be there exactly once: a bug whose place is gone is an error, not a test
that passes.
"""

import __future__

import ast
import inspect
import linecache
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import FunctionType
from typing import Any, TypeVar
from zlib import crc32

from flashsim.algorithms.record import Program

Change = tuple[str, str]
"""(before, after)."""
AnyProgram = TypeVar("AnyProgram", bound=Program)


def planted(
    algorithm: AnyProgram,
    *changes: Change,
    within: Callable[..., Any] | None = None,
    what: str = "",
    name: str = "",
) -> AnyProgram:
    """Return the algorithm with changes to the text of its function, or of a function `within` that
    this one calls.

    what  what is wrong, for the title
    name  of the bug, for the name of the file that the changed text is shown as

    Raises ValueError for a text that is not there exactly once, and for a function whose text is
    not known.
    """
    run = inspect.unwrap(algorithm.run)
    part = run if within is None else inspect.unwrap(within)
    wrong = _calling(run, part, mutated(part, *changes, name=name), ())
    if wrong is run:
        raise ValueError(f"{algorithm.name!r} does not call {part.__name__}")
    return replace(
        algorithm, run=wrong, title=f"{algorithm.title}: {what}" if what else algorithm.title
    )


def mutated(function: Callable[..., Any], *changes: Change, name: str = "") -> FunctionType:
    """Return a function with changes to its text, in a file shown as "x with NAME.py". Raises
    ValueError as `planted` does.
    """
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise ValueError(
            f"there is no source of {getattr(function, '__name__', function)} to change"
        ) from None
    assert isinstance(function, FunctionType)
    original = Path(function.__code__.co_filename)
    text = changed("".join(lines), changes, f"{function.__name__}, {original.name}")
    file = str(
        original.with_name(
            f"{original.stem} with {name or f'{crc32(repr(changes).encode()):08x}'}.py"
        )
    )
    around = linecache.getlines(str(original))
    whole = [
        *around[: first - 1],
        *text.splitlines(keepends=True),
        *around[first - 1 + len(lines) :],
    ]
    linecache.cache[file] = (sum(map(len, whole)), None, whole, file)
    return recompiled(function, "\n" * (first - 1) + dedent(text), file)


def recompiled(function: FunctionType, code: str | ast.Module, file: str) -> FunctionType:
    """Return the function that `code` defines under the same name, in a copy of the original's
    namespace.
    """
    copy = execute(code, file, dict(function.__globals__))[function.__name__]
    assert isinstance(copy, FunctionType)
    return copy


def execute(code: str | ast.Module, file: str, scope: dict[str, Any]) -> dict[str, Any]:
    """Run the text or tree of a file in `scope`, and return that."""
    exec(
        compile(code, file, "exec", __future__.annotations.compiler_flag, dont_inherit=True), scope
    )
    return scope


def changed(text: str, changes: Iterable[Change], where: str) -> str:
    """Return the text with each change made, in turn. How lines are wrapped makes no difference.
    Raises ValueError for what does not occur exactly once.
    """
    for before, after in changes:
        places = list(pattern_of(before).finditer(text))
        if len(places) != 1:
            raise ValueError(f"{before!r} occurs {len(places)} times in {where}; expected once")
        start, end = places[0].span()
        text = text[:start] + after + text[end:]
    return text


def pattern_of(code: str) -> re.Pattern[str]:
    """Return a pattern of the code, whatever white space and comments are between its tokens, and
    with or without the comma that a formatter puts before a closing bracket.

    White space before the first token and after the last is as it stands.
    """
    tokens = [
        (r"(?:,\s*)?" if token in ")]}" else "") + re.escape(token)
        for token in re.findall(r"\w+|\S", code)
    ]
    before = code[: len(code) - len(code.lstrip())]
    after = code[len(code.rstrip()) :]
    return re.compile(before + r"(?:\s|#.*\n)*".join(tokens) + after)


def _calling(
    function: FunctionType,
    part: FunctionType,
    mutant: FunctionType,
    within: tuple[FunctionType, ...],
) -> Any:
    """Return a copy of the function that calls `mutant` in place of `part`, itself or through
    others; or it, if it never does.
    """
    if function is part:
        return mutant
    called = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    others = {
        name: other
        for name, value in called.items()
        if isinstance(value, FunctionType)
        and value not in within
        and (other := _calling(value, part, mutant, (*within, function))) is not value
    }
    if not others:
        return function
    rest = function.__name__, function.__defaults__, function.__closure__
    copy = FunctionType(function.__code__, function.__globals__ | others, *rest)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
