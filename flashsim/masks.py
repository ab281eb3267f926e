"""Which query may attend to which key: mask objects that combine with `&`.

    Causal()                  keys up to the query's own position, aligned bottom-right: j ≤ i + N_k − N_q
    SlidingWindow(left, right)  keys within `left` before and `right` after that position; −1: no limit on that side
    KeyPadding(lengths)       only the first `length` keys; one length, or one for each head (leading axes)
    Dense(array)              any boolean array that broadcasts to (..., N_q, N_k), True = attend

All but `Dense` are implicit: positions decide, and nothing is read from HBM. A `Dense` array lives in HBM; its blocks
are loaded as they are needed, and counted, at one byte an element.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.memory import HBM, SRAM, Matrix, Tile, pass_tiles
from flashsim.records import Blocks, Shape

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]
Head = tuple[int, ...]


class Mask(ABC):
    """A rule for which keys a query attends to."""

    __array_ufunc__ = None  # so that `array & mask` asks the mask

    def __and__(self, other: Any) -> Mask:
        other = other if isinstance(other, Mask) else Dense(other)
        if isinstance(self, All) or isinstance(other, All):
            return other if isinstance(self, All) else self
        return Both(self, other)

    def __rand__(self, other: Any) -> Mask:
        return Dense(other) & self

    def check(self, shape: Shape, leading: Head) -> None:
        """Raise ValueError if the rule does not fit the problem."""
        return

    @abstractmethod
    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Return (len(rows), len(cols)), True where query may attend to key. A `Dense` part allows everything here."""

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Return, for tiles [rows, row_ends) × [cols, col_ends), False where all is masked as far as positions tell."""
        return np.ones(np.broadcast_shapes(rows.shape, cols.shape), bool)

    def keys(self, shape: Shape, head: Head) -> int:
        """Return how many keys, from the first, may be attended to at all, as far as positions tell."""
        return shape.N_k

    def dense(self, head: Head) -> list[Bools]:
        """Return the arrays that must live in HBM for this head, (1 or N_q, 1 or N_k)."""
        return []

    @property
    def per_head(self) -> bool:
        """Whether heads may have masks of their own."""
        return False

    def whole(self, shape: Shape, head: Head) -> Bools:
        """Return the whole (N_q, N_k) mask of one head, for the reference."""
        allowed = self.allows(np.arange(shape.N_q), np.arange(shape.N_k), shape, head)
        for array in self.dense(head):
            allowed = allowed & array
        return np.broadcast_to(allowed, (shape.N_q, shape.N_k))


@dataclass(frozen=True)
class All(Mask):
    """Every query attends to every key: the mask that does nothing."""

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Allow everything."""
        return np.ones((len(rows), len(cols)), bool)


@dataclass(frozen=True)
class SlidingWindow(Mask):
    """Keys j with p − left ≤ j ≤ p + right, where p = i + N_k − N_q is query i's position (bottom-right alignment).

    `left` or `right` of −1 is no limit on that side, as in FlashAttention's window_size.
    """

    left: int
    right: int

    def check(self, shape: Shape, leading: Head) -> None:
        """Raise ValueError for a side that is neither −1 nor a width."""
        for side in ("left", "right"):
            width = getattr(self, side)
            if isinstance(width, bool) or not isinstance(width, int) or width < -1:
                raise ValueError(f"SlidingWindow's {side} is {width!r}; expected a whole number, or -1 for no limit")

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Compare positions."""
        offset = cols[None, :] - (rows[:, None] + shape.N_k - shape.N_q)
        return self._within(offset, offset)

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Compare the corners nearest to the window."""
        shift = shape.N_k - shape.N_q
        return self._within(cols - (row_ends - 1 + shift), col_ends - 1 - (rows + shift))

    def _within(self, least: Index, most: Index) -> Bools:
        """Whether a range of offsets j − p, from `least` to `most`, meets the window."""
        allowed = np.ones(np.broadcast_shapes(least.shape, most.shape), bool)
        if self.right != -1:
            allowed &= least <= self.right
        if self.left != -1:
            allowed &= most >= -self.left
        return allowed


@dataclass(frozen=True)
class Causal(SlidingWindow):
    """Keys j ≤ i + N_k − N_q: aligned at the bottom right, so that the last query attends to every key.

    The convention of FlashAttention ≥ 2.1 and of decoding; with N_q = N_k, the usual lower triangle. With N_q > N_k the
    first N_q − N_k queries attend to nothing, and their rows of O are 0.
    """

    left: int = -1
    right: int = 0


class KeyPadding(Mask):
    """Only the first `lengths` keys: a number, or an array that broadcasts to the leading axes (one for each head)."""

    def __init__(self, lengths: Any) -> None:
        self.lengths = np.array(lengths)

    def check(self, shape: Shape, leading: Head) -> None:
        """Raise ValueError for lengths that are not whole numbers from 0 to N_k, or do not broadcast."""
        if not np.issubdtype(self.lengths.dtype, np.integer):
            raise ValueError(f"KeyPadding's lengths have dtype {self.lengths.dtype}; expected whole numbers")
        if self.lengths.size and not (self.lengths.min() >= 0 and self.lengths.max() <= shape.N_k):
            raise ValueError(
                f"KeyPadding's lengths run from {self.lengths.min()} to {self.lengths.max()}; "
                f"expected 0 to N_k = {shape.N_k}"
            )
        _check_broadcast("KeyPadding's lengths array", self.lengths.shape, leading, "the leading axes")

    def keys(self, shape: Shape, head: Head) -> int:
        """Return this head's length."""
        return self._length(head)

    @property
    def per_head(self) -> bool:
        """Whether there are several lengths."""
        return self.lengths.ndim > 0

    def _length(self, head: Head) -> int:
        return int(_at_head(self.lengths, head))

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Compare key indices with the length."""
        return np.broadcast_to(cols[None, :] < self._length(head), (len(rows), len(cols)))

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Compare the tile's first key with the length."""
        return np.broadcast_to(cols < self._length(head), np.broadcast_shapes(rows.shape, cols.shape))

    def __repr__(self) -> str:
        return f"KeyPadding({self.lengths.tolist()})"


class Dense(Mask):
    """A boolean array that broadcasts to (..., N_q, N_k), True = attend. It lives in HBM, one byte an element."""

    def __init__(self, array: Any) -> None:
        self.array = np.array(array)
        if self.array.dtype != bool:
            raise ValueError(f"mask has dtype {self.array.dtype}; expected booleans, True = attend")

    def check(self, shape: Shape, leading: Head) -> None:
        """Raise ValueError unless the array broadcasts."""
        _check_broadcast("mask", self.array.shape, (*leading, shape.N_q, shape.N_k), "(..., N_q, N_k) =")

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Allow everything by position."""
        return np.ones((len(rows), len(cols)), bool)

    @property
    def per_head(self) -> bool:
        """Whether the array has leading axes."""
        return self.array.ndim > 2

    def dense(self, head: Head) -> list[Bools]:
        """Return this head's array, as large as it was given."""
        array = self.array.reshape((1,) * (2 - self.array.ndim) + self.array.shape)
        return [array[tuple(i if n > 1 else 0 for i, n in _aligned(head, array.shape[:-2]))]]

    def __repr__(self) -> str:
        return f"Dense(array of shape {self.array.shape})"


@dataclass(frozen=True)
class Both(Mask):
    """What two masks both allow: `a & b`."""

    a: Mask
    b: Mask

    def check(self, shape: Shape, leading: Head) -> None:
        """Check both."""
        self.a.check(shape, leading)
        self.b.check(shape, leading)

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Allow what both do."""
        return self.a.allows(rows, cols, shape, head) & self.b.allows(rows, cols, shape, head)

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Return where both may be live."""
        corners = (rows, row_ends, cols, col_ends, shape, head)
        return self.a.live(*corners) & self.b.live(*corners)

    def keys(self, shape: Shape, head: Head) -> int:
        """Return the lesser."""
        return min(self.a.keys(shape, head), self.b.keys(shape, head))

    @property
    def per_head(self) -> bool:
        """Whether either is."""
        return self.a.per_head or self.b.per_head

    def dense(self, head: Head) -> list[Bools]:
        """Return the arrays of both."""
        return self.a.dense(head) + self.b.dense(head)


def as_mask(mask: Any, causal: bool, shape: Shape, leading: Head) -> Mask:
    """Return the mask of `causal=` and `mask=` together, checked. Raises ValueError."""
    given: Mask = All() if mask is None else mask if isinstance(mask, Mask) else Dense(mask)
    if not isinstance(causal, bool | np.bool_):
        raise ValueError(f"causal is {causal!r}; expected True or False")
    if causal:
        given = Causal() if mask is None else Causal() & given
    given.check(shape, leading)
    return given


def _check_broadcast(name: str, shape: tuple[int, ...], onto: tuple[int, ...], what: str) -> None:
    short = len(shape) <= len(onto)
    if not short or any(n not in (1, m) for n, m in zip(shape[::-1], onto[::-1], strict=False)):
        raise ValueError(f"{name} has shape {shape}; expected one that broadcasts to {what} {onto}")


def _aligned(head: Head, axes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pair the array's leading axes, counted from the last, with the head's index."""
    return list(zip(head[len(head) - len(axes) :], axes, strict=True))


def _at_head(array: NDArray[Any], head: Head) -> Any:
    return array[tuple(i if n > 1 else 0 for i, n in _aligned(head, array.shape))]


# ------------------------------------------------------------------------------------------------- as algorithms use it


class TileMask:
    """MASK, the function of Algorithm 2's line 11, for one head on one chip."""

    def __init__(self, mask: Mask, hbm: HBM, sram: SRAM, blocks: Blocks, shape: Shape, head: Head) -> None:
        self._mask, self._sram, self._shape, self._head = mask, sram, shape, head
        self._nothing, self._implicit = isinstance(mask, All), not isinstance(mask, All | Dense)
        self._arrays = [
            hbm.place(f"mask{number or ''}", array if hbm.arithmetic else _two(array.shape), np.bool_)
            for number, array in enumerate(mask.dense(head))
        ]
        self._divide(blocks.B_r, blocks.B_c)

    def divided(self, blocks: Blocks) -> TileMask:
        """Return the same mask for tiles of other sizes."""
        other = copy(self)
        other._divide(blocks.B_r, blocks.B_c)
        return other

    def _divide(self, B_r: int, B_c: int) -> None:
        self._B_r, self._B_c = B_r, B_c
        self._tiles = [a.divide(B_r if a.shape[0] > 1 else 1, B_c if a.shape[1] > 1 else 1) for a in self._arrays]

    def __call__(self, S_ij: Tile, i: int, j: int) -> Tile:
        """Return S_ij with −∞ where the mask forbids. Loads the mask's block if it lives in HBM."""
        if self._nothing:
            return S_ij
        allowed: Any = True
        for matrix in self._tiles:
            down, across = matrix.blocks
            allowed = self._sram.load(matrix[min(i, down - 1), min(j, across - 1)]) & allowed
        if self._implicit and self._sram.hbm.arithmetic:
            top, left = i * self._B_r, j * self._B_c
            rows, cols = np.arange(top, top + S_ij.shape[0]), np.arange(left, left + S_ij.shape[1])
            allowed = self._mask.allows(rows, cols, self._shape, self._head) & allowed
        return np.where(allowed, S_ij, np.asarray(-math.inf, self._sram.dtype))

    def whole(self, sram: SRAM, S: Matrix) -> None:
        """Mask S in HBM, tile by tile in place: a pass that reads and writes all of it. No pass if nothing is masked."""
        if self._nothing:
            return
        rows, cols = pass_tiles(sram.capacity, S.shape[1], 1 + len(self._arrays))
        self._divide(rows, cols)
        S = S.divide(rows, cols)
        down, across = S.blocks
        for i in sram.loop(down):  # line 2
            for j in sram.loop(across):  # line 2
                S_ij = sram.load(S[i, j])  # line 2
                S_masked_ij = sram.on_chip(self(S_ij, i, j), over=S_ij)  # line 2
                sram.store(S[i, j], S_masked_ij)  # line 2


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, cols = shape
    return rows, cols
