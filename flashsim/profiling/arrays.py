"""Arrays in the memory that a kernel reads and writes, found by the addresses of their elements."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from flashsim.memory.traffic import Role
from flashsim.profiling.errors import OutsideArrays

PADDING = -1
ALIGNMENT = 256
"""Bytes between the addresses that `Memory.invent` makes, at least."""


@dataclass(frozen=True)
class Array:
    """An array, as a view of a block of memory.

    shape, strides  of its axes; strides in elements, 0 where an axis is broadcast
    address         of its first element, in bytes
    row_axis        the axis of its rows: of queries, or of keys
    role            "input", "output" or "extra", as in `flashsim.memory.traffic.ArrayTraffic`
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str
    address: int
    row_axis: int
    role: Role = "extra"

    @classmethod
    def contiguous(
        cls,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        address: int,
        row_axis: int,
        role: Role = "extra",
    ) -> Array:
        """Return an array whose elements lie one behind the other in row-major order."""
        strides = row_major_strides(shape)
        return cls(name, shape, strides, dtype.itemsize, dtype.name, address, row_axis, role)

    @property
    def size(self) -> int:
        """How many elements it has."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    @property
    def elements(self) -> int:
        """How many elements it has in memory: those of a broadcast axis are one."""
        elements = 1
        for length, stride in zip(self.shape, self.strides, strict=True):
            if stride:
                elements *= length
        return elements

    @property
    def extents(self) -> tuple[tuple[int, int], ...]:
        """Its axes in memory as (length, stride in bytes), the longest stride first. Axes that
        continue each other are one, and broadcast ones are left out: arrays at the same address
        that have the same extents have the same elements, in whatever order.
        """
        extents = [(self.itemsize, 1)]
        for stride, length in sorted(zip(self.strides, self.shape, strict=True)):
            if stride == 0 or length == 1:
                continue
            step = stride * self.itemsize
            inner_length, inner_step = extents[-1]
            if step == inner_length * inner_step:
                extents[-1] = (inner_length * length, inner_step)
            else:
                extents.append((length, step))
        return tuple(reversed(extents))

    def addresses(self, itemsize: int) -> np.ndarray:
        """Return the addresses of the elements of `itemsize` bytes that it has or has parts of;
        each once, in order.
        """
        *outer, (length, _) = self.extents
        step = itemsize if length % itemsize == 0 else self.itemsize
        offsets = np.arange(0, length, step)
        for outer_length, outer_step in reversed(outer):
            offsets = (np.arange(outer_length)[:, None] * outer_step + offsets).ravel()
        addresses = self.address + offsets
        if itemsize > self.itemsize:
            addresses -= addresses % itemsize
        return np.unique(addresses)

    def indices(self, addresses: np.ndarray) -> np.ndarray:
        """Return the position in row-major order of the element at each address; `PADDING` where no
        element begins.
        """
        offset = addresses - self.address
        rest = offset // self.itemsize
        inside = (offset >= 0) & (offset % self.itemsize == 0)
        positions = np.zeros(addresses.shape, np.int64)
        place_values = row_major_strides(self.shape)
        axes = sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis])
        for axis in axes:
            length = self.shape[axis]
            stride = self.strides[axis]
            if length == 1 or stride == 0:
                continue
            index = rest // stride
            rest = rest - index * stride
            inside &= index < length
            positions += index * place_values[axis]
        inside &= rest == 0
        return np.where(inside, positions, PADDING)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Return the row of each element, by its position in row-major order."""
        if not self.shape:
            return np.zeros(positions.shape, np.int64)
        place_value = row_major_strides(self.shape)[self.row_axis]
        rows: np.ndarray = positions // place_value % self.shape[self.row_axis]
        return rows

    def heads(self, positions: np.ndarray) -> np.ndarray:
        """Return the head of each element: its place on all axes but those of rows and columns."""
        heads = np.zeros(positions.shape, np.int64)
        place_values = row_major_strides(self.shape)
        for axis in self.head_axes:
            length = self.shape[axis]
            heads = heads * length + positions // place_values[axis] % length
        return heads

    @property
    def head_axes(self) -> tuple[int, ...]:
        """The axes of batch and heads: those before the last that are not the rows'."""
        last = len(self.shape) - 1
        if self.row_axis == last:
            last += 1
        return tuple(axis for axis in range(last) if axis != self.row_axis)


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous array of that shape, in elements."""
    strides = []
    stride = 1
    for length in reversed(shape):
        strides.append(stride)
        stride *= length
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Block:
    """A block of memory from one allocation: its addresses are start, …, end − 1."""

    start: int
    end: int


class Memory:
    """All blocks that a kernel may touch, and the arrays in each."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._arrays: dict[int, list[Array]] = {}
        self._names: list[str] = []
        self._invented: dict[int, tuple[object, int]] = {}
        self._next_address = ALIGNMENT

    def add(self, array: Array, block: Block) -> None:
        """Add an array that lies in this block. Of arrays that overlap, those with a role come
        first, then the smaller ones.
        """
        if block.start not in self._arrays:
            self._blocks.append(block)
            self._blocks.sort(key=lambda one: one.start)
            self._arrays[block.start] = []
        arrays = self._arrays[block.start]
        arrays.append(array)
        self._names.append(array.name)
        arrays.sort(key=lambda one: (one.role == "extra", one.size))

    def knows(self, block: Block) -> bool:
        """Return whether an array lies in this block."""
        return block.start in self._arrays

    def free_name(self, name: str, kernel: str) -> str:
        """Return the name, if no array has it; else with the kernel's before it, and a number
        behind it where that is taken, too.
        """
        names = {array.name for array in self.arrays()}
        if name in names:
            name = f"{kernel}.{name}"
        number = 2
        unique = name
        while unique in names:
            unique = f"{name}_{number}"
            number += 1
        return unique

    def parts(self, view: Array, block: Block) -> list[tuple[Array, np.ndarray | None]]:
        """Return the arrays in a block that have elements of a view, and their positions in each;
        None for the positions of all elements. Empty: no array lies in the block.
        """
        if not self.knows(block):
            return []
        first = self._arrays[block.start][0]
        if first.address == view.address and first.extents == view.extents:
            return [(first, None)]
        addresses = view.addresses(first.itemsize)
        return list(self.find(addresses, first.itemsize))

    def invent(self, owner: object, nbytes: int) -> int:
        """Return an address for an object whose own is unknown: the same for the same object."""
        if id(owner) not in self._invented:
            self.place(owner, self._next_address)
            self._next_address += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        return self._invented[id(owner)][1]

    def place(self, owner: object, address: int) -> None:
        """Have `invent` return this address for an object, which is kept alive."""
        self._invented[id(owner)] = (owner, address)

    def rename(self, old: str, new: str, role: Role) -> None:
        """Give an array another name and role."""
        for arrays in self._arrays.values():
            for place, array in enumerate(arrays):
                if array.name == old:
                    arrays[place] = replace(array, name=new, role=role)
        self._names[self._names.index(old)] = new

    def arrays(self) -> list[Array]:
        """Return all arrays, in the order in which they were added."""
        by_name = {array.name: array for arrays in self._arrays.values() for array in arrays}
        return [by_name[name] for name in self._names]

    def find(self, addresses: np.ndarray, itemsize: int) -> Iterator[tuple[Array, np.ndarray]]:
        """Yield each array that has elements at some of the addresses of one instruction, and their
        positions in it; `PADDING` for an address between its elements.

        Raises `OutsideArrays` where an address is not in the block of memory that the first one is
        in: an instruction that runs past the end of an array may well meet the next.
        """
        first = int(addresses[0])
        starts = [block.start for block in self._blocks]
        place = bisect_right(starts, first) - 1
        if place < 0 or first + itemsize > self._blocks[place].end:
            raise OutsideArrays(self._outside(addresses, itemsize))
        block = self._blocks[place]
        inside = (addresses >= block.start) & (addresses + itemsize <= block.end)
        if not inside.all():
            raise OutsideArrays(self._beyond(block, addresses[~inside], addresses.size))
        yield from self._in_block(block, addresses)

    def _in_block(self, block: Block, addresses: np.ndarray) -> Iterator[tuple[Array, np.ndarray]]:
        arrays = self._arrays[block.start]
        for array in arrays:
            positions = array.indices(addresses)
            inside = positions != PADDING
            if inside.any():
                yield array, positions[inside]
                addresses = addresses[~inside]
            if not addresses.size:
                return
        yield arrays[0], np.full(addresses.shape, PADDING)

    def _beyond(self, block: Block, addresses: np.ndarray, number: int) -> str:
        """Say how far an instruction leaves the array that its first element is in."""
        array = self._arrays[block.start][0]
        furthest = int(addresses.max()) - block.end
        side = "behind its end"
        if furthest < 0:
            furthest = block.start - int(addresses.min())
            side = "before its beginning"
        return (
            f"{addresses.size:,} of {_elements(number)} outside {array.name} of {array.shape}, up "
            f"to {furthest:,} bytes {side}"
        )

    def _outside(self, addresses: np.ndarray, itemsize: int) -> str:
        """Say that an address is in no block, and which array is nearest."""
        address = int(addresses[0])
        distances = []
        for block in self._blocks:
            name = self._arrays[block.start][0].name
            before = block.start - address
            behind = address + itemsize - block.end
            distance, side = max((before, "before the beginning"), (behind, "behind the end"))
            distances.append((distance, f"{distance:,} bytes {side} of {name}"))
        where = f"; the nearest is {min(distances)[1]}" if distances else ""
        return f"{_elements(addresses.size)} outside every array{where}"


def _elements(number: int) -> str:
    return "1 element" if number == 1 else f"{number:,} elements"
