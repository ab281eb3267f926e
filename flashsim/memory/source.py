"""Names for tiles and loops, read from the source line that made them.

The memory wants to say "S_ij does not fit", yet `S_ij = on_chip(Q_i @ K_j.T)` never tells it the
name. The name stands in the source, so it is looked up there, and only when somebody asks.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

Site = tuple[str, int]
"""(file name, line number) of a call."""

LABEL = re.compile(r"#\s*(line \d+|equation \d+|summarise|combine|recompute|differentiate)")

# spelt as in the frames of its functions
PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


_TRIALS: dict[str, str] = {}
"""The file names that trials run under -> the files that they are copies of."""


def name_of_trial(file: str) -> str:
    """Return the file name that a copy of a file's code runs under (`flashsim.simulate.shadow`);
    tracebacks find its lines.
    """
    if file in _TRIALS:
        return file
    name = f"<trial of {file}>"
    if name not in _TRIALS:
        _TRIALS[name] = file
    lines = linecache.getlines(file)
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return name


def file_of(code: CodeType) -> str:
    """Return the file that a code is of: of a trial's, the user's own."""
    return _TRIALS.get(code.co_filename, code.co_filename)


def code_of_trial(code: CodeType) -> CodeType:
    """Return the code that a trial runs in place of a user's: under another file name, and unequal
    to the user's.

    Codes are equal whatever their files. Without one more constant, a debugger that remembers codes
    would take one for the other.
    """
    constants = tuple(
        code_of_trial(each) if isinstance(each, CodeType) else each for each in code.co_consts
    )
    name = name_of_trial(code.co_filename)
    return code.replace(co_filename=name, co_consts=(*constants, name))


@cache
def users_code(code: CodeType) -> CodeType:
    """Return the user's code that a trial's code was made of; any other code itself."""
    if code.co_filename not in _TRIALS:
        return code
    constants = tuple(
        users_code(each) if isinstance(each, CodeType) else each for each in code.co_consts[:-1]
    )
    return code.replace(co_filename=_TRIALS[code.co_filename], co_consts=constants)


def site_of(frame: FrameType) -> Site:
    """Return where `frame` stands."""
    return file_of(frame.f_code), frame.f_lineno


def is_users(frame: FrameType | None) -> bool:
    """Return whether a frame is of the user's code, not of flashsim's."""
    return frame is not None and not file_of(frame.f_code).startswith(PACKAGE)


@cache
def _targets(filename: str) -> dict[int, str]:
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:  # a notebook cell with magics, say
        return {}
    names: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = (
                node.targets[0].value
                if isinstance(node.targets[0], ast.Subscript)
                else node.targets[0]
            )
            several = target.elts if isinstance(target, ast.Tuple) else [target]
            found = [one.id for one in several if isinstance(one, ast.Name)]
            # Y_i = …; m_i, l_i = …; or Y_i[k] = …, one of a list of tiles
            if len(found) == len(several):
                names |= dict.fromkeys(
                    range(node.lineno, (node.end_lineno or node.lineno) + 1), ", ".join(found)
                )
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            names.setdefault(node.lineno, node.target.id)
    return names


def at_line(file: str, line: int) -> str:
    """Return a note for an error that occurred there."""
    linecache.checkcache(file)
    return f"at line {line} of {file}: {linecache.getline(file, line).strip()}"


def is_of_package(function: Callable[..., Any]) -> bool:
    """Return whether a function is flashsim's, not a user's."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(PACKAGE)


def note_line(error: BaseException, function: Callable[..., Any]) -> None:
    """Note at which line of its file a user's function went wrong, or was interrupted: its
    first, if it could not be called.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or file_of(code).startswith(PACKAGE):
        return
    lines = [
        line
        for frame, line in walk_tb(error.__traceback__)
        if file_of(frame.f_code) == file_of(code)
    ]
    error.add_note(at_line(file_of(code), [code.co_firstlineno, *lines][-1]))


def reread(file: str) -> None:
    """Forget what is known of a file, which has been edited."""
    linecache.checkcache(file)
    _targets.cache_clear()
    _labels.cache_clear()


def target_at(site: Site, default: str) -> str:
    """Return the name assigned (or looped over) at `site`, or `default` where the source has
    none.
    """
    filename, line = site
    return _targets(filename).get(line, default)


def label_at(site: Site) -> str | None:
    """Return what labels the source line in the paper's terms ("line 9", "equation 4",
    "combine"), or None.

    A label on any line of a statement is every line's that has none itself: calls are recorded at
    their own lines, and a formatter may move a comment to the statement's last.
    """
    file, line = site
    return _labels(file).get(line)


def label_or_number_at(site: Site) -> str | None:
    """Return the line's label, or None; in a file of the user's that has no labels, each line's
    own number is its label.
    """
    file, line = site
    return label_at(site) or (f"line {line}" if _unlabelled(file) else None)


@cache
def _labels(file: str) -> dict[int, str]:
    """Return the label of each line of a file that has one, or is of a statement that has one."""
    lines = linecache.getlines(file)
    labels = {
        number: match[1] for number, line in enumerate(lines, 1) if (match := LABEL.search(line))
    }
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:  # a notebook cell with magics, say
        return labels
    of_statements: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            numbers = _lines_of_statement(node)
            label = next((labels[number] for number in numbers if number in labels), None)
            if label is not None:
                of_statements |= dict.fromkeys(numbers, label)
    return of_statements | labels


def _lines_of_statement(node: ast.stmt) -> range:
    """Return the numbers of its lines; of a loop or a condition, those before its body."""
    last = node.end_lineno or node.lineno
    if hasattr(node, "body") or isinstance(node, ast.Match):
        header = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        last = max([node.lineno, *(part.end_lineno or 0 for part in header)])
    return range(node.lineno, last + 1)


def _unlabelled(file: str) -> bool:
    return not file.startswith(PACKAGE) and not _labels(file)


def line_of(site: Site, frame: FrameType | None) -> tuple[Site, str]:
    """Return which line of the algorithm `site` belongs to, and what it is called.

    That is its label; or, for what MASK or dropout did, the label of the algorithm's line that
    called them. Where there is none, as in a user's own function, the algorithm's line is called
    "line 12 of mine.py". `frame` is one that `site`'s frame has called, where all that is around it
    can be seen.
    """
    if (label := label_at(site)) is not None:
        return site, label
    places = [site] if _of_an_algorithm(site[0]) else []
    inside = False
    while frame is not None:
        at = site_of(frame)
        if _of_an_algorithm(at[0]):
            if (label := label_at(at)) is not None:
                return at, label
            places.append(at)
            inside = True
        elif inside:  # what launched the algorithm
            break
        frame = frame.f_back
    users_places = [place for place in places if not place[0].startswith(PACKAGE)]
    file, line = [*users_places, *places, site][0]
    return (file, line), f"line {line} of {Path(file).name}"


def _of_an_algorithm(file: str) -> bool:
    """Say whether a file holds an algorithm: a user's, or one of the package's with labelled
    lines.
    """
    return not file.startswith(PACKAGE) or bool(_labels(file))
