"""Arrays in the memory that a kernel reads and writes, found by the addresses of their elements."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from flashsim.memory.traffic import Role
from flashsim.profiling.errors import OutsideArrays

PADDING = -1


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

    @property
    def size(self) -> int:
        """How many elements it has."""
        size = 1
        for length in self.shape:
            size *= length
        return size

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

    def add(self, array: Array, block: Block) -> None:
        """Add an array that lies in this block. Of arrays that overlap, those with a role come
        first, then the smaller ones.
        """
        if block.start not in self._arrays:
            self._blocks.append(block)
            self._blocks.sort(key=lambda known: known.start)
            self._arrays[block.start] = []
        arrays = self._arrays[block.start]
        arrays.append(array)
        arrays.sort(key=lambda known: (known.role == "extra", known.size))

    def knows(self, block: Block) -> bool:
        """Return whether an array lies in this block."""
        return block.start in self._arrays

    def rename(self, old: str, new: str, role: Role) -> None:
        """Give an array another name and role."""
        for arrays in self._arrays.values():
            for place, array in enumerate(arrays):
                if array.name == old:
                    arrays[place] = replace(array, name=new, role=role)

    def arrays(self) -> list[Array]:
        """Return all arrays, in the order of their addresses."""
        return [array for block in self._blocks for array in self._arrays[block.start]]

    def find(self, addresses: np.ndarray, itemsize: int) -> Iterator[tuple[Array, np.ndarray]]:
        """Yield each array that has elements at some of these addresses, and their positions in
        it; `PADDING` for an address between its elements. Raises `OutsideArrays` where an address
        is in no block.
        """
        starts = [block.start for block in self._blocks]
        while addresses.size:
            lowest = int(addresses.min())
            place = bisect_right(starts, lowest) - 1
            if place < 0 or lowest + itemsize > self._blocks[place].end:
                raise OutsideArrays(self._outside(addresses, itemsize))
            block = self._blocks[place]
            here = addresses + itemsize <= block.end
            yield from self._in_block(block, addresses[here])
            addresses = addresses[~here]

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

    def _outside(self, addresses: np.ndarray, itemsize: int) -> str:
        """Say which addresses are in no block, and what the nearest array is."""
        outside = np.ones(addresses.shape, bool)
        for block in self._blocks:
            outside &= (addresses < block.start) | (addresses + itemsize > block.end)
        number = int(outside.sum())
        elements = "1 element" if number == 1 else f"{number:,} elements"
        address = int(addresses[outside][0])
        distances = []
        for array in self.arrays():
            end = array.address + array.itemsize * (1 + self._last_offset(array))
            before = array.address - address
            behind = address - end + itemsize
            distance, side = max((before, "before its first"), (behind, "behind its last"))
            distances.append((distance, f"{distance:,} bytes {side} element", array))
        if not distances:
            return f"{elements} outside every array"
        _, where, nearest = min(distances, key=lambda entry: entry[0])
        return (
            f"{elements} outside every array; the nearest is {nearest.name} of {nearest.shape}, "
            f"{where}"
        )

    @staticmethod
    def _last_offset(array: Array) -> int:
        pairs = zip(array.shape, array.strides, strict=True)
        return sum((length - 1) * stride for length, stride in pairs)
