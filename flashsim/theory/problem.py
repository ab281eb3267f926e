"""What closed forms are written in: one head's problem, its tiles of S by shape, and which tiles a mask leaves alive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.masks import All, Both, Dense, KeyPadding, Mask, SlidingWindow
from flashsim.records import ArrayTraffic, Blocks, Role

Arrays = dict[str, ArrayTraffic]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Tiles:
    """A set of tiles of S, by shape: (rows, columns) -> how many tiles have it. At most four shapes, as only ends are ragged."""

    shapes: Mapping[tuple[int, int], int]

    @classmethod
    def of(cls, N_q: int, N_k: int, B_r: int, B_c: int, chosen: Bools | None = None) -> Tiles:
        """Return the tiles of an N_q × N_k matrix in blocks of B_r × B_c: those chosen, (T_r, T_c), or all."""
        T_r, T_c = ceil_div(N_q, B_r), ceil_div(N_k, B_c)
        last_r, last_c = N_q - (T_r - 1) * B_r, N_k - (T_c - 1) * B_c
        if chosen is None:
            counts = ((T_r - 1) * (T_c - 1), T_r - 1, T_c - 1, 1)
        else:
            parts = chosen[:-1, :-1], chosen[:-1, -1], chosen[-1, :-1], chosen[-1, -1]
            full, right, bottom, corner = (int(np.count_nonzero(part)) for part in parts)
            counts = (full, right, bottom, corner)
        shapes: dict[tuple[int, int], int] = {}
        kinds = (B_r, B_c), (B_r, last_c), (last_r, B_c), (last_r, last_c)
        for shape, count in zip(kinds, counts, strict=True):
            if count:
                shapes[shape] = shapes.get(shape, 0) + count
        return cls(shapes)

    @property
    def number(self) -> int:
        """How many tiles."""
        return sum(self.shapes.values())

    @property
    def rows(self) -> int:
        """Σ over tiles of their rows; of all tiles, T_c·N_q."""
        return sum(r * count for (r, _), count in self.shapes.items())

    @property
    def columns(self) -> int:
        """Σ over tiles of their columns; of all tiles, T_r·N_k."""
        return sum(c * count for (_, c), count in self.shapes.items())

    @property
    def area(self) -> int:
        """Σ over tiles of their elements; of all tiles, N_q·N_k."""
        return sum(r * c * count for (r, c), count in self.shapes.items())

    def most(self, occupancy: Callable[[int, int], int]) -> int:
        """Return the largest occupancy(rows, columns) of any tile here; 0 if there is none."""
        return max((occupancy(r, c) for r, c in self.shapes), default=0)


@dataclass(frozen=True)
class Problem:
    """One head: lengths, widths, M; itemsizes of what is stored as the inputs are and of statistics; mask and dropout.

    `dense` holds the shapes of the mask arrays that live in HBM, each (1 or N_q, 1 or N_k).
    """

    N_q: int
    N_k: int
    d: int
    d_v: int
    M: int
    stored: int
    masked: bool
    dense: tuple[tuple[int, int], ...]
    dropout: bool

    @property
    def chip(self) -> int:
        """Bytes of ℓ, m, log L and D, kept at the precision that is computed in: float32 for 16-bit inputs."""
        return max(self.stored, 4)

    def size(self, name: str) -> int:
        """Return the elements of Q, K, V, O, S, of their gradients, or of a column such as ℓ."""
        widths = {"Q": self.d, "K": self.d, "V": self.d_v, "O": self.d_v, "S": self.N_k, "P": self.N_k}
        name = name.removeprefix("d").removesuffix("_dropped")
        rows = self.N_k if name in ("K", "V") else self.N_q
        return rows * widths.get(name, self.N_k if name == "Z" else 1)

    def array(self, name: str, role: Role, *, reads: int = 0, writes: int = 0, init: int = 0) -> Arrays:
        """Return one array's entry: elements read, and written after and (`init`) by initialisation."""
        width = {"R": 4, "Z": 1, "l": self.chip, "m": self.chip, "L": self.chip, "D": self.chip}.get(name, self.stored)
        return {name: ArrayTraffic(reads, init + writes, init, self.size(name), width, role)}

    def masks(self, *passes: Tiles) -> Arrays:
        """Return the traffic of mask arrays in HBM: each tile of each pass loads its block of each, wherever it has one.

        An array (N_q, N_k) is read once for every element of a tile, (1, N_k) for every column, (N_q, 1) for every row, and
        (1, 1) for every tile.
        """
        arrays = {}
        for index, (down, across) in enumerate(self.dense):
            reads = 0
            for tiles in passes:
                by_row, by_tile = (tiles.area, tiles.columns) if across > 1 else (tiles.rows, tiles.number)
                reads += by_row if down > 1 else by_tile
            arrays[f"mask{index or ''}"] = ArrayTraffic(reads, 0, 0, down * across, 1, "input")
        return arrays

    def mask_tile(self, rows: int, columns: int) -> int:
        """Return the elements on chip of the mask blocks for one tile of S."""
        return sum((rows if down > 1 else 1) * (columns if across > 1 else 1) for down, across in self.dense)

    def generator(self, direction: str) -> Arrays:
        """Return R's traffic: two words, written when initialised (forward) and read once (backward)."""
        if not self.dropout:
            return {}
        forward, backward = ArrayTraffic(0, 2, 2, 2, 4, "extra"), ArrayTraffic(2, 0, 0, 2, 4, "input")
        return {"R": forward if direction == "forward" else backward}

    @property
    def R(self) -> int:
        """What the generator's state takes on chip throughout a backward pass."""
        return 2 if self.dropout else 0


def ceil_div(a: int, b: int) -> int:
    """Return ⌈a / b⌉."""
    return -(-a // b)


def parts_of(mask: Mask) -> list[Mask]:
    """Return the masks that `&` combined. ValueError for one that theory does not know."""
    if isinstance(mask, Both):
        return parts_of(mask.a) + parts_of(mask.b)
    if not isinstance(mask, All | SlidingWindow | KeyPadding | Dense):
        raise ValueError(f"no closed form for a mask of type {type(mask).__name__}")
    return [mask]


def dense_shapes(mask: Mask) -> tuple[tuple[int, int], ...]:
    """Return the shapes of the mask arrays in HBM, as (rows, columns)."""
    arrays = [part.array for part in parts_of(mask) if isinstance(part, Dense)]
    shapes = [(1, 1, *array.shape) for array in arrays]
    return tuple((shape[-2], shape[-1]) for shape in shapes)


def live_tiles(mask: Mask, N_q: int, N_k: int, blocks: Blocks) -> Bools:
    """Return (T_r, T_c), True where a tile has an element that every positional mask allows. `Dense` arrays do not count.

    All windows together are one, −left ≤ δ ≤ right, of δ = j − i − (N_k − N_q); all paddings one, j < length. In a tile of
    rows a ≤ i < a' and columns b ≤ j < b'' = min(b', length), δ takes every value from b − (a' − 1) to b'' − 1 − a, less the
    shift. As the window holds δ = 0, they meet unless one lies wholly beyond the other's end.
    """
    parts = parts_of(mask)
    windows = [part for part in parts if isinstance(part, SlidingWindow)]
    left = min((window.left for window in windows if window.left != -1), default=N_q + N_k)
    right = min((window.right for window in windows if window.right != -1), default=N_q + N_k)
    length = min((int(part.lengths) for part in parts if isinstance(part, KeyPadding)), default=N_k)
    top = np.arange(blocks.T_r)[:, None] * blocks.B_r
    b = np.arange(blocks.T_c)[None, :] * blocks.B_c
    bottom, end, shift = np.minimum(top + blocks.B_r, N_q), np.minimum(b + blocks.B_c, length), N_k - N_q
    live: Bools = (b < length) & (b - (bottom - 1) - shift <= right) & (end - 1 - top - shift >= -left)
    return live


def chosen_tiles(block_mask: Any, mask: Mask, N_q: int, N_k: int, blocks: Blocks) -> Bools | None:
    """Return the computed tiles, (T_r, T_c), as `flashsim.count` takes them; None: all. ValueError if they do not match."""
    if block_mask is None:
        return None
    if isinstance(block_mask, str):
        if block_mask != "live":
            raise ValueError(f'block_mask is {block_mask!r}; expected an array, a function of (T_r, T_c), or "live"')
        return live_tiles(mask, N_q, N_k, blocks)
    array = np.asarray(block_mask(blocks.T_r, blocks.T_c) if callable(block_mask) else block_mask).astype(bool)
    if array.shape != (blocks.T_r, blocks.T_c):
        raise ValueError(f"block_mask has shape {array.shape}; expected (T_r, T_c) = {(blocks.T_r, blocks.T_c)}")
    return array
