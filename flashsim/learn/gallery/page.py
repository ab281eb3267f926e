"""`Page`: a lesson. It makes the traces, has a text about them, and makes the page.

To add a lesson:

1. `flashsim/learn/gallery/lessons/x.py` with TITLE and ORDER, its place among the others. RUN has
   the options of `flashsim step` that make its traces; or `record` returns the traces, and the page
   shows its lines of Python. `teach` returns the text, with moments and questions marked as
   `parts_of` reads them; it looks up all the numbers in its text. The index shows the docstring.
2. The text has at least 80 words, at least three moments, each at another step, and at least one
   question, which has at least two choices and is not at the first step. A run has at most 2,000
   steps.
3. `holds` in `tests/learn/test_gallery.py` tests the events of its moments, which are words. Add a
   new kind of event there and in `trace_queries.py`, with which lessons find their steps.
4. `flashsim lessons x --open`, to look at the page, and `pytest tests/learn/test_gallery.py`. Of
   the other pages only `index.html` changes, because only the index knows the order.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from textwrap import dedent
from typing import Any

from flashsim import tracing
from flashsim.learn.gallery.trace_queries import number_at
from flashsim.tracing import Lesson, Moment, Step, Stop, Trace
from flashsim.tracing.bugs import with_bug
from flashsim.tracing.sample import gradient, operands


@dataclass(frozen=True)
class Page:
    """A lesson, from its file.

    title    its title
    order    a number; lessons are read in the order of their numbers
    about    its subject, in a line
    run      the options of `flashsim step` that make the same traces; none if Python makes them
    record   makes its trace, or two that are shown side by side
    teach    returns the text about the traces, with marks (`parts_of`)
    alone    whether its page leads to no other lesson
    """

    name: str
    title: str
    order: int
    about: str
    run: Mapping[str, Any]
    record: Callable[[], Trace | tuple[Trace, ...]]
    teach: Callable[..., str]
    alone: bool = False

    @property
    def command(self) -> str:
        """The command that makes the same traces; "" if there is none."""
        if not self.run:
            return ""
        options = [_option(name, value) for name, value in self.run.items()]
        return " ".join(["flashsim step", *options])

    @property
    def made_by(self) -> str:
        """The command, or the lines of Python, that make the page without its text."""
        if self.command:
            return f"{self.command} -o {self.name}.html"
        versus = ", versus=versus" if len(self.traces) > 1 else ""
        return f'{body_of(self.record)}\ntrace.save("{self.name}.html"{versus})'

    @cached_property
    def traces(self) -> tuple[Trace, ...]:
        """The traces, with the command in them."""
        recorded = self.record()
        traces = (recorded,) if isinstance(recorded, Trace) else recorded
        with_command = []
        for trace in traces:
            about = replace(trace.about, command=self.command)
            with_command.append(replace(trace, about=about))
        return tuple(with_command)

    @cached_property
    def lesson(self) -> Lesson:
        """The text about the traces, in the order of the steps."""
        text, moments, stops = parts_of(self.teach(*self.traces), self.traces[0])
        return Lesson(self.title, text, moments, stops, "" if self.alone else self.name)

    @cached_property
    def html(self) -> str:
        """The page."""
        trace, *others = self.traces
        return trace.html(versus=others[0] if others else None, lesson=self.lesson)

    @property
    def picture(self) -> str:
        """A small picture of the moment in the middle."""
        moments = self.lesson.moments
        middle = moments[len(moments) // 2]
        trace = self.traces[0]
        return thumbnail(trace, trace.steps[middle.step])

    @property
    def size(self) -> str:
        """The page's size, in words."""
        return f"{len(self.html.encode('utf-8')) / 1000:,.0f} kB"


SIDE = 76  # of a small picture, in pixels
FILLS = {
    "current": "var(--mark)",
    "done": "var(--done)",
    "ahead": "var(--panel)",
    "skipped": "var(--ground)",
}


def thumbnail(trace: Trace, step: Step) -> str:
    """Return the tiles of the score matrix at a step as SVG: done, current, ahead, or, smaller,
    never visited.
    """
    blocks = trace.about.blocks
    last_steps = {other.tile: other.number for other in trace.steps}
    width = SIDE / blocks.T_c
    height = SIDE / max(blocks.T_r, blocks.T_c / 4)
    tiles = []
    for tile in product(range(blocks.T_r), range(blocks.T_c)):
        if tile not in last_steps:
            state = "skipped"
        elif tile == step.tile:
            state = "current"
        else:
            state = "done" if last_steps[tile] < step.number else "ahead"
        edge = min(width, height) / 3 if state == "skipped" else 1
        stroke = "current" if state == "current" else "faint"
        i, j = tile
        tiles.append(
            f'<rect x="{j * width + edge / 2:.4g}" y="{i * height + edge / 2:.4g}" '
            f'width="{width - edge:.4g}" height="{height - edge:.4g}" fill="{FILLS[state]}" '
            f'stroke="var(--{stroke})"/>'
        )
    total = blocks.T_r * height
    size = f'width="{SIDE + 2}" height="{total + 2:g}" viewBox="-1 -1 {SIDE + 2} {total + 2:g}"'
    return f'<svg {size} aria-hidden="true">{"".join(tiles)}</svg>'


MARK = re.compile(r"(?m)^ *\[(.+?)\]\s")


def parts_of(text: str, trace: Trace) -> tuple[str, tuple[Moment, ...], tuple[Stop, ...]]:
    """Return a text's paragraphs, moments and stops, each in the order of the steps. A mark begins
    a line:

    [read K] …                   a moment, at the first step that is this event
    [read K, j = 1] …            … in this turn of a loop
    [tiles skipped @ line 18] …  … of another name, at that step, or at a number's
    [asks @ read K] …            a question, followed by [choices] a | b, [right] a, and [because] …
    """
    # marks and what follows them, in turn
    prose, *pieces = MARK.split(text)
    moments = []
    stops = []
    question: dict[str, Any] = {}
    for mark, piece in zip(pieces[::2], pieces[1::2], strict=True):
        event, _, place = mark.partition(" @ ")
        words = " ".join(piece.split())
        if event == "asks":
            question = {"step": number_at(trace, place), "asks": words}
        elif event in ("choices", "right"):
            question[event] = words
        elif event == "because":
            choices = tuple(question["choices"].split(" | "))
            stops.append(
                Stop(question["step"], question["asks"], choices, question["right"], words)
            )
        else:
            name, _, _ = event.partition(", ")
            moments.append(Moment(number_at(trace, place or event), name, words))
    moments.sort(key=lambda moment: moment.step)
    stops.sort(key=lambda stop: stop.step)
    return prose, tuple(moments), tuple(stops)


def traces_of(
    *,
    algorithm: str,
    N: int,
    d: int,
    N_k: int | None = None,
    backward: bool = False,
    bug: str = "",
    **options: Any,
) -> tuple[Trace, ...]:
    """Return the trace of random operands that `flashsim step` makes with these options, and that
    with a bug.
    """
    if backward:
        options["dO"] = gradient(N, d)
    if "blocks" not in options:
        options["sizing"] = options.get("sizing", "fit")
    Q, K, V = operands(N, d, N_k)
    right = tracing.trace(algorithm, Q, K, V, **options)
    if not bug:
        return (right,)
    return right, tracing.trace(with_bug(algorithm, bug), Q, K, V, **options)


def _option(name: str, value: Any) -> str:
    """Return an option of the command line."""
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    values = value if isinstance(value, tuple) else (getattr(value, "__name__", value),)
    return " ".join([flag, *map(str, values)])


def body_of(function: Callable[..., object]) -> str:
    """Return a function's lines without its head, after the imports that they need. They end with
    the trace: `return X` becomes `trace = X`.

    The page shows the lines by which the trace was made: so they are the source itself, and not a
    copy beside it, which would become stale.
    """
    source = dedent(inspect.getsource(function))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.FunctionDef)
    last = tree.body[-1]
    assert isinstance(last, ast.Return)
    if isinstance(last.value, ast.Tuple):  # of a trace that has its name, and what goes with it
        end = last.lineno - 1
    else:
        assert last.end_lineno is not None
        end = last.end_lineno
    lines = dedent("\n".join(source.splitlines()[tree.body[0].lineno - 1 : end])).strip()
    names = set()
    for statement in tree.body:
        names |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    from_others: list[str] = []
    from_flashsim: list[str] = []
    file = Path(inspect.getfile(function))
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        statement.names = [a for a in statement.names if (a.asname or a.name) in names]
        if statement.names:
            line = ast.unparse(statement)
            group = from_flashsim if "flashsim" in line else from_others
            group.append(line)
    parts = ["\n".join(from_others), "\n".join(from_flashsim)]
    parts.append(lines.replace("return ", "trace = "))
    return "\n\n".join(filter(None, parts))
