"""HBM, the large memory: named matrices, handles of their blocks, and counters of reads and
writes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ReferenceType

import numpy as np
from numpy import nan, ndarray
from numpy.typing import DTypeLike, NDArray

from flashsim.memory.errors import MemoryModelError, NotOnChip, describe_shape
from flashsim.memory.source import Site, is_users, site_of
from flashsim.memory.traffic import ArrayTraffic, Role, Traffic
from flashsim.memory.turns import (
    Turn,
    Watch,
    block_number,
    mark_position,
    turn_state,
)

if TYPE_CHECKING:
    from flashsim.memory.sram import SRAM

Tile = NDArray[Any]
"""A block on chip: a plain array (or, in counting-only mode, a `ShapeOnly` that stands in for
one).
"""


def is_whole(number: Any) -> bool:
    """Return whether a number is an integer, of Python or of NumPy."""
    return type(number) is int or isinstance(number, int | np.integer)


def poison(tile: Tile) -> None:
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


class Handle:
    """What HBM hands out: a name and a shape, and a refusal to be used as numbers."""

    __slots__ = ("shape",)
    shape: tuple[int, int]
    _storage: Storage

    @property
    def name(self) -> str:
        """What it is called in errors and events."""
        raise NotImplementedError

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        block = f"{self.name}[…]" if isinstance(self, Matrix) else self.name
        whole = self._storage.name
        raise NotOnChip(
            f"{self.name} ({describe_shape(self.shape)}) is in HBM. To compute with it, bring a "
            "block on "
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
for _attribute in {*dir(np.ndarray)} - {*dir(Handle)}:
    if not _attribute.startswith("_"):
        setattr(Handle, _attribute, property(Handle._refuse))


@dataclass(slots=True, eq=False)
class Storage:
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


class Block(Handle):
    """One block of a matrix in HBM, such as `K[j]`: what `sram.load` reads and `sram.store` writes.

    `where` is its (rows, columns). A block gathered from anywhere, `K.at(rows)`, has `rows`
    instead. One that was taken with a `Turn` stands for several: to ask for its place, its name, or
    whether it is another, says that these are not alike.
    """

    __slots__ = ("_at", "_name", "_rows", "_storage", "_turns", "_values", "_where")

    def __init__(
        self,
        storage: Storage,
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

    __getitem__ = __iter__ = Handle._refuse

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
        """Return what decides what can be done with it (`flashsim.memory.state`)."""
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
        return f"<{self.name} in HBM, {describe_shape(self.shape)}>"


class Matrix(Handle):
    """A matrix in HBM, or a window of its rows, divided into blocks: `Q[i]` (rows) or `S[i, j]`
    (tiles) names one of them.

    `blocks` is how many there are down and across.
    """

    __slots__ = ("_cols", "_first", "_row_blocks", "_rows", "_storage", "_window", "blocks", "name")
    name: str

    def __init__(
        self, storage: Storage, rows: int, cols: int, window: tuple[int, int] | None = None
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
        if not (is_whole(rows) and rows >= 1 and (cols is None or (is_whole(cols) and cols >= 1))):
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
        if not (is_whole(a) and is_whole(b)) or not 0 <= a <= b <= self.shape[0]:
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
        indices = np.asarray(rows)
        end = self.shape[0]
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or not indices.size:
            raise ValueError(
                f"{self.name}.at(rows={rows!r:.60}): expected whole numbers from 0 to {end - 1}, "
                "one or more"
            )
        if indices.min() < 0 or indices.max() >= end:
            wrong = next(row for row in indices.tolist() if not 0 <= row < end)
            raise ValueError(
                f"{self.name}.at(rows=…) has row {wrong}; expected rows from 0 to {end - 1}"
            )
        gathered = [self._first + row for row in indices.tolist()]
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
        if not (is_whole(i) and (j is None or is_whole(j))):
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
        """Return what decides what can be done with it (`flashsim.memory.state`)."""
        return "matrix", id(self._storage), self._window, self._rows, self._cols

    def __repr__(self) -> str:
        down, across = self.blocks
        return f"<{self.name} in HBM, {describe_shape(self.shape)}, in {down} × {across} blocks>"


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
        self._arrays: dict[str, Storage] = {}
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
            and is_whole(shape[0])
            and is_whole(shape[1])
        ):
            raise TypeError(f"the shape of {name} is {shape!r}; expected (rows, columns)")
        values = np.empty(shape, dtype) if self.arithmetic else None
        if values is not None:
            poison(values)
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
        self._arrays[name] = storage = Storage(name, shape, dtype, role, values)
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
        arrays = {}
        for name, a in self._arrays.items():
            arrays[name] = ArrayTraffic(
                a.reads, a.writes, a.init_writes, math.prod(a.shape), a.dtype.itemsize, a.role
            )
        return Traffic(arrays)

    def __repr__(self) -> str:
        return f"HBM accesses so far, in elements\n{self.traffic}"
