"""Recording a run: an observer that keeps every event, and the trace that comes of it.

    recorder = Recorder()
    flashsim.forward("flash", Q, K, V, observers=[recorder])       # or trace=True, or flashsim.trace("flash", Q, K, V)

A trace is of one head. Its events are what the memory told, in order; its steps (`flashsim.tracing.steps`) are what a person
steps through: one line of the paper's listing, in one turn of the loops around it.
"""

from __future__ import annotations

import ast
import html
import linecache
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsim import variant as launching
from flashsim.inputs import Array
from flashsim.memory import SRAM, Event
from flashsim.records import Blocks, Shape
from flashsim.source import Site, label_at

if TYPE_CHECKING:
    from flashsim.tracing.lesson import Lesson
    from flashsim.tracing.steps import Step

LARGEST_TILE = 4_096
"""Elements of a tile up to which its values are kept."""
MOST_EVENTS = 500_000
"""Events up to which a run is recorded."""
MOST_VALUES = 2**26
"""Bytes of values, each kept once, up to which a trace keeps any."""

DATA = ("init", "load", "compute", "store")
Resident = tuple[tuple[str, int], ...]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event of the memory, as `flashsim.memory.Event` has it, and the state after it.

    kind, name, elements, loops, site  as there
    label      what labels the source line in the paper's terms, or the line of the algorithm that called from there
    where      ((first row, end), (first column, end)) of a loaded or stored block in its matrix; None for all else
    occupancy  elements in SRAM
    resident   what they are: (name, elements) in order of arrival
    reads, writes  elements moved so far, of all arrays
    value      the tile's values, a copy in the chip's dtype; None for loops, and where they are not kept
    """

    kind: str
    name: str
    elements: int
    loops: tuple[tuple[str, int], ...]
    site: Site
    label: str | None
    where: tuple[Span, Span] | None
    occupancy: int
    resident: Resident
    reads: int
    writes: int
    value: NDArray[Any] | None

    @property
    def array(self) -> str | None:
        """The array in HBM that a block is of; None for tiles and loops."""
        return self.name.partition("[")[0] if self.kind in ("init", "load", "store") else None

    @property
    def indices(self) -> tuple[int, ...]:
        """The block's indices, counted from 0; () for what is no block."""
        inside = self.name.partition("[")[2].rstrip("]")
        return tuple(int(index) for index in inside.split(",")) if inside else ()

    @property
    def paper_line(self) -> int | None:
        """The number of the paper's line, if it has one."""
        label = self.label or ""
        return int(label.removeprefix("line ")) if label.startswith("line ") else None


@dataclass(frozen=True)
class Counts:
    """What one array of the run moved: `exact` is the closed form, None where there is none for it."""

    name: str
    shape: tuple[int, int]
    role: str
    itemsize: int
    reads: int
    writes: int
    exact: tuple[int, int] | None


@dataclass(frozen=True)
class About:
    """What a trace says of its run as a whole.

    dtype      what the chip computed in; `stored` is the inputs' type
    tiles      (T_r, T_c) of what a mask leaves: 0 nothing, 1 all, 2 some; by position and in data
    arrays     the counts by array
    exact_peak the closed form of SRAM's peak, None if there is none
    standard   (reads, writes) of standard attention at the same problem and M, by closed form; None if there is none
    listing    the paper's listing, line by line, from the algorithm's docstring
    source     the functions that ran: (file, number of the first line, lines)
    command    the command line that made it, if one did
    """

    algorithm: str
    title: str
    direction: str
    shape: Shape
    blocks: Blocks
    M: int
    enforced: bool
    peak: int
    dtype: str
    stored: str
    options: str
    tiles: tuple[tuple[int, ...], ...] | None
    arrays: tuple[Counts, ...]
    exact_peak: int | None
    standard: tuple[int, int] | None
    listing: tuple[str, ...]
    source: tuple[tuple[str, int, tuple[str, ...]], ...]
    command: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """A recorded run of one head: `events`, and `steps` to go through them.

    `save(path)` writes it in the format that the suffix says: .html, the player; .json.gz or .npz, which
    `flashsim.load_trace` reads; .perfetto.json, for ui.perfetto.dev.
    """

    about: About
    events: tuple[TraceEvent, ...] = field(repr=False)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The run in steps of one line of the listing each."""
        from flashsim.tracing.steps import steps_of

        return steps_of(self)

    @property
    def has_values(self) -> bool:
        """Whether tiles' values were kept."""
        return any(event.value is not None for event in self.events)

    def save(self, path: str | Path, *, versus: Trace | None = None, lesson: Lesson | None = None) -> Path:
        """Write the trace; return the path. `versus` is a second trace for the page's compare mode, `lesson` its text.

        ValueError for a suffix that is none of .html, .json.gz, .npz, .perfetto.json.
        """
        from flashsim.tracing.saving import save

        return save(self, path, versus, lesson)

    def html(self, *, versus: Trace | None = None, lesson: Lesson | None = None) -> str:
        """Return the player as one self-contained page. ValueError for a lesson on a step that there is not."""
        from flashsim.tracing.saving import as_html

        return as_html(self, versus, lesson)

    def _repr_html_(self) -> str:
        """Return the player in a frame that may run its script and nothing else: no forms, no navigation, no origin.

        A notebook that is not trusted drops the frame, and shows the words in it.
        """
        page = html.escape(self.html(), quote=True)
        title = html.escape(f"Step player: {self.about.title}", quote=True)
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{page}" title="{title}" '
            f'style="width:100%;height:720px;border:1px solid #8888">{title}. It needs its script: '
            "run this cell, or trust the notebook.</iframe>"
        )


class Recorder:
    """An observer that keeps what it is told of one launch: of head `head`, counted from 0 over all leading axes.

    Raises ValueError in `flashsim.count`, which runs equal turns once, where a trace needs each; and after `MOST_EVENTS`.
    """

    def __init__(self, head: int = 0) -> None:
        self.head = head
        self.sram: SRAM | None = None
        self.events: list[TraceEvent] = []
        self._launch, self._reads, self._writes = -1, 0, 0
        self._given_up = False
        self._last: SRAM | None = None
        self._kept: dict[tuple[tuple[int, ...], bytes], NDArray[Any]] = {}
        self._bytes = 0
        self._residents: dict[Resident, Resident] = {}

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        if event.sram is not self._last:
            self._last = event.sram
            self._launch += 1
        if self._launch != self.head or self._given_up:
            return
        self._given_up = event.times != 1 or len(self.events) == MOST_EVENTS
        if event.times != 1:
            raise ValueError("a trace needs every turn; count(…) runs equal turns once: use forward(…)")
        if self._given_up:
            raise ValueError(f"the run has more than {MOST_EVENTS:,} events: take larger blocks, or fewer rows")
        self.sram = event.sram
        if event.kind in ("store", "init"):
            self._writes += event.elements
        elif event.kind == "load":
            self._reads += event.elements
        held: Resident = tuple(event.sram.resident.items())
        site, label = _place(event)
        where = None
        if event.where is not None:
            rows, cols = event.where
            where = (rows.start, rows.stop), (cols.start, cols.stop)
        self.events.append(
            TraceEvent(
                event.kind,
                event.name,
                event.elements,
                event.loops,
                site,
                label,
                where,
                sum(elements for _, elements in held),
                self._residents.setdefault(held, held),
                self._reads,
                self._writes,
                self._value(event),
            )
        )

    def _value(self, event: Event) -> NDArray[Any] | None:
        """Return a copy of the tile, the same for equal tiles; None if it is not kept."""
        tile = event.tile
        if tile is None or event.kind not in DATA or tile.size > LARGEST_TILE or tile.dtype.kind == "u":
            return None
        if self._bytes > MOST_VALUES:
            return None
        value = np.array(tile, event.sram.dtype)
        value.flags.writeable = False
        kept = self._kept.setdefault((value.shape, value.tobytes()), value)
        if kept is value:
            self._bytes += value.nbytes
        return kept

    @property
    def notes(self) -> tuple[str, ...]:
        """What the trace lacks, in words."""
        if self._bytes > MOST_VALUES:
            return (f"Tiles have no values after the first {MOST_VALUES // 2**20} MB of them.",)
        return ()

    def trace(self, about: About) -> Trace:
        """Return what was recorded."""
        return Trace(about, tuple(self.events))


def _place(event: Event) -> tuple[Site, str | None]:
    """Return the event's site and label; for what MASK or dropout did, those of the algorithm's line that called them."""
    label = event.label
    if label is not None:
        return event.site, label
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename != launching.__file__:
        site = frame.f_code.co_filename, frame.f_lineno
        label = label_at(site)
        if label is not None:
            return site, label
        frame = frame.f_back
    return event.site, None


# --------------------------------------------------------------------------------------------- what is said of the run


def listing_of(module: str | None) -> tuple[str, ...]:
    """Return the listing in a module's docstring: its lines indented by four, from "Require:" or the first number on."""
    lines = (module or "").splitlines()
    first = next((n for n, line in enumerate(lines) if re.match(r"    (Require:|\(?\d+\)? )", line)), len(lines))
    last = next((n for n in range(first, len(lines)) if not lines[n].startswith("    ")), len(lines))
    joined: list[str] = []
    for line in lines[first:last]:
        if joined and not re.match(r"    (Require:|\(?\d+\)? )", line):  # a line of the listing, continued
            joined[-1] += " " + line.strip()
        else:
            joined.append(line[4:])
    return tuple(joined)


def source_of(sites: Iterable[Site]) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
    """Return the functions that `sites` are in, as (file, number of the first line, lines), the busiest file first."""
    by_file: dict[str, set[int]] = {}
    for file, line in sites:
        by_file.setdefault(file, set()).add(line)
    pieces = []
    for file, numbers in sorted(by_file.items(), key=lambda item: -len(item[1])):
        lines = linecache.getlines(file)
        for first, last in _functions(lines, numbers):
            pieces.append((short(file), first, tuple(line.rstrip("\n") for line in lines[first - 1 : last])))
    return tuple(pieces)


def _functions(lines: Sequence[str], numbers: Iterable[int]) -> list[Span]:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return []
    spans = [
        (node.lineno, node.end_lineno or node.lineno) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    ]
    around = {max((s for s in spans if s[0] <= n <= s[1]), default=None) for n in numbers}
    return sorted(span for span in around if span is not None)


def short(file: str) -> str:
    """Return a path as it is in the package: nothing of the machine that a run was made on."""
    parts = Path(file).parts
    if "flashsim" in parts:
        at = len(parts) - 1 - parts[::-1].index("flashsim")
        return "/".join(parts[at:])
    return parts[-1] if parts else file


def counts_of(sram: SRAM, exact: Mapping[str, Any] | None) -> tuple[Counts, ...]:
    """Return what each array moved, and its closed form."""
    found = []
    for name, moved in sram.hbm.traffic.by_array.items():
        formula = None
        if exact is not None and name in exact:
            formula = exact[name].reads, exact[name].writes
        shape = sram.hbm.matrix(name).shape
        found.append(Counts(name, shape, moved.role, moved.itemsize, moved.reads, moved.writes, formula))
    return tuple(found)


def tiles_of(allowed: Array, blocks: Blocks) -> tuple[tuple[int, ...], ...]:
    """Return what a whole mask, (N_q, N_k), leaves of each tile: 0 nothing, 1 all, 2 some."""

    def kind(i: int, j: int) -> int:
        tile = allowed[i * blocks.B_r : (i + 1) * blocks.B_r, j * blocks.B_c : (j + 1) * blocks.B_c]
        return 1 if tile.all() else 2 if tile.any() else 0

    return tuple(tuple(kind(i, j) for j in range(blocks.T_c)) for i in range(blocks.T_r))
