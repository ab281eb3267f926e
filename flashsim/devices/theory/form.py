"""`DevicesForm`, a program's closed form; and which tiles are live, with their sizes, from
positions alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flashsim.attention.inputs import chip_dtype
from flashsim.attention.masks.rules import Causal
from flashsim.attention.problem import EVERYTHING
from flashsim.devices.share import Share
from flashsim.memory.traffic import ArrayTraffic, Role, Traffic
from flashsim.theory.closed_form import ClosedForm


@dataclass(frozen=True)
class ExactDevice:
    """What one device sends, in elements, and moves, by array."""

    words: int
    hbm: Traffic


@dataclass(frozen=True)
class Moved:
    """What a device moves of an array, in rows of `width` elements; its HBM has `size` rows of it.

    reads, writes  rows that are read, and that are written
    zeros          rows that are written before all else
    chip           whether elements are of the chip's type, and not of the inputs'
    """

    width: int
    size: int
    reads: int = 0
    writes: int = 0
    zeros: int = 0
    chip: bool = False
    role: Role = "extra"


def arrays_of(widths: Mapping[str, int], size: int, **moved: Any) -> dict[str, Moved]:
    """Return arrays of these widths that move equally many rows; `moved` as in `Moved`."""
    return {name: Moved(width, size, **moved) for name, width in widths.items()}


@dataclass(frozen=True, kw_only=True)
class DevicesForm(ClosedForm):
    """The closed form of one program over devices.

    words    (share, rank, columns) -> the elements that a device sends
    traffic  (share, rank, columns) -> what it moves of each array
    peak     (B_r, B_c, d, d_v) -> the most on chip of any device, in elements: where its blocks are
             whole
    room     (share, rank, columns) -> a number that is greatest for the device with the most
             elements in HBM; None: the program is not planned
    """

    package: ClassVar[str] = "flashsim.devices.theory"

    words: Callable[[Share, int, int], int]
    traffic: Callable[[Share, int, int], Mapping[str, Moved]]
    peak: Callable[[int, int, int, int], int]
    room: Callable[[Share, int, int], int] | None = None

    def device(self, share: Share, rank: int, columns: int) -> ExactDevice:
        """Return what one device sends and moves."""
        dtype = share.problem.dtype
        arrays = {}
        for name, array in self.traffic(share, rank, columns).items():
            stored = chip_dtype(dtype) if array.chip else dtype
            arrays[name] = ArrayTraffic(
                array.reads * array.width,
                array.writes * array.width,
                array.zeros * array.width,
                array.size * array.width,
                stored.itemsize,
                array.role,
            )
        return ExactDevice(self.words(share, rank, columns), Traffic(arrays))

    def devices(self, share: Share, columns: int) -> list[ExactDevice]:
        """Return what each device sends and moves."""
        return [self.device(share, rank, columns) for rank in range(len(share.where))]


class LiveTiles:
    """Which tiles are live, and their sizes, from positions alone."""

    def __init__(self, share: Share) -> None:
        self.share = share

    def rows(self, p: int) -> Any:
        """Return the rows of each of device p's row blocks."""
        return _block_sizes(len(self.share.queries[p]), self.share.B_r)

    def cols(self, p: int) -> Any:
        """Return the keys of each of device p's key blocks."""
        return _block_sizes(len(self.share.where[p]), self.share.B_c)

    def live(self, p: int, y: int) -> Any:
        """(T_r, T_c) of device p's row blocks and device y's key blocks."""
        shape = self.share.problem.shape
        mask = self.share.problem.mask
        rows = self.share.queries[p]
        cols = self.share.where[y]
        row_blocks = np.arange(0, len(rows), self.share.B_r)
        col_blocks = np.arange(0, len(cols), self.share.B_c)
        tiles = (len(row_blocks), len(col_blocks))
        if not len(rows) or not len(cols):
            return np.zeros(tiles, bool)
        # the last row may attend to the first key, or no row to any
        if type(mask) is Causal and mask.offset is None:
            last = np.maximum.reduceat(rows, row_blocks)
            first = np.minimum.reduceat(cols, col_blocks)
            return last[:, None] + shape.N_k - shape.N_q >= first
        if mask is EVERYTHING:
            return np.ones(tiles, bool)
        pairs = mask.allows(rows, cols, shape, ())
        down = np.logical_or.reduceat(pairs, row_blocks, axis=0)
        return np.logical_or.reduceat(down, col_blocks, axis=1)

    def keys_met(self, p: int, y: int) -> int:
        """Σ over row blocks of the keys of their live tiles."""
        keys = self.live(p, y) @ self.cols(y)
        return int(keys.sum())

    def rows_met(self, p: int, y: int) -> int:
        """Σ over key blocks of the rows of their live tiles."""
        rows = self.rows(p) @ self.live(p, y)
        return int(rows.sum())


def _block_sizes(length: int, size: int) -> Any:
    """Return the sizes of a length's blocks."""
    first = np.arange(0, length, size)
    return np.minimum(size, length - first)


def unfinished(name: str, d_v: int) -> dict[str, int]:
    """Return the widths of an O that is not finished, a part of it or a whole, with ℓ and m."""
    return {f"O_{name}": d_v, f"l_{name}": 1, f"m_{name}": 1}


def tile_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the most elements on chip at once, in the inner loop, of forward passes: q_outer's."""
    return (B_r + B_c) * (d + d_v) + B_r * B_c + 3 * B_r


def merging_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the same of a mesh and a tree: O_i, ℓ_i, m_i, a part of them and m_i^new may be
    more, where parts are merged.
    """
    return max(tile_peak(B_r, B_c, d, d_v), B_r * (2 * d_v + 5))


def backward_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the same of the backward pass: K_j, V_j and their gradients, Q_i, dO_i, dQ_i, L_i,
    D_i, P_ij, dS_ij; or line 1's.
    """
    of_rows = B_r * (2 * d + d_v + 2)
    of_keys = 2 * B_c * (d + d_v)
    of_tiles = 2 * B_r * B_c
    line_1 = B_r * (2 * d_v + 1)
    return max(of_rows + of_keys + of_tiles, line_1)
