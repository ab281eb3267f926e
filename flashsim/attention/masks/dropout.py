"""Dropout whose mask is a pure function of position: Philox4x32-10, key = seed, counter = the
element's coordinates.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011. Whether an element is dropped depends on (seed, row, column, head) alone: not on tiles,
loop order or device. So no N × N mask has to be kept: the backward pass makes the same one again
from R, the two words of the seed.

One call of the generator gives eight half words, for rows r and r + 8 and columns c, c + 8, c + 16
and c + 24. A tensor core gives one thread all eight of these elements, of S as well as of Sᵀ. An
element is dropped if its half word is less than p · 2¹⁶; so the probability of that is p, rounded
up to a multiple of 2⁻¹⁶.
"""

from __future__ import annotations

import math
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_count, check_p, check_seed
from flashsim.attention.shapes import Blocks, pass_tiles
from flashsim.memory.hbm import HBM, Matrix, Tile
from flashsim.memory.shape_only import ONES
from flashsim.memory.sram import SRAM

Words = NDArray[np.uint32]

_BIT_3 = np.uint64(8)
_BIT_4 = np.uint64(16)

_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = 0x9E3779B9
_W1 = 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox4x32_10(
    counter: tuple[Any, Any, Any, Any], key: tuple[int, int]
) -> tuple[Words, Words, Words, Words]:
    """Return the four output words for a counter of four 32-bit words (arrays that broadcast)
    and a key of two.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    k0, k1 = (int(word) for word in key)
    for _ in range(10):
        product_0 = _M0 * c0
        product_1 = _M1 * c2
        c0 = (product_1 >> _32) ^ c1 ^ np.uint64(k0)
        c1 = product_1 & _LOW
        c2 = (product_0 >> _32) ^ c3 ^ np.uint64(k1)
        c3 = product_0 & _LOW
        k0 = (k0 + _W0) & 0xFFFFFFFF
        k1 = (k1 + _W1) & 0xFFFFFFFF
    return c0.astype(np.uint32), c1.astype(np.uint32), c2.astype(np.uint32), c3.astype(np.uint32)


def keep(words: tuple[int, int], p: float, rows: Any, cols: Any, head: Any) -> NDArray[np.bool_]:
    """Return (len(rows), len(cols)), True where an element is kept: its half word is at least p ·
    2¹⁶.

    The counter is (row, column, head, 0), with bit 3 of the row and bits 3 and 4 of the column
    cleared. Bit 3 of the row and bit 3 of the column choose the word, 2 · (row's) + (column's), and
    bit 4 of the column its upper half (0) or lower half. `head` is one number, or one for each row.
    """
    rows = np.asarray(rows, np.uint64)[:, None]
    cols = np.asarray(cols, np.uint64)[None, :]
    counter = (
        rows & ~_BIT_3,
        cols & ~(_BIT_3 | _BIT_4),
        np.asarray(head, np.uint64).reshape(-1, 1),
        np.uint64(0),
    )
    word = np.choose(2 * (rows & _BIT_3 != 0) + (cols & _BIT_3 != 0), philox4x32_10(counter, words))
    half: Words = np.where(cols & _BIT_4, word & np.uint32(0xFFFF), word >> np.uint32(16))
    return half >= np.uint32(threshold(p))


def _keep_few(
    words: tuple[int, int], p: float, rows: Any, cols: Any, head: Any
) -> NDArray[np.bool_]:
    """The same for tiles of a few elements: each square of 32 × 32 is made once for all its
    tiles.
    """
    tile = [
        [_square(words, p, r // 32, c // 32, h)[r % 32, c % 32] for c in cols.tolist()]
        for r, h in zip(rows.tolist(), np.broadcast_to(head, rows.shape).tolist(), strict=True)
    ]
    return np.array(tile)


@lru_cache(maxsize=256)
def _square(words: tuple[int, int], p: float, i: int, j: int, head: int) -> NDArray[np.bool_]:
    return keep(words, p, np.arange(32 * i, 32 * i + 32), np.arange(32 * j, 32 * j + 32), head)


def threshold(p: float) -> int:
    """Return p · 2¹⁶, rounded up: an element is dropped if its half word is below it."""
    return math.ceil(p * 2**16)


def keep_mask(seed: int, p: float, n_q: int, n_k: int, head: int = 0) -> NDArray[np.bool_]:
    """Return the dropout mask of one head, (n_q, n_k), True = kept, with probability 1 − p.

    p is rounded up to a multiple of 2⁻¹⁶. `head` counts the query heads over all leading axes.
    Raises ValueError for p outside [0, 1) or a seed outside 64 bits.
    """
    n_q = check_count("n_q", n_q)
    n_k = check_count("n_k", n_k)
    head = check_count("head", head, 0, 2**32 - 1)
    return keep(seed_words(check_seed(seed)), check_p(p), np.arange(n_q), np.arange(n_k), head)


def seed_words(seed: int) -> tuple[int, int]:
    """Return the seed as the key's two 32-bit words, the low one first."""
    return seed & 0xFFFFFFFF, seed >> 32


class NoDropout:
    """Dropout that does nothing: no R, and Z is all ones, which takes no room and changes no
    number.
    """

    def save(self) -> None:
        """Initialise no generator."""

    def restore(self) -> None:
        """Load no generator."""

    def divided(self, blocks: Blocks) -> NoDropout:
        return self

    def __call__(self, P_ij: Tile, i: int, j: int) -> Tile:
        ones: Tile = ONES
        return ones

    def whole(self, sram: SRAM, P: Matrix) -> Matrix:
        return P

    def whole_backward(self, sram: SRAM, dP: Matrix) -> None:
        """Leave dP: no pass."""


class TileDropout:
    """Dropout for one head on one chip. Z_ij is 1/(1 − p) where an element is kept and 0 where it
    is dropped.

    With `group` = g > 1 it is for one group of query heads, and `head` is the number of their KV
    head: row r is query r // g of query head g·head + r % g.
    """

    def __init__(
        self, p: float, seed: int, hbm: HBM, sram: SRAM, blocks: Blocks, head: int, group: int = 1
    ) -> None:
        self._p, self._words, self._head, self._group = p, seed_words(seed), head, group
        self._hbm, self._sram, self._B_r, self._B_c = hbm, sram, blocks.B_r, blocks.B_c

    def divided(self, blocks: Blocks) -> TileDropout:
        other = copy(self)
        other._B_r, other._B_c = blocks.B_r, blocks.B_c
        return other

    def save(self) -> None:
        """Initialise the generator state R and write its two words to HBM."""
        self._hbm.full("R", (1, 2), np.array([self._words], np.uint32), np.uint32)

    def restore(self) -> None:
        """Load R, which is in HBM as the forward pass saved it."""
        R = self._sram.load(self._hbm.matrix("R")[0])
        if self._hbm.arithmetic:
            self._words = int(R[0, 0]), int(R[0, 1])

    def __call__(self, P_ij: Tile, i: int, j: int) -> Tile:
        """Return Z_ij, made anew from the element's coordinates."""
        if not self._hbm.arithmetic:
            return np.ones_like(P_ij)
        Z_ij: Tile = self._kept(P_ij, i, j) * np.asarray(1 / (1 - self._p), self._sram.dtype)
        return Z_ij

    def _kept(self, P_ij: Tile, i: int, j: int) -> NDArray[np.bool_]:
        top = i * self._B_r
        left = j * self._B_c
        rows = np.arange(top, top + P_ij.shape[0])
        cols = np.arange(left, left + P_ij.shape[1])
        make = keep if P_ij.size > 8 else _keep_few
        return make(
            self._words,
            self._p,
            rows // self._group,
            cols,
            self._group * self._head + rows % self._group,
        )

    def whole(self, sram: SRAM, P: Matrix) -> Matrix:
        """Read P, write P^dropped and Z (a byte an element) to HBM: what a framework's dropout
        kernel keeps.
        """
        P_dropped = self._hbm.empty("P_dropped", P.shape, P.dtype)
        Z = self._hbm.empty("Z", P.shape, np.bool_)
        rows, cols = pass_tiles(sram.capacity, P.shape[1], 2)
        self._B_r = rows
        self._B_c = cols
        P = P.divide(rows, cols)
        P_dropped_tiles = P_dropped.divide(rows, cols)
        Z = Z.divide(rows, cols)
        down, across = P.blocks
        for i in sram.loop(down):  # line 3
            for j in sram.loop(across):  # line 3
                P_ij = sram.load(P[i, j])  # line 3
                Z_ij = sram.on_chip(self(P_ij, i, j))  # line 3
                P_dropped_ij = sram.on_chip(P_ij * Z_ij, over=P_ij)  # line 3
                sram.store(Z[i, j], Z_ij)  # line 3
                sram.store(P_dropped_tiles[i, j], P_dropped_ij)  # line 3
        return P_dropped

    def whole_backward(self, sram: SRAM, dP: Matrix) -> None:
        """Turn dP^dropped into dP = dP^dropped ∘ Z in place, reading Z as the forward pass
        stored it.
        """
        rows, cols = pass_tiles(sram.capacity, dP.shape[1], 2)
        dP = dP.divide(rows, cols)
        Z = self._hbm.matrix("Z").divide(rows, cols)
        down, across = dP.blocks
        for i in sram.loop(down):  # line 3
            for j in sram.loop(across):  # line 3
                dP_dropped_ij, Z_ij = sram.load(dP[i, j], Z[i, j])  # line 3
                dP_ij = sram.on_chip(  # line 3
                    dP_dropped_ij * Z_ij / (1 - self._p), over=dP_dropped_ij
                )
                sram.store(dP[i, j], dP_ij)  # line 3
