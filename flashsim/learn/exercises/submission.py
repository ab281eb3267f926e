"""`Submission`: a student's file. It runs the file, looks for holes, and calls the student's
functions; the message of an error names the student's own line.
"""

import ast
import linecache
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np

from flashsim.memory.errors import NotOnChip, SramOverflow
from flashsim.memory.source import at_line, reread

HINTS: tuple[tuple[type[Exception], str, str], ...] = (
    (
        NotOnChip,
        "is in HBM. To compute",
        "A block in HBM is only a handle. Load it first, and compute with the tile that you get.",
    ),
    (NotOnChip, "write to it with", "A block in HBM is written by sram.store(block, tile)."),
    (
        NotOnChip,
        "is not on chip",
        (
            "Register a result with on_chip(…) before you store it, and use it in the turn that "
            "made it."
        ),
    ),
    (
        TypeError,
        "sram.load takes blocks",
        "Load a block, as X[i], not the whole matrix and not a tile.",
    ),
    (TypeError, "sram.store writes to a block", "The block comes first: sram.store(O[i], O_i)."),
    (
        SramOverflow,
        "",
        (
            "More is on chip at once than SRAM holds. What does not have to be? (sram.loop evicts; "
            "range does not.)"
        ),
    ),
    (
        ValueError,
        "operands could not be broadcast",
        "The shapes do not meet. A tile of scores is (queries, keys), products are @, and m and l "
        "are columns, (queries, 1), as "
        "rowmax and rowsum return them.",
    ),
    (
        ValueError,
        "truth value of an array",
        "For arrays, the larger of two is maximum(a, b), element by element.",
    ),
    (
        NameError,
        "",
        "A name is used that has no value at that point. Is it spelt as it is where it is set?",
    ),
)
"""(kind of error, a part of its text, the hint)."""


class Mistake(Exception):
    """A student's file is not right yet. `message` says what is wrong, and `hint` what may be the
    reason.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def read(path: Path) -> str:
    """Return a file's text. Raises Mistake with the line if it is not text in UTF-8."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"{_line_prefix(line)}the file is not text in UTF-8."
        raise Mistake(message, "Save it as UTF-8.") from None


BLOCK_WORDS = ("for", "while", "if", "elif", "else", "def", "with", "try", "except", "class")


def hint_on_return(path: Path) -> str:
    """Return a hint on the first `return` that ends a loop in its first turn; "" if there is
    none.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    open_blocks: list[tuple[int, str]] = []  # indent and word of each
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"(\s*)(\w+)", line)
        if match is None:
            continue
        indent = len(match[1])
        word = match[2]
        open_blocks = [block for block in open_blocks if block[0] < indent]
        if word == "return" and open_blocks and open_blocks[-1][1] == "for":
            return (
                f"Line {number} returns within the loop, so only its first turn is run. Return "
                "after the loop, or not at all."
            )
        if word in BLOCK_WORDS:
            open_blocks.append((indent, word))
    return ""


class Submission:
    """A student's file. Raises Mistake if it does not run, if it still has holes, or if it imports
    other modules than `modules`.
    """

    def __init__(self, path: Path, modules: Collection[str] | None = None) -> None:
        self.path = path
        self.file = str(path.resolve())
        text = read(path)
        reread(self.file)
        try:
            tree = ast.parse(text, self.file)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            reason = str(getattr(error, "msg", error)) or "it is nested too deeply"
            raise Mistake(
                f"{_line_prefix(line)}Python cannot read this: {reason}{self._text(line)}"
            ) from None
        _check_holes(tree)
        if modules is not None:
            _check_imports(tree, modules)
        self._names: dict[str, Any] = {"__name__": "exercise", "__file__": self.file}
        code = compile(tree, self.file, "exec")
        self._call(lambda: exec(code, self._names), {})

    def function(self, name: str) -> Callable[..., Any]:
        """Return the student's function of that name.

        Its errors become Mistake. The keyword `when` of a call has hints, each by a part of an
        error's text.
        """
        function = self._names.get(name)
        if not callable(function):
            raise Mistake(
                f"The file defines no function {name}.", "Keep the function's name as it was."
            )

        def call(*args: Any, when: Mapping[str, str] | None = None) -> Any:
            return self._call(lambda: function(*args), when or {})

        return call

    def _call(self, run: Callable[[], Any], when: Mapping[str, str]) -> Any:
        try:
            with np.errstate(all="ignore"):
                return run()
        except KeyboardInterrupt as stop:
            if line := self._line(stop):
                stop.add_note(at_line(str(self.path), line))
            raise
        except BaseException as error:  # SystemExit, too
            line = self._line(error)
            message = f"{type(error).__name__}: {error}"
            hint = _hint_on(error, when)
            raise Mistake(f"{_line_prefix(line)}{message}{self._text(line)}", hint) from None

    def _line(self, error: BaseException) -> int | None:
        """Return the last line of the file that an error passed through."""
        last = None
        for frame, line in walk_tb(error.__traceback__):
            if frame.f_code.co_filename == self.file:
                last = line
        return last

    def _text(self, line: int | None) -> str:
        """Return a line's text, as a paragraph."""
        text = linecache.getline(self.file, line).strip() if line else ""
        return f"\n\n    {text}" if text else ""


def _hint_on(error: BaseException, when: Mapping[str, str]) -> str:
    """Return the first hint that fits an error, or ""."""
    for text, hint in when.items():
        if text in str(error):
            return hint
    for kind, text, hint in HINTS:
        if isinstance(error, kind) and text in str(error):
            return hint
    return ""


def _check_holes(tree: ast.AST) -> None:
    lines = _holes(tree)
    if not lines:
        return
    count = "One hole is left, at line"
    if len(lines) > 1:
        count = f"{len(lines)} holes are left, at lines"
    raise Mistake(f"{count} {', '.join(map(str, lines))}. Put your code where it says ...")


def _holes(tree: ast.AST) -> list[int]:
    """Return the lines with a hole, `...`, except those within brackets, as in m[..., None]."""
    within_brackets = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            within_brackets |= {id(part) for part in ast.walk(node.slice)}
    lines = set()
    for node in ast.walk(tree):
        if id(node) in within_brackets:
            continue
        if isinstance(node, ast.Constant) and node.value is ...:
            lines.add(node.lineno)
    return sorted(lines)


def _check_imports(tree: ast.AST, modules: Collection[str]) -> None:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        for name in names:
            if not any(name == known or name.startswith(f"{known}.") for known in modules):
                prefix = _line_prefix(getattr(node, "lineno", None))
                raise Mistake(
                    f"{prefix}{name} is not for this exercise.",
                    f"Only these are imported here: {', '.join(sorted(set(modules)))}.",
                )


def _line_prefix(line: int | None) -> str:
    return f"Line {line}: " if line else ""
