"""The live tiles of a block mask and a window, as lists on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_tiles
from flashsim.attention.masks.rules import SlidingWindow
from flashsim.attention.shapes import Blocks, Shape
from flashsim.gpu.compiling import import_cupy


def computed(block_mask: Any, blocks: tuple[int, int], shape: Shape) -> bytes:
    """Return a block mask's tiles, (T_r, T_c), as bits; None means all tiles. Raises ValueError
    for another shape.
    """
    T = -(-shape.N_q // blocks[0]), -(-shape.N_k // blocks[1])
    if block_mask is None:
        return np.packbits(np.ones(T, bool)).tobytes()
    return np.packbits(
        check_tiles(block_mask, Blocks(*blocks, N_q=shape.N_q, N_k=shape.N_k), shape)
    ).tobytes()


def live_tiles(
    bits: bytes, tile: tuple[int, int], blocks: Blocks, shape: Shape, window: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return which of a kernel's tiles, (T_r, T_c), are in the window and in a computed block.
    `tile` is the blocks' size.
    """
    T = -(-shape.N_q // tile[0]), -(-shape.N_k // tile[1])
    live = np.unpackbits(np.frombuffer(bits, np.uint8), count=T[0] * T[1]).reshape(T).astype(bool)
    live = live.repeat(tile[0] // blocks.B_r, axis=0).repeat(tile[1] // blocks.B_c, axis=1)[
        : blocks.T_r, : blocks.T_c
    ]
    rows = np.arange(blocks.T_r)[:, None] * blocks.B_r
    columns = np.arange(blocks.T_c) * blocks.B_c
    ends = np.minimum(rows + blocks.B_r, shape.N_q), np.minimum(columns + blocks.B_c, shape.N_k)
    return np.asarray(
        live & SlidingWindow(*window).live(rows, ends[0], columns, ends[1], shape, ())
    )


def to_gpu(*lists: NDArray[Any]) -> tuple[Any, ...]:
    """Return copies in 32 bits on the current device."""
    cupy = import_cupy()
    lists_on_gpu = tuple(cupy.asarray(x, "int32") for x in lists)
    cupy.cuda.get_current_stream().synchronize()  # other streams may use them next
    return lists_on_gpu
