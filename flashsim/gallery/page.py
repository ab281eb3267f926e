"""What a lesson's file holds: how its trace is made, and what there is to say of it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from textwrap import dedent

from flashsim.tracing import Lesson, Moment, Stop, Trace

Said = Iterator[str | Moment | Stop]
"""What there is to say of traces: a text, moments and stops."""


@dataclass(frozen=True)
class Page:
    """A lesson to be.

    title    its title
    order    where it stands among the others, which are read in order of these numbers
    about    what it is about, in a line
    record   makes its traces: one, or two that are shown side by side
    teach    yields what there is to say of the traces
    command  the command that makes the same; without one, the page shows the Python of `record`
    """

    title: str
    order: int
    about: str
    record: Callable[[], tuple[Trace, ...]]
    teach: Callable[..., Said]
    command: str = ""

    @property
    def made_by(self) -> str:
        """The command, or the lines of Python that make `trace`."""
        return self.command or body_of(self.record)

    def traces(self) -> tuple[Trace, ...]:
        """Return the traces, with the command in them."""
        return tuple(replace(t, about=replace(t.about, command=self.command)) for t in self.record())

    def lesson(self, *traces: Trace) -> Lesson:
        """Return what there is to say of the traces, in order of the steps."""
        said = list(self.teach(*traces))
        (text,) = (part for part in said if isinstance(part, str))
        moments = sorted((part for part in said if isinstance(part, Moment)), key=lambda moment: moment.step)
        stops = sorted((part for part in said if isinstance(part, Stop)), key=lambda stop: stop.step)
        return Lesson(self.title, text, tuple(moments), tuple(stops))


def body_of(function: Callable[..., object]) -> str:
    """Return a function's lines, but for its head, its docstring and its last statement, which returns."""
    source = dedent(inspect.getsource(function))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.FunctionDef)
    first, last = tree.body[1 if ast.get_docstring(tree) else 0], tree.body[-1]
    return dedent("\n".join(source.splitlines()[first.lineno - 1 : last.lineno - 1])).strip()
