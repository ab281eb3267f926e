"""Docstrings as reStructuredText: what they name in backquotes becomes a link, what they list a
list, what they indent code.

A docstring is plain text, to be read in an editor. Its paragraphs may be

    name    what it is: rows of a name, two spaces or more, and text, on which indented lines go on
    text    else; in it `flashsim.count` is a reference, which must lead somewhere, and `M` a
            literal

and what is indented after an empty line, or within a paragraph, is shown as it stands. Lines that
begin with 1., 2., … are steps, which go on in lines that are indented by three.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from sphinx.util import logging

NAME = r"`?[\w*]+(?:\([\w, ]*\))?`?"
ROW = re.compile(rf"(?P<names>{NAME}(?:, {NAME})*) {{2,}}(?P<text>[^\s#].*)")
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Names:
    """What a docstring may refer to: `known`, id -> name in the reference, seen from `module`;
    `taken` are its own arguments.
    """

    known: dict[int, str]
    module: ModuleType | None = None
    taken: frozenset[str] = frozenset()


def as_rst(text: str, names: Names) -> list[str]:
    """Return a docstring's text as lines of reStructuredText. Raises LookupError for a reference
    that leads nowhere.
    """
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        inner = textwrap.dedent(paragraph).split("\n")
        rows = all(ROW.fullmatch(line) or line.startswith(" ") for line in inner) and not inner[
            0
        ].startswith(" ")
        lines += [*_paragraph(inner if rows else paragraph.split("\n"), names), ""]
    return lines


def _paragraph(lines: list[str], names: Names) -> Iterator[str]:
    """Yield the lines of a paragraph: of runs of rows, of steps, of text, and of what is
    indented.
    """
    index = 0
    step = 1
    while index < len(lines):
        if lines[index].lstrip().startswith(">>>"):
            yield from (line.strip() for line in lines[index:])
            return
        first = ROW.fullmatch(lines[index])
        if first is not None:
            while index < len(lines) and (row := _row(lines[index], first.start("text"))):
                heads, words = row
                index += 1
                while index < len(lines) and lines[index].startswith(" "):
                    words += " " + lines[index].strip()
                    index += 1
                yield (
                    f"* {', '.join(f'**{_escaped(name)}**' for name in heads)} – "
                    f"{inline(words, names)}"
                )
            yield ""
        elif lines[index].startswith(f"{step}. "):
            end = next(
                (n for n in range(index + 1, len(lines)) if not lines[n].startswith("   ")),
                len(lines),
            )
            first_line, *more = _paragraph([line[3:] for line in lines[index:end]], names)
            yield from (
                "",
                f"{step}. {first_line}",
                *("   " + line if line else "" for line in more),
                "",
            )
            index = end
            step = step + 1
        elif lines[index].startswith(" "):
            end = next(
                (n for n in range(index, len(lines)) if not lines[n].startswith(" ")), len(lines)
            )
            yield from ("", "::", "", *("    " + line for line in lines[index:end]), "")
            index = end
        else:
            end = next(
                (n for n in range(index + 1, len(lines)) if _other(lines[n], step)), len(lines)
            )
            words = " ".join(lines[index:end])
            yield inline(words.removesuffix("::") + ":" * words.endswith("::"), names)
            index = end


def _row(line: str, column: int) -> tuple[list[str], str] | None:
    """Return the names and the text of a row, whose text begins where the first one's does, or
    after two spaces.
    """
    result = ROW.fullmatch(line)
    if result is not None:
        return [name.strip("`") for name in re.findall(NAME, result["names"])], result["text"]
    if len(line) > column and line[column - 1] == " " and re.fullmatch(r"\w+", line[: column - 1]):
        return [line[: column - 1]], line[column:]
    return None


def _other(line: str, step: int) -> bool:
    return line.startswith((" ", f"{step}. ")) or ROW.fullmatch(line) is not None


def inline(text: str, names: Names) -> str:
    """Return words with their backquotes turned into references and literals, and the rest
    escaped.
    """
    parts = re.split(r"`([^`]+)`", text)
    message = [
        _escaped(part) if n % 2 == 0 else _quoted(part, names) for n, part in enumerate(parts)
    ]
    return re.sub(r"(^|(?<=\. ))Raises\b", "**Raises**", "".join(message))


def _escaped(text: str) -> str:
    return re.sub(r"([\\*|_`])", r"\\\1", text)


def _quoted(code: str, names: Names) -> str:
    """Return a reference, where `code` names what the reference has, and else a literal."""
    if re.fullmatch(r"[A-Za-z_][\w.]*", code) and code not in names.taken:
        target = _target(code, names)
        if target is not None:
            return f":py:obj:`{code} <{target}>`"
    return f"\\ ``{code}``\\ "


def _target(code: str, names: Names) -> str | None:
    """Return the name that the reference has an object by; None if it has not. Raises
    LookupError for flashsim.… of nothing.
    """
    result = _found(code, names.module)
    if result is None:
        if code.startswith("flashsim."):
            raise LookupError(f"`{code}` names nothing")
        return None
    thing, owner = result
    if id(thing) in names.known:
        return names.known[id(thing)]
    if (
        isinstance(owner, type)
        and id(owner) in names.known
        and (callable(thing) or isinstance(thing, property))
    ):
        return f"{names.known[id(owner)]}.{code.rpartition('.')[2]}"
    return None


def _found(code: str, module: ModuleType | None) -> tuple[Any, Any] | None:
    """Return the object of a dotted name and its owner, as seen from a module, or, if it is no
    plain word, from `flashsim`.
    """
    flashsim = import_module("flashsim")
    first, *rest = code.split(".")
    if first == "flashsim":
        thing: Any = flashsim
    else:
        thing = getattr(
            module, first, getattr(flashsim, first, None) if rest or not first.islower() else None
        )
    if thing is None or (
        isinstance(thing, ModuleType) and not thing.__name__.startswith("flashsim")
    ):
        return None
    owner: Any = None
    for name in rest:
        owner = thing
        if not hasattr(owner, name) and isinstance(owner, ModuleType):
            try:
                import_module(f"{owner.__name__}.{name}")
            except ModuleNotFoundError:
                return None
        thing = getattr(owner, name, None)
        if thing is None:  # a field, as it is annotated
            return (name, owner) if name in getattr(owner, "__annotations__", {}) else None
    return thing, owner


def public(module: ModuleType) -> list[str]:
    """Return a module's public names: `__all__`, or what it defines."""
    named = getattr(module, "__all__", None)
    if named is None:
        named = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        ]
    return [name for name in named if not name.startswith("_")]


# --------------------------------------------------------------------------------------------------
# Sphinx


def documented(app: Any) -> dict[int, str]:
    """Return id -> name of all that docs/reference documents, read from its directives."""
    known: dict[int, str] = {}
    folder = app.srcdir / "docs" / "reference"
    for page in sorted(folder.glob("*.rst")):
        directives = re.findall(
            r"^\.\. auto(\w+):: ([\w.]+)\n((?:   .*\n)*)", page.read_text("utf-8"), re.MULTILINE
        )
        for kind, name, options in directives:
            if kind == "module":
                module = import_module(name)
                known[id(module)] = name
                if ":members:" in options:
                    named = {one: getattr(module, one) for one in public(module)}
                    known.update(
                        {
                            id(thing): f"{name}.{one}"
                            for one, thing in named.items()
                            if callable(thing)
                        }
                    )
            else:
                owner, _, last = name.rpartition(".")
                known[id(getattr(import_module(owner), last))] = name
    return known


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put reStructuredText in the place of a docstring; warn, and so fail, where it refers to
    nothing.
    """
    if not hasattr(app, "documented"):
        app.documented = documented(app)
    parameters = set(inspect.signature(obj).parameters) if inspect.isfunction(obj) else set()
    source = (
        obj.fget if isinstance(obj, property) else inspect.unwrap(obj) if callable(obj) else obj
    )
    module = (
        obj
        if isinstance(obj, ModuleType)
        else sys.modules.get(getattr(source, "__module__", "") or "")
    )
    try:
        lines[:] = as_rst("\n".join(lines), Names(app.documented, module, frozenset(parameters)))
    except LookupError as error:
        lines[:] = []
        LOG.warning("docstring of %s: %s", name, error.args[0], type="docstring")


SHORTER = {
    r"TypeAliasForwardRef\('(\w+)'\)": r"\1",
    r"~?[\w.]*\bndarray\[tuple\[[\w~.]*Any, \.\.\.\], [\w~.]*dtype\[[\w~.]*Any\]\]": "~numpy.ndarray",  # noqa: E501
    r"~?[\w.]*\bndarray\[tuple\[[\w~.]*Any, \.\.\.\], [\w~.]*dtype\[[~.]*([\w.]+)\]\]": r"NDArray[~\1]",  # noqa: E501
    r"<class '(?:\w+\.)*(\w+)'>": r"\1",
}


def shorter(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Write types as the source does: an array of anything is an ndarray."""
    for long, short in SHORTER.items():
        signature, returned = (
            re.sub(long, short, text) if text else text for text in (signature, returned)
        )
    return signature, returned


def skipped(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out a named tuple's fields, which have no docstrings of their own."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def complete(app: Any, env: Any) -> None:
    """Warn of public names of `flashsim` that the reference leaves out."""
    if "docs/reference/index" not in env.found_docs:
        return
    flashsim = import_module("flashsim")
    there = env.domains["py"].objects
    for name in flashsim.__all__:
        thing = getattr(flashsim, name)
        where = (
            thing.__name__
            if isinstance(thing, ModuleType)
            else f"{getattr(thing, '__module__', '')}.{name}"
        )
        if f"flashsim.{name}" not in there and where not in there:
            LOG.warning("docs/reference lacks flashsim.%s", name, type="docstring")


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", shorter)
    app.connect("autodoc-skip-member", skipped)
    app.connect("env-check-consistency", complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
