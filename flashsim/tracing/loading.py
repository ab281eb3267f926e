"""A trace from a file, which may be damaged, or made to do harm: what comes of it is a trace that
works, or a ValueError.

What is unpacked is limited, nothing is unpickled, and every entry is checked: its type, its range,
and that what it refers to is there. The format is described in `flashsim.tracing.writing`.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from itertools import accumulate
from pathlib import Path
from reprlib import repr as shown
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_count
from flashsim.attention.shapes import Blocks
from flashsim.support.files import path_of
from flashsim.tracing.data import DATA, KINDS, About, Lanes, Resident, TraceEvent
from flashsim.tracing.traces import Trace
from flashsim.tracing.writing import COLUMNS, FORMAT, VERSION

LARGEST_FILE = 2**28
"""Bytes of a file, unpacked, up to which it is read: more than the largest trace that flashsim
records.
"""
MOST_RESIDENTS = 2**24
"""Entries of all sets of residents, which a file tells by their differences."""

LARGEST_SIZE = 2**53  # elements: up to it, numbers are exact in a page too
LARGEST_NUMBER = 2**1000  # of anything: M may be as good as infinite
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
    most = check_count("max_bytes", max_bytes)
    try:
        if not path.name.endswith(".json.gz"):
            raise ValueError("expected .json.gz")
        data = _unzipped(path, most)
        return trace_of(data, _values(data))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a trace: {error}") from error


# --------------------------------------------------------------------------------------------------
# unpacking


def _content(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(most + 1)
    _check_size(len(content), most, "it has")
    return content


def _check_size(size: int, most: int, what: str) -> None:
    if size > most:
        raise ValueError(f"{what} more than {most:,} bytes; load(path, max_bytes=…) reads more")


def _unzipped(path: Path, most: int) -> dict[str, Any]:
    content = _content(path, most)
    # as far as gzip can shrink anything
    if (claimed := int.from_bytes(content[-4:], "little")) <= 1032 * len(content):
        _check_size(claimed, most, "it says that it unpacks to")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            text = file.read(most + 1)
    except Exception as error:  # whatever a reader says of a damaged file
        raise ValueError(f"it is not a gzip file, or a damaged one: {error}") from error
    _check_size(len(text), most, "it unpacks to")
    return _parsed(text)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        data = json.loads(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON, or damaged JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'expected "format": "{FORMAT}"')
    if type(data.get("version")) is not int or data["version"] != VERSION:
        raise ValueError(
            f"its version is {shown(data.get('version'))}; this flashsim reads version {VERSION}"
        )
    return data


def _values(data: dict[str, Any]) -> bytes:
    text: str = _typed(data.get("values"), str, "values")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"values is not base64: {error}") from error


# --------------------------------------------------------------------------------------------------
# checking


@dataclass(frozen=True)
class _WrittenBlocks:
    """`Blocks` as a trace has them, before they are checked against its lengths."""

    B_r: int
    B_c: int
    T_r: int
    T_c: int


def _typed(value: Any, hint: Any, where: str, whole: range = range(LARGEST_NUMBER)) -> Any:
    """Return what JSON says as what a type hint says: a dataclass, a tuple, text, a number among
    `whole`, a truth value, None.
    """
    if isinstance(hint, UnionType):  # X | None
        return None if value is None else _typed(value, get_args(hint)[0], where, whole)
    if hint is Blocks:
        return _record(value, _WrittenBlocks, where)
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(value, hint, where)
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if type(value) is not list or (kinds[-1] is not Ellipsis and len(value) != len(kinds)):
            expected = "a list" if kinds[-1] is Ellipsis else f"a list of {len(kinds)}"
            raise ValueError(f"{where} is {shown(value)}; expected {expected}")
        if (
            kinds[0] is int
            and set(map(type, value)) == {int}
            and min(value) in whole
            and max(value) in whole
        ):
            return tuple(value)  # all at once; one by one where one is wrong
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(value)
        return tuple(
            _typed(one, kind, f"{where}[{n}]", whole)
            for n, (one, kind) in enumerate(zip(value, kinds, strict=True))
        )
    if hint is int and (type(value) is not int or value not in whole):
        expected = f"{whole.start} to {shown(whole.stop - 1)}"
        raise ValueError(f"{where} is {shown(value)}; expected a whole number from {expected}")
    if hint is bool and type(value) is not bool:
        raise ValueError(f"{where} is {shown(value)}; expected true or false")
    if hint is str:
        if type(value) is not str:
            raise ValueError(f"{where} is {shown(value)}; expected text")
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise ValueError(
                f"{where} is {shown(value)}; expected text without half characters (surrogates)"
            )
    return value


def _record(value: Any, kind: type[Any], where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {shown(value)}; expected an object")
    hints = get_type_hints(kind)
    required = {field.name for field in fields(kind) if field.default is MISSING}
    if not required <= value.keys() <= hints.keys():
        wrong = [*sorted(required - value.keys()), *sorted(value.keys() - hints.keys())][0]
        raise ValueError(
            f"{where} {'lacks' if wrong in required else 'has'} {shown(wrong)}; expected "
            f"{', '.join(hints)}"
        )
    return kind(
        **{name: _typed(one, hints[name], f"{where}.{name}") for name, one in value.items()}
    )


def _one_of(value: Any, known: Iterable[str], where: str) -> None:
    if value not in known:
        raise ValueError(f"{where} is {shown(value)}; expected one of {', '.join(known)}")


# --------------------------------------------------------------------------------------------------
# the trace


def trace_of(data: Mapping[str, Any], values: bytes) -> Trace:
    """Return the trace that `flashsim.tracing.writing.as_json` made this of, with the values'
    bytes. Raises ValueError.
    """
    about: About = _typed(data.get("about"), About, "about")
    _check_about(about)
    sizes = about.blocks
    about = replace(
        about, blocks=Blocks(sizes.B_r, sizes.B_c, N_q=about.shape.N_q, N_k=about.shape.N_k)
    )
    names: tuple[str, ...] = _typed(data.get("names"), tuple[str, ...], "names")
    places = _typed(data.get("places"), tuple[tuple[str, int, str], ...], "places")
    for n, (_, _, label) in enumerate(places):
        if not LINE.match(label):
            raise ValueError(
                f"places[{n}] has label {shown(label)}; expected a line's number after 'line'"
            )
    loops = _typed(data.get("loops"), tuple[tuple[tuple[str, int], ...], ...], "loops")
    residents = _residents(data.get("residents"), names)
    in_use = [sum(elements for _, elements in held) for held in residents]
    tiles = [*_tiles(values, data.get("shapes"), np.dtype(about.dtype)), None]  # the last for −1
    ends = {"name": len(names), "elements": LARGEST_SIZE, "loops": len(loops), "place": len(places)}
    events = _columns(
        data.get("events"), {**ends, "resident": len(residents), "value": len(tiles) - 1}
    )
    events["where"] = _check_blocks(about, names, events)
    columns = [events[name] for name in COLUMNS]
    moves = [*zip(events["kind"], events["elements"], strict=True)]
    reads = accumulate(n if kind == "load" else 0 for kind, n in moves)
    writes = accumulate(n if kind in ("store", "init") else 0 for kind, n in moves)

    def event(
        kind: str,
        name: int,
        n: int,
        around: int,
        at: int,
        where: Any,
        held: int,
        value: int,
        read: int,
        written: int,
    ) -> TraceEvent:
        file, line, label = places[at]
        told = (
            kind,
            names[name],
            n,
            loops[around],
            (file, line),
            label,
            where,
            in_use[held],
            residents[held],
        )
        return TraceEvent(*told, read, written, tiles[value])

    lanes: Lanes | None = _typed(data.get("lanes"), Lanes | None, "lanes")
    if lanes is not None:
        _check_lanes(lanes)
    return Trace(about, tuple(map(event, *columns, reads, writes)), lanes=lanes)


def _check_lanes(lanes: Lanes) -> None:
    lengths = [len(steps) for steps in lanes.kinds]
    if lanes.rank >= len(lengths):
        raise ValueError(f"lanes.rank is {shown(lanes.rank)}; expected one of {len(lengths)} lanes")
    for kind in {kind for steps in lanes.kinds for kind in steps}:
        _one_of(kind, DATA, "lanes.kinds")
    for n, message in enumerate(lanes.messages):
        for lane, step in (message[:2], message[2:4]):
            if lane >= len(lengths) or step >= lengths[lane]:
                raise ValueError(
                    f"lanes.messages[{n}] is {shown(message)}; expected lanes and steps that there "
                    "are"
                )


def _check_about(about: About) -> None:
    _one_of(about.dtype, ("float32", "float64"), "about.dtype")
    _one_of(about.direction, ("forward", "backward"), "about.direction")
    shape = about.shape
    blocks = about.blocks
    sizes = {"about.M": about.M, "about.shape.N_q": shape.N_q, "about.shape.N_k": shape.N_k}
    sizes |= {
        "about.shape.d": shape.d,
        "about.blocks.B_r": blocks.B_r,
        "about.blocks.B_c": blocks.B_c,
    }
    for where, size in sizes.items():
        if size < 1:
            raise ValueError(f"{where} is {size}; expected at least 1")
    want = -(-shape.N_q // blocks.B_r), -(-shape.N_k // blocks.B_c)
    if (blocks.T_r, blocks.T_c) != want:
        raise ValueError(
            f"about.blocks has T_r, T_c = {shown((blocks.T_r, blocks.T_c))}; expected {shown(want)}"
        )
    if about.tiles is not None:
        if len(about.tiles) != blocks.T_r or any(len(row) != blocks.T_c for row in about.tiles):
            raise ValueError(
                f"about.tiles is of another size; expected {shown(want[0])} × {shown(want[1])}"
            )
        if any(tile > 2 for row in about.tiles for tile in row):
            raise ValueError("about.tiles holds a number other than 0, 1, 2")
    for where, found in (
        ("arrays", [array.name for array in about.arrays]),
        ("follows", [n for n, _ in about.follows]),
    ):
        if len(set(found)) != len(found):
            raise ValueError(f"about.{where} has two {where} of one name")


def _residents(deltas: Any, names: tuple[str, ...]) -> list[Resident]:
    """Return the sets of residents, each told as how many it has in common with the one before
    it, and what follows.
    """
    found: list[Resident] = []
    before: Resident = ()
    total = 0
    for n, delta in enumerate(
        _typed(deltas, tuple[tuple[int, ...], ...], "residents", range(LARGEST_SIZE))
    ):
        at = _typed([*delta[1::2]], tuple[int, ...], f"residents[{n}]", range(len(names)))
        if not len(delta) % 2 or delta[0] > len(before):
            raise ValueError(
                f"residents[{n}] is {shown([*delta])}; expected at most {len(before)}, then pairs"
            )
        before = before[: delta[0]] + tuple(
            zip(map(names.__getitem__, at), delta[2::2], strict=True)
        )
        found.append(before)
        total += len(before)
        if total > MOST_RESIDENTS:
            raise ValueError(f"residents has more than {MOST_RESIDENTS:,} entries in all")
    return found


def _columns(events: Any, ends: Mapping[str, int]) -> dict[str, list[Any]]:
    """Return the columns of events, each as long as the others, with all that they refer to
    there: up to `ends`.
    """
    if not isinstance(events, dict) or any(
        not isinstance(events.get(name), list) for name in COLUMNS
    ):
        raise ValueError(f"events is {shown(events)}; expected the lists {', '.join(COLUMNS)}")
    columns = {name: events[name] for name in COLUMNS}
    kinds = columns["kind"]
    for name, column in columns.items():
        if len(column) != len(kinds):
            raise ValueError(
                f"events.{name} has {len(column):,} entries; expected {len(kinds):,}, as kind has"
            )
    if set(map(type, kinds)) != {str} or set(kinds) - set(KINDS):
        for n, kind in enumerate(kinds):
            _one_of(kind, KINDS, f"events.kind[{n}]")
    if not set(kinds) & set(DATA):
        raise ValueError("events has no step: expected a load, a store or a result")
    for name, end in ends.items():
        _typed(
            columns[name],
            tuple[int, ...],
            f"events.{name}",
            range(-1 if name == "value" else 0, end),
        )
    return columns


def _check_blocks(
    about: About, names: tuple[str, ...], events: Mapping[str, list[Any]]
) -> list[Any]:
    """Check that what is loaded and stored are blocks of the arrays. Return where each is, as a
    `TraceEvent` says it.
    """
    shapes = {array.name: array.shape for array in about.arrays}
    for name in {
        name
        for name, kind in zip(events["name"], events["kind"], strict=True)
        if kind in ("init", "load", "store")
    }:
        block = BLOCK.fullmatch(names[name])
        if block is None or block[1] not in shapes:
            raise ValueError(
                f"names[{name}] is {shown(names[name])}; expected a block of {', '.join(shapes)}"
            )
    where = events["where"]
    given = [n for n, at in enumerate(where) if at is not None]
    _typed(where, tuple[tuple[int, int, int, int] | None, ...], "events.where", range(LARGEST_SIZE))
    most = [
        [min(n, LARGEST_SIZE) for n in shapes.get(name.partition("[")[0], (0, 0))] for name in names
    ]
    at = np.array([where[n] for n in given], np.int64).reshape(-1, 2, 2)
    sizes = np.array(most, np.int64).reshape(-1, 2)[[events["name"][n] for n in given]]
    outside = (at[..., 0] > at[..., 1]) | (at[..., 1] > sizes)
    if outside.any():
        n = int(outside.any(axis=1).argmax())
        rows, cols = sizes[n]
        raise ValueError(
            f"events.where[{given[n]}] is {shown(where[given[n]])}; expected a part of {rows} × "
            f"{cols}"
        )
    return [at and ((at[0], at[1]), (at[2], at[3])) for at in where]


def _tiles(values: bytes, shapes: Any, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    shapes = _typed(shapes, tuple[tuple[int, int], ...], "shapes", range(1, LARGEST_NUMBER))
    ends = list(accumulate(rows * cols for rows, cols in shapes))
    expected = (ends[-1] if ends else 0) * dtype.itemsize
    if len(values) != expected:
        raise ValueError(
            f"values has {len(values):,} bytes; expected {shown(expected)}, as the shapes say"
        )
    flat = np.frombuffer(values, dtype.newbyteorder("<")).astype(dtype, copy=False)
    return [
        flat[end - rows * cols : end].reshape(rows, cols)
        for end, (rows, cols) in zip(ends, shapes, strict=True)
    ]
