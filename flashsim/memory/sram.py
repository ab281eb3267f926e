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

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import CodeType, FrameType
from typing import Any, Literal, NoReturn, cast, overload
from weakref import ref

import numpy as np
from numpy import nan, ndarray
from numpy.typing import DTypeLike, NDArray

from flashsim.memory.bytecode import collector_of, is_discarded, is_prompt
from flashsim.memory.errors import MemoryModelError, NotOnChip, SramOverflow, describe_shape
from flashsim.memory.folding import Kinds, folded, indices_of, whole_number, with_times
from flashsim.memory.hbm import HBM, Block, Handle, Tile, is_whole, poison
from flashsim.memory.lifetimes import Death, Escape, Known, Lifetimes
from flashsim.memory.shape_only import ONES, ShapeOnly
from flashsim.memory.source import Site, at_line, file_of, is_users, label_at, site_of, target_at
from flashsim.memory.traffic import Flops, Occupancy
from flashsim.memory.turns import (
    Watch,
    index_of,
    mark_position,
    unseen_by,
)

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


class Lifespan:
    """A loop's turn, or the part of one up to a tile's eviction: what is computed in it, and not
    on chip, ends with it.
    """

    ended = False


OVER = Lifespan()
"""That of a tile whose room another took."""
OVER.ended = True

_Resident = tuple[Tile, int, str | None, Place | None, Tile]
"""A tile on chip, its size, the block it was loaded from, or else where it was computed; and the
first tile in its room, which is the tile itself unless it took the room of another. Plain, as it is
made often.
"""


def _name(block: str | None, place: Place | None) -> str:
    """Return what a tile on chip is called: its block's name, or the name that its line assigns."""
    return block or target_at(site_of_place(cast(Place, place)), "an unnamed tile")


class SRAM:
    """The small memory: `capacity` elements (M), enforced or only reported.

    `occupancy` is what is resident now, `peak` the most so far. `dtype` is what the chip computes
    in: loads widen to it, stores round to the matrix's own type.

    `fold` says whether counting-only mode runs turns of a loop once that the program says are
    equal: True for programs of which it is tested. With a `watch`, turns are run once that are
    shown to be alike (`flashsim.memory.turns`).
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
        # A room is the identity of its first tile; here are the tiles that took it since.
        self._last_in: dict[int, int] = {}
        self._scope: list[int] = []  # the rooms of what the current loop turn brought on chip
        self._scopes = [self._scope]  # those of the turns around it, outermost first, and its own
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

        With `over`, one block takes the room of that resident tile, which reads as evicted: its
        first rows, where the block has fewer. A call whose tile is not used writes into that tile
        instead.
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
                values = block._values if block._rows is None else block._values[block._at]
                dtype = storage.dtype if storage.dtype.kind in "bu" else self.dtype
                tile = values.astype(dtype, "C")
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
            kinds = ", ".join(map(_kind, blocks))
            raise TypeError(
                f"sram.load(…, over=…) takes one block in HBM such as K[j]; got {kinds}"
            )
        (block,) = blocks
        over = self._holder_of_room(over, "sram.load(…, over=…)")
        rows, columns = block.shape
        most_rows = over.shape[0]
        if columns != over.shape[1] or rows > most_rows:
            raise ValueError(
                f"{block.name}, which is {describe_shape(block.shape)}, cannot be loaded over a "
                f"{describe_shape(over.shape)} "
                "tile"
            )
        frame = sys._getframe(2)
        self._end_of_tile(frame)
        whole = over
        if is_discarded(frame.f_code, frame.f_lasti):
            self._rename(over, block._name, None)
        else:
            whole = self._like(over)
            self._take_room(over, whole, block._name, None)
        tile: Tile = whole if rows == most_rows else whole[:rows]
        if block._values is not None:
            tile[...] = block._values[block._at]
            if rows < most_rows:
                poison(whole[rows:])
        block._storage.reads += tile.size * self._weight
        if self._observers:
            self._tell("load", block._name, tile.size, tile, site_of(frame), block)
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
                f"sram.word reads one element; {block.name} is {describe_shape(block.shape)}: "
                "divide(1, 1)"
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

        With `over=tile` the result takes that tile's room (P̃ over S), counted once, and what the
        tile was called before, S, reads as evicted. A call whose result is not used, and one over a
        part of a tile, such as `over=O_i[:, c : c + 1]`, write into the tile instead. A result
        already on chip, say one computed with `out=`, is not counted again.
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
            if isinstance(result, Handle):
                result._refuse()
            raise TypeError(f"on_chip takes the result of array arithmetic; got {_kind(result)}")
        frame = sys._getframe(1)
        place = frame.f_code, frame.f_lasti
        if over is not None:
            result = self._put_over(over, result, place)
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

    def _put_over(self, over: Tile, result: Tile, place: Place) -> Tile:
        """Put a result in the room of a tile, or of a part of one; return the tile that it is."""
        if id(over) not in self._resident:
            if id(getattr(over, "base", None)) in self._resident:
                return self._put_in_part(over, result)
            over = self._holder_of_room(over, "on_chip(…, over=…)")
        if result.shape != over.shape:
            self._refuse_shape(over, result)
        if is_discarded(*place):
            if type(result) is ndarray:
                over[...] = result
            return over
        if result is over:
            self._rename(over, None, place)
            return over
        if isinstance(over, ShapeOnly):
            result = self._like(over)
        elif (
            result.base is not None
            or result.dtype is not over.dtype
            or not result.flags.c_contiguous
            or id(result) in self._resident
        ):
            result = np.array(result, over.dtype, order="C")
        self._take_room(over, result, None, place)
        return result

    def _put_in_part(self, over: Tile, result: Tile) -> Tile:
        """Write a result into a part of a tile, and return that part."""
        if result.shape != over.shape:
            self._refuse_shape(over, result)
        if type(result) is ndarray and result is not over:
            over[...] = result
        return over

    def _refuse_shape(self, over: Tile, result: Tile) -> NoReturn:
        raise ValueError(
            f"a {describe_shape(result.shape)} result cannot overwrite a "
            f"{describe_shape(over.shape)} tile"
        )

    def full(self, shape: tuple[int, ...], value: float) -> Tile:
        """Set registers on chip to a constant, such as an accumulator's zeros. Moves nothing."""
        if not isinstance(shape, tuple) or not all(map(is_whole, shape)):
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
                f"a {describe_shape(tile.shape)} tile cannot be stored to {block.name}, which is "
                f"{describe_shape(block.shape)}"
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
            _, _, block, place, first = self._resident[key]
            room = id(first)
            if room not in self._scope:
                name = _name(block, place)
                raise MemoryModelError(
                    f"sram.evict: a turn around this one brought {name} on chip, and evicts it"
                )
            self._scope.remove(room)
            self._evict([room], site_of(sys._getframe(1)))

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
        if not isinstance(turns, range) and not (is_whole(turns) and turns >= 0):
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
        scopes = len(self._scopes)
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
                self._scopes.append(scope)
                self._known = inner
                if counts:
                    self.lifespan = Lifespan()
                weight = outside * times
                self._weight = weight if type(weight) is int else whole_number(weight)
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
                del self._scopes[scopes:]
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
        for _, size, block, place, _ in self._in_order():
            name = _name(block, place)
            held[name] = held.get(name, 0) + size
        return held

    def _in_order(self) -> list[_Resident]:
        """Return what is on chip, in order of arrival."""
        order: dict[int, int] = {}
        for scope in self._scopes:
            for room in scope:
                order[room] = len(order)
        return sorted(self._resident.values(), key=lambda one: order.get(id(one[4]), len(order)))

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
        for tile, size, block, place, _ in self._in_order():
            lines.append(
                f"  {_name(block, place):<12} {describe_shape(tile.shape):>14} {size:>12,}"
            )
        return "\n".join(lines)

    # ----------------------------------------------------------------------------------------------
    # its rules

    def _admit(self, tile: Tile, block: str | None, place: Place | None) -> int:
        size = tile.size
        occupancy = self.occupancy + size
        if occupancy > self._peak:
            if self.enforced and occupancy > self.capacity:
                raise SramOverflow(_name(block, place), tile.shape, self._held(), self.capacity)
            self._peak = occupancy
        self.occupancy = occupancy
        key = id(tile)
        self._resident[key] = (tile, size, block, place, tile)
        self._scope.append(key)
        return size

    def _like(self, tile: Tile) -> Tile:
        """Return a tile of the same shape and type, whose numbers are not set yet."""
        if self.hbm.arithmetic:
            return np.empty(tile.shape, tile.dtype)
        like = ShapeOnly(tile.shape, self)
        like.lifespan = cast(Any, tile).lifespan
        return cast(Tile, like)

    def _holder_of_room(self, tile: Tile, what: str) -> Tile:
        """Return the tile on chip that has the room of `tile`: it itself, or what took its room, if
        it was the first there.
        """
        if id(tile) in self._resident:
            return tile
        last = self._last_in.get(id(tile))
        if last is None:
            self._refuse_absent(tile, what)
        return self._resident[last][0]

    def _take_room(self, over: Tile, tile: Tile, block: str | None, place: Place | None) -> None:
        """Let `tile` take the room of `over`, which reads as evicted from now on."""
        _, size, _, _, first = self._resident.pop(id(over))
        key = id(tile)
        self._resident[key] = (tile, size, block, place, first)
        self._last_in[id(first)] = key
        if isinstance(over, ShapeOnly):
            over.lifespan = OVER
        elif over.dtype is self.dtype:
            over.fill(nan)
        else:
            poison(over)

    def _rename(self, tile: Tile, block: str | None, place: Place | None) -> None:
        """Note that other numbers were written into a tile: those of a block, or computed there."""
        _, size, _, _, first = self._resident[id(tile)]
        self._resident[id(tile)] = (tile, size, block, place, first)

    def _leave(self, room: int) -> _Resident:
        """Take the tile in a room off the chip; return what was known of it."""
        return self._resident.pop(self._last_in.pop(room, room))

    def _refuse_absent(self, tile: Tile, what: str) -> NoReturn:
        if isinstance(tile, Handle):
            tile._refuse()
        raise NotOnChip(
            f"{what}: {_kind(tile)} is not on chip. It was never registered with on_chip(…), "
            "or was evicted when its loop turn ended, or another tile took its room (over=)."
        )

    def _evict(self, scope: list[int], site: Site | None = None) -> None:
        if self._observers:
            self._evict_observed(scope, site or self._loops[-1][0])
            return
        resident = self._resident
        last_in = self._last_in
        counts = not self.hbm.arithmetic
        for room in scope:
            tile, size, _, _, _ = resident.pop(last_in.pop(room, room))
            self.occupancy -= size
            if counts:
                continue
            if tile.dtype is self.dtype:
                tile.fill(nan)
            else:
                poison(tile)

    def _evict_observed(self, scope: list[int], site: Site) -> None:
        for room in scope:
            tile, size, block, place, _ = self._leave(room)
            try:
                self._tell("evict", _name(block, place), size, tile, site)
            finally:
                self.occupancy -= size
                if self.hbm.arithmetic:
                    poison(tile)

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
        for room in scope:
            if self._last_in.get(room, room) in self._resident:
                tile = self._leave(room)[0]
                if self.hbm.arithmetic:
                    poison(tile)
        self.occupancy = sum(resident[1] for resident in self._resident.values())

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
            schedule = folded(cast(int, turns), where, alike)
            return schedule[::-1] if backwards else schedule
        indices = indices_of(turns, cast(Any, where))
        if backwards:
            indices = indices[::-1]
        if sram._watch is not None:
            return sram._watch.turns(self._site, self._unseen, indices, sram)
        return with_times(indices, sram._fold)


def _kind(thing: Any) -> str:
    if isinstance(thing, np.ndarray | ShapeOnly):
        return f"a {describe_shape(thing.shape)} array"
    return repr(thing) if isinstance(thing, Handle) else f"a {type(thing).__name__}"
