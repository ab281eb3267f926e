"""JAX's arrays as arrays in memory, each contiguous at an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import Array, Block
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.recording import Recorder

OUTSIDE = -1
"""In place of the position of an element that the array does not have."""
PAGE = 4096
"""Arrays begin at multiples of it, in bytes, and at least that far apart."""


class Operands:
    """The arrays of one counted call.

    An array of JAX never changes and its address means little, so that it is known by identity. An
    array that `reshape` made of another is the same memory: XLA does not copy it.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._next = PAGE
        self._arrays: dict[int, Array] = {}

    def add(self, name: str, value: Any, role: Role, kernel: str = "") -> Array:
        """Return the array that a value of JAX is, which becomes known if it is not."""
        known = self.find(value)
        if known is not None:
            return known
        shape = tuple(value.shape)
        array = self._new(name, shape, np.dtype(value.dtype), role, kernel)
        self.identify(value, array)
        return array

    def add_output(self, name: str, shape: tuple[int, ...], dtype: Any, kernel: str) -> Array:
        """Return a new array, which a kernel is about to fill."""
        return self._new(name, shape, np.dtype(dtype), "extra", kernel)

    def identify(self, value: Any, array: Array) -> None:
        """Let a value of JAX be this array."""
        self._arrays[id(value)] = array
        self._recorder.keep_alive(value)

    def find(self, value: Any) -> Array | None:
        """Return the array that a value is; None: it is not known."""
        array = self._arrays.get(id(value))
        if array is None:
            return None
        return next(
            known for known in self._recorder.memory.arrays() if known.address == array.address
        )

    def _new(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype, role: Role, kernel: str
    ) -> Array:
        memory = self._recorder.memory
        row_axis = max(len(shape) - 2, 0)
        if len(shape) == 4:
            row_axis = 4 + self._recorder.row_axis
        array = Array.contiguous(
            memory.free_name(name, kernel), shape, dtype, self._next, row_axis, role
        )
        size = array.size * array.itemsize
        self._next += -(-size // PAGE) * PAGE + PAGE
        memory.add(array, Block(array.address, array.address + size))
        return array


def whole(shape: tuple[int, ...]) -> np.ndarray:
    """Return the positions of an array's elements, in its shape."""
    size = 1
    for length in shape:
        size *= length
    return np.arange(size, dtype=np.int64).reshape(shape)


def block(
    positions: np.ndarray,
    starts: tuple[int, ...],
    sizes: tuple[int, ...],
    squeezed: tuple[bool, ...],
) -> np.ndarray:
    """Return the positions of a block that starts there, `OUTSIDE` where it passes an end."""
    vectors = []
    for start, size in zip(starts, sizes, strict=True):
        vectors.append(start + np.arange(size))
    selection = _choose(positions, list(np.ix_(*vectors))) if vectors else positions
    kept = [size for size, drop in zip(sizes, squeezed, strict=True) if not drop]
    return selection.reshape(kept)


def view(positions: np.ndarray, transforms: Any) -> np.ndarray:
    """Return the positions that a ref has after JAX's transforms: indices, reshapes, transposes."""
    for transform in transforms:
        kind = type(transform).__name__
        if kind == "NDIndexer":
            positions = _index(positions, transform)
        elif kind == "ReshapeTransform":
            positions = positions.reshape(transform.shape)
        elif kind == "TransposeTransform":
            positions = positions.transpose(transform.permutation)
        else:
            raise ProfilingError(
                f"a ref is changed by a {kind}; expected indices, a reshape or a transpose"
            )
    return positions


def _index(positions: np.ndarray, indexer: Any) -> np.ndarray:
    """Index as NumPy does: axes of integer arrays come first, then those of slices."""
    slices = sum(hasattr(index, "start") for index in indexer.indices)
    integers = tuple(int(length) for length in indexer.int_indexer_shape)
    vectors = []
    place = 0
    for index in indexer.indices:
        if hasattr(index, "start"):
            place += 1
            vector = int(index.start) + int(index.stride) * np.arange(int(index.size))
            vectors.append(vector.reshape((-1,) + (1,) * (slices - place)))
        else:
            vector = np.asarray(index).astype(np.int64)
            vectors.append(vector.reshape(vector.shape + (1,) * slices))
    if not vectors:
        return positions
    selection = _choose(positions, vectors)
    sizes = tuple(int(index.size) for index in indexer.indices if hasattr(index, "start"))
    return np.broadcast_to(selection, integers + sizes)


def _choose(positions: np.ndarray, vectors: list[np.ndarray]) -> np.ndarray:
    """Return the positions at these indices, which broadcast; `OUTSIDE` beyond an axis's end."""
    inside: Any = True
    indices = []
    for length, vector in zip(positions.shape, vectors, strict=True):
        inside = inside & (vector >= 0) & (vector < length)
        indices.append(np.clip(vector, 0, max(length - 1, 0)))
    if not positions.size:
        shape = np.broadcast_shapes(*(vector.shape for vector in vectors))
        return np.full(shape, OUTSIDE)
    return np.where(inside, positions[tuple(indices)], OUTSIDE)


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield the arrays of a result: a tree of tuples, lists and dictionaries."""
    import jax

    for leaf in jax.tree_util.tree_leaves(value):
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            yield leaf
