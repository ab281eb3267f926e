"""A trace as a file that `flashsim.load_trace` reads again: JSON, gzipped.

The JSON is versioned: {"format": "flashsim trace", "version": 2, …}. A reader takes one version and
only its names: who adds a field raises the version. Events are columns of equal length. What
repeats, names, lines of source, sets of residents and values, is kept once and referred to by
index. Values are one base64 string of little-endian floats of the chip's dtype, and `shapes` cuts
it into tiles.
"""

import base64
import gzip
import json
from collections.abc import Hashable
from dataclasses import asdict
from typing import Any

import numpy as np

from flashsim.tracing.data import Resident
from flashsim.tracing.listing import short
from flashsim.tracing.steps import Recording

FORMAT = "flashsim trace"
VERSION = 2
COLUMNS = ("kind", "name", "elements", "loops", "place", "where", "resident", "value")


class _Index:
    def __init__(self) -> None:
        self.things: list[Any] = []
        self._at: dict[Hashable, int] = {}

    def of(self, thing: Any, key: Hashable = None) -> int:
        """Return the thing's index; −1 for None. `key` is what makes two the same, by default
        the thing itself.
        """
        if thing is None:
            return -1
        number = self._at.setdefault(thing if key is None else key, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


def as_json(trace: Recording, *, values: bool = True) -> dict[str, Any]:
    """Return the trace as what JSON can hold."""
    names, places, loops, residents, tiles = (_Index() for _ in range(5))
    columns: dict[str, list[Any]] = {
        "kind": [event.kind for event in trace.events],
        "name": [names.of(event.name) for event in trace.events],
        "elements": [event.elements for event in trace.events],
        "loops": [loops.of(event.loops) for event in trace.events],
        "place": [places.of((*event.site, event.label)) for event in trace.events],
        "where": [event.where and [*event.where[0], *event.where[1]] for event in trace.events],
        "resident": [residents.of(event.resident) for event in trace.events],
        "value": [
            tiles.of(event.value if values else None, id(event.value)) for event in trace.events
        ],
    }
    data = b"".join(
        np.asarray(tile, np.dtype(trace.about.dtype).newbyteorder("<")).tobytes()
        for tile in tiles.things
    )
    previous: Resident = ()
    deltas = []
    for held in residents.things:
        deltas.append(_delta(previous, held, names))
        previous = held
    about = asdict(trace.about) | {"blocks": trace.about.blocks.to_dict()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "about": about,
        "lanes": trace.lanes and asdict(trace.lanes),
        "names": names.things,
        "places": [[short(file), line, label] for file, line, label in places.things],
        "loops": loops.things,
        "residents": deltas,
        "events": columns,
        "shapes": [list(tile.shape) for tile in tiles.things],
        "values": base64.b64encode(data).decode("ascii"),
    }


def _delta(previous: Resident, held: Resident, names: _Index) -> list[int]:
    """Return held as [how many of the previous set's first entries are the same, name, elements,
    name, elements, …].
    """
    same = 0
    while same < min(len(previous), len(held)) and previous[same] == held[same]:
        same += 1
    return [
        same,
        *(number for name, elements in held[same:] for number in (names.of(name), elements)),
    ]


def zipped(data: Any) -> bytes:
    """Return JSON, gzipped: the same bytes for the same trace, as no time is written into it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode("utf-8"), mtime=0)
