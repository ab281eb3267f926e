"""Which query may attend to which key: mask objects that combine with `&`.

    Causal()                  keys up to the query's own position, aligned bottom-right: j ≤ i + N_k − N_q
    SlidingWindow(left, right)  keys within `left` before and `right` after that position; −1: no limit on that side
    KeyPadding(lengths)       only the first `length` keys; one length, or one for each head (leading axes)
    Dense(array)              any boolean array that broadcasts to (..., N_q, N_k), True = attend
    Tree(parents)             the last keys are the nodes of a tree: itself, its ancestors, and all keys before the tree

All but `Dense` and `Tree` are implicit: positions decide, and nothing is read from HBM. A `Dense` array lives in HBM; its
blocks are loaded as they are needed, and counted, at one byte an element. A `Tree` lives there as a bitmask, one bit for
each pair of nodes in words of 32 (source: "FlashAttention: Theory and Practice", its section on tree masking for
speculative decoding); the words that a tile of S overlaps are loaded and counted, a word an element of 4 bytes.

Words that are used throughout. A tile is a block of S, B_r × B_c, and a mask makes it one of three (FlexAttention's terms):

    full     the mask allows every element: nothing to mask
    partial  the mask allows some elements and forbids others
    empty    the mask forbids every element: nothing to compute
    live     not empty, as far as positions tell: what lives in HBM is not looked at for this
    row      a row of S: one query of one query head
    grouped  query heads that share a KV head run as one problem: their rows are interleaved (`flashsim.groups`)
    folded   turns of a loop that cost the same are run once and counted as often as they occur (`flashsim.memory`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.band import Band
from flashsim.checking import broadcasts, check_array, check_booleans, check_count, check_flag, shown
from flashsim.records import Shape

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]
Head = tuple[int, ...]
NO_OPTIONS: Mapping[str, Any] = {}


class Mask(ABC):
    """A rule that says which keys a query attends to. A subclass needs `allows` alone; the others make counts smaller."""

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
        """Return (len(rows), len(cols)), True where query may attend to key. `Dense` and `Tree` allow everything here."""

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Return, for tiles [rows, row_ends) × [cols, col_ends), whether each is live: False only where it is surely empty."""
        return np.ones(np.broadcast_shapes(rows.shape, cols.shape), bool)

    def full(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Return, for the same tiles, whether each is full as far as positions tell: True only where it surely is."""
        return np.zeros(np.broadcast_shapes(rows.shape, cols.shape), bool)

    def keys(self, shape: Shape, head: Head) -> int:
        """Return how many keys, from the first, may be attended to at all, as far as positions tell."""
        return shape.N_k

    def band(self, shape: Shape, head: Head) -> Band | None:
        """Return what `live`, `full` and `keys` say, as one band; None where it is none: then each tile is looked at."""
        return None

    def dense(self, head: Head) -> list[Bools]:
        """Return the arrays that must live in HBM for this head, (1 or N_q, 1 or N_k)."""
        return []

    @property
    def tree(self) -> Any:
        """The `flashsim.Tree` whose bitmask must live in HBM, if any; else None."""
        return None

    @property
    def folds(self) -> bool:
        """Whether tiles of one shape cost the same. A tree's do not: their place decides how many words they overlap."""
        return self.tree is None

    @property
    def per_head(self) -> bool:
        """Whether heads may have masks of their own."""
        return False

    def whole(self, shape: Shape, head: Head) -> Bools:
        """Return the whole (N_q, N_k) mask of one head, for the reference."""
        allowed = self.allows(np.arange(shape.N_q), np.arange(shape.N_k), shape, head)
        for array in self.dense(head):
            allowed = allowed & array
        if self.tree is not None:
            attends = self.tree.attends
            prefix = shape.N_k - attends.shape[1]
            allowed = allowed & np.pad(attends, ((0, 0), (prefix, 0)), constant_values=True)
        return np.broadcast_to(allowed, (shape.N_q, shape.N_k))


@dataclass(frozen=True)
class All(Mask):
    """Every query attends to every key: the mask that does nothing."""

    def band(self, shape: Shape, head: Head) -> Band:
        """Return all of S."""
        return Band(None, None, shape.N_k)

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Allow everything."""
        return np.ones((len(rows), len(cols)), bool)


@dataclass(frozen=True)
class SlidingWindow(Mask):
    """Keys j with p − left ≤ j ≤ p + right, where p = i + N_k − N_q is query i's position (bottom-right alignment).

    `left` or `right` of −1 is no limit on that side, as in FlashAttention's window_size. Others below 0 raise ValueError.
    """

    left: int
    right: int

    @classmethod
    def of(cls, window: Any) -> SlidingWindow | None:
        """Return the mask of (left, right), or of `left` alone, with 0; None, or a mask, as it is. Raises ValueError."""
        if window is None or isinstance(window, cls):
            return window
        try:
            left, right = (window, 0) if isinstance(window, int) else window
        except (TypeError, ValueError):
            raise ValueError(f"window is {shown(window)}; expected (left, right), a number, or None") from None
        return cls(left, right)

    def __post_init__(self) -> None:
        """Raise ValueError for a side that is neither −1 nor a width."""
        for side in ("left", "right"):
            object.__setattr__(self, side, check_count(f"SlidingWindow's {side}", getattr(self, side), -1))

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Compare positions."""
        offset = cols[None, :] - (rows[:, None] + shape.N_k - shape.N_q)
        return self._within(offset, offset)

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Compare the offsets j − p of the two corners that come nearest to the window."""
        shift = shape.N_k - shape.N_q
        return self._within(cols - (row_ends - 1 + shift), col_ends - 1 - (rows + shift))

    def full(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Compare the offsets j − p of the two corners that are farthest from the window."""
        shift = shape.N_k - shape.N_q
        return self._within(col_ends - 1 - (rows + shift), cols - (row_ends - 1 + shift))

    def band(self, shape: Shape, head: Head) -> Band:
        """Return the window."""
        left, right = (None if side == -1 else side for side in (self.left, self.right))
        return Band(left, right, shape.N_k)

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
    """Only the first `lengths` keys: a number, or an array that broadcasts to the leading axes (one for each head).

    Raises ValueError for what is no whole number; in a run, for lengths below 0 or above N_k.
    """

    def __init__(self, lengths: Any) -> None:
        self.lengths = check_array("KeyPadding's lengths", lengths).copy()
        if not np.issubdtype(self.lengths.dtype, np.integer):
            raise ValueError(f"KeyPadding's lengths have dtype {self.lengths.dtype}; expected whole numbers")

    def check(self, shape: Shape, leading: Head) -> None:
        """Raise ValueError for lengths that are not from 0 to N_k, or do not broadcast."""
        if self.lengths.size and not (self.lengths.min() >= 0 and self.lengths.max() <= shape.N_k):
            raise ValueError(
                f"KeyPadding's lengths run from {self.lengths.min()} to {self.lengths.max()}; "
                f"expected 0 to N_k = {shape.N_k}"
            )
        _check_broadcast("KeyPadding's lengths array", self.lengths.shape, leading, "the leading axes")

    def keys(self, shape: Shape, head: Head) -> int:
        """Return this head's length."""
        return self._length(head)

    def band(self, shape: Shape, head: Head) -> Band:
        """Return the first keys."""
        return Band(None, None, self._length(head))

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

    def full(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Compare the tile's last key with the length."""
        return np.broadcast_to(col_ends <= self._length(head), np.broadcast_shapes(rows.shape, cols.shape))

    def __repr__(self) -> str:
        return f"KeyPadding({self.lengths.tolist()})"


class Dense(Mask):
    """A boolean array that broadcasts to (..., N_q, N_k), True = attend. It lives in HBM, one byte an element."""

    def __init__(self, array: Any) -> None:
        self.array = check_booleans("mask", array).copy()

    def check(self, shape: Shape, leading: Head) -> None:
        """Raise ValueError unless the array broadcasts."""
        _check_broadcast("mask", self.array.shape, (*leading, shape.N_q, shape.N_k), "(..., N_q, N_k) =")

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Allow everything by position."""
        return np.ones((len(rows), len(cols)), bool)

    def band(self, shape: Shape, head: Head) -> Band:
        """Return all of S, each tile partial."""
        return Band(None, None, shape.N_k, positional=False)

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
        """Check both, and that one at most has a tree."""
        if self.a.tree is not None and self.b.tree is not None:
            raise ValueError(f"mask combines {self.a.tree!r} and {self.b.tree!r}; expected one Tree at most")
        self.a.check(shape, leading)
        self.b.check(shape, leading)

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Allow what both do."""
        return self.a.allows(rows, cols, shape, head) & self.b.allows(rows, cols, shape, head)

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Return where tiles may be live for both."""
        corners = (rows, row_ends, cols, col_ends, shape, head)
        return self.a.live(*corners) & self.b.live(*corners)

    def full(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Return where tiles are full for both."""
        corners = (rows, row_ends, cols, col_ends, shape, head)
        return self.a.full(*corners) & self.b.full(*corners)

    def keys(self, shape: Shape, head: Head) -> int:
        """Return the smaller number."""
        return min(self.a.keys(shape, head), self.b.keys(shape, head))

    def band(self, shape: Shape, head: Head) -> Band | None:
        """Return what both bands share."""
        a, b = self.a.band(shape, head), self.b.band(shape, head)
        return None if a is None or b is None else a & b

    @property
    def per_head(self) -> bool:
        """Whether either is."""
        return self.a.per_head or self.b.per_head

    def dense(self, head: Head) -> list[Bools]:
        """Return the arrays of both."""
        return self.a.dense(head) + self.b.dense(head)

    @property
    def tree(self) -> Any:
        """The tree of either one."""
        return self.b.tree if self.a.tree is None else self.a.tree


def as_mask(mask: Any, causal: bool, shape: Shape, leading: Head, options: Mapping[str, Any] = NO_OPTIONS) -> Mask:
    """Return the mask of `causal=`, `mask=` and those `options` that are masks, together, checked. Raises ValueError."""
    given: Mask = All() if mask is None else mask if isinstance(mask, Mask) else Dense(mask)
    if check_flag("causal", causal):
        given = Causal() if mask is None else Causal() & given
    for value in options.values():
        given = given & value if isinstance(value, Mask) else given
    given.check(shape, leading)
    return given


def _check_broadcast(name: str, shape: tuple[int, ...], onto: tuple[int, ...], what: str) -> None:
    if not broadcasts(shape, onto):
        raise ValueError(f"{name} has shape {shape}; expected one that broadcasts to {what} {onto}")


def _aligned(head: Head, axes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pair the array's leading axes, counted from the last, with the head's index."""
    return list(zip(head[len(head) - len(axes) :], axes, strict=True))


def _at_head(array: NDArray[Any], head: Head) -> Any:
    return array[tuple(i if n > 1 else 0 for i, n in _aligned(head, array.shape))]
