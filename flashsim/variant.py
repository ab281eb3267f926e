"""What a run is asked besides its operands: scale, mask, dropout, block mask; and one pass of one head with all that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.algorithms import Algorithm
from flashsim.algorithms.own import RETURNS
from flashsim.algorithms.parts import ArrayBlockMask, BlockMask, Dropout, EveryTile, Live, Splits
from flashsim.algorithms.split_kv_merge import MERGES
from flashsim.band import Band
from flashsim.checking import check_tiles, shown
from flashsim.dropout import NoDropout, TileDropout
from flashsim.groups import grouped
from flashsim.inputs import Array, chip_dtype
from flashsim.live import CountedSplits, CountedTiles, LiveTiles, TileSplits
from flashsim.masks import All, Head, Mask
from flashsim.memory import HBM, SRAM, Matrix, MemoryModelError, Observer
from flashsim.records import Blocks, Shape
from flashsim.shape_only import ShapeOnly
from flashsim.sizes import human_bytes
from flashsim.tile_masks import PartialTileMask, TileMask

Bools = NDArray[np.bool_]
MOST_RUN_ONE_BY_ONE = 2**22
MOST_IN_A_BLOCK_MASK = 2**28
BlockMaskArgument = Any  # None, "live", an array (T_r, T_c), or a function of (T_r, T_c) that returns one


@dataclass(frozen=True)
class Variant:
    """Scale τ, mask, dropout, block mask, and splits of the keys with the way to merge them, of a run, all checked.

    Algorithms that skip what the mask forbids whole compute all tiles if not `skips`: block sizes are chosen for that.
    `group` is of how many query heads the rows are interleaved: mask and dropout are then for such rows (`flashsim.groups`).
    """

    tau: float
    mask: Mask
    dropout_p: float
    seed: int
    block_mask: BlockMaskArgument = None
    splits: int | None = None
    merge: str = "sequence"
    skips: bool = True
    group: int = 1

    def for_groups(self, group: int, N_q: int) -> Variant:
        """Return the same for the interleaved rows of groups of query heads, N_q rows each."""
        return replace(self, mask=grouped(self.mask, group, N_q), group=group)

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
        if "splits" not in algorithm.parts and (self.splits is not None or self.merge != "sequence"):
            raise ValueError(f"{algorithm.name!r} ({algorithm.title}) does not split the keys; 'split_kv' does")

    def blocks_for(self, blocks: Blocks, shape: Shape, head: Head, band: Band | None = None) -> BlockMask:
        """Return the block mask for these blocks. Raises ValueError if it does not match T_r × T_c, or that is too much.

        With the mask's `band`, live tiles are for counting by kind.
        """
        given = self.block_mask
        if given is None:
            return EveryTile()
        if isinstance(given, str):  # "live"
            return self.live(blocks, shape, head, band)
        entries = blocks.T_r * blocks.T_c
        if callable(given) and entries > MOST_IN_A_BLOCK_MASK:
            raise ValueError(
                f"block_mask is a function, here of (T_r, T_c) = {(blocks.T_r, blocks.T_c)}: it would return {entries:,} "
                f"entries, {human_bytes(entries)} or more; expected at most {MOST_IN_A_BLOCK_MASK:,}. Take larger blocks"
            )
        return ArrayBlockMask(check_tiles(given, blocks, shape))

    def live(self, blocks: Blocks, shape: Shape, head: Head, band: Band | None = None) -> Live:
        """Return the live tiles, or all; with their `band`, for counting by kind."""
        if isinstance(self.mask, All) or not self.skips:
            return EveryTile()
        if band is None:
            return LiveTiles(self.mask, blocks, shape, head)
        return CountedTiles(band, blocks, shape, self.group)

    def splits_of(self, blocks: Blocks, shape: Shape, head: Head, band: Band | None = None) -> Splits:
        """Return the splits of the keys; with the band of live tiles, for counting by kind."""
        if band is None:
            return TileSplits(self.live(blocks, shape, head), self.mask, blocks, shape, head, self.splits)
        return CountedSplits(band, blocks, shape, self.group, self.splits)

    def band(self, shape: Shape, head: Head) -> Band | None:
        """Return the band of the tiles to compute; None where it is none, or where equal tiles cost unequal amounts."""
        if not self.mask.folds:
            return None
        return (self.mask if self.skips else All()).band(shape, head)


def attended(variant: Variant, blocks: Blocks, shape: Shape, head: Head, group: int = 1) -> Bools | None:
    """Return the whole (N_q, N_k) mask of one query head, block mask included, for the reference; None if it attends to all.

    `variant` is the run's as it was asked for; with `group` > 1, blocks are of interleaved rows of that many heads.
    """
    if isinstance(variant.mask, All) and variant.block_mask is None:
        return None
    whole = variant.mask.whole(shape, head)
    if variant.block_mask is None:
        return whole
    shared, member = ((*head[:-1], head[-1] // group), head[-1] % group) if head else (head, 0)
    rows = replace(shape, N_q=group * shape.N_q)
    columns = variant.for_groups(group, shape.N_q).blocks_for(blocks, rows, shared)
    all_rows = np.ones(blocks.T_r, bool)
    tiles = np.stack([all_rows & columns.column(j) for j in range(blocks.T_c)], axis=1)
    spread = tiles.repeat(blocks.B_r, axis=0)[: rows.N_q].repeat(blocks.B_c, axis=1)[:, : shape.N_k]
    mine: Bools = whole & spread[member::group]
    return mine


def _refuse_too_many(mask: Mask, blocks: Blocks) -> None:
    """Raise ValueError where tiles of one shape cost unequal amounts, so that each is run, and that would take too long."""
    tiles = blocks.T_r * blocks.T_c
    if tiles > MOST_RUN_ONE_BY_ONE:
        raise ValueError(
            f"mask is {shown(mask)}: its tiles are counted one by one, and here are "
            f"T_r × T_c = {blocks.T_r:,} × {blocks.T_c:,} of them, which takes about {tiles * 1e-4 / 3600:,.1f} hours; "
            f"expected at most {MOST_RUN_ONE_BY_ONE:,} tiles. Take larger blocks, or flashsim.theory.exact"
        )


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
    """Run one pass of one head, or of one group of interleaved heads. `operands=None` counts on shapes alone.

    `operands` are 2-D arrays by name; Q comes already scaled where the algorithm has no τ.
    """
    hbm = HBM(arithmetic=operands is not None)
    band = variant.band(shape, head)
    counted = None if hbm.arithmetic else band
    if not hbm.arithmetic and band is None:
        _refuse_too_many(variant.mask, blocks)
    sram = SRAM(hbm, M, enforced=enforced, dtype=chip_dtype(stored), observers=observers, fold=band is not None)
    placed: dict[str, Matrix] = {}
    for name in (*algorithm.operands, *_unnamed(algorithm, variant)):
        if name == "P_dropped" and not variant.dropout_p:
            placed[name] = placed["P"]
        else:
            values = _shape_of(name, shape) if operands is None else operands[name]
            placed[name] = hbm.place(name, values, _dtype_of(name, stored))
    dropout: Dropout = NoDropout()
    if variant.dropout_p:
        dropout = TileDropout(variant.dropout_p, variant.seed, hbm, sram, blocks, head_number, variant.group)
    mask_function = PartialTileMask if {"live", "splits"} & set(algorithm.parts) else TileMask
    parts: dict[str, Callable[[], Any]] = {
        "tau": lambda: variant.tau,
        "MASK": lambda: mask_function(variant.mask, hbm, sram, blocks, shape, head),
        "dropout": lambda: dropout,
        "block_mask": lambda: variant.blocks_for(blocks, shape, head, counted),
        "live": lambda: variant.live(blocks, shape, head, counted),
        "splits": lambda: variant.splits_of(blocks, shape, head, counted),
        "merge": lambda: MERGES[variant.merge],
    }
    given = [placed[name] for name in algorithm.operands]
    result = algorithm.run(hbm, sram, *given, blocks, *(parts[part]() for part in algorithm.parts))
    return hbm, sram, _returned(algorithm, result, shape)


def _returned(algorithm: Algorithm, result: Any, shape: Shape) -> tuple[Matrix, ...]:
    """Return the matrices that an algorithm returned. Raises MemoryModelError where they are not those of its record."""
    found = result if isinstance(result, tuple) else (result,)
    names = tuple(matrix.name if isinstance(matrix, Matrix) else None for matrix in found)
    expected = (algorithm.returns,) if algorithm.returns else RETURNS
    if names not in expected:
        said = ", ".join(map(_named, found))
        raise MemoryModelError(
            f"{algorithm.name!r} ({algorithm.title}) returned {f'({said})' if isinstance(result, tuple) else said}; "
            f"expected {' or '.join('(' + ', '.join(names) + ')' for names in expected)}, matrices in HBM"
        )
    for matrix in found:
        if matrix.shape != _shape_of(matrix.name, shape):
            raise MemoryModelError(
                f"{algorithm.name!r} ({algorithm.title}) returned {matrix.name} of shape {matrix.shape}; "
                f"expected {_shape_of(matrix.name, shape)}"
            )
    return found


def _named(value: Any) -> str:
    """Return a name for what an algorithm returned."""
    if isinstance(value, np.ndarray | ShapeOnly):
        return "an array"
    return str(getattr(value, "name", value))


def _unnamed(algorithm: Algorithm, variant: Variant) -> tuple[str, ...]:
    """Return what a backward pass with dropout finds in HBM besides its operands: Z for Algorithm 3, R for the others."""
    if not variant.dropout_p or "dO" not in algorithm.operands:
        return ()
    return ("Z",) if "P" in algorithm.operands else ("R",)


def _shape_of(name: str, shape: Shape) -> tuple[int, int]:
    match name:
        case "Q" | "dQ":
            return shape.N_q, shape.d
        case "K" | "dK":
            return shape.N_k, shape.d
        case "V" | "dV":
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
