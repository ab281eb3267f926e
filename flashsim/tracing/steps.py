"""A trace in steps: one line of the paper's listing, in one turn of the loops around it.

A line that both loads and computes, as standard attention's have it, makes two steps: one up to the last load, one after.
What a turn of a loop evicts at its end is gone from the next step on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsim.records import Blocks, Shape

if TYPE_CHECKING:
    from flashsim.tracing.recording import Span, Trace, TraceEvent

DATA = ("init", "load", "compute", "store")
BY_KEY = ("K", "V", "dK", "dV")
BY_SCORE = ("S", "P", "Z", "P_dropped", "dP", "dS")
FOLLOWED = {"forward": ("m", "l", "L", "O"), "backward": ("D", "dQ", "dK", "dV")}
"""Quantities of a block of rows, or of keys, that are carried from tile to tile, each shown as old → new."""

RESULT = re.compile(r"(?:log_)?([A-Za-z]+)(?:_tilde)?_[ij](?:_|$)")
Pair = tuple[NDArray[Any] | None, NDArray[Any] | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    number        from 0
    first, last   indices of its first and last event in the trace; between them there are no loop events
    label         the paper's line: "line 9"; None where nothing labels the source
    loops         (variable, index) of the loops around, outermost first
    turn          the number of the loop turn it is in, counted over all loops
    rows, cols    which queries and keys the blocks on chip are of; None: of none, or of all
    tile          (i, j) in blocks, where rows and cols are a tile's
    pairs         m, ℓ, L, O of the row block; of a backward pass D, dQ, and dK, dV of the key block: (before this tile, as
                  far as it is known now)
    moved         rows whose maximum this step raised
    rescaled      those of them that had one before, so that what is summed so far must be scaled down
    """

    number: int
    first: int
    last: int
    label: str | None
    loops: tuple[tuple[str, int], ...]
    turn: int
    rows: Span | None
    cols: Span | None
    tile: tuple[int, int] | None
    pairs: Mapping[str, Pair]
    moved: int
    rescaled: int


def steps_of(trace: Trace) -> tuple[Step, ...]:
    """Cut a trace into steps."""
    events = trace.events
    follower = _Follower(trace.about.shape, trace.about.blocks, trace.about.direction)
    steps = []
    for number, (first, last, turn) in enumerate(_spans(events)):
        moved = rescaled = 0
        for event in events[first : last + 1]:
            rise = follower.follow(event, turn)
            moved, rescaled = moved + rise[0], rescaled + rise[1]
        rows, cols = follower.region(events[last])
        event = events[first]
        steps.append(
            Step(
                number,
                first,
                last,
                event.label,
                event.loops,
                turn,
                rows,
                cols,
                follower.tile(rows, cols),
                dict(follower.pairs),
                moved,
                rescaled,
            )
        )
    return tuple(steps)


def _spans(events: tuple[TraceEvent, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (first event, last event, turn) of each step."""
    start: int | None = None
    turn = 0
    for at, event in enumerate(events):
        if start is not None and (event.kind not in DATA or _begins(events[start], events[at - 1], event)):
            yield start, at - 1, turn
            start = None
        if event.kind in ("turn", "turn end"):
            turn += 1
        elif event.kind in DATA and start is None:
            start = at
    if start is not None:
        yield start, len(events) - 1, turn


def _begins(first: TraceEvent, previous: TraceEvent, event: TraceEvent) -> bool:
    """Say whether an event begins a new step: another line, or the same one, done with loading."""
    if event.label != first.label or (event.label is None and event.site != first.site):
        return True
    return previous.kind == "load" and event.kind != "load"


class _Follower:
    """What is on chip, and what became of the followed quantities of its rows and keys, as events go by."""

    def __init__(self, shape: Shape, blocks: Blocks, direction: str) -> None:
        self._shape, self._blocks, self._followed = shape, blocks, FOLLOWED[direction]
        self._where: dict[str, tuple[Span, Span]] = {}
        self.pairs: dict[str, Pair] = {}
        self._turn = 0
        self._rows: Span | None = None
        self._cols: Span | None = None

    def follow(self, event: TraceEvent, turn: int) -> tuple[int, int]:
        """Follow one event. Return how many rows' maxima it raised, and how many of them had one before."""
        if event.where is not None:
            self._where[event.name] = event.where
        if len(event.resident) == 1 and event.kind != "store":  # the first on an empty chip
            self._rows = self._cols = None
            self.pairs.clear()
        rows, cols = self.region(event)
        for name in list(self.pairs):
            before, now = (self._cols, cols) if name in BY_KEY else (self._rows, rows)
            if before is not None and now != before:
                del self.pairs[name]
        self._rows, self._cols = rows, cols
        if turn != self._turn:
            self._turn = turn
            self.pairs = {name: (old if new is None else new, None) for name, (old, new) in self.pairs.items()}
        quantity = self._quantity(event)
        if quantity is None:
            return 0, 0
        old, new = self.pairs.get(quantity, (None, None))
        known = old if new is None else new
        if event.kind == "load":
            self.pairs[quantity] = event.value, None
            return 0, 0
        self.pairs[quantity] = old, event.value
        if quantity != "m" or event.value is None or known is None or known.shape != event.value.shape:
            return 0, 0
        risen = event.value > known
        return int(risen.sum()), int((risen & (known > -np.inf)).sum())

    def region(self, event: TraceEvent) -> tuple[Span | None, Span | None]:
        """Return which queries and which keys the blocks on chip are of, and one that is being stored."""
        rows = cols = None
        stored = [event.name] if event.kind == "store" else []
        for name in (*(name for name, _ in event.resident), *stored):
            if name not in self._where:
                continue
            down, across = self._where[name]
            array = name.partition("[")[0]
            if array in BY_KEY:
                cols = down
            elif array in BY_SCORE or array.startswith("mask"):
                rows, cols = down, across
            elif array not in ("R", "tree"):
                rows = down
        return rows, cols

    def tile(self, rows: Span | None, cols: Span | None) -> tuple[int, int] | None:
        """Return the tile's indices if rows and columns are one of the T_r × T_c."""
        if rows is None or cols is None:
            return None
        shape, blocks = self._shape, self._blocks
        i, j = rows[0] // blocks.B_r, cols[0] // blocks.B_c
        want = (
            (i * blocks.B_r, min((i + 1) * blocks.B_r, shape.N_q)),
            (j * blocks.B_c, min((j + 1) * blocks.B_c, shape.N_k)),
        )
        return (i, j) if (rows, cols) == want else None

    def _quantity(self, event: TraceEvent) -> str | None:
        """Return which followed quantity a load or a result is: "m" for m[0], m_i and m_i_new; None for m_tilde_ij."""
        if event.kind == "load":
            return event.array if event.array in self._followed else None
        found = RESULT.match(event.name) if event.kind == "compute" else None
        if found is None:
            return None
        base = {"o": "O", "dq": "dQ", "dk": "dK", "dv": "dV"}.get(found[1], found[1])  # a row of it
        return base if base in self._followed else None
