"""What a run is asked besides its operands: scale, mask, dropout, block mask; and one pass of one head with all that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.algorithms import Algorithm
from flashsim.algorithms.parts import ArrayBlockMask, BlockMask, Dropout, EveryTile, Live
from flashsim.algorithms.split_kv_merge import MERGES
from flashsim.checking import check_tiles
from flashsim.dropout import NoDropout, TileDropout
from flashsim.groups import grouped
from flashsim.inputs import Array, chip_dtype
from flashsim.masks import All, EdgeTileMask, Head, Index, Mask, TileMask
from flashsim.memory import HBM, SRAM, Matrix, Observer
from flashsim.records import Blocks, Shape

Bools = NDArray[np.bool_]
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

    def blocks_for(self, blocks: Blocks, shape: Shape, head: Head) -> BlockMask:
        """Return the block mask for these blocks. Raises ValueError if it does not match T_r × T_c."""
        if self.block_mask is None:
            return EveryTile()
        if isinstance(self.block_mask, str):  # "live"
            return LiveTiles(self.mask, blocks, shape, head)
        return ArrayBlockMask(check_tiles(self.block_mask, blocks, shape))


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


class LiveTiles:
    """The tiles that a mask leaves alive, as far as positions tell: skip the others, and nothing changes but the counts."""

    def __init__(self, mask: Mask, blocks: Blocks, shape: Shape, head: Head) -> None:
        self._mask, self._blocks, self._shape, self._head = mask, blocks, shape, head
        self._rows = np.arange(blocks.T_r) * blocks.B_r
        self._row_ends = np.minimum(self._rows + blocks.B_r, shape.N_q)
        self._cols = np.arange(blocks.T_c) * blocks.B_c
        self._last_cols = np.minimum(self._cols + blocks.B_c, shape.N_k)
        self._col_ends = np.minimum(self._last_cols, mask.keys(shape, head))
        self._positional = not mask.dense(head) and mask.tree is None

    def column(self, j: int) -> Bools:
        """Return column j, (T_r,)."""
        here = slice(j, j + 1)
        return self._mask.live(
            self._rows, self._row_ends, self._cols[here], self._col_ends[here], self._shape, self._head
        )

    def row(self, i: int) -> Bools:
        """Return row i, (T_c,)."""
        here = slice(i, i + 1)
        return self._mask.live(
            self._rows[here], self._row_ends[here], self._cols, self._col_ends, self._shape, self._head
        )

    def edges(self, i: int) -> Sequence[bool] | None:
        """Return which tiles of row i are masked; None if all are, as the mask lives in HBM."""
        here = slice(i, i + 1)
        return self._masked(self._rows[here], self._row_ends[here], self._cols, self._last_cols)

    def edges_below(self, j: int) -> Sequence[bool] | None:
        """Return which tiles of column j are masked; None if all are."""
        here = slice(j, j + 1)
        return self._masked(self._rows, self._row_ends, self._cols[here], self._last_cols[here])

    def _masked(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index) -> Sequence[bool] | None:
        if not self._positional:
            return None
        masked = ~self._mask.leaves_all(rows, row_ends, cols, col_ends, self._shape, self._head)
        return masked.tolist()  # type: ignore[no-any-return]

    @cached_property
    def alike(self) -> Sequence[Any]:
        """How many full tiles a column has, whether its last, perhaps ragged one is computed, and as many of them masked."""
        return [_cost(self.column(j), self.edges_below(j)) for j in range(self._blocks.T_c)]

    @cached_property
    def rows_alike(self) -> Sequence[Any]:
        """The same for a row."""
        return [_cost(self.row(i), self.edges(i)) for i in range(self._blocks.T_r)]


class TileSplits:
    """The blocks of this head's keys in `number` runs of equally many blocks; the last may be shorter, or empty."""

    def __init__(self, live: Live, mask: Mask, blocks: Blocks, shape: Shape, head: Head, number: int | None) -> None:
        self._live, self._T_r = live, blocks.T_r
        self.number = blocks.T_c if number is None else number
        in_use = -(-mask.keys(shape, head) // blocks.B_c)
        self._split_of = np.arange(blocks.T_c) // max(-(-in_use // self.number), 1)

    def row(self, s: int, i: int) -> Bools:
        """Return row i's tiles in split s, (T_c,)."""
        inside: Bools = self._split_of == s
        live = self._live.row(i)
        return inside if live is None else inside & live

    def edges(self, i: int) -> Sequence[Any] | None:
        """Return what all tiles of row i say, be they in a split or not."""
        return self._live.edges(i)

    def rows_alike(self, s: int) -> Sequence[Any]:
        """What decides a row block's cost in split s: how many tiles, and how many of them masked."""
        if self._live.row(0) is None:  # nothing is masked: all rows cost the same
            return [_cost(self.row(s, 0), None)] * self._T_r
        return [_cost(self.row(s, i), self.edges(i)) for i in range(self._T_r)]

    @cached_property
    def alike(self) -> Sequence[Any]:
        """The same for all rows of each split."""
        if self._live.row(0) is None:
            return [_cost(self.row(s, 0), None) for s in range(self.number)]
        return [tuple(self.rows_alike(s)) for s in range(self.number)]


def _cost(tiles: Bools, masked: Sequence[bool] | None) -> tuple[int, ...]:
    """Return how many full tiles there are, whether the last, perhaps ragged one is there, and the same of masked ones."""
    if masked is None:
        return int(tiles[:-1].sum()), int(tiles[-1])
    edges = tiles & np.array(masked)
    return int(tiles[:-1].sum()), int(tiles[-1]), int(edges[:-1].sum()), int(edges[-1])


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
    sram = SRAM(hbm, M, enforced=enforced, dtype=chip_dtype(stored), observers=observers, fold=variant.mask.folds)
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
    every = isinstance(variant.mask, All) or not variant.skips
    live: Live = EveryTile() if every else LiveTiles(variant.mask, blocks, shape, head)
    mask_function = EdgeTileMask if {"live", "splits"} & set(algorithm.parts) else TileMask
    parts: dict[str, Callable[[], Any]] = {
        "tau": lambda: variant.tau,
        "MASK": lambda: mask_function(variant.mask, hbm, sram, blocks, shape, head),
        "dropout": lambda: dropout,
        "block_mask": lambda: variant.blocks_for(blocks, shape, head),
        "live": lambda: live,
        "splits": lambda: TileSplits(live, variant.mask, blocks, shape, head, variant.splits),
        "merge": lambda: MERGES[variant.merge],
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
