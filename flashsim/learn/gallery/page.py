"""A lesson's page: how its traces are made, what there is to say of them, and how it all is shown.

To add a lesson:

1. `flashsim/learn/gallery/lessons/x.py` with TITLE and ORDER, its place among the others. RUN has
   the options of `flashsim step` that make its traces; or `record` returns the traces, and the page
   shows its lines of Python. `teach` returns the text, with moments and questions marked as
   `parts_of` reads them; it looks up all the numbers in its text. The index shows the docstring.
2. The text has at least 80 words, at least three moments, each at another step, and at least one
   question, which has at least two choices and is not at the first step. A run has at most 2,000
   steps.
3. `holds` in `tests/learn/test_gallery.py` tests the events of its moments, which are words. Add a
   new kind of event there and in `looking.py`, with which lessons find their steps.
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
from flashsim.learn.gallery.looking import number_at
from flashsim.tracing import Lesson, Moment, Step, Stop, Trace
from flashsim.tracing.bugs import with_bug
from flashsim.tracing.sample import gradient, operands


@dataclass(frozen=True)
class Page:
    """A lesson, from its file.

    title    its title
    order    where it stands among the others, which are read in order of these numbers
    about    what it is about, in a line
    run      the options of `flashsim step` that make the same traces; none where Python makes them
    record   makes its trace, or two that are shown side by side
    teach    returns what there is to say of the traces, as marked text (`parts_of`)
    alone    whether its page stands alone, and leads to no others
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
        """The command that makes the same; "" where there is none."""
        return (
            " ".join(["flashsim step", *(_option(*item) for item in self.run.items())])
            if self.run
            else ""
        )

    @property
    def made_by(self) -> str:
        """The command, or the lines of Python, that make the page but for its text."""
        if self.command:
            return f"{self.command} -o {self.name}.html"
        versus = ", versus=versus" if len(self.traces) > 1 else ""
        return f'{body_of(self.record)}\ntrace.save("{self.name}.html"{versus})'

    @cached_property
    def traces(self) -> tuple[Trace, ...]:
        """The traces, with the command in them."""
        made = self.record()
        traces = (made,) if isinstance(made, Trace) else made
        return tuple(
            replace(trace, about=replace(trace.about, command=self.command)) for trace in traces
        )

    @cached_property
    def lesson(self) -> Lesson:
        """What there is to say of the traces, in order of the steps."""
        text, moments, stops = parts_of(self.teach(*self.traces), self.traces[0])
        return Lesson(self.title, text, moments, stops, "" if self.alone else self.name)

    @cached_property
    def html(self) -> str:
        """The page."""
        trace, *others = self.traces
        return trace.html(versus=others[0] if others else None, lesson=self.lesson)

    @property
    def picture(self) -> str:
        """A small picture, at the moment in the middle."""
        moments = self.lesson.moments
        return thumbnail(self.traces[0], self.traces[0].steps[moments[len(moments) // 2].step])

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


def thumbnail(trace: Trace, at: Step) -> str:
    """Return the score matrix by tiles at a step as SVG: done, current, ahead, or, smaller,
    never visited.
    """
    blocks = trace.about.blocks
    last = {step.tile: step.number for step in trace.steps}
    wide = SIDE / blocks.T_c
    tall = SIDE / max(blocks.T_r, blocks.T_c / 4)
    height = blocks.T_r * tall
    tiles = []
    for i, j in product(range(blocks.T_r), range(blocks.T_c)):
        late = "done" if last.get((i, j), 0) < at.number else "ahead"
        fate = "skipped" if (i, j) not in last else "current" if (i, j) == at.tile else late
        edge = min(wide, tall) / 3 if fate == "skipped" else 1
        tiles.append(
            f'<rect x="{j * wide + edge / 2:.4g}" y="{i * tall + edge / 2:.4g}" '
            f'width="{wide - edge:.4g}" '
            f'height="{tall - edge:.4g}" fill="{FILLS[fate]}" '
            f'stroke="var(--{"current" if fate == "current" else "faint"})"/>'
        )
    size = f'width="{SIDE + 2}" height="{height + 2:g}" viewBox="-1 -1 {SIDE + 2} {height + 2:g}"'
    return f'<svg {size} aria-hidden="true">{"".join(tiles)}</svg>'


MARK = re.compile(r"(?m)^ *\[(.+?)\]\s")


def parts_of(text: str, trace: Trace) -> tuple[str, tuple[Moment, ...], tuple[Stop, ...]]:
    """Return a lesson's paragraphs, moments and stops, in order of the steps, of its text. Marks
    begin a line:

    [read K] …                   a moment, at the first step that is this event
    [read K, j = 1] …            … in this turn of a loop
    [tiles skipped @ line 18] …  … of another name, at that step, or at a number's
    [asks @ read K] …            a question, followed by [choices] a | b, [right] a, and [because] …
    """
    prose, *marked = MARK.split(text)
    moments = []
    stops = []
    step = 0
    asked = [""]
    for mark, said in zip(marked[::2], marked[1::2], strict=True):
        event, _, where = mark.partition(" @ ")
        words = " ".join(said.split())
        if event == "asks":
            step = number_at(trace, where)
            asked = [words]
        elif event in ("choices", "right"):
            asked.append(words)
        elif event == "because":
            asks, choices, right = asked
            stops.append(Stop(step, asks, tuple(choices.split(" | ")), right, words))
        else:
            moments.append(
                Moment(number_at(trace, where or event), event.partition(", ")[0], words)
            )
    moments.sort(key=lambda moment: moment.step)
    return prose, tuple(moments), tuple(sorted(stops, key=lambda stop: stop.step))


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
    """Return the trace of random operands, and of the same with a bug, as `flashsim step` makes
    them of its options.
    """
    if backward:
        options["dO"] = gradient(N, d)
    sizes = {} if "blocks" in options else {"sizing": "fit"}
    algorithms = (algorithm, with_bug(algorithm, bug)) if bug else (algorithm,)
    return tuple(tracing.trace(one, *operands(N, d, N_k), **sizes | options) for one in algorithms)


def _option(name: str, value: Any) -> str:
    words = (
        ()
        if value is True
        else value
        if isinstance(value, tuple)
        else (getattr(value, "__name__", value),)
    )
    return " ".join([f"--{name.replace('_', '-')}", *map(str, words)])


def body_of(function: Callable[..., object]) -> str:
    """Return a function's lines without its head, with what they import; what it returns is the
    trace, where that has no name.
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
    used = {
        node.id
        for statement in tree.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    }
    groups: dict[bool, list[str]] = {False: [], True: []}  # others' modules, and flashsim's
    for statement in ast.parse(Path(inspect.getfile(function)).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            statement.names = [
                alias for alias in statement.names if (alias.asname or alias.name) in used
            ]
            line = ast.unparse(statement)
            groups["flashsim" in line] += [line] if statement.names else []
    return "\n\n".join(
        filter(None, (*map("\n".join, groups.values()), lines.replace("return ", "trace = ")))
    )
