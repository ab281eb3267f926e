"""What algorithms are given besides matrices: MASK, dropout, and which tiles to
compute, each with a do-nothing version.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.shapes import Blocks
from flashsim.memory.folding import Kinds
from flashsim.memory.hbm import Block, Matrix, Tile
from flashsim.memory.sram import SRAM


class MaskFunction(Protocol):
    """MASK of Algorithm 2's line 11."""

    def __call__(self, S_ij: Tile, i: int, j: int) -> Tile:
        """Return tile (i, j) of S with −∞ where the mask forbids; S_ij itself if
        nothing is masked.
        """

    def gradient(self, dS_ij: Tile, i: int, j: int) -> None:
        """Add tile (i, j) of dS to a bias's gradient in HBM; nothing where there is
        no bias.
        """

    def uncapped(self, dS_ij: Tile) -> Tile:
        """Return dS of scores before their soft cap, for the tile that was masked last;
        dS_ij itself if there is none.
        """

    def divided(self, blocks: Blocks) -> MaskFunction:
        """Return the same mask for tiles of other sizes."""

    def room(self, rows: int, columns: int) -> int:
        """Return the most elements that masking a tile of that size brings on chip."""

    def whole(self, sram: SRAM, S: Matrix) -> None:
        """Mask S in HBM, as a pass of its own: what standard attention does. No pass if
        nothing is masked.
        """


class Dropout(Protocol):
    """The generator behind dropout."""

    def save(self) -> None:
        """Initialise the generator state R and save it to HBM."""

    def restore(self) -> None:
        """Set the generator to the state R that the forward pass saved."""

    def __call__(self, P_ij: Tile, i: int, j: int) -> Tile:
        """Return Z_ij, of P_ij's shape: 1/(1 − p) where an element is kept, 0 where it
        is dropped.
        """

    def divided(self, blocks: Blocks) -> Dropout:
        """Return the same dropout for tiles of other sizes."""

    def whole(self, sram: SRAM, P: Matrix) -> Matrix:
        """Drop from P in HBM, as a pass of its own, and return P^dropped; P itself if
        nothing is dropped.
        """

    def whole_backward(self, sram: SRAM, dP: Matrix) -> None:
        """Turn dP^dropped in HBM into dP = dP^dropped ∘ Z, as a pass of its own; no
        pass if nothing is dropped.
        """


class Sink(Protocol):
    """What a row's softmax begins with: nothing, ℓ = 0 and m = −∞, or a sink of logit
    s, ℓ = 1 and m = s. Variants with a sink take it, and functions of the user's own.
    """

    l: float
    room: int
    """The most elements that it holds on chip beside the rows that it is of."""

    def m(self, of: Block | Matrix) -> Any:
        """Return m of these rows, a number or a column; loads s."""

    def above(self, m: Tile, of: Block) -> Tile:
        """Return max(m, s) of these rows; loads s, and holds it."""

    def total(self, l: Tile, m: Tile) -> Tile:
        """Return ℓ + e^{s − m}, of the rows that were asked for last."""

    def keep(self, m: Tile, l: Tile, of: Block) -> None:
        """Write e^{s − m} / ℓ to P_sink in HBM, over ℓ; loads s."""


class WholeGradient(Protocol):
    """A bias's gradient, dB in HBM, made of all of dS in HBM: what standard
    attention does.
    """

    def whole(self, sram: SRAM, dS: Matrix) -> None:
        """Add dS to dB, as a pass of its own; no pass if there is no bias."""


Which = NDArray[np.bool_] | Kinds | None
"""The turns of a loop to take, True; as kinds, in counting-only mode; or all."""

Alike = Sequence[Hashable] | Kinds | None
"""For each turn of a loop, what it has in common with those that cost the same; as
kinds; None: all cost the same.
"""


class BlockMask(Protocol):
    """The block sparsity mask of Algorithm 5, T_r × T_c."""

    def column(self, j: int) -> Which:
        """Return the tiles (i, j) of column j to compute, (T_r,)."""

    @property
    def alike(self) -> Alike:
        """Columns, by what they cost."""


class Live(BlockMask, Protocol):
    """The live tiles (`flashsim.attention.masks.rules` says what that means), by row
    and by column.
    """

    def row(self, i: int) -> Which:
        """Return the live tiles (i, j) of row i, (T_c,)."""

    @property
    def rows_alike(self) -> Alike:
        """Rows, by what they cost."""

    def divided(self, blocks: Blocks) -> Live:
        """Return the live tiles of other sizes."""


class Splits(Protocol):
    """The blocks of keys, cut into runs of blocks."""

    number: int

    def row(self, s: int, i: int) -> Which:
        """Return the tiles (i, j) that are live and in split s, (T_c,)."""

    def rows_alike(self, s: int) -> Alike:
        """Return row blocks, by what they cost in split s."""

    @property
    def alike(self) -> Alike:
        """Splits, by what they cost."""


class EveryTile:
    """The block mask that skips nothing."""

    alike = None
    rows_alike = None

    def column(self, j: int) -> None:
        """Skip nothing in column j."""

    def row(self, i: int) -> None:
        """Skip nothing in row i."""

    def divided(self, blocks: Blocks) -> EveryTile:
        return self


class ArrayBlockMask:
    """A block mask given as an array."""

    def __init__(self, array: NDArray[np.bool_]) -> None:
        self._array = array

    def column(self, j: int) -> NDArray[np.bool_]:
        return self._array[:, j]

    @property
    def alike(self) -> list[Any]:
        """How many tiles of a column are computed above its last, perhaps ragged one,
        and whether that one is.
        """
        return list(
            zip(
                self._array[:-1].sum(axis=0).tolist(),
                self._array[-1].tolist(),
                strict=True,
            )
        )
