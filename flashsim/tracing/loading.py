"""A trace from a file, which may be damaged, or made to do harm: it is a trace that works, or a
ValueError.

What is unpacked is limited, nothing is unpickled, and every entry is checked: its type, its range,
and that what it refers to is there. The format is described in `flashsim.tracing.writing`.
"""

from __future__ import annotations

import base64
import gzip
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from reprlib import repr as short_repr
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_count
from flashsim.attention.shapes import Blocks
from flashsim.support.files import path_of
from flashsim.support.schema import convert
from flashsim.tracing.data import DATA, KINDS, About, Lanes, Resident, TraceEvent
from flashsim.tracing.traces import Trace
from flashsim.tracing.writing import FORMAT, VERSION

LARGEST_FILE = 2**28
"""Bytes of a file, unpacked, up to which it is read: more than the largest trace that flashsim
records.
"""
MOST_RESIDENTS = 2**24
"""Entries of all sets of residents, which a file tells by their differences."""
LARGEST = 2**63 - 1
"""The largest number of a file: no array is longer, and no M is larger."""
Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Length = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]

BLOCK = re.compile(
    r"([^\[\]]+)(?:\[[0-9]{1,18}(?::[0-9]{1,18})?(?:, [0-9]{1,18})?\]|\[\[[0-9]{1,18}(?:, [0-9]{1,18}){0,3}(?:, …)?\]\])?"  # noqa: E501
)
LINE = re.compile(r"(?!line )|line [0-9]{1,18}( of .*)?\Z", re.DOTALL)


def load_trace(path: str | os.PathLike[str], *, max_bytes: int = LARGEST_FILE) -> Trace:
    """Read a trace from the .json.gz file that `Trace.save` wrote.

    Raises ValueError, with the file's name and what is wrong, for any other file, for a newer
    version, and for one that is, or unpacks to, more than `max_bytes`; OSError for a file that
    cannot be opened.
    """
    path = path_of(path)
    limit = check_count("max_bytes", max_bytes)
    try:
        if not path.name.endswith(".json.gz"):
            raise ValueError("expected .json.gz")
        return trace_of(_json(_unzip(path, limit)))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a trace: {error}") from error


# --------------------------------------------------------------------------------------------------
# unpacking


def _unzip(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(limit + 1)
    _check_bytes(len(content), limit, "it has")
    # gzip shrinks nothing more than 1032 times: a larger size in its last bytes is damage
    size = int.from_bytes(content[-4:], "little")
    if size <= 1032 * len(content):
        _check_bytes(size, limit, "it says that it unpacks to")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            text = file.read(limit + 1)
    except Exception as error:  # zlib.error, EOFError, OSError: a damaged file raises many
        raise ValueError(f"it is not a gzip file, or a damaged one: {error}") from error
    _check_bytes(len(text), limit, "it unpacks to")
    return text


def _check_bytes(size: int, limit: int, what: str) -> None:
    if size > limit:
        raise ValueError(f"{what} more than {limit:,} bytes; load(path, max_bytes=…) reads more")


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not JSON, or damaged JSON: {error}") from error


# --------------------------------------------------------------------------------------------------
# what a file holds


@dataclass(frozen=True)
class _BlockSizes:
    """`Blocks` in a file, before they are checked against the lengths of `Shape`."""

    B_r: Length
    B_c: Length
    T_r: Number
    T_c: Number


@dataclass(frozen=True)
class _About(About):
    """`About` in a file."""

    blocks: _BlockSizes  # type: ignore[assignment]


@dataclass(frozen=True)
class _Columns:
    """The events in a file: an entry of each list is of one event."""

    kind: tuple[str, ...]
    name: tuple[int, ...]
    elements: tuple[Number, ...]
    loops: tuple[int, ...]
    place: tuple[int, ...]
    where: tuple[tuple[Number, Number, Number, Number] | None, ...]
    resident: tuple[int, ...]
    value: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _TraceFile:
    """A file's content. `flashsim.tracing.writing` describes it."""

    format: str
    version: int
    about: _About
    lanes: Lanes | None = None
    names: tuple[str, ...]
    places: tuple[tuple[str, Number, str], ...]
    loops: tuple[tuple[tuple[str, Number], ...], ...]
    residents: tuple[tuple[Number, ...], ...]
    events: _Columns
    shapes: tuple[tuple[Length, Number], ...]  # a product with none may have no columns
    values: str


def trace_of(data: Any) -> Trace:
    """Return the trace that `flashsim.tracing.writing.as_json` made this of. Raises ValueError."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'expected "format": "{FORMAT}"')
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"its version is {short_repr(version)}; this flashsim reads version {VERSION}"
        )
    _check_numbers(data.get("about"), "about")
    _check_numbers(data.get("lanes"), "lanes")
    file = convert(data, _TraceFile)
    about = _about(file.about)
    if file.lanes is not None:
        _check_lanes(file.lanes)
    _check_places(file.places)
    residents = _residents(file.residents, file.names)
    tiles = _tiles(file.values, file.shapes, np.dtype(about.dtype))
    _check_columns(file, len(residents))
    _check_blocks(file)
    return Trace(about, tuple(_events(file, residents, tiles)), lanes=file.lanes)


def _events(
    file: _TraceFile, residents: Sequence[Resident], tiles: Sequence[NDArray[Any]]
) -> Iterable[TraceEvent]:
    occupancies = [sum(elements for _, elements in resident) for resident in residents]
    reads = 0
    writes = 0
    columns = vars(file.events).values()
    for kind, name, elements, loops, place, block, resident, value in zip(*columns, strict=True):
        if kind == "load":
            reads += elements
        if kind in ("store", "init"):
            writes += elements
        source, line, label = file.places[place]
        yield TraceEvent(
            kind,
            file.names[name],
            elements,
            file.loops[loops],
            (source, line),
            label,
            block and ((block[0], block[1]), (block[2], block[3])),
            occupancies[resident],
            residents[resident],
            reads,
            writes,
            None if value == -1 else tiles[value],
        )


# --------------------------------------------------------------------------------------------------
# checking


def _check_numbers(data: Any, where: str) -> None:
    """Check that all numbers in lists and objects are from 0 to LARGEST."""
    if isinstance(data, dict):
        for name, entry in data.items():
            _check_numbers(entry, f"{where}.{name}")
    elif isinstance(data, list):
        for n, entry in enumerate(data):
            _check_numbers(entry, f"{where}[{n}]")
    elif isinstance(data, int) and not 0 <= data <= LARGEST:
        raise ValueError(
            f"{where} is {short_repr(data)}; expected a whole number from 0 to {LARGEST}"
        )


def _about(about: _About) -> About:
    _check_choice(about.dtype, ("float32", "float64"), "about.dtype")
    _check_choice(about.direction, ("forward", "backward"), "about.direction")
    shape = about.shape
    sizes = about.blocks
    for where, length in (("about.M", about.M), ("about.shape.d", shape.d)):
        if length == 0:
            raise ValueError(f"{where} is 0; expected at least 1")
    blocks = Blocks(sizes.B_r, sizes.B_c, N_q=shape.N_q, N_k=shape.N_k)
    tiles = (blocks.T_r, blocks.T_c)
    if (sizes.T_r, sizes.T_c) != tiles:
        raise ValueError(f"about.blocks has T_r, T_c = {(sizes.T_r, sizes.T_c)}; expected {tiles}")
    if about.tiles is not None:
        _check_tiles(about.tiles, *tiles)
    _check_distinct([array.name for array in about.arrays], "arrays")
    _check_distinct([name for name, _ in about.follows], "follows")
    return About(**{**vars(about), "blocks": blocks})


def _check_tiles(tiles: Sequence[Sequence[int]], T_r: int, T_c: int) -> None:
    if len(tiles) != T_r or any(len(row) != T_c for row in tiles):
        raise ValueError(f"about.tiles is of another size; expected {T_r} × {T_c}")
    if any(tile > 2 for row in tiles for tile in row):
        raise ValueError("about.tiles holds a number other than 0, 1, 2")


def _check_distinct(names: Sequence[str], what: str) -> None:
    if len(set(names)) != len(names):
        raise ValueError(f"about.{what} has two {what} of one name")


def _check_lanes(lanes: Lanes) -> None:
    lengths = [len(steps) for steps in lanes.kinds]
    if lanes.rank >= len(lengths):
        raise ValueError(f"lanes.rank is {lanes.rank}; expected one of {len(lengths)} lanes")
    for kind in {kind for steps in lanes.kinds for kind in steps}:
        _check_choice(kind, DATA, "lanes.kinds")
    for n, message in enumerate(lanes.messages):
        for lane, step in (message[:2], message[2:4]):
            if lane >= len(lengths) or step >= lengths[lane]:
                raise ValueError(
                    f"lanes.messages[{n}] is {short_repr(message)}; expected lanes and steps that "
                    "there are"
                )


def _check_places(places: Sequence[tuple[str, int, str]]) -> None:
    for n, (_, _, label) in enumerate(places):
        if not LINE.match(label):
            raise ValueError(
                f"places[{n}] has label {short_repr(label)}; expected a line's number after 'line'"
            )


def _check_columns(file: _TraceFile, residents: int) -> None:
    """Check that events have equally long columns, and that what they refer to is there."""
    events = file.events
    for column, entries in vars(events).items():
        if len(entries) != len(events.kind):
            raise ValueError(
                f"events.{column} has {len(entries):,} entries; expected {len(events.kind):,}, as "
                "kind has"
            )
    for kind in set(events.kind) - set(KINDS):
        _check_choice(kind, KINDS, f"events.kind[{events.kind.index(kind)}]")
    if not set(events.kind) & set(DATA):
        raise ValueError("events has no step: expected a load, a store or a result")
    _check_range(events.name, range(len(file.names)), "events.name")
    _check_range(events.loops, range(len(file.loops)), "events.loops")
    _check_range(events.place, range(len(file.places)), "events.place")
    _check_range(events.resident, range(residents), "events.resident")
    _check_range(events.value, range(-1, len(file.shapes)), "events.value")


def _check_blocks(file: _TraceFile) -> None:
    """Check that what is loaded and stored are blocks of the arrays."""
    shapes = {array.name: array.shape for array in file.about.arrays}
    events = file.events
    for kind, name in set(zip(events.kind, events.name, strict=True)):
        block = BLOCK.fullmatch(file.names[name])
        if kind in ("init", "load", "store") and (block is None or block[1] not in shapes):
            raise ValueError(
                f"names[{name}] is {short_repr(file.names[name])}; expected a block of "
                f"{', '.join(shapes)}"
            )
    for n, (name, where) in enumerate(zip(events.name, events.where, strict=True)):
        if where is None:
            continue
        array, _, _ = file.names[name].partition("[")
        rows, columns = shapes.get(array, (0, 0))
        if not (where[0] <= where[1] <= rows and where[2] <= where[3] <= columns):
            raise ValueError(
                f"events.where[{n}] is {[*where]}; expected a part of {rows} × {columns}"
            )


def _residents(deltas: Sequence[Sequence[int]], names: Sequence[str]) -> list[Resident]:
    """Return the sets of residents.

    A file has each as how many entries are as in the set before it, and the others: name, elements,
    name, elements, ….
    """
    residents: list[Resident] = []
    resident: Resident = ()
    total = 0
    for n, delta in enumerate(deltas):
        if len(delta) % 2 == 0 or delta[0] > len(resident):
            raise ValueError(
                f"residents[{n}] is {short_repr([*delta])}; expected at most {len(resident)}, then "
                "pairs"
            )
        _check_range(delta[1::2], range(len(names)), f"residents[{n}][1::2]")
        arrivals = zip(delta[1::2], delta[2::2], strict=True)
        resident = resident[: delta[0]] + tuple((names[k], elements) for k, elements in arrivals)
        residents.append(resident)
        total += len(resident)
        if total > MOST_RESIDENTS:
            raise ValueError(f"residents has more than {MOST_RESIDENTS:,} entries in all")
    return residents


def _tiles(
    values: str, shapes: Sequence[tuple[int, int]], dtype: np.dtype[Any]
) -> list[NDArray[Any]]:
    try:
        data = base64.b64decode(values, validate=True)
    except ValueError as error:
        raise ValueError(f"values is not base64: {error}") from error
    ends = [*accumulate((rows * columns for rows, columns in shapes), initial=0)]
    size = ends[-1] * dtype.itemsize
    if len(data) != size:
        raise ValueError(f"values has {len(data):,} bytes; expected {size:,}, as the shapes say")
    flat = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False)
    return [
        flat[start:end].reshape(shape)
        for start, end, shape in zip(ends, ends[1:], shapes, strict=False)
    ]


def _check_choice(value: str, choices: Sequence[str], where: str) -> None:
    if value not in choices:
        raise ValueError(f"{where} is {short_repr(value)}; expected one of {', '.join(choices)}")


def _check_range(numbers: Sequence[int], whole: range, where: str) -> None:
    if not numbers or (min(numbers) in whole and max(numbers) in whole):
        return
    n, number = next((n, number) for n, number in enumerate(numbers) if number not in whole)
    raise ValueError(
        f"{where}[{n}] is {short_repr(number)}; expected a whole number from {whole.start} to "
        f"{short_repr(whole.stop - 1)}"
    )
