"""The two-level memory: HBM, which is large, and SRAM, which holds M elements.

Algorithms speak to it in five verbs::

    K_j, V_j = sram.load(K[j], V[j])    # HBM -> SRAM, counted
    S_ij = sram.on_chip(Q_i @ K_j.T)    # a result now occupies SRAM
    O_i = sram.full(O[i].shape, 0.0)    # registers set to a constant
    sram.store(O[i], O_i_new)           # SRAM -> HBM, counted
    for j in sram.loop(T_c): ...        # evicts at each turn's end what the turn brought on chip

A table that a program follows is read a word at a time: `b = sram.word(table[s, j])` is a number.
Rows that lie anywhere are one block, `K.at(rows)`, which is gathered by a load and scattered by a
store.

What lives in HBM is a handle (`Matrix`, `Block`), not an array: computing with it raises
`NotOnChip`. A tile on chip is a plain `np.ndarray`; evicted, it becomes NaN. One statement is one
fused on-chip operation: its result occupies SRAM, the sub-expressions inside it do not (they are
the registers of one element-wise pass, or a product accumulated in place).

Everything is counted in elements. The memory knows nothing of attention. To follow a run, pass
observers: they are told every `Event`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import CodeType, FrameType
from typing import Any, Literal, NoReturn, cast, overload
from weakref import ReferenceType, ref

import numpy as np
from numpy import nan, ndarray
from numpy.typing import DTypeLike, NDArray

from flashsim.machine.bytecode import collector_of, is_prompt
from flashsim.machine.lifetimes import Death, Escape, Known, Lifetimes
from flashsim.machine.shape_only import ONES, ShapeOnly
from flashsim.machine.source import Site, at_line, file_of, is_users, label_at, site_of, target_at
from flashsim.machine.traffic import ArrayTraffic, Flops, Occupancy, Role, Traffic
from flashsim.machine.turns import (
    Turn,
    Watch,
    block_number,
    index_of,
    mark_position,
    turn_state,
    unseen_by,
)

Tile = NDArray[Any]
"""A block on chip: a plain array (or, in counting-only mode, a `ShapeOnly` that stands in for
one).
"""


class MemoryModelError(RuntimeError):
    """A program broke a rule of the two-level memory."""


class NotOnChip(MemoryModelError):
    """Something that is not in SRAM was computed with or stored."""


class SramOverflow(MemoryModelError):
    """More was brought on chip than an enforced capacity holds.

    Attributes: `asked` (name), `elements`, `resident` (name -> elements, in order of arrival),
    `capacity`.
    """

    is_of_all_turns = True  # as `flashsim.machine.turns` asks

    def __init__(
        self, asked: str, shape: tuple[int, ...], resident: dict[str, int], capacity: int
    ) -> None:
        self.asked, self.elements, self.resident, self.capacity = (
            asked,
            math.prod(shape),
            resident,
            capacity,
        )
        used = sum(resident.values())
        held = ", ".join(f"{name} {elements:,}" for name, elements in resident.items()) or "nothing"
        super().__init__(
            f"{asked} ({_by(shape)} = {self.elements:,} elements) does not fit in SRAM: {used:,} "
            f"of M = {capacity:,} "
            f"elements are in use, so {self.elements + used - capacity:,} too many. Resident: "
            f"{held}. "
            f'Take a larger M or smaller blocks; the sizing "fit" finds some.'
        )


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(f"{n:,}" for n in shape)


# --------------------------------------------------------------------------------------------------
# HBM


class _InHBM:
    """What HBM hands out: a name and a shape, and a refusal to be used as numbers."""

    __slots__ = ("shape",)
    shape: tuple[int, int]
    _storage: _Storage

    @property
    def name(self) -> str:
        """What it is called in errors and events."""
        raise NotImplementedError

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        block = f"{self.name}[…]" if isinstance(self, Matrix) else self.name
        whole = self._storage.name
        raise NotOnChip(
            f"{self.name} ({_by(self.shape)}) is in HBM. To compute with it, bring a block on "
            f"chip: sram.load({block}). "
            f'To look at it, say after a run: hbm.peek("{whole}")'
        )

    __array__ = __array_ufunc__ = __array_function__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        _refuse
    )
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __abs__ = __float__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __setitem__(self, index: object, _: object) -> NoReturn:
        block = f"{self.name}[{index}]" if isinstance(self, Matrix) else self.name
        raise NotOnChip(f"{block} is in HBM: write to it with sram.store({block}, …)")


# a __getattr__ would make every attribute slow
for _attribute in {*dir(np.ndarray)} - {*dir(_InHBM)}:
    if not _attribute.startswith("_"):
        setattr(_InHBM, _attribute, property(_InHBM._refuse))


@dataclass(slots=True, eq=False)
class _Storage:
    """One array in HBM with its counters. `values` is None in counting-only mode; `words` are
    those of an index array.
    """

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    role: Role
    values: Tile | None
    words: NDArray[np.uint32] | None = None
    reads: int = 0
    writes: int = 0
    init_writes: int = 0


class Block(_InHBM):
    """One block of a matrix in HBM, such as `K[j]`: what `sram.load` reads and `sram.store` writes.

    `where` is its (rows, columns). A block gathered from anywhere, `K.at(rows)`, has `rows`
    instead. One that was taken with a `Turn` stands for several: to ask for its place, its name, or
    whether it is another, says that these are not alike.
    """

    __slots__ = ("_at", "_name", "_rows", "_storage", "_turns", "_values", "_where")

    def __init__(
        self,
        storage: _Storage,
        name: str,
        where: tuple[slice, slice] | None,
        gathered: Sequence[int] = (),
    ) -> None:
        self._name = name
        self._storage = storage
        self._where = where
        self._turns: Sequence[Turn] = ()
        self._rows = None if where else tuple(gathered)
        self._at: Any = ... if where else [*gathered]
        if where:
            rows, cols = where
            self.shape = rows.stop - rows.start, cols.stop - cols.start
        else:
            self.shape = len(gathered), storage.shape[1]
        values = storage.values
        self._values = None if values is None else values[where] if where else values

    __getitem__ = __iter__ = _InHBM._refuse

    @property
    def name(self) -> str:
        """Its matrix and its number there, `K[3]`."""
        self._look()
        return self._name

    @property
    def where(self) -> tuple[slice, slice] | None:
        """Its rows and columns of the matrix; None if it was gathered."""
        self._look()
        return self._where

    @property
    def rows(self) -> tuple[int, ...] | None:
        """The rows that were gathered; None if it was not."""
        self._look()
        return self._rows

    def _look(self) -> None:
        if self._turns:
            mark_position(self._turns)

    def _turn_state(self) -> tuple[Any, ...]:
        """Return what decides what can be done with it (`flashsim.machine.state`)."""
        place: Any = self._where and [(side.start, side.stop) for side in self._where]
        if self._turns:
            place = [turn_state(turn) for turn in self._turns]
        return "block", id(self._storage), self.shape, place, self._turns == () and self._rows

    def __eq__(self, other: object) -> bool:
        self._look()
        if isinstance(other, Block):
            other._look()
        return self is other

    def __hash__(self) -> int:
        self._look()
        return object.__hash__(self)

    def __repr__(self) -> str:
        return f"<{self.name} in HBM, {_by(self.shape)}>"


class Matrix(_InHBM):
    """A matrix in HBM, or a window of its rows, divided into blocks: `Q[i]` (rows) or `S[i, j]`
    (tiles) names one of them.

    `blocks` is how many there are down and across.
    """

    __slots__ = ("_cols", "_first", "_row_blocks", "_rows", "_storage", "_window", "blocks", "name")
    name: str

    def __init__(
        self, storage: _Storage, rows: int, cols: int, window: tuple[int, int] | None = None
    ) -> None:
        self._storage = storage
        self._window = window
        # plain numbers: those of Blocks know their length, and are slower
        self._rows = max(int(rows), 1)
        self._cols = max(int(cols), 1)
        self._first, end = window or (0, storage.shape[0])
        self.name = f"{storage.name}[{self._first}:{end}]" if window else storage.name
        self.shape = end - self._first, storage.shape[1]
        self.blocks = (-(-self.shape[0] // self._rows), -(-self.shape[1] // self._cols))
        self._row_blocks: dict[int, Block] = {}

    def divide(self, rows: int, cols: int | None = None) -> Matrix:
        """Divide into blocks of `rows` rows (and `cols` columns); the last may be smaller. Moves
        nothing.

        Raises ValueError for other numbers than whole ones of at least 1, and for the B_r or B_c of
        `flashsim.Blocks` that were made for another length than an input or a result has, as of its
        rows some would be left out.
        """
        if not (
            _is_whole(rows) and rows >= 1 and (cols is None or (_is_whole(cols) and cols >= 1))
        ):
            raise ValueError(
                f"{self.name}.divide(rows={rows}, cols={cols}): expected whole numbers of at least "
                "1"
            )
        length = getattr(rows, "length", self.shape[0])  # of what Blocks' B_r and B_c divide
        if (
            length != self.shape[0]
            and self._storage.role in ("input", "output")
            and self._window is None
        ):
            raise ValueError(
                f"{self.name} has {self.shape[0]:,} rows and is divided into blocks of {rows}, "
                "which were made for a length of "
                f"{length:,}: expected Blocks(B_r, B_c, N_q=…, N_k=…) with the rows of Q and of K; "
                "int(B_c) divides any length"
            )
        return Matrix(self._storage, rows, self.shape[1] if cols is None else cols, self._window)

    def rows(self, a: int, b: int) -> Matrix:
        """Return the window of rows a … b−1, divided alike from its own first row. Its blocks are
        named by their rows, `K[3:7]`.

        Moves nothing. Raises ValueError unless 0 ≤ a ≤ b ≤ the number of rows.
        """
        if not (_is_whole(a) and _is_whole(b)) or not 0 <= a <= b <= self.shape[0]:
            raise ValueError(
                f"{self.name}.rows(a={a!r}, b={b!r}): expected whole numbers 0 ≤ a ≤ b ≤ "
                f"{self.shape[0]}, its rows"
            )
        return Matrix(
            self._storage, self._rows, self._cols, (self._first + int(a), self._first + int(b))
        )

    def at(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> Block:
        """Return these rows, whole, in this order, as one block, `K[[5, 0, 3]]`: loaded they are
        gathered, stored to, scattered.

        They are counted from this handle's first row, and may come from words that were read. Moves
        nothing. Raises ValueError unless they are whole numbers from 0 to the number of rows − 1,
        at least one.
        """
        given = np.asarray(rows)
        end = self.shape[0]
        if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size:
            raise ValueError(
                f"{self.name}.at(rows={rows!r:.60}): expected whole numbers from 0 to {end - 1}, "
                "one or more"
            )
        if given.min() < 0 or given.max() >= end:
            wrong = next(row for row in given.tolist() if not 0 <= row < end)
            raise ValueError(
                f"{self.name}.at(rows=…) has row {wrong}; expected rows from 0 to {end - 1}"
            )
        gathered = [self._first + row for row in given.tolist()]
        named = ", ".join(map(str, gathered[:4])) + ", …" * (len(gathered) > 4)
        return Block(self._storage, f"{self._storage.name}[[{named}]]", None, gathered)

    def __len__(self) -> int:
        """Return the number of row blocks, T_r or T_c."""
        return self.blocks[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type the matrix is stored in: stores round to it, bytes are counted in it."""
        return self._storage.dtype

    def __getitem__(self, index: int | tuple[int, int]) -> Block:
        if type(index) is int and (known := self._row_blocks.get(index)):
            return known
        i: Any
        j: Any
        i, j = index if type(index) is tuple and len(index) == 2 else (index, None)
        if type(i) is Turn or type(j) is Turn:
            return self._of_turn(i, j)
        down, across = self.blocks
        if not (_is_whole(i) and (j is None or _is_whole(j))):
            raise TypeError(
                f"{self.name}[{index}]: expected a block's number, as {self.name}[0], or two, as "
                f"{self.name}[0, 0]; "
                f"{self.name}.divide(rows, columns) says how large blocks are"
            )
        if not 0 <= i < down or not 0 <= (j or 0) < across or (j is None and across != 1):
            raise IndexError(
                f"{self.name}[{index}]: {self.name} has {down} × {across} blocks, counted from 0"
            )
        top = i * self._rows
        rows = slice(self._first + top, self._first + min(top + self._rows, self.shape[0]))
        down_name: int | str = f"{rows.start}:{rows.stop}" if self._window else i
        left = (j or 0) * self._cols
        cols = slice(left, min(left + self._cols, self.shape[1]))
        if j is not None:
            return Block(self._storage, f"{self._storage.name}[{down_name}, {j}]", (rows, cols))
        self._row_blocks[i] = block = Block(
            self._storage, f"{self._storage.name}[{down_name}]", (rows, cols)
        )
        return block

    def _of_turn(self, i: Any, j: Any) -> Block:
        """Return the block that a `Turn` takes, or two: of those that it stands for, which are
        alike, the first.
        """
        numbers = [i, j]
        turns = []
        for axis, (index, size) in enumerate(zip((i, j), (self._rows, self._cols), strict=True)):
            if type(index) is Turn:
                turns.append(index)
                numbers[axis] = block_number(index, self.blocks[axis], self.shape[axis] % size > 0)
        first = self[numbers[0]] if j is None else self[numbers[0], numbers[1]]
        # another, so that the first stays itself
        block = Block(first._storage, first._name, first._where)
        block._turns = turns
        return block

    def _turn_state(self) -> tuple[Any, ...]:
        """Return what decides what can be done with it (`flashsim.machine.state`)."""
        return "matrix", id(self._storage), self._window, self._rows, self._cols

    def __repr__(self) -> str:
        down, across = self.blocks
        return f"<{self.name} in HBM, {_by(self.shape)}, in {down} × {across} blocks>"


class HBM:
    """The large memory. It holds named matrices, and counts what SRAM reads from and writes to
    each.

    With `arithmetic=False` matrices have a shape and no values, and whole runs are counted without
    computing.
    """

    def __init__(self, *, arithmetic: bool = True) -> None:
        self.arithmetic = arithmetic
        # set by an SRAM that has observers
        self._told: Callable[[str, int, Site], None] | None = None
        self._watch: Watch | None = None  # set by an SRAM that has one
        self._arrays: dict[str, _Storage] = {}
        self._chip: ReferenceType[SRAM] | None = None

    def place(
        self,
        name: str,
        values: Tile | tuple[int, int],
        dtype: DTypeLike | None = None,
        role: Role = "input",
        *,
        index: bool = False,
    ) -> Matrix:
        """Put an input in HBM, free of charge: it starts there. Counting-only keeps its shape
        alone, which will do for `values`.

        `dtype` is the storage type that bytes are counted in, by default that of `values`. The
        values are used as they are; those of an input are never written to.

        An `index` array holds words that say where to go on, such as a table of pages, for
        `sram.word`: whole numbers below 2³², of which the last says "none". It keeps its values in
        counting-only mode, and is stored as uint32.

        An algorithm that has loaded something places no numbers any more, as that would be a write
        that is not counted; a table it may, whose words are numbers of rows or blocks. Raises
        MemoryModelError otherwise.
        """
        if self._chip is not None and self._is_in_algorithm(sys._getframe(1)):
            self._check_placed(name, values, index)
        if index:
            return self._place_words(name, values, dtype, role)
        if isinstance(values, tuple):
            if self.arithmetic:
                raise TypeError(
                    f"{name}: an HBM that computes needs values; got only the shape {values}"
                )
            return self._add(name, values, np.dtype(dtype), role, None)
        rows, cols = values.shape
        return self._add(
            name,
            (rows, cols),
            np.dtype(dtype or values.dtype),
            role,
            values if self.arithmetic else None,
        )

    def _is_in_algorithm(self, frame: FrameType) -> bool:
        chip = None if self._chip is None else self._chip()
        if chip is None or not chip.runs_algorithm:
            return False
        return is_users(frame) and chip.is_in_algorithm(frame)

    def _check_placed(self, name: str, values: Any, index: bool) -> None:
        end = max((max(storage.shape) for storage in self._arrays.values()), default=0)
        if not index:
            raise MemoryModelError(
                f"hbm.place({name!r}, …) in an algorithm that has loaded tiles would be a write to "
                "HBM that is not counted; "
                "expected hbm.empty and sram.store"
            )
        if isinstance(values, ndarray) and np.any(
            (values > end) & (values < np.iinfo(np.uint32).max)
        ):
            raise MemoryModelError(
                f"hbm.place({name!r}, …, index=True) in an algorithm that has loaded tiles takes "
                "numbers of rows or blocks, "
                f"{end:,} at most here; got {values.max():,}"
            )

    def _place_words(self, name: str, values: Any, dtype: DTypeLike | None, role: Role) -> Matrix:
        if dtype is not None and np.dtype(dtype) != np.uint32:
            raise ValueError(
                f"dtype of {name} is {np.dtype(dtype)}; expected none, as words are uint32"
            )
        given = values if isinstance(values, ndarray) else np.empty(0)
        if (
            given.ndim != 2
            or given.dtype.kind not in "iu"
            or np.any((given < 0) | (given > np.iinfo(np.uint32).max))
        ):
            raise ValueError(
                f"{name} is {values!r:.80}; expected whole numbers from 0 to 2³²−1, (rows, columns)"
            )
        words: NDArray[np.uint32] = given.astype(np.uint32)
        matrix = self._add(
            name,
            (len(words), words.shape[1]),
            words.dtype,
            role,
            words if self.arithmetic else None,
        )
        matrix._storage.words = words
        return matrix

    def full(
        self,
        name: str,
        shape: tuple[int, int],
        value: float | Tile,
        dtype: DTypeLike,
        role: Role = "extra",
    ) -> Matrix:
        """Allocate a matrix and write `value` to all of it: counted as `init_writes` (and so as
        `writes`).
        """
        matrix = self.empty(name, shape, dtype, role)
        storage = matrix._storage
        storage.writes = storage.init_writes = storage.shape[0] * storage.shape[1]
        if storage.values is not None:
            storage.values[...] = value
        if self._told is not None:
            self._told(name, storage.writes, site_of(sys._getframe(1)))
        return matrix

    def empty(
        self, name: str, shape: tuple[int, int], dtype: DTypeLike, role: Role = "extra"
    ) -> Matrix:
        """Allocate a matrix without writing it; until it is stored to, it reads as NaN."""
        if not (
            isinstance(shape, tuple)
            and len(shape) == 2
            and _is_whole(shape[0])
            and _is_whole(shape[1])
        ):
            raise TypeError(f"the shape of {name} is {shape!r}; expected (rows, columns)")
        values = np.empty(shape, dtype) if self.arithmetic else None
        if values is not None:
            _poison(values)
        return self._add(name, shape, np.dtype(dtype), role, values)

    def _add(
        self,
        name: str,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        role: Role,
        values: Tile | None,
    ) -> Matrix:
        if name in self._arrays:
            raise ValueError(f"HBM already holds a matrix named {name!r}")
        self._arrays[name] = storage = _Storage(name, shape, dtype, role, values)
        return Matrix(storage, *shape)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def matrix(self, name: str) -> Matrix:
        """Return the handle of a matrix that is in HBM already, undivided. Raises KeyError."""
        if name not in self._arrays:
            raise KeyError(f"HBM holds no {name!r}; it holds {', '.join(self._arrays)}")
        storage = self._arrays[name]
        return Matrix(storage, *storage.shape)

    def holds(self, matrix: Matrix) -> bool:
        """Return whether a handle is of a matrix here, not of one in another HBM."""
        return self._arrays.get(matrix.name) is matrix._storage

    def peek(self, name: str) -> Tile:
        """Look at a matrix without moving or counting anything, read-only: for observers,
        debuggers, and after the run.

        Raises MemoryModelError where an algorithm that has loaded something calls it: that would be
        a read that is not counted.
        """
        if self._is_in_algorithm(sys._getframe(1)):
            raise MemoryModelError(
                f"hbm.peek({name!r}) in an algorithm is a read of HBM that is not counted; "
                "expected sram.load"
            )
        values = self.matrix(name)._storage.values
        if values is None:
            raise ValueError(f"{name} has no values: this HBM only counts")
        view = values.view()
        view.flags.writeable = False
        return view

    @property
    def traffic(self) -> Traffic:
        """The counts so far."""
        if self._watch is not None:
            self._watch.mark_all("hbm.traffic")
        found = {}
        for name, a in self._arrays.items():
            found[name] = ArrayTraffic(
                a.reads, a.writes, a.init_writes, math.prod(a.shape), a.dtype.itemsize, a.role
            )
        return Traffic(found)

    def __repr__(self) -> str:
        return f"HBM accesses so far, in elements\n{self.traffic}"


# --------------------------------------------------------------------------------------------------
# SRAM

EventKind = Literal[
    "init",
    "load",
    "compute",
    "store",
    "evict",
    "enter",
    "turn",
    "turn end",
    "leave",
    "post",
    "wait",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in the memory, as observers are told it.

    kind      "init" (HBM initialised), "load", "compute", "store", "evict", or a loop's "enter",
              "turn", "turn end", "leave"
    name      the block ("K[3]"), the tile ("S_ij"), or the loop variable ("j")
    elements  how many elements the block or tile has; for "enter", how many turns
    tile      the values (None for loop events); valid only during the call
    times     how often it happened: more than 1 only in counting-only mode, where equal turns are
              run once
    loops     (variable, index) of the loops around, outermost first
    site      (file, line) in the source
    sram      the memory itself
    where     (rows, columns) of the matrix that a loaded or stored block is; None for all else
    rows      the rows of the matrix that a gathered or scattered block has, which has no `where`;
              None for all else
    """

    kind: EventKind
    name: str
    elements: int
    tile: Tile | None
    times: int
    loops: tuple[tuple[str, int], ...]
    site: Site
    sram: SRAM
    where: tuple[slice, slice] | None = None
    rows: tuple[int, ...] | None = None

    @property
    def label(self) -> str | None:
        """What labels the source line in the paper's terms: "line 9", "equation 4"."""
        return label_at(self.site)


Observer = Callable[[Event], None]
Place = tuple[CodeType, int]
"""(code, offset of the instruction) of a call. Its line takes 0.4 µs to find, so that waits
until somebody asks.
"""


def site_of_place(place: Place) -> Site:
    """Return the file and line of `place`: what `f_lineno` said at the time."""
    code, offset = place
    return file_of(code), _line_at(code, code.co_linetable, offset)


@cache
def _line_at(code: CodeType, linetable: bytes, offset: int) -> int:
    """Return a line of the code; another file's code of the same text is equal, so its table of
    lines tells them apart.
    """
    line = next(line for start, end, line in code.co_lines() if start <= offset < end)
    return line or code.co_firstlineno


class Kinds(dict[int, int | Fraction]):
    """Turns of a loop that together stand for all: index -> for how many. What `loop` takes where
    turns are too many to list.

    A fraction is an average, where one turn of the outer loop stands for several, and these go
    round this loop unequally often.
    """

    def below(self, turns: int) -> list[tuple[int, int | Fraction]]:
        """Return those of the first `turns`, each with how many it stands for."""
        return [(index, times) for index, times in self.items() if index < turns]


class Lifespan:
    """A loop's turn, or the part of one up to a tile's eviction: what is computed in it, and not
    on chip, ends with it.
    """

    ended = False


_Resident = tuple[Tile, int, str | None, Place | None]
"""A tile on chip, its size, the block it was loaded from, or else where it was computed. Plain,
as it is made often.
"""


def _name(resident: _Resident) -> str:
    _, _, block, place = resident
    return block or target_at(site_of_place(cast(Place, place)), "an unnamed tile")


class SRAM:
    """The small memory: `capacity` elements (M), enforced or only reported.

    `occupancy` is what is resident now, `peak` the most so far. `dtype` is what the chip computes
    in: loads widen to it, stores round to the matrix's own type.

    `fold` says whether counting-only mode runs turns of a loop once that the program says are
    equal: True for programs of which it is tested. With a `watch`, turns are run once that are
    shown to be alike (`flashsim.machine.turns`).
    """

    def __init__(
        self,
        hbm: HBM,
        capacity: int,
        *,
        enforced: bool = True,
        dtype: DTypeLike = np.float64,
        observers: Sequence[Observer] = (),
        fold: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self.hbm, self.capacity, self.enforced, self.dtype = (
            hbm,
            capacity,
            enforced,
            np.dtype(dtype),
        )
        self._fold = fold and not hbm.arithmetic
        self._watch = hbm._watch = watch
        self.occupancy = self._peak = 0
        self._resident: dict[int, _Resident] = {}
        self._scope: list[int] = []  # what the current loop turn brought on chip
        self._loops: list[tuple[Site, int]] = []
        self._observers = tuple(observers)
        if self._observers:
            hbm._told = lambda name, elements, site: self._tell("init", name, elements, None, site)
        self._weight = 1  # how many equal turns the current one stands for (counting-only mode)
        self._flops_matmul = self._flops_other = 0
        self.lifespan = Lifespan()  # in counting-only mode, that of what is computed now
        self._maker = sys._getframe(1).f_code
        self._loads = False  # whether anything was loaded yet
        self._calls = False  # whether a user's algorithm is running
        self._lifetimes: Lifetimes | None = None  # of what a user's code computes
        self._known: Known | None = None  # what its variables held when the current turn began
        # whether something may be left over from a tile that was evicted before the first loop
        self._skipped = False
        self._escape: Escape | None = None  # from a turn that was left early
        hbm._chip = ref(self)

    # ----------------------------------------------------------------------------------------------
    # the five verbs

    @overload
    def load(self, block: Block, /, *, over: Tile | None = None) -> Tile: ...
    @overload
    def load(self, block: Block, second: Block, /, *more: Block) -> tuple[Tile, ...]: ...
    def load(self, *blocks: Block, over: Tile | None = None) -> Tile | tuple[Tile, ...]:
        """Copy blocks from HBM to SRAM and count the reads. Returns plain arrays, in `dtype`
        (booleans as such).

        With `over`, one block replaces that resident tile, and takes no further room: its first
        rows, where the block has fewer.
        """
        if not self._loads:
            self._begin(sys._getframe(1))
        if over is not None:
            return self._load_over(blocks, over)
        tiles = []
        for block in blocks:
            if type(block) is not Block:
                raise TypeError(f"sram.load takes blocks in HBM such as K[j]; got {_kind(block)}")
            storage = block._storage
            if block._values is None:
                tile: Any = ShapeOnly(block.shape, self)
            else:
                dtype = storage.dtype if storage.dtype.kind in "bu" else self.dtype
                tile = np.array(block._values[block._at], dtype, order="C")
            size = self._admit(tile, block._name, None)
            storage.reads += size * self._weight
            tiles.append(tile)
            if self._observers:
                self._tell("load", block._name, size, tile, site_of(sys._getframe(1)), block)
        if not tiles:
            raise TypeError("sram.load takes blocks in HBM such as K[j]; got none")
        return tuple(tiles) if len(tiles) > 1 else tiles[0]

    def _load_over(self, blocks: tuple[Block, ...], over: Tile) -> Tile:
        if len(blocks) != 1 or type(blocks[0]) is not Block:
            got = ", ".join(map(_kind, blocks))
            raise TypeError(f"sram.load(…, over=…) takes one block in HBM such as K[j]; got {got}")
        (block,) = blocks
        if id(over) not in self._resident:
            self._refuse_absent(over, "sram.load(…, over=…)")
        (rows, columns), room = block.shape, over.shape
        if columns != room[1] or rows > room[0]:
            raise ValueError(
                f"{block.name}, which is {_by(block.shape)}, cannot be loaded over a {_by(room)} "
                "tile"
            )
        self._end_of_tile(sys._getframe(2))
        tile: Tile = over if rows == room[0] else over[:rows]
        if block._values is not None:
            tile[...] = block._values[block._at]
            if rows < room[0]:
                _poison(over[rows:])
        self._resident[id(over)] = (over, over.size, block._name, None)
        block._storage.reads += tile.size * self._weight
        if self._observers:
            self._tell("load", block._name, tile.size, tile, site_of(sys._getframe(2)), block)
        return tile

    def word(self, block: Block) -> int:
        """Read one element of an index array, such as `table[s, j]` of one divided 1 by 1, and
        return it as a number.

        It is counted, and held until its turn ends, as what is loaded is; in counting-only mode
        too.
        """
        if type(block) is not Block:
            raise TypeError(
                f"sram.word takes a block in HBM such as table[s, j]; got {_kind(block)}"
            )
        storage = block._storage
        if storage.words is None:
            raise TypeError(
                f"sram.word reads index arrays, hbm.place(…, index=True); {storage.name} is not one"
            )
        if block._turns:
            mark_position(block._turns)
        if block.shape != (1, 1):
            raise ValueError(
                f"sram.word reads one element; {block.name} is {_by(block.shape)}: divide(1, 1)"
            )
        tile = np.array(storage.words[block._where or block._at])
        word = int(tile[0, 0])
        self._admit(tile, block._name, None)
        storage.reads += self._weight
        if self._observers:
            self._tell("load", block._name, 1, tile, site_of(sys._getframe(1)), block)
        return word

    def on_chip(self, result: Tile, *, over: Tile | None = None) -> Tile:
        """Register a computed result as resident, and return it.

        With `over=tile` the result overwrites that tile in place (P̃ over S): the same buffer,
        counted once. Of a tile's part, such as `over=O_i[:, c : c + 1]`, it overwrites that part,
        and returns it. A result already on chip, say one computed with `out=`, is likewise not
        counted again.
        """
        if type(result) is ndarray:
            if over is None and result.dtype is not self.dtype and result.dtype != self.dtype:
                raise TypeError(
                    f"{_kind(result)} of {result.dtype} came on chip, which computes in "
                    f"{self.dtype}: "
                    "expected numbers of sram.dtype, such as sram.full(shape, value)"
                )
        elif not isinstance(result, ShapeOnly):
            if result is ONES:  # takes no room
                neutral: Tile = ONES
                return neutral
            if isinstance(result, _InHBM):
                result._refuse()
            raise TypeError(f"on_chip takes the result of array arithmetic; got {_kind(result)}")
        frame = sys._getframe(1)
        place = frame.f_code, frame.f_lasti
        if over is not None:
            if (
                id(over) not in self._resident
                and id(getattr(over, "base", None)) not in self._resident
            ):
                self._refuse_absent(over, "on_chip(…, over=…)")
            if result.shape != over.shape:
                raise ValueError(
                    f"a {_by(result.shape)} result cannot overwrite a {_by(over.shape)} tile"
                )
            if type(result) is ndarray and result is not over:
                over[...] = result
            if id(over) in self._resident:  # else a part of what is
                self._resident[id(over)] = (over, over.size, None, place)
            result = over
        elif id(result) not in self._resident:
            if result.base is not None:  # as a view it would be poisoned with the tile it looks at
                result = (
                    result.copy()
                    if type(result) is ndarray
                    else cast(Tile, ShapeOnly(result.shape, self))
                )
            self._admit(result, None, place)
        if self._observers:
            site = site_of_place(place)
            self._tell("compute", target_at(site, "a result"), result.size, result, site)
        return result

    def full(self, shape: tuple[int, ...], value: float) -> Tile:
        """Set registers on chip to a constant, such as an accumulator's zeros. Moves nothing."""
        if not isinstance(shape, tuple) or not all(map(_is_whole, shape)):
            raise TypeError(f"sram.full takes a shape such as (B_r, 1); got {shape!r}")
        frame = sys._getframe(1)
        place = frame.f_code, frame.f_lasti
        tile: Tile = (
            np.full(shape, value, self.dtype)
            if self.hbm.arithmetic
            else cast(Tile, ShapeOnly(shape, self))
        )
        self._admit(tile, None, place)
        if self._observers:
            site = site_of_place(place)
            self._tell("compute", target_at(site, "registers"), tile.size, tile, site)
        return tile

    def store(self, block: Block, tile: Tile) -> None:
        """Copy a resident tile to HBM, rounding to the matrix's type, and count the writes."""
        if type(block) is not Block:
            raise TypeError(f"sram.store writes to a block in HBM such as O[i]; got {_kind(block)}")
        if id(tile) not in self._resident:
            self._refuse_absent(tile, f"sram.store to {block.name}")
        if self._escape is not None:
            self._refuse_escape(self._escape)
        if tile.shape != block.shape:
            raise ValueError(
                f"a {_by(tile.shape)} tile cannot be stored to {block.name}, which is "
                f"{_by(block.shape)}"
            )
        if block._rows is not None and len(set(block._rows)) < len(block._rows):
            raise ValueError(
                f"sram.store to {block.name}: expected each row once, as one of two would be lost"
            )
        block._storage.writes += tile.size * self._weight
        if block._values is not None:
            block._values[block._at] = tile
        if self._observers:
            self._tell("store", block._name, tile.size, tile, site_of(sys._getframe(1)), block)

    def evict(self, *tiles: Tile) -> None:
        """Free tiles before their turn ends: for a schedule that is a list of steps, where tiles go
        in any order.

        Raises NotOnChip for what is not on chip, MemoryModelError for what a turn around this one
        brought there.
        """
        self._end_of_tile(sys._getframe(1))
        for tile in tiles:
            key = id(tile)
            if key not in self._resident:
                self._refuse_absent(tile, "sram.evict")
            if key not in self._scope:
                name = _name(self._resident[key])
                raise MemoryModelError(
                    f"sram.evict: a turn around this one brought {name} on chip, and evicts it"
                )
            self._scope.remove(key)
            self._evict([key], site_of(sys._getframe(1)))

    def loop(
        self,
        turns: int | range,
        *,
        where: NDArray[np.bool_] | Kinds | None = None,
        alike: Sequence[Hashable] | Kinds | None = None,
    ) -> Turns:
        """Count 0 … turns−1, or those where `where` is True, or a range; what a turn brings on chip
        is evicted at its end.

        `reversed(sram.loop(turns))` counts down.

        In counting-only mode an SRAM with `fold` runs turns that are equal once, and counts them as
        often as they occur: blocks differ only in the ragged last one, so that is the first turn,
        standing for all but one, and the last. If turns differ in more than that, `alike[index]`
        says which are equal. A range takes no such word: its second turn stands for all but the
        ends. Either argument may be `Kinds`, for counting only. Without `fold`, every turn is run,
        or, with a watch, those that could not be shown to be alike.

        A turn left early, by `break` or an error, evicts too, but observers are told nothing of
        that: Python could only print what they raise there.
        """
        if not isinstance(turns, range) and not (_is_whole(turns) and turns >= 0):
            raise TypeError(
                f"sram.loop takes a number of turns, such as blocks.T_c, or a range; got {turns!r}"
            )
        if isinstance(turns, range) and (where is not None or alike is not None):
            raise ValueError(
                f"sram.loop({turns}, …) has a where or an alike as well; expected them with a "
                "number of turns"
            )
        return Turns(self, sys._getframe(1), turns, where, alike)

    def _run_turns(
        self, site: Site, turns: int | range, schedule: Iterable[tuple[Any, int | Fraction]]
    ) -> Iterator[int]:
        """Yield the turns of a loop, each as often as the schedule says, and evict what each
        brought on chip.
        """
        if self._observers:
            number = len(turns) if isinstance(turns, range) else turns
            self._tell("enter", target_at(site, "loop"), number, None, site)
        around = self._scope
        depth = len(self._loops)
        outside = self._weight
        lifespan = self.lifespan
        known = self._known
        counts = not self.hbm.arithmetic
        caller = sys._getframe(1)
        of_user = is_users(caller)
        watched = self._looked_through(caller) if of_user else None
        lifetimes = cast(Lifetimes, self._lifetimes)
        inner = watched if of_user else known
        for index, times in schedule:
            scope: list[int] = []
            ended = False
            try:
                self._scope = scope
                self._known = inner
                if counts:
                    self.lifespan = Lifespan()
                self._weight = outside * times if type(times) is int else _whole(outside * times)
                self._loops.append((site, index))
                if self._observers:
                    self._tell("turn", target_at(site, "loop"), 0, None, site)
                yield index
                if watched is not None:
                    if lifetimes.wait > 0 and not watched.fresh:
                        lifetimes.wait -= 1
                    else:
                        self._end_of_turn(watched, sys._getframe(1))
                self._evict(scope)
                ended = True
                if self._observers:
                    self._tell("turn end", target_at(site, "loop"), 0, None, site)
            finally:
                if not ended:
                    self._abandon(scope, watched, sys._getframe(1))
                    if self._watch is not None:
                        self._watch.left(index)
                if counts:
                    self.lifespan.ended = True
                    self.lifespan = lifespan
                self._scope = around
                self._weight = outside
                self._known = known
                del self._loops[depth:]
        if watched is not None and not self._loops:
            self._refuse_escape(self._lifetimes_of_users.end(watched, sys._getframe(1)))
        if self._observers:
            self._tell("leave", target_at(site, "loop"), number, None, site)

    # ----------------------------------------------------------------------------------------------
    # what it knows

    @property
    def peak(self) -> int:
        """The most elements that were on chip at once so far."""
        if self._watch is not None:
            self._watch.mark_all("sram.peak")
        return self._peak

    @property
    def resident(self) -> dict[str, int]:
        """What is on chip now: name -> elements, in order of arrival."""
        if self._watch is not None:
            self._watch.mark_all("sram.resident")
        return self._held()

    def _held(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for resident in self._resident.values():
            name = _name(resident)
            held[name] = held.get(name, 0) + resident[1]
        return held

    def holds(self, tile: Tile) -> bool:
        """Say whether `tile`, or the array it is a view of, is resident."""
        return id(tile) in self._resident or (
            tile.base is not None and id(tile.base) in self._resident
        )

    @property
    def use(self) -> Occupancy:
        """Peak and capacity, as a record."""
        return Occupancy(self.peak, self.capacity, self.enforced)

    @property
    def flops(self) -> Flops:
        """Operations so far. Counted in counting-only mode, where operands report what is done
        to them.
        """
        if self._watch is not None:
            self._watch.mark_all("sram.flops")
        return Flops(self._flops_matmul, self._flops_other)

    def call(self, algorithm: Callable[..., Any], *arguments: Any) -> Any:
        """Call a user's algorithm, to which HBM's `place` and `peek` are closed from its first
        load until it returns.
        """
        self._calls = True
        try:
            return algorithm(*arguments)
        finally:
            self._calls = False

    @property
    def runs_algorithm(self) -> bool:
        """Whether an algorithm that was called, or that loops, has begun to load."""
        return bool((self._calls and self._loads) or self._loops)

    def is_in_algorithm(self, frame: FrameType) -> bool:
        """Return whether a frame is an algorithm's of the user's that has loaded something: not
        an observer's or a debugger's.
        """
        if is_prompt(frame):
            return False
        current: FrameType | None = frame
        while is_users(current):
            current = cast(FrameType, current).f_back
        if current is not None and current.f_code is SRAM._tell.__code__:
            return False
        return self.runs_algorithm

    def death_at(self, site: Site) -> Death | None:
        """Return what is mentioned in a line and was overwritten when its turn ended, as it was
        not on chip; None for nothing.
        """
        return None if self._lifetimes is None else self._lifetimes.death_at(site)

    def refuse_ended(self, tile: ShapeOnly) -> None:
        """Raise NotOnChip for what was computed in a turn that has ended, in counting-only mode,
        unless it is on chip.
        """
        whole = tile if tile.base is None else tile.base
        if id(whole) not in self._resident:
            raise NotOnChip(
                f"{_kind(tile)} is not on chip: it was made in a turn that has ended, or before a "
                "tile was evicted. Expected it "
                "in SRAM, by on_chip(…, over=tile) of a tile that was there before the loop, or in "
                "HBM, by sram.store(…)"
            )

    def count_flops(self, *, matmul: int = 0, other: int = 0) -> None:
        """Add operations, as often as the current turn stands for."""
        self._flops_matmul += matmul * self._weight
        self._flops_other += other * self._weight

    def __repr__(self) -> str:
        rule = "enforced" if self.enforced else "not enforced"
        lines = [
            (
                f"SRAM: {self.occupancy:,} of M = {self.capacity:,} elements in use ({rule}), peak "
                f"{self.peak:,}"
            )
        ]
        lines += [
            f"  {_name(r):<12} {_by(r[0].shape):>14} {r[1]:>12,}" for r in self._resident.values()
        ]
        return "\n".join(lines)

    # ----------------------------------------------------------------------------------------------
    # its rules

    def _admit(self, tile: Tile, block: str | None, place: Place | None) -> int:
        size = tile.size
        occupancy = self.occupancy + size
        if occupancy > self._peak:
            if self.enforced and occupancy > self.capacity:
                raise SramOverflow(
                    _name((tile, size, block, place)), tile.shape, self._held(), self.capacity
                )
            self._peak = occupancy
        self.occupancy = occupancy
        key = id(tile)
        self._resident[key] = (tile, size, block, place)
        self._scope.append(key)
        return size

    def _refuse_absent(self, tile: Tile, what: str) -> NoReturn:
        if isinstance(tile, _InHBM):
            tile._refuse()
        raise NotOnChip(
            f"{what}: {_kind(tile)} is not on chip. It was never registered with on_chip(…), "
            f"or was evicted when its loop turn ended."
        )

    def _evict(self, scope: list[int], site: Site | None = None) -> None:
        for key in scope:
            gone = self._resident.pop(key)
            tile, size, _, _ = gone
            try:
                if self._observers:
                    self._tell("evict", _name(gone), size, tile, site or self._loops[-1][0])
            finally:
                self.occupancy -= size
                if self.hbm.arithmetic:
                    if tile.dtype is self.dtype:
                        tile.fill(nan)
                    else:
                        _poison(tile)

    def _begin(self, frame: FrameType) -> None:
        """Before the first load, look at what is there; it may stay."""
        self._loads = True
        if self._known is None:
            self._known = self._looked_through(frame)

    def _looked_through(self, frame: FrameType) -> Known | None:
        """Return what the variables of a user's code hold now; None where code is flashsim's, or
        only counts, or is looked at often enough.
        """
        if not self.hbm.arithmetic or not is_users(frame):
            return None
        lifetimes = self._lifetimes_of_users
        if self._loops:
            return lifetimes.known(frame) if lifetimes.is_due(frame) else None
        if self._skipped and self._known is not None:
            self._skipped = False
            self._refuse_escape(lifetimes.end(self._known, frame))
        return lifetimes.known(frame)

    @property
    def _lifetimes_of_users(self) -> Lifetimes:
        if self._lifetimes is None:
            self._lifetimes = Lifetimes(self, self._maker)
        return self._lifetimes

    def _end_of_tile(self, frame: FrameType) -> None:
        """End the life of what was computed in this turn so far: a tile leaves, and so does what
        was made of it.
        """
        if self.hbm.arithmetic:
            if self._lifetimes is None or self._known is None:
                return
            if not self._lifetimes.is_due(frame):
                self._skipped = True
            elif is_users(frame):
                self._refuse_escape(self._lifetimes.end(self._known, frame))
        else:
            self.lifespan.ended = True
            self.lifespan = Lifespan()

    def _end_of_turn(self, known: Known, frame: FrameType) -> None:
        """End the life of what a turn in the user's code computed. Raises MemoryModelError for
        what cannot be overwritten.
        """
        collector = collector_of(frame) if self._resident else None
        if collector is not None:
            error = MemoryModelError(
                f"turns of sram.loop are taken by {collector}, which would keep what they compute "
                "without room on chip; expected "
                "a for statement: for j in sram.loop(…): …"
            )
            error.add_note(at_line(*site_of(frame)))
            raise error
        self._refuse_escape(self._escape)
        self._refuse_escape(self._lifetimes_of_users.end(known, frame))

    def _refuse_escape(self, escape: Escape | None) -> None:
        """Raise MemoryModelError for what outlives its turn, if anything does."""
        if escape is None:
            return
        error = MemoryModelError(
            f"{escape.text}, made in this turn: that is not on chip, and would outlive the turn. "
            "Expected it in SRAM, by "
            "on_chip(…), or in HBM, by sram.store(…)"
        )
        if escape.site is not None:
            error.add_note(at_line(*escape.site))
        raise error

    def _abandon(self, scope: list[int], known: Known | None, frame: FrameType) -> None:
        """Evict what is left of a turn that did not end. It may be cut off anywhere, and nobody
        could catch an error here.
        """
        if known is not None and self._lifetimes is not None and is_users(frame):
            self._escape = self._escape or self._lifetimes.end(known, frame)
        for key in scope:
            if key in self._resident:
                tile = self._resident.pop(key)[0]
                if self.hbm.arithmetic:
                    _poison(tile)
        self.occupancy = sum(size for _, size, _, _ in self._resident.values())

    def _tell(
        self,
        kind: EventKind,
        name: str,
        elements: int,
        tile: Tile | None,
        site: Site,
        block: Block | None = None,
    ) -> None:
        loops = tuple((target_at(s, "loop"), index_of(index)) for s, index in self._loops)
        place = (None, None) if block is None else (block._where, block._rows)
        event = Event(kind, name, elements, tile, self._weight, loops, site, self, *place)
        for observer in self._observers:
            observer(event)


class Turns(Iterator[int]):
    """What `sram.loop` returns, to be looped over once: the turns of a loop, or, reversed, from
    the last to the first.
    """

    __slots__ = ("_alike", "_site", "_sram", "_started", "_turns", "_unseen", "_where")

    def __init__(
        self,
        sram: SRAM,
        caller: FrameType,
        turns: int | range,
        where: NDArray[np.bool_] | Kinds | None,
        alike: Sequence[Hashable] | Kinds | None,
    ) -> None:
        self._sram = sram
        self._turns = turns
        self._where = where
        self._alike = alike
        self._site = site_of(caller)
        self._started: Iterator[int] | None = None
        if sram._watch is not None:
            self._unseen = unseen_by(caller)

    def __iter__(self) -> Iterator[int]:
        if self._started is None:
            self._started = self._sram._run_turns(self._site, self._turns, self._schedule())
        return self._started

    def __next__(self) -> int:
        return next(iter(self))

    def __reversed__(self) -> Iterator[int]:
        return self._sram._run_turns(self._site, self._turns, self._schedule(backwards=True))

    def _schedule(self, backwards: bool = False) -> Iterable[tuple[Any, int | Fraction]]:
        """Return the turns to be run, each with how many it stands for."""
        sram = self._sram
        turns = self._turns
        where = self._where
        alike = self._alike
        ordered = isinstance(turns, range) or (backwards and where is None and alike is None)
        if isinstance(where, Kinds) or isinstance(alike, Kinds) or (sram._fold and not ordered):
            schedule = _folded(cast(int, turns), where, alike)
            return schedule[::-1] if backwards else schedule
        indices = _indices(turns, cast(Any, where))
        if backwards:
            indices = indices[::-1]
        if sram._watch is not None:
            return sram._watch.turns(self._site, self._unseen, indices, sram)
        return _of_range(indices, sram._fold)


def _indices(turns: int | range, where: NDArray[np.bool_] | None) -> Sequence[int]:
    """Return the indices of all turns of a loop."""
    if where is not None:
        indices: list[int] = np.flatnonzero(where).tolist()
        return indices
    return turns if isinstance(turns, range) else range(turns)


def _of_range(indices: Sequence[int], fold: bool) -> Iterable[tuple[int, int]]:
    """Return (turn, how many it stands for): each, or, to fold them, the ends, and the second
    for all between.
    """
    if not fold or len(indices) < 3:
        return ((index, 1) for index in indices)
    return (indices[0], 1), (indices[1], len(indices) - 2), (indices[-1], 1)


def pass_tiles(M: int, N_k: int, held: int) -> tuple[int, int]:
    """Return (rows, cols) of the tiles of an element-wise pass over N_k columns, `held` tiles of
    which fill SRAM at most.
    """
    return max(M // (held * N_k), 1), min(max(M // held, 1), N_k)


def _poison(tile: Tile) -> None:
    """Overwrite with what shows that it must not be used: NaN. Booleans and words have none:
    False, or the largest.
    """
    tile.fill(
        nan
        if tile.dtype.kind not in "bu"
        else 0
        if tile.dtype.kind == "b"
        else np.iinfo(tile.dtype).max
    )


def _whole(times: int | Fraction) -> int:
    if times.denominator != 1:
        raise MemoryModelError(
            f"a loop's turn stands for {times} turns in all; expected a whole number"
        )
    return times.numerator


def _folded(
    turns: int, where: NDArray[np.bool_] | Kinds | None, alike: Sequence[Hashable] | Kinds | None
) -> Sequence[tuple[int, int | Fraction]]:
    """Return (turn, how many it stands for) for each kind of turn. The last is its own kind, as
    it may be ragged.
    """
    if isinstance(where, Kinds):
        return where.below(turns)
    if isinstance(alike, Kinds):
        return alike.below(turns)
    if turns == 0:
        return []
    last = turns - 1
    if alike is None:
        equal = last if where is None else int(np.count_nonzero(where[:last]))
        first = 0 if where is None or not equal else int(np.argmax(where))
        return [(first, equal)] * (equal > 0) + [(last, 1)] * bool(where is None or where[last])
    kinds: dict[Hashable, list[int]] = {}
    for index in range(turns) if where is None else np.flatnonzero(where).tolist():
        kinds.setdefault((index == last, alike[index]), [index, 0])[1] += 1
    return [(index, times) for index, times in kinds.values()]


def _is_whole(number: Any) -> bool:
    return type(number) is int or isinstance(number, int | np.integer)


def _kind(thing: Any) -> str:
    if isinstance(thing, np.ndarray | ShapeOnly):
        return f"a {_by(thing.shape)} array"
    return repr(thing) if isinstance(thing, _InHBM) else f"a {type(thing).__name__}"
