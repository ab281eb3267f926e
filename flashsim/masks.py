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

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.band import Band
from flashsim.checking import broadcasts, check_array, check_booleans, check_count, check_flag, shown
from flashsim.memory import HBM, SRAM, Matrix, Tile, pass_tiles
from flashsim.records import Blocks, Shape

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]
Words = NDArray[np.uint32]
Head = tuple[int, ...]
WORD = 32  # bits


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
    def tree(self) -> Tree | None:
        """The tree whose bitmask must live in HBM, if any."""
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


class Tree(Mask):
    """A tree of drafted tokens after a committed prefix: queries are the N_q nodes, and so are the last N_q keys.

    A node attends to itself, its ancestors and the N_k − N_q keys of the prefix; not to siblings, nor to cousins. `parents`
    has an entry for each node: the index of its parent, which comes before it, or −1 or None for a root, of which there may
    be several. Other entries raise ValueError, as do N_q ≠ len(parents) and N_k < N_q in a run.

    In HBM it is "tree", (N_q, ⌈N_q/32⌉) words: bit c mod 32 of word ⌊c/32⌋ in row r says whether node r attends to node c.
    The prefix has no bits; positions tell. A mask may have one `Tree`.
    """

    def __init__(self, parents: Any) -> None:
        entries = check_array("Tree's parents", parents).tolist() if isinstance(parents, np.ndarray) else parents
        if not isinstance(entries, Iterable):
            raise ValueError(f"Tree's parents is {shown(parents)}; expected one entry a node")
        self.parents = tuple(_parent(node, entry) for node, entry in enumerate(entries))

    def check(self, shape: Shape, leading: Head) -> None:
        """Raise ValueError unless queries are the nodes, and there are keys for all of them."""
        if shape.N_q != len(self.parents):
            raise ValueError(f"Tree has {len(self.parents)} nodes; expected N_q = {shape.N_q}, a node for each query")
        if shape.N_k < shape.N_q:
            raise ValueError(f"N_k is {shape.N_k}; expected at least {shape.N_q}, as Tree's nodes are the last keys")

    def paths(self) -> list[list[int]]:
        """Return each root-to-leaf path as its nodes, in order of the leaves."""
        inner = set(self.parents)
        return [np.flatnonzero(self.attends[leaf]).tolist() for leaf in range(len(self.parents)) if leaf not in inner]

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Allow everything by position."""
        return np.ones((len(rows), len(cols)), bool)

    def live(self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head) -> Bools:
        """Compare as causal masks do: no node attends to a later one."""
        return Causal().live(rows, row_ends, cols, col_ends, shape, head)

    def band(self, shape: Shape, head: Head) -> Band:
        """Return the causal band, each tile partial."""
        return Band(None, 0, shape.N_k, positional=False)

    @property
    def tree(self) -> Tree:
        """This."""
        return self

    @cached_property
    def attends(self) -> Bools:
        """Which node attends to which, (N_q, N_q)."""
        return _ancestors(self.parents)

    @cached_property
    def words(self) -> Words:
        """The bitmask, (N_q, ⌈N_q/32⌉) words."""
        return _packed(self.attends)

    def __repr__(self) -> str:
        return f"Tree({list(self.parents)})"


def _parent(node: int, entry: Any) -> int:
    """Return the parent as an index, −1 for a root. ValueError for what is neither."""
    if entry is None:
        return -1
    if isinstance(entry, bool) or not isinstance(entry, int | np.integer) or not -1 <= entry < node:
        earlier = f"the index of an earlier node (at most {node - 1}), or " if node else ""
        raise ValueError(f"Tree's parents[{node}] is {shown(entry)}; expected {earlier}-1 or None for a root")
    return int(entry)


def _ancestors(parents: Sequence[int]) -> Bools:
    attends = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent != -1:
            attends[node] |= attends[parent]
    return attends


def _packed(attends: Bools) -> Words:
    whole_words = np.pad(attends, ((0, 0), (0, -attends.shape[1] % WORD)))
    return np.packbits(whole_words, axis=1, bitorder="little").view("<u4").astype(np.uint32)


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
    def tree(self) -> Tree | None:
        """The tree of either one."""
        return self.b.tree if self.a.tree is None else self.a.tree


def as_mask(mask: Any, causal: bool, shape: Shape, leading: Head) -> Mask:
    """Return the mask of `causal=` and `mask=` together, checked. Raises ValueError."""
    given: Mask = All() if mask is None else mask if isinstance(mask, Mask) else Dense(mask)
    if check_flag("causal", causal):
        given = Causal() if mask is None else Causal() & given
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


# ------------------------------------------------------------------------------------------------- as algorithms use it


class TileMask:
    """MASK, the function of Algorithm 2's line 11, for one head on one chip."""

    def __init__(self, mask: Mask, hbm: HBM, sram: SRAM, blocks: Blocks, shape: Shape, head: Head) -> None:
        self._mask, self._sram, self._shape, self._head = mask, sram, shape, head
        self._nothing, self._implicit = isinstance(mask, All), not isinstance(mask, All | Dense | Tree)
        self._arrays = [
            hbm.place(f"mask{number or ''}", array if hbm.arithmetic else _two(array.shape), np.bool_)
            for number, array in enumerate(mask.dense(head))
        ]
        tree = mask.tree
        self._prefix = shape.N_k - len(tree.parents) if tree else 0
        self._tree = None
        if tree is not None:
            words = tree.words if hbm.arithmetic else (shape.N_q, -(-len(tree.parents) // WORD))
            self._tree = hbm.place("tree", words, np.uint32)
        self._divide(blocks.B_r, blocks.B_c)

    def divided(self, blocks: Blocks) -> TileMask:
        """Return the same mask for tiles of other sizes."""
        other = copy(self)
        other._divide(blocks.B_r, blocks.B_c)
        return other

    def _divide(self, B_r: int, B_c: int) -> None:
        self._B_r, self._B_c = B_r, B_c
        self._tiles = [a.divide(B_r if a.shape[0] > 1 else 1, B_c if a.shape[1] > 1 else 1) for a in self._arrays]
        self._words = None if self._tree is None else self._tree.divide(B_r, 1)

    def __call__(self, S_ij: Tile, i: int, j: int) -> Tile:
        """Return S_ij with −∞ where the mask forbids. Loads what of the mask lives in HBM: its block, its words."""
        if self._nothing:
            return S_ij
        allowed: Any = True
        for matrix in self._tiles:
            down, across = matrix.blocks
            allowed = self._sram.load(matrix[min(i, down - 1), min(j, across - 1)]) & allowed
        if self._words is not None:
            allowed = self._attends(self._words, i, j * self._B_c, *S_ij.shape) & allowed
        if self._implicit and self._sram.hbm.arithmetic:
            top, left = i * self._B_r, j * self._B_c
            rows, cols = np.arange(top, top + S_ij.shape[0]), np.arange(left, left + S_ij.shape[1])
            allowed = self._mask.allows(rows, cols, self._shape, self._head) & allowed
        return np.where(allowed, S_ij, np.asarray(-math.inf, self._sram.dtype))

    def _attends(self, words: Matrix, i: int, left: int, rows: int, cols: int) -> Any:
        """Load the words with the bits of keys left … left + cols − 1, row block i; return the bits, True for the prefix."""
        prefix = self._prefix
        first, end = max(left, prefix), left + cols  # the tile's nodes, as keys
        attends = np.ones((rows, cols), bool)
        for w in range((first - prefix) // WORD, -(-(end - prefix) // WORD)):
            word = self._sram.load(words[i, w])
            if self._sram.hbm.arithmetic:
                keys = np.arange(max(first, prefix + w * WORD), min(end, prefix + (w + 1) * WORD))
                attends[:, keys - left] = word >> ((keys - prefix) % WORD).astype(np.uint32) & 1
        return attends

    def whole(self, sram: SRAM, S: Matrix) -> None:
        """Mask S in HBM, tile by tile in place: a pass that reads and writes all of it. No pass if nothing is masked."""
        if self._nothing:
            return
        held = 1 + len(self._arrays)
        if self._tree is None:
            rows, cols = pass_tiles(sram.capacity, S.shape[1], held)
        else:
            rows, cols = _pass_tiles_with_words(sram.capacity, S.shape[1], held, self._tree.shape[1])
        self._divide(rows, cols)
        S = S.divide(rows, cols)
        down, across = S.blocks
        for i in sram.loop(down):  # line 2
            for j in sram.loop(across):  # line 2
                S_ij = sram.load(S[i, j])  # line 2
                S_masked_ij = sram.on_chip(self(S_ij, i, j), over=S_ij)  # line 2
                sram.store(S[i, j], S_masked_ij)  # line 2


class PartialTileMask(TileMask):
    """MASK for algorithms that skip empty tiles: it masks partial tiles, and full ones not."""

    def __call__(self, S_ij: Tile, i: int, j: int) -> Tile:
        """Return S_ij itself if the tile is full; else, or where the mask lives in HBM, with −∞ where it forbids."""
        if not self._tiles and self._words is None and not self._nothing:
            (rows, cols), top, left = S_ij.shape, i * self._B_r, j * self._B_c
            tops, bottoms, lefts, rights = (np.array([n]) for n in (top, top + rows, left, left + cols))
            if self._mask.full(tops, bottoms, lefts, rights, self._shape, self._head)[0]:
                return S_ij
        return super().__call__(S_ij, i, j)


def _pass_tiles_with_words(M: int, N_k: int, held: int, words: int) -> tuple[int, int]:
    """Return `pass_tiles` where each row of a tile also holds the words that it overlaps: all of them, if it is whole.

    A piece of c keys overlaps ⌊(c + 30)/32⌋ + 1 words at most, and fits if held·c + ⌊(c + 30)/32⌋ < M; or with room for all.
    """
    rows = M // (held * N_k + words)
    if rows:
        return rows, N_k
    return 1, min(max((WORD * M - WORD + 1) // (WORD * held + 1), (M - words) // held, 1), N_k)


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, cols = shape
    return rows, cols
