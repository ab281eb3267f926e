"""A recorded run in steps: one line of the paper's listing, in one turn of the loops around it.

A line that both loads and computes, as standard attention's have it, makes two steps: one up to the
last load, one after. What a turn of a loop evicts at its end is gone from the next step on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.tracing.data import DATA, MAXIMUM, About, Lanes, Span, TraceEvent

FOLLOWED = re.compile(r"(?:log_)?[A-Za-z]+(?:_tilde)?_[ij](?:_.*)?|[mlO]_new")
ROW_OF = {"o": "O", "dq": "dQ", "dk": "dK", "dv": "dV"}
Pair = tuple[NDArray[Any] | None, NDArray[Any] | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    number        from 0
    first, last   indices of its first and last event in the trace; between them there are no loop
                  events
    label         its line: "line 9" of the paper; "line 12 of mine.py" where nothing labels it
    loops         (variable, index) of the loops around, outermost first
    turn          the number of the loop turn it is in, counted over all loops
    rows, cols    which queries and keys the blocks on chip are of; None: of none, or of all
    tile          (i, j) in blocks, where rows and cols are a tile's
    pairs         what the algorithm's record follows, of the rows or keys on chip: (before this
                  tile, as far as it is known now)
    moved         rows whose maximum this step raised
    rescaled      those of them that had one before, so that what is summed so far must be scaled
                  down
    """

    number: int
    first: int
    last: int
    label: str
    loops: tuple[tuple[str, int], ...]
    turn: int
    rows: Span | None
    cols: Span | None
    tile: tuple[int, int] | None
    pairs: Mapping[str, Pair]
    moved: int
    rescaled: int


@dataclass(frozen=True)
class Recording:
    """A recorded run of one head: `events`, and `steps` to go through them."""

    about: About
    events: tuple[TraceEvent, ...] = field(repr=False)
    lanes: Lanes | None = field(default=None, repr=False, kw_only=True)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The run in steps of one line of the listing each."""
        return tuple(_steps(self.about, self.events))

    def of(self, step: Step) -> tuple[TraceEvent, ...]:
        """Return a step's events."""
        return self.events[step.first : step.last + 1]


def quantity(name: str) -> str:
    """Return what a block or a tile is of, whatever its line calls it: O for O_i_new and o_i, P
    for P_tilde_ij, K for K[0].
    """
    base = re.split(r"[_\[]", name.removeprefix("log_"))[0]
    return ROW_OF.get(base, base)


def _steps(about: About, events: tuple[TraceEvent, ...]) -> Iterator[Step]:
    follower = _Follower(about)
    for number, (first, last, turn) in enumerate(_spans(events)):
        moved = rescaled = 0
        for event in events[first : last + 1]:
            rise = follower.follow(event, turn)
            moved = moved + rise[0]
            rescaled = rescaled + rise[1]
        rows, cols = follower.region(events[last])
        event = events[first]
        tile = follower.tile(rows, cols)
        pairs = dict(follower.pairs)
        yield Step(
            number,
            first,
            last,
            event.label,
            event.loops,
            turn,
            rows,
            cols,
            tile,
            pairs,
            moved,
            rescaled,
        )


def _at(spans: list[Span], block: int | None, size: int) -> Span | None:
    """Return which of the spans on chip a turn is at: its own block's, if it is one of several;
    else the last that came.
    """
    own = [span for span in spans if block is not None and span[0] == block * size] or spans
    return own[-1] if own else None


def _spans(events: tuple[TraceEvent, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (first event, last event, turn) of each step."""
    start: int | None = None
    turn = 0
    for number, event in enumerate(events):
        if start is not None and (
            event.kind not in DATA or _begins(events[start], events[number - 1], event)
        ):
            yield start, number - 1, turn
            start = None
        if event.kind in ("turn", "turn end"):
            turn += 1
        elif event.kind in DATA and start is None:
            start = number
    if start is not None:
        yield start, len(events) - 1, turn


def _begins(first: TraceEvent, previous: TraceEvent, event: TraceEvent) -> bool:
    """Say whether an event begins a new step: another line, or the same one, done with loading,
    or with messages.
    """
    done = previous.kind in ("load", "post", "wait") and event.kind != previous.kind
    return event.label != first.label or done or (event.kind == "wait" != previous.kind)


class _Follower:
    """What is on chip, and what became of the followed quantities of its rows and keys, as
    events go by.
    """

    def __init__(self, about: About) -> None:
        self._shape, self._blocks = about.shape, about.blocks
        self._kinds = {array.name: array.kind for array in about.arrays}
        self._by_key = {name: kind[0] == "N_k" for name, kind in about.follows}
        self._where: dict[str, tuple[Span, Span]] = {}
        self.pairs: dict[str, Pair] = {}
        self._turn = 0
        self._rows: Span | None = None
        self._cols: Span | None = None

    def follow(self, event: TraceEvent, turn: int) -> tuple[int, int]:
        """Follow one event. Return how many rows' maxima it raised, and how many of them had one
        before.
        """
        if event.where is not None:
            self._where[event.name] = event.where
        if len(event.resident) == 1 and event.kind != "store":  # the first on an empty chip
            self._rows = self._cols = None
            self.pairs.clear()
        rows, cols = self.region(event)
        for name in list(self.pairs):
            before, now = (self._cols, cols) if self._by_key[name] else (self._rows, rows)
            if before is not None and now != before:
                del self.pairs[name]
        self._rows = rows
        self._cols = cols
        if turn != self._turn:
            self._turn = turn
            self.pairs = {
                name: (old if new is None else new, None) for name, (old, new) in self.pairs.items()
            }
        followed = self._followed(event)
        if followed is None:
            return 0, 0
        old, new = self.pairs.get(followed, (None, None))
        known = old if new is None else new
        if event.kind == "load":
            self.pairs[followed] = event.value, None
            return 0, 0
        self.pairs[followed] = old, event.value
        if (
            followed != MAXIMUM
            or event.value is None
            or known is None
            or known.shape != event.value.shape
        ):
            return 0, 0
        risen = event.value > known
        return int(risen.sum()), int((risen & (known > -np.inf)).sum())

    def region(self, event: TraceEvent) -> tuple[Span | None, Span | None]:
        """Return which queries and which keys blocks on chip, and one being stored, are of:
        those of the loops over i and j.
        """
        spans: dict[str, list[Span]] = {"N_q": [], "N_k": []}
        stored = [event.name] if event.kind == "store" else []
        for name in (*(name for name, _ in event.resident), *stored):
            if name in self._where:
                kinds = self._kinds.get(name.partition("[")[0], ("", ""))
                for span, kind in zip(self._where[name], kinds, strict=True):
                    spans.get(kind, []).append(span)
        loops = dict(event.loops)
        blocks = self._blocks
        rows = _at(spans["N_q"], loops.get("i"), blocks.B_r)
        cols = _at(spans["N_k"], loops.get("j"), blocks.B_c)
        return rows, cols

    def tile(self, rows: Span | None, cols: Span | None) -> tuple[int, int] | None:
        """Return the tile's indices if rows and columns are one of the T_r × T_c."""
        if rows is None or cols is None:
            return None
        shape = self._shape
        blocks = self._blocks
        i = rows[0] // blocks.B_r
        j = cols[0] // blocks.B_c
        want = (
            (i * blocks.B_r, min((i + 1) * blocks.B_r, shape.N_q)),
            (j * blocks.B_c, min((j + 1) * blocks.B_c, shape.N_k)),
        )
        return (i, j) if (rows, cols) == want else None

    def _followed(self, event: TraceEvent) -> str | None:
        """Return which followed quantity a load or a result is: "m" for m[0], m_i and m_i_new;
        None for m_tilde_ij.
        """
        if event.kind == "load":
            name = event.name.partition("[")[0]
        elif event.kind == "compute" and FOLLOWED.fullmatch(event.name):
            name = quantity(event.name)
        else:
            return None
        return name if name in self._by_key else None
