"""A trace as a file: the player's page, JSON, NumPy's .npz, and Perfetto's format. `flashsim.tracing.loading` reads two of them.

The JSON is versioned: {"format": "flashsim trace", "version": 1, …}. Events are columns of equal length. What repeats, names,
lines of source, sets of residents and values, is kept once and referred to by index. Values are one base64 string of
little-endian floats of the chip's dtype, and `shapes` cuts it into tiles.
"""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from flashsim.files import path_of, write_whole
from flashsim.tracing.lesson import Lesson
from flashsim.tracing.loading import COLUMNS, FORMAT, VERSION
from flashsim.tracing.recording import Resident, Trace, short

LARGEST_PAGE = 2_000_000  # bytes
MOST_STEPS = 2_000
SCRIPTS = ("model.js", "view.js", "controls.js")
LOGICAL_TIME = "logical time: one step of the algorithm = 1 µs; not performance"


def save(trace: Trace, path: str | Path, versus: Trace | None = None, lesson: Lesson | None = None) -> Path:
    """Write a trace in the format that the path's suffix says. Raises ValueError for one that it does not know."""
    path = check_suffix(path, "the comparison of two" if versus else "a lesson" if lesson else "")
    if path.name.endswith(".html"):
        return write_whole(path, as_html(trace, versus, lesson))
    if path.name.endswith(".perfetto.json"):
        return write_whole(path, json.dumps(as_perfetto(trace), ensure_ascii=False))
    if path.name.endswith(".json.gz"):
        return write_whole(path, _zipped(as_json(trace)))
    return write_whole(path, _as_npz(as_json(trace)))


def check_suffix(path: str | Path, only_as_a_page: str = "") -> Path:
    """Return the path if its suffix says a trace's format: .html for what is `only_as_a_page`. Else raise ValueError."""
    path = path_of(path)
    if only_as_a_page and path.suffix != ".html":
        raise ValueError(f"{path.name} holds one trace; {only_as_a_page} is a page: expected .html")
    if not path.name.endswith((".html", ".json.gz", ".npz", ".perfetto.json")):
        raise ValueError(
            f"{path.name} has no suffix that says a trace's format; expected .html, .json.gz, .npz or .perfetto.json"
        )
    return path


# ---------------------------------------------------------------------------------------------------------------- JSON


class _Index:
    """Things that repeat, each kept once."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._at: dict[Hashable, int] = {}

    def of(self, thing: Any, key: Hashable = None) -> int:
        """Return the thing's index; −1 for None. `key` is what makes two the same, by default the thing itself."""
        if thing is None:
            return -1
        at = self._at.setdefault(thing if key is None else key, len(self.things))
        if at == len(self.things):
            self.things.append(thing)
        return at


def as_json(trace: Trace, *, values: bool = True) -> dict[str, Any]:
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
        "value": [tiles.of(event.value if values else None, id(event.value)) for event in trace.events],
    }
    data = b"".join(np.asarray(tile, np.dtype(trace.about.dtype).newbyteorder("<")).tobytes() for tile in tiles.things)
    previous: Resident = ()
    deltas = []
    for held in residents.things:
        deltas.append(_delta(previous, held, names))
        previous = held
    return {
        "format": FORMAT,
        "version": VERSION,
        "about": asdict(trace.about),
        "names": names.things,
        "places": [[short(file), line, label] for file, line, label in places.things],
        "loops": loops.things,
        "residents": deltas,
        "events": columns,
        "shapes": [list(tile.shape) for tile in tiles.things],
        "values": base64.b64encode(data).decode("ascii"),
    }


def _delta(previous: Resident, held: Resident, names: _Index) -> list[int]:
    """Return held as [how many of the previous set's first entries are the same, name, elements, name, elements, …]."""
    same = 0
    while same < min(len(previous), len(held)) and previous[same] == held[same]:
        same += 1
    return [same, *(number for name, elements in held[same:] for number in (names.of(name), elements))]


def _zipped(data: Any) -> bytes:
    """Return JSON, gzipped: the same bytes for the same trace, as no time is written into it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode("utf-8"), mtime=0)


def _as_npz(data: dict[str, Any]) -> bytes:
    """Return columns of numbers as arrays, all else as JSON in the array `header`."""
    events = dict(data["events"])
    kinds = sorted(set(events["kind"]))
    arrays: dict[str, Any] = {
        name: np.array(events.pop(name), np.int64) for name in COLUMNS if name not in ("kind", "where")
    }
    arrays["kind"] = np.array([kinds.index(kind) for kind in events.pop("kind")], np.int64)
    arrays["where"] = np.array([at or [-1] * 4 for at in events.pop("where")], np.int64).reshape(-1, 4)
    dtype = np.dtype(data["about"]["dtype"])
    header = {key: value for key, value in data.items() if key not in ("events", "values")} | {"kinds": kinds}
    values = np.frombuffer(base64.b64decode(data["values"]), dtype.newbyteorder("<"))
    text = json.dumps(header, ensure_ascii=False).encode("utf-8")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, header=np.frombuffer(text, np.uint8), values=values, **arrays)
    return buffer.getvalue()


# ---------------------------------------------------------------------------------------------------------------- page


def as_html(trace: Trace, versus: Trace | None = None, lesson: Lesson | None = None) -> str:
    """Return the player with its trace, or two, as one page. It drops values where there are more than it can take.

    ValueError for a lesson with a moment after the last step.
    """
    return page_of(trace, versus, lesson)[0]


def page_of(trace: Trace, versus: Trace | None = None, lesson: Lesson | None = None) -> tuple[str, str]:
    """Return the page, as `as_html` does, and why values were left out of it; "" if none were."""
    traces = [trace] if versus is None else [trace, versus]
    steps = max(len(t.steps) for t in traces)
    if lesson is not None and not all(0 <= moment.step < steps for moment in lesson.moments):
        raise ValueError(f"lesson has moments {[m.step for m in lesson.moments]}; expected steps from 0 to {steps - 1}")
    page = _page([_for_page(t) for t in traces], lesson)
    if steps > MOST_STEPS:
        reason = f"{steps:,} steps are more than {MOST_STEPS:,}"
    elif len(page) > LARGEST_PAGE:
        reason = f"with them this page would take {len(page) / 1e6:.1f} MB, more than {LARGEST_PAGE / 1e6:.0f}"
    else:
        return page, ""
    note = f"Values of tiles are left out: {reason}. Counters are complete."
    return _page([_for_page(t, note) for t in traces], lesson), note


def _for_page(trace: Trace, left_out: str = "") -> dict[str, Any]:
    """Return the trace's JSON with its steps, which the page does not work out itself."""
    data = as_json(trace, values=not left_out)
    at = {id(event.value): number for event, number in zip(trace.events, data["events"]["value"], strict=True)}
    steps = trace.steps

    def values(name: str, which: int) -> list[int]:
        return [at.get(id(s.pairs[name][which]), -1) if name in s.pairs and not left_out else -1 for s in steps]

    data["steps"] = {
        "first": [s.first for s in steps],
        "last": [s.last for s in steps],
        "turn": [s.turn for s in steps],
        "rows": [s.rows for s in steps],
        "cols": [s.cols for s in steps],
        "tile": [s.tile for s in steps],
        "moved": [s.moved for s in steps],
        "rescaled": [s.rescaled for s in steps],
        "pairs": {
            name: [values(name, 0), values(name, 1)] for name in dict.fromkeys(n for s in steps for n in s.pairs)
        },
    }
    if left_out:
        data["about"]["notes"] = [*data["about"]["notes"], left_out]
    return data


def _page(traces: Sequence[dict[str, Any]], lesson: Lesson | None) -> str:
    here = files("flashsim.tracing")
    read: Callable[[str], str] = lambda name: (here / name).read_text(encoding="utf-8")  # noqa: E731
    title = " and ".join(t["about"]["title"] for t in traces) if lesson is None else lesson.title
    above = ""
    if lesson is not None:
        above = (
            '<section aria-label="Lesson">'
            f'<details id="lesson" open><summary>{html.escape(title)}</summary>\n{lesson.html()}\n</details>'
            "</section>\n"
        )
    parts = {
        "title": html.escape(title),
        "css": f"\n{read('player.css')}\n",
        "js": "\n" + "\n".join(map(read, SCRIPTS)) + "\n",
        "trace": base64.b64encode(_zipped(traces)).decode("ascii"),
        "lesson": above,
    }
    parts["policy"] = policy(parts["css"], parts["js"])
    return re.sub(
        r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read("page.html")
    )  # in one pass: a title may hold {{js}}


def policy(css: str, js: str | None = None) -> str:
    """Return a page's Content-Security-Policy: it runs this script, uses these styles, and loads, sends and embeds nothing.

    Not even its own script can make HTML of a text: `innerHTML` is refused by browsers that know trusted types.
    """
    hashed = {"style-src": css} if js is None else {"script-src": js, "style-src": css}
    rules = [
        f"{kind} 'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" for kind, text in hashed.items()
    ]
    rules += ["base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"]
    return "; ".join(["default-src 'none'", *rules])


# ------------------------------------------------------------------------------------------------------------ Perfetto


def as_perfetto(trace: Trace) -> dict[str, Any]:
    """Return the trace in Chrome's trace event format: a slice for each step, and counters for HBM and SRAM."""
    process = {"name": f"{trace.about.title} ({LOGICAL_TIME})"}
    found: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": process},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "lines of the algorithm"}},
    ]
    listing = {label_of(line): line.strip() for line in trace.about.listing}
    for step in trace.steps:
        last = trace.events[step.last]
        about = {"loops": ", ".join(f"{variable} = {index}" for variable, index in step.loops)}
        about |= {"line": listing.get(step.label or "", ""), "source": f"{short(last.site[0])}:{last.site[1]}"}
        about["events"] = ", ".join(f"{e.kind} {e.name}" for e in trace.events[step.first : step.last + 1])
        common = {"pid": 1, "ts": step.number}
        found.append({**common, "ph": "X", "tid": 1, "dur": 1, "name": step.label or "set-up", "args": about})
        for name, value in (("reads", last.reads), ("writes", last.writes)):
            counter = f"HBM {name} so far, elements"
            found.append({**common, "ph": "C", "name": counter, "args": {name: value}})
        found.append({**common, "ph": "C", "name": "SRAM in use, elements", "args": {"elements": last.occupancy}})
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": {"time": LOGICAL_TIME, "M": trace.about.M}}


def label_of(line: str) -> str:
    """Return "line 9" for a listing's line that begins with 9, "equation 4" for (4)."""
    number = line.split(maxsplit=1)[0] if line.strip() else ""
    return f"equation {number[1:-1]}" if number.startswith("(") else f"line {number}"
