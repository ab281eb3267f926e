"""Recording a run: an observer that keeps every event.

    recorder = Recorder()
    run = flashsim.forward("flash", Q, K, V, observers=[recorder])
    # what flashsim.trace("flash", Q, K, V) does
    trace = traced(recorder, run)

A trace is of one head. Its events are what the memory told, in order.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.memory.source import line_of
from flashsim.memory.sram import SRAM, Event
from flashsim.tracing.data import DATA, Resident, TraceEvent

LARGEST_TILE = 4_096
"""Elements of a tile up to which its values are kept."""
MOST_EVENTS = 500_000
"""Events up to which a run is recorded."""
MOST_VALUES = 2**26
"""Bytes of values, each kept once, up to which a trace keeps any."""


class Recorder:
    """An observer that keeps what it is told of one launch: of head `head`, counted from 0 over all
    leading axes.

    Raises ValueError in `flashsim.count`, which runs equal turns once, where a trace needs each;
    and after `MOST_EVENTS`.
    """

    def __init__(self, head: int = 0) -> None:
        self.head = head
        self.sram: SRAM | None = None
        self.events: list[TraceEvent] = []
        self._launch = -1
        self._reads = 0
        self._writes = 0
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
            raise ValueError(
                "a trace needs every turn; count(…) runs equal turns once: use forward(…)"
            )
        if self._given_up:
            raise ValueError(
                f"the run has more than {MOST_EVENTS:,} events: take larger blocks, or fewer rows"
            )
        self.sram = event.sram
        if event.kind in ("store", "init"):
            self._writes += event.elements
        elif event.kind == "load":
            self._reads += event.elements
        held: Resident = tuple(event.sram.resident.items())
        rows, cols = event.where or (None, None)
        where = rows and cols and ((rows.start, rows.stop), (cols.start, cols.stop))
        message = (
            event.kind,
            event.name,
            event.elements,
            event.loops,
            *line_of(event.site, sys._getframe(1)),
            where,
        )
        state = (
            sum(elements for _, elements in held),
            self._residents.setdefault(held, held),
            self._reads,
            self._writes,
        )
        self.events.append(TraceEvent(*message, *state, self._value(event)))

    def _value(self, event: Event) -> NDArray[Any] | None:
        """Return a copy of the tile, the same for equal tiles; None if it is not kept."""
        tile = event.tile
        if tile is None or event.kind not in DATA or tile.size > LARGEST_TILE:
            return None
        if self._bytes > MOST_VALUES:
            return None
        value = np.array(tile, event.sram.dtype)
        if tile.dtype.kind == "u" and (value != tile).any():  # words that are not small numbers
            return None
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
