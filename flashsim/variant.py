"""What a run is asked besides its operands: scale, mask, dropout, block mask; and one pass of one head with all that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.algorithms import Algorithm
from flashsim.algorithms.parts import ArrayBlockMask, BlockMask, Dropout, EveryTile
from flashsim.dropout import NoDropout, TileDropout
from flashsim.inputs import Array, chip_dtype
from flashsim.masks import All, Head, Mask, TileMask
from flashsim.memory import HBM, SRAM, Matrix, Observer
from flashsim.records import Blocks, Shape

Bools = NDArray[np.bool_]
BlockMaskArgument = Any  # None, "live", an array (T_r, T_c), or a function of (T_r, T_c) that returns one


@dataclass(frozen=True)
class Variant:
    """Scale τ, mask, dropout and block mask of a run, all checked."""

    tau: float
    mask: Mask
    dropout_p: float
    seed: int
    block_mask: BlockMaskArgument

    def refuse_what(self, algorithm: Algorithm) -> None:
        """Raise ValueError for a part that the algorithm does not have."""
        if "MASK" not in algorithm.parts and not isinstance(self.mask, All):
            raise ValueError(f"{algorithm.name!r} ({algorithm.title}) has no mask; 'flash' (Algorithm 2) has")
        if "dropout" not in algorithm.parts and self.dropout_p:
            raise ValueError(f"{algorithm.name!r} ({algorithm.title}) has no dropout; 'flash' (Algorithm 2) has")
        if "block_mask" not in algorithm.parts and self.block_mask is not None:
            raise ValueError(
                f"{algorithm.name!r} ({algorithm.title}) has no block mask; 'block_sparse' (Algorithm 5) has"
            )

    def blocks_for(self, blocks: Blocks, shape: Shape, head: Head) -> BlockMask:
        """Return the block mask for these blocks. Raises ValueError if it does not match T_r × T_c."""
        given = self.block_mask
        if isinstance(given, str):
            if given != "live":
                raise ValueError(f'block_mask is {given!r}; expected an array, a function of (T_r, T_c), or "live"')
            return LiveTiles(self.mask, blocks, shape, head)
        if given is None:
            return EveryTile()
        T = (blocks.T_r, blocks.T_c)
        array = np.asarray(given(*T) if callable(given) else given)
        if array.dtype.kind not in "buif" or not np.isin(array, (0, 1)).all():
            raise ValueError(f"block_mask is {_short(array)}; expected booleans, or zeros and ones")
        if array.shape != T:
            raise ValueError(
                f"block_mask has shape {array.shape}; expected (T_r, T_c) = {T}, "
                f"as B_r = {blocks.B_r} and B_c = {blocks.B_c} divide N_q = {shape.N_q} and N_k = {shape.N_k}"
            )
        return ArrayBlockMask(array.astype(bool))


def attended(variant: Variant, blocks: Blocks, shape: Shape, head: Head) -> Bools | None:
    """Return the whole (N_q, N_k) mask of one head, block mask included, for the reference; None if all is attended to."""
    if isinstance(variant.mask, All) and variant.block_mask is None:
        return None
    columns = variant.blocks_for(blocks, shape, head)
    if isinstance(columns, EveryTile):
        return variant.mask.whole(shape, head)
    all_rows = np.ones(blocks.T_r, bool)
    tiles = np.stack([all_rows & columns.column(j) for j in range(blocks.T_c)], axis=1)
    spread = tiles.repeat(blocks.B_r, axis=0)[: shape.N_q].repeat(blocks.B_c, axis=1)[:, : shape.N_k]
    whole: Bools = variant.mask.whole(shape, head) & spread
    return whole


def _short(array: NDArray[Any]) -> str:
    other = array[~np.isin(array, (0, 1))] if array.dtype.kind in "uif" else array[:0]
    return f"an array that holds {other.flat[0]}" if other.size else f"of dtype {array.dtype}"


class LiveTiles:
    """The tiles that a mask leaves alive, as far as positions tell: skip the others, and nothing changes but the counts."""

    def __init__(self, mask: Mask, blocks: Blocks, shape: Shape, head: Head) -> None:
        self._mask, self._blocks, self._shape, self._head = mask, blocks, shape, head
        self._rows = np.arange(blocks.T_r) * blocks.B_r
        self._row_ends = np.minimum(self._rows + blocks.B_r, shape.N_q)

    def column(self, j: int) -> Bools:
        """Return column j, (T_r,)."""
        left = j * self._blocks.B_c
        keys = self._mask.keys(self._shape, self._head)
        cols, ends = np.array([left]), np.array([min(left + self._blocks.B_c, keys)])
        return self._mask.live(self._rows, self._row_ends, cols, ends, self._shape, self._head)

    @cached_property
    def alike(self) -> Sequence[Any]:
        """How many full tiles a column has, and whether its last, perhaps ragged one is computed."""
        columns = (self.column(j) for j in range(self._blocks.T_c))
        return [(int(column[:-1].sum()), bool(column[-1])) for column in columns]


def launch(
    algorithm: Algorithm,
    shape: Shape,
    variant: Variant,
    blocks: Blocks,
    M: int,
    enforced: bool,
    stored: np.dtype[Any],
    operands: Mapping[str, Array] | None = None,
    head: Head = (),
    head_number: int = 0,
    observers: Sequence[Observer] = (),
) -> tuple[HBM, SRAM, tuple[Matrix, ...]]:
    """Run one pass of one head. `operands=None` counts on shapes alone.

    `operands` are 2-D arrays by name; Q comes already scaled where the algorithm has no τ.
    """
    hbm = HBM(arithmetic=operands is not None)
    sram = SRAM(hbm, M, enforced=enforced, dtype=chip_dtype(stored), observers=observers)
    placed: dict[str, Matrix] = {}
    for name in (*algorithm.operands, *_unnamed(algorithm, variant)):
        if name == "P_dropped" and not variant.dropout_p:
            placed[name] = placed["P"]
        else:
            values = _shape_of(name, shape) if operands is None else operands[name]
            placed[name] = hbm.place(name, values, _dtype_of(name, stored))
    dropout: Dropout = NoDropout()
    if variant.dropout_p:
        dropout = TileDropout(variant.dropout_p, variant.seed, hbm, sram, blocks, head_number)
    parts: dict[str, Callable[[], Any]] = {
        "tau": lambda: variant.tau,
        "MASK": lambda: TileMask(variant.mask, hbm, sram, blocks, shape, head),
        "dropout": lambda: dropout,
        "block_mask": lambda: variant.blocks_for(blocks, shape, head),
    }
    given = [placed[name] for name in algorithm.operands]
    matrices = algorithm.run(hbm, sram, *given, blocks, *(parts[part]() for part in algorithm.parts))
    return hbm, sram, matrices


def _unnamed(algorithm: Algorithm, variant: Variant) -> tuple[str, ...]:
    """Return what a backward pass with dropout finds in HBM besides its operands: Z for Algorithm 3, R for the others."""
    if not variant.dropout_p or "dO" not in algorithm.operands:
        return ()
    return ("Z",) if "P" in algorithm.operands else ("R",)


def _shape_of(name: str, shape: Shape) -> tuple[int, int]:
    match name:
        case "Q":
            return shape.N_q, shape.d
        case "K":
            return shape.N_k, shape.d
        case "V":
            return shape.N_k, shape.d_v
        case "O" | "dO":
            return shape.N_q, shape.d_v
        case "l" | "m" | "L":
            return shape.N_q, 1
        case "R":
            return 1, 2
    return shape.N_q, shape.N_k


def _dtype_of(name: str, stored: np.dtype[Any]) -> np.dtype[Any]:
    match name:
        case "l" | "m" | "L":
            return chip_dtype(stored)
        case "R":
            return np.dtype(np.uint32)
        case "Z":
            return np.dtype(np.bool_)
    return stored
