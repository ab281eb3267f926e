"""What a kernel's instructions read and write, summed by array and by line of its source."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FrameType
from typing import Literal

import numpy as np

from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import PADDING, Array, Memory
from flashsim.profiling.errors import OutsideArrays

SECTOR = 32
"""Bytes that a GPU moves at once between L2 and an SM, at least."""

Kind = Literal["read", "write", "atomic"]


@dataclass(frozen=True)
class Line:
    """A line of the kernel's source."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, or one operator.

    grid    how many programs, by axis; empty: an operator's are not known
    config  the configuration that an autotuner chose, in words; empty: there is none
    unseen  what of it is not counted, in words; empty: nothing that is known of
    """

    kernel: str
    grid: tuple[int, ...]
    config: str = ""
    unseen: str = ""


@dataclass(frozen=True)
class Tile:
    """What one instruction of one program reads or writes of one head of an array.

    launch   the place of its launch among all
    program  its place in the grid
    head     its place on the axes of batch and heads
    rows     its rows, from the first to the last
    """

    launch: int
    program: tuple[int, ...]
    line: Line
    array: str
    kind: Kind
    head: int
    rows: range
    elements: int


@dataclass
class LineTraffic:
    """What one line reads or writes of one array, in all programs.

    times     how often its instruction runs
    elements  that move
    lanes     elements of its tiles, with those that a mask switches off
    idle      how often a mask switches off all
    sectors   of 32 bytes, each counted once an instruction
    repeated  elements that the same program has read before (of writes: that any has written)
    padding   elements between those of the array, which move and are not used
    """

    line: Line
    array: str
    kind: Kind
    times: int = 0
    elements: int = 0
    lanes: int = 0
    idle: int = 0
    sectors: int = 0
    repeated: int = 0
    padding: int = 0


class _Marks:
    """Of each element of an array: whether it was read, and written, and by which program it was
    read last.
    """

    def __init__(self, size: int) -> None:
        self.read = np.zeros(size, bool)
        self.written = np.zeros(size, bool)
        self.read_after_write = 0

    @cached_property
    def reader(self) -> np.ndarray:
        return np.zeros(self.read.size, np.int64)


@dataclass
class Recorder:
    """It is told each access, and sums.

    row_axis       the axis of rows of an array with four axes
    memory         the arrays
    launches       in order; accesses belong to the last
    lines          the sums, by line, array and kind
    tiles          each access of a kernel, without its elements
    on_chip_bytes  the most bytes of on-chip memory that a launch occupies; None: not known
    unsettled      arrays that a fused group made, and the line: written once something outside the
                   group uses them
    """

    row_axis: int = -2
    memory: Memory = field(default_factory=Memory)
    launches: list[Launch] = field(default_factory=list)
    lines: dict[tuple[Line, str, Kind], LineTraffic] = field(default_factory=dict)
    tiles: list[Tile] = field(default_factory=list)
    on_chip_bytes: int | None = None
    unsettled: dict[str, tuple[Array, Line]] = field(default_factory=dict)
    _owners: list[object] = field(default_factory=list)
    _marks: dict[str, _Marks] = field(default_factory=dict)
    _programs: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)

    def access(
        self,
        kind: Kind,
        addresses: np.ndarray,
        active: np.ndarray,
        itemsize: int,
        program: tuple[int, ...],
        line: Line,
    ) -> None:
        """Record one instruction of one program.

        addresses  of all its elements, in bytes; `active`: whether a mask lets each move
        itemsize   bytes of an element

        Raises `OutsideArrays`, with the line, where an address is in no array.
        """
        lanes = addresses.size
        touched = addresses[active].astype(np.int64).ravel()
        if not touched.size:
            self._idle(kind, addresses, itemsize, line)
            return
        try:
            parts = list(self.memory.find(touched, itemsize))
        except OutsideArrays as error:
            verb = "reads" if kind == "read" else "writes"
            raise OutsideArrays(f"{line}: program {program} {verb} {error}") from None
        sectors = _sectors(touched, itemsize)
        for array, positions in parts:
            self.settle(array.name)
            traffic = self._line(line, array.name, kind)
            traffic.times += 1
            traffic.elements += positions.size
            traffic.lanes += lanes if len(parts) == 1 else positions.size
            traffic.sectors += sectors if len(parts) == 1 else _sectors_of(array, positions)
            self._mark(traffic, array, positions, program)

    def occupy(self, on_chip_bytes: int) -> None:
        """Record that a launch occupies so many bytes of on-chip memory at once."""
        self.on_chip_bytes = max(self.on_chip_bytes or 0, on_chip_bytes)

    def forget(self) -> None:
        """Forget all accesses and launches; the arrays stay."""
        self.launches.clear()
        self.lines.clear()
        self.tiles.clear()
        self.on_chip_bytes = None
        self._marks.clear()
        self._programs.clear()
        self.unsettled.clear()

    def move(self, kind: Kind, array: Array, positions: np.ndarray | None, line: Line) -> None:
        """Record that an operator moves each of these elements of an array once; None: all."""
        elements = array.elements
        places: np.ndarray | slice = slice(None)
        if positions is None:
            sectors = _sectors_of_all(array)
        else:
            elements = positions.size
            sectors = _sectors_of(array, positions)
            places = positions
        traffic = self._line(line, array.name, kind)
        traffic.times += 1
        traffic.elements += elements
        traffic.lanes += elements
        traffic.sectors += sectors
        marks = self._marks_of(array)
        # A broadcast array has fewer elements than places.
        written = min(int(marks.written[places].sum()), elements)
        if kind == "read":
            marks.read_after_write += written
            marks.read[places] = True
        else:
            traffic.repeated += written
            marks.written[places] = True

    def settle(self, name: str) -> None:
        """Record that a fused group writes an array that it made: something outside uses it."""
        if name in self.unsettled:
            array, line = self.unsettled.pop(name)
            self.move("write", array, None, line)

    def renew(self, array: Array) -> None:
        """Record that an array's memory is used again for new elements, none of which is written
        yet.
        """
        self._marks_of(array).written[:] = False

    def keep_alive(self, owner: object) -> None:
        """Keep an array's owner, so that no other array gets the same addresses."""
        self._owners.append(owner)

    def _line(self, line: Line, array: str, kind: Kind) -> LineTraffic:
        key = (line, array, kind)
        if key not in self.lines:
            self.lines[key] = LineTraffic(line, array, kind)
        return self.lines[key]

    def _idle(self, kind: Kind, addresses: np.ndarray, itemsize: int, line: Line) -> None:
        """Record an instruction all of whose elements are switched off: of the array that its line
        is known to touch.
        """
        for traffic in self.lines.values():
            if traffic.line == line and traffic.kind == kind:
                traffic.times += 1
                traffic.idle += 1
                traffic.lanes += addresses.size
                return
        try:
            array, _ = next(self.memory.find(addresses.astype(np.int64).ravel()[:1], itemsize))
        except OutsideArrays:
            return
        traffic = self._line(line, array.name, kind)
        traffic.times += 1
        traffic.idle += 1
        traffic.lanes += addresses.size

    def _mark(
        self, traffic: LineTraffic, array: Array, positions: np.ndarray, program: tuple[int, ...]
    ) -> None:
        """Record which elements these are, and the tiles that they make up."""
        padding = positions == PADDING
        traffic.padding += int(padding.sum())
        positions = positions[~padding]
        if not positions.size:
            return
        marks = self._marks_of(array)
        launch = len(self.launches) - 1
        ordinal = self._programs.setdefault((launch, program), len(self._programs) + 1)
        kind = traffic.kind
        if kind != "write":
            if kind == "read":
                traffic.repeated += int((marks.reader[positions] == ordinal).sum())
            marks.read_after_write += int(marks.written[positions].sum())
            marks.reader[positions] = ordinal
            marks.read[positions] = True
        if kind != "read":
            if kind == "write":
                traffic.repeated += int(marks.written[positions].sum())
            marks.written[positions] = True
        heads = array.heads(positions)
        rows = array.rows(positions)
        for head in np.unique(heads):
            own_rows = rows[heads == head]
            span = range(int(own_rows.min()), int(own_rows.max()) + 1)
            self.tiles.append(
                Tile(
                    launch,
                    program,
                    traffic.line,
                    array.name,
                    kind,
                    int(head),
                    span,
                    int(own_rows.size),
                )
            )

    def _marks_of(self, array: Array) -> _Marks:
        if array.name not in self._marks:
            self._marks[array.name] = _Marks(array.size)
        return self._marks[array.name]

    def rename(self, old: str, new: str, role: Role) -> None:
        """Give an array another name and role, also where it was recorded. Another array that has
        the name gets a number.
        """
        others = {array.name: array for array in self.memory.arrays() if array.name != old}
        if new in others:
            number = 1
            while f"{new}_{number}" in others:
                number += 1
            self.rename(new, f"{new}_{number}", others[new].role)
        self.memory.rename(old, new, role)
        lines = {}
        for traffic in self.lines.values():
            if traffic.array == old:
                traffic.array = new
            lines[traffic.line, traffic.array, traffic.kind] = traffic
        self.lines = lines
        self.tiles = [
            replace(tile, array=new) if tile.array == old else tile for tile in self.tiles
        ]
        if old in self._marks:
            self._marks[new] = self._marks.pop(old)

    def elements_read(self, array: str) -> int:
        """Return how many elements of an array are read at least once."""
        marks = self._marks.get(array)
        return 0 if marks is None else int(marks.read.sum())

    def elements_written(self, array: str) -> int:
        """Return how many elements of an array are written at least once."""
        marks = self._marks.get(array)
        return 0 if marks is None else int(marks.written.sum())

    def read_after_write(self) -> Mapping[str, int]:
        """Return how many reads of each array are of elements that the kernels have written."""
        return {
            name: marks.read_after_write
            for name, marks in self._marks.items()
            if marks.read_after_write
        }


def _sectors(addresses: np.ndarray, itemsize: int) -> int:
    """Return how many sectors elements at these addresses lie in."""
    first = addresses // SECTOR
    last = (addresses + itemsize - 1) // SECTOR
    return int(np.unique(np.concatenate([first, last])).size)


def _sectors_of_all(array: Array) -> int:
    """Return the same for all elements of an array."""
    extents = array.extents
    if len(extents) > 1:
        return _sectors(array.addresses(array.itemsize), array.itemsize)
    length, _ = extents[0]
    return (array.address + length - 1) // SECTOR - array.address // SECTOR + 1


def _sectors_of(array: Array, positions: np.ndarray) -> int:
    """Return the same for elements of one array by their positions; padding has none."""
    inside = positions[positions != PADDING]
    offsets = np.zeros(inside.shape, np.int64)
    for length, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        offsets += inside % length * stride
        inside = inside // length
    return _sectors(array.address + offsets * array.itemsize, array.itemsize)


def line_outside(packages: tuple[str, ...]) -> Line:
    """Return the innermost line of the call stack that is in none of these folders."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(packages):
            return Line(file, frame.f_lineno)
        frame = frame.f_back
    raise AssertionError("no line outside the interpreter called it")
