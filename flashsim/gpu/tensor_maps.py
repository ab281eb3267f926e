"""How an array in HBM is cut into tiles for the tensor memory accelerator (TMA): struct
TensorMap of kernels/hopper.cuh.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

HALF_BYTES = 128  # of a row in a half of a tile: the widest swizzle
# the driver's number, bytes
TYPES = {"bool": (0, 1), "float8_e4m3fn": (0, 1), "float16": (6, 2), "bfloat16": (9, 2)}


def contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a contiguous array of this shape."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@lru_cache(maxsize=4096)
def tensor_map(
    name: str,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    rows: int,
    columns: int = 256,
) -> Any:
    """Return the driver's description of an array (B, H, N, d) in tiles of `rows` rows, which
    kernels take by value.

    Tiles are as wide as the array, but at most `columns`. Axes are column within a half, row, half,
    head, batch. Raises ValueError with the array's name if TMA cannot read it.
    """
    (B, H, N, d), (_, width) = shape, TYPES[dtype]
    half = HALF_BYTES // width
    batch, head, row = _apart(shape, strides)
    dims = (half, N, d // half, H, B)
    box = (half, rows, min(d, columns) // half, 1, 1)
    return _described(name, pointer, strides, dtype, dims, (row, HALF_BYTES, head, batch), box)


@lru_cache(maxsize=4096)
def rows_map(
    name: str,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    group: int,
    rows: int,
) -> Any:
    """Return the map of queries (B, H, N, d) with `group` heads for each KV head. A box has `rows`
    rows, a half of their columns.

    Its rows are queries of all heads of a group: row r is query r / group of the group's head r mod
    group. Axes are column, head in its group, query, KV head, batch.
    """
    B, H, N, d = shape
    (batch, _, row), heads = _apart(shape, strides), H // group
    head = strides[1] if group > 1 else 16
    each = group * strides[1] if heads > 1 else 16
    dims = (d, group, N, heads, B)
    box = (HALF_BYTES // TYPES[dtype][1], group, rows // group, 1, 1)
    return _described(name, pointer, strides, dtype, dims, (head, row, each, batch), box)


@lru_cache(maxsize=4096)
def fours_map(
    name: str, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, rows: int
) -> Any:
    """Return the map of an array with rows of 128 bytes. A box has two of each four rows, `rows` in
    all.

    Axes are column, row within its four, four, head, batch. N is a multiple of 4.
    """
    B, H, N, d = shape
    batch, head, row = _apart(shape, strides)
    return _described(
        name,
        pointer,
        strides,
        dtype,
        (d, 4, N // 4, H, B),
        (row, 4 * row, head, batch),
        (d, 2, rows // 2, 1, 1),
    )


@lru_cache(maxsize=4096)
def columns_map(
    name: str, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, rows: int
) -> Any:
    """Return the map of an array whose rows, not columns, have stride 1. A box has 128 bytes of
    every column.

    Axes are row, column, an axis of length 1, head, batch.
    """
    B, H, N, d = shape
    batch, head, column = _apart((B, H, d), (*strides[:2], strides[3]))
    return _described(
        name,
        pointer,
        strides,
        dtype,
        (N, d, 1, H, B),
        (column, 16, head, batch),
        (rows, d, 1, 1, 1),
    )


@lru_cache(maxsize=4096)
def mask_map(
    pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], rows: int, columns: int
) -> Any:
    """Return the map of a mask's bytes (matrices, N_q, N_k) in tiles of rows × columns, 128 or 64
    columns.

    Axes are column, row, matrix.
    """
    matrices, N_q, N_k = shape
    box = (columns, rows if N_q > 1 else 1, 1)
    swizzle = 3 if columns == 128 else 2
    return _described(
        "mask",
        pointer,
        strides,
        "bool",
        (N_k, N_q, matrices),
        (strides[1], strides[0]),
        box,
        swizzle,
    )


def _apart(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of the first three axes. An axis of length 1 gets a stride that the
    driver takes.
    """
    return tuple(stride if n > 1 else 16 for stride, n in zip(strides[:3], shape[:3], strict=True))


def _described(
    name: str,
    pointer: int,
    key: tuple[int, ...],
    dtype: str,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int = 3,
) -> Any:
    axes = len(dims)
    memory = np.zeros(128 + 63, np.uint8)
    aligned = memory[-memory.ctypes.data % 64 :][:128]
    status = _encode()(
        ctypes.c_void_p(aligned.ctypes.data),
        TYPES[dtype][0],
        axes,
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * axes)(*dims),
        (ctypes.c_uint64 * (axes - 1))(*strides),
        (ctypes.c_uint32 * axes)(*box),
        (ctypes.c_uint32 * axes)(*[1] * axes),
        # not interleaved; 3: over 128 bytes, 2: 64; the L2 fetches 128 bytes at a time; 0 out of
        # bounds
        0,
        swizzle,
        2,
        0,
    )
    if status:
        raise ValueError(
            f"{name} is at {pointer:#x} with strides {key} bytes; expected multiples of 16, "
            "below 2^40, for hopper"
        )
    return np.void(aligned.tobytes())


@cache
def _encode() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
