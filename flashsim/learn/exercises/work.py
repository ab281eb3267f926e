"""A student's file: run, its holes found, its functions called so that an error is said at the
student's own line.
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
"""By the kind of error, and what its text holds."""


class Wrong(Exception):
    """A student's work is not right yet: `seen`, what shows it, and `hint`, what may be behind
    it.
    """

    def __init__(self, seen: str, hint: str = "") -> None:
        super().__init__(seen)
        self.seen = seen
        self.hint = hint


def read(path: Path) -> str:
    """Return a file's text. Raises Wrong for one that is not text in UTF-8, and names the line."""
    held = path.read_bytes()
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = held.count(b"\n", 0, error.start) + 1
        raise Wrong(f"{_at(line)}the file is not text in UTF-8.", "Save it as UTF-8.") from None


def hint_on_return(path: Path) -> str:
    """Return a hint on the first `return` in the text that ends a loop in its first turn; ""
    where there is none.
    """
    open_blocks: list[tuple[int, str]] = []
    for number, line in enumerate(
        path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1
    ):
        first = re.match(r"(\s*)(\w+)", line)
        if first is None:
            continue
        indent = len(first[1])
        word = first[2]
        open_blocks = [block for block in open_blocks if block[0] < indent]
        if word == "return" and open_blocks and open_blocks[-1][1] == "for":
            return (
                f"Line {number} returns within the loop, so only its first turn is run. Return "
                "after the loop, or not at all."
            )
        if word in ("for", "while", "if", "elif", "else", "def", "with", "try", "except", "class"):
            open_blocks.append((indent, word))
    return ""


class Work:
    """What a student's file defines. Raises Wrong where it does not run, or has holes left, or
    imports other `modules`.
    """

    def __init__(self, path: Path, modules: Collection[str] | None = None) -> None:
        self.path, self.file = path, str(path.resolve())
        text = read(path)
        reread(self.file)
        try:
            tree = ast.parse(text, self.file)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            why = str(getattr(error, "msg", error)) or "it is nested too deeply"
            raise Wrong(f"{_at(line)}Python cannot read this: {why}{self._text(line)}") from None
        if holes := _holes(tree):
            left = (
                f"{len(holes)} holes are left, at lines"
                if len(holes) > 1
                else "One hole is left, at line"
            )
            raise Wrong(f"{left} {', '.join(map(str, holes))}. Put your code where it says ...")
        if modules is not None:
            _check_imports(tree, modules)
        self._names: dict[str, Any] = {"__name__": "exercise", "__file__": self.file}
        self._calling(lambda: exec(compile(tree, self.file, "exec"), self._names), {})

    def function(self, name: str) -> Callable[..., Any]:
        """Return the student's function of that name. Its errors become Wrong; `when` has hints
        by text of an error.
        """
        found = self._names.get(name)
        if not callable(found):
            raise Wrong(
                f"The file defines no function {name}.", "Keep the function's name as it was."
            )

        def call(*args: Any, when: Mapping[str, str] | None = None) -> Any:
            return self._calling(lambda: found(*args), when or {})

        return call

    def _calling(self, work: Callable[[], Any], when: Mapping[str, str]) -> Any:
        try:
            with np.errstate(all="ignore"):
                return work()
        except KeyboardInterrupt as stop:
            if line := self._line(stop):
                stop.add_note(at_line(str(self.path), line))
            raise
        except BaseException as error:  # sys.exit's, too
            line = self._line(error)
            said = f"{_at(line)}{type(error).__name__}: {error}{self._text(line)}"
            hints = [hint for text, hint in when.items() if text in str(error)]
            hints += [
                hint for kind, text, hint in HINTS if isinstance(error, kind) and text in str(error)
            ]
            raise Wrong(said, hints[0] if hints else "") from None

    def _line(self, error: BaseException) -> int | None:
        lines = [
            line
            for frame, line in walk_tb(error.__traceback__)
            if frame.f_code.co_filename == self.file
        ]
        return lines[-1] if lines else None

    def _text(self, line: int | None) -> str:
        text = linecache.getline(self.file, line).strip() if line else ""
        return f"\n\n    {text}" if text else ""


def _holes(tree: ast.AST) -> list[int]:
    """Return the lines with a hole, `...`, but for those within brackets, as in m[..., None]."""
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        for part in ast.walk(node.slice)
    }
    dots = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value is ...)
    return sorted({node.lineno for node in dots if id(node) not in inside})


def _check_imports(tree: ast.AST, modules: Collection[str]) -> None:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if not any(name == known or name.startswith(f"{known}.") for known in modules):
                few = f"Only these are imported here: {', '.join(sorted(set(modules)))}."
                raise Wrong(
                    f"{_at(getattr(node, 'lineno', None))}{name} is not for this exercise.", few
                )


def _at(line: int | None) -> str:
    return f"Line {line}: " if line else ""
