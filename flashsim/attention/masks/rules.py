"""Which query may attend to which key: mask objects that combine with `&`.

    Causal(offset)            keys up to the query's own position: j ≤ i + offset, by default N_k −
                              N_q, bottom-right; 0: top-left
    SlidingWindow(left, right, offset)  keys within `left` before and `right` after that position;
                                        −1: no limit on that side
    Streaming(sinks, window)  the first keys, and a window up to the query's own position
    KeyPadding(lengths)       only the first `length` keys; one length, or one for each head
                              (leading axes)
    QueryPadding(lengths)     only the first `length` queries, likewise
    Dense(array)              any boolean array that broadcasts to (..., N_q, N_k), True = attend
    Bias(array)               forbids nothing: floats that are added to the scores
    SoftCap(cap), ALiBi(slopes)  forbid nothing: they change the scores, and are not arrays
    Sink(logits)              forbids nothing: a key of that score, whose value is 0
    Tree(parents)             the last keys are the nodes of a tree: itself, its ancestors, and all
                              keys before the tree

All but `Dense` and `Tree` are implicit: positions decide, and nothing is read from HBM. A `Dense`
array lives in HBM; its blocks are loaded as they are needed, and counted, at one byte an element. A
`Tree` lives there as a bitmask, one bit for each pair of nodes in words of 32 (source:
"FlashAttention: Theory and Practice", its section on tree masking for speculative decoding); the
words that a tile of S overlaps are loaded and counted, a word an element of 4 bytes.

What full, partial, empty and live tiles are, and other words that are used throughout, is said in
docs/words.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import (
    broadcasts,
    check_booleans,
    check_count,
    check_flag,
    check_whole,
    short_repr,
)
from flashsim.attention.masks.band import Band
from flashsim.attention.shapes import Shape
from flashsim.memory.source import note_line
from flashsim.support.records import set_fields

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]
Head = tuple[int, ...]
NO_OPTIONS: Mapping[str, Any] = {}
MOST_OFFSET = 2**61
ONE_AT_MOST = (("Tree", "tree"), ("Bias", "bias"), ("Sink", "sink"))
EVERYWHERE = Band(None, None, MOST_OFFSET, is_exact=False)  # every tile live, and none full


class Mask(ABC):
    """A rule that says which keys a query attends to. A subclass needs `allows` alone; the others
    make counts smaller.

    To add a mask:

    1. A subclass of `Mask` in a file of its own in `flashsim/attention/masks/`, with `allows`;
       streaming.py is an example that has arguments. This is enough to run and to count every
       algorithm that takes masks. The mask is then found in `flashsim.masks`; to have it in
       `flashsim`, too, add its name to NAMES in `flashsim/__init__.py`.
    2. Either `band`, or `live` and `full`, or none; not both, since `live`, `full`, `keys` and
       `queries` follow from `band`, and a run must move what is counted. `live` makes fewer
       accesses, `full` less masking, `keys` and `queries` serve padding at the end. If the mask is
       one band, write `band`, as a subclass of `BandMask` does: counting is quick, and algorithms
       that skip tiles have a closed form, which others lack. If it is not, `band` may be the
       narrowest band around it, with `is_exact=False`, as `ArrayMask` has it: then empty tiles
       inside of the band are computed.
    3. `tests/masks/x.py`, like `tests/masks/dilated.py`, with the mask and its meaning in plain
       words. The tests of masks, gradients, grouped heads and theory find it there.
    """

    __array_ufunc__ = None  # so that `array & mask` asks the mask
    bias: Any = None
    """The `flashsim.Bias` that must live in HBM, if any."""
    scores: Any = ()
    """Score modifications (`flashsim.attention.masks.scores`), in the order in which they are
    applied.
    """
    sink: Any = None
    """The `flashsim.Sink`, if any."""

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

    def without_sink(self) -> Mask:
        """Return what the mask is besides its sink."""
        return self

    def __repr__(self) -> str:
        """Return the class's name, not an address. A subclass that has arguments says them."""
        return f"{type(self).__name__}()"

    @abstractmethod
    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        """Return (len(rows), len(cols)), True where query may attend to key.

        rows, cols  indices of queries and keys from 0, integers (·,). For a mask that is aligned at
                    the bottom right, as `Causal` is, query i stands at i + shape.N_k − shape.N_q
        shape       N_q and N_k, d and d_v
        head        the index of the query head, a tuple; () where there is one head
        """

    def live(
        self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head
    ) -> Bools:
        """Return, for tiles [rows, row_ends) × [cols, col_ends), whether each is live: False
        only where it is surely empty.
        """
        return (self.band(shape, head) or EVERYWHERE).live(rows, row_ends, cols, col_ends, shape)

    def full(
        self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head
    ) -> Bools:
        """Return, for the same tiles, whether each is full as far as positions tell: True only
        where it surely is.
        """
        return (self.band(shape, head) or EVERYWHERE).full(rows, row_ends, cols, col_ends, shape)

    def keys(self, shape: Shape, head: Head) -> int:
        """Return how many keys, from the first, may be attended to at all, as far as positions
        tell.
        """
        band = self.band(shape, head)
        return shape.N_k if band is None else band.keys

    def queries(self, shape: Shape, head: Head) -> int:
        """Return how many queries, from the first, may attend to anything, as far as positions
        tell.
        """
        band = self.band(shape, head)
        return shape.N_q if band is None or band.queries is None else band.queries

    def band(self, shape: Shape, head: Head) -> Band | None:
        """Return what `live`, `full`, `keys` and `queries` say, as one band; None where they are
        not a band.
        """
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
        """Whether tiles of one shape cost the same. A tree's do not: their place decides how
        many words they overlap.
        """
        return self.tree is None

    @property
    def per_head(self) -> bool:
        """Whether heads may have masks of their own."""
        return False

    def whole(self, shape: Shape, head: Head) -> Bools:
        """Return the whole (N_q, N_k) mask of one head, for the reference."""
        allowed = allowed_by(self, np.arange(shape.N_q), np.arange(shape.N_k), shape, head)
        for array in self.dense(head):
            allowed = allowed & array
        if self.tree is not None:
            attends = self.tree.attends
            prefix = shape.N_k - attends.shape[1]
            allowed = allowed & np.pad(attends, ((0, 0), (prefix, 0)), constant_values=True)
        return np.broadcast_to(allowed, (shape.N_q, shape.N_k))


class BandMask(Mask):
    """A mask that is one band, as far as positions tell."""

    @abstractmethod
    def band(self, shape: Shape, head: Head) -> Band:
        """Return that band."""

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        return self.band(shape, head).allows(rows, cols, shape)


@dataclass(frozen=True)
class All(BandMask):
    """Every query attends to every key: the mask that does nothing."""

    def band(self, shape: Shape, head: Head) -> Band:
        return Band(None, None, shape.N_k)


@dataclass(frozen=True, repr=False)
class SlidingWindow(BandMask):
    """Keys j with p − left ≤ j ≤ p + right, where p = i + offset is query i's position.

    `left` or `right` of −1 means no limit on that side, as in FlashAttention's window_size. Others
    below 0 raise ValueError. `offset` is query 0's position: a number, or an array that broadcasts
    to the leading axes (one for each batch entry or head); by default N_k − N_q, aligned at the
    bottom right. It may be negative: the first queries then attend to nothing.
    """

    left: int
    right: int
    offset: Any = None

    @classmethod
    def of(cls, window: Any) -> SlidingWindow | None:
        """Return the mask of (left, right), or of `left` alone, with 0; None, or a mask, as it
        is. Raises ValueError.
        """
        if window is None or isinstance(window, cls):
            return window
        try:
            left, right = (window, 0) if isinstance(window, int) else window
        except (TypeError, ValueError):
            raise ValueError(
                f"window is {short_repr(window)}; expected (left, right), a number, or None"
            ) from None
        return cls(left, right)

    def __post_init__(self) -> None:
        """Raise ValueError for a side that is neither −1 nor a width, and for an offset that is
        not a whole number.
        """
        set_fields(
            self,
            left=check_count("SlidingWindow's left", self.left, -1),
            right=check_count("SlidingWindow's right", self.right, -1),
        )
        if self.offset is not None:
            offset = check_whole(f"{type(self).__name__}'s offset", self.offset, MOST_OFFSET)
            set_fields(self, offset=_frozen(offset.tolist()))

    def check(self, shape: Shape, leading: Head) -> None:
        check_broadcast(
            f"{type(self).__name__}'s offset", np.shape(self.offset), leading, "the leading axes"
        )

    @property
    def per_head(self) -> bool:
        return isinstance(self.offset, tuple)

    def band(self, shape: Shape, head: Head) -> Band:
        """Return the window, as seen from the positions of bottom-right alignment."""
        shift = 0
        if self.offset is not None:
            shift = at_head(np.asarray(self.offset), head) - (shape.N_k - shape.N_q)
        left = None if self.left == -1 else self.left - shift
        right = None if self.right == -1 else self.right + shift
        return Band(left, right, min(max(shape.N_k + (right or 0), 0), shape.N_k))

    def __repr__(self) -> str:
        offset = "" if self.offset is None else f", offset={np.array(self.offset).tolist()}"
        return f"SlidingWindow({self.left}, {self.right}{offset})"


@dataclass(frozen=True, repr=False)
class Causal(SlidingWindow):
    """Keys j ≤ i + offset, by default N_k − N_q: aligned at the bottom right, so that the last
    query attends to every key.

    The default is the convention of FlashAttention ≥ 2.1 and of decoding; with N_q = N_k, the usual
    lower triangle. With N_q > N_k the first N_q − N_k queries attend to nothing, and their rows of
    O are 0. `offset=0` is aligned at the top left, and the number of keys in a cache before the
    queries, one for each batch entry, is an array such as (B, 1) for B × H heads.
    """

    left: int = field(default=-1, init=False)
    right: int = field(default=0, init=False)
    offset: Any = None

    def __repr__(self) -> str:
        return (
            "Causal()"
            if self.offset is None
            else f"Causal(offset={np.array(self.offset).tolist()})"
        )


class ArrayMask(BandMask):
    """An array in HBM that broadcasts to (..., N_q, N_k), called `argument` in errors: every
    tile has to look at it.
    """

    argument: ClassVar[str]
    array: NDArray[Any]

    def check(self, shape: Shape, leading: Head) -> None:
        check_broadcast(
            self.argument, self.array.shape, (*leading, shape.N_q, shape.N_k), "(..., N_q, N_k) ="
        )

    def band(self, shape: Shape, head: Head) -> Band:
        return Band(None, None, shape.N_k, is_exact=False)

    @property
    def per_head(self) -> bool:
        return self.array.ndim > 2

    def __repr__(self) -> str:
        return f"{type(self).__name__}(array of shape {self.array.shape})"


class Dense(ArrayMask):
    """A boolean array that broadcasts to (..., N_q, N_k), True = attend. It lives in HBM, one
    byte an element.
    """

    argument = "mask"

    def __init__(self, array: Any) -> None:
        if isinstance(array, type) and issubclass(array, Mask):
            name = array.__name__
            raise ValueError(f"mask is the class {name}; expected an object; call it: {name}()")
        added = "; what is added to scores is flashsim.Bias(array)"
        rule = ", or a flashsim.Mask such as flashsim.Causal()"
        self.array = check_booleans("mask", array, or_else=rule, for_floats=added).copy()

    def dense(self, head: Head) -> list[Bools]:
        array = self.array.reshape((1,) * (2 - self.array.ndim) + self.array.shape)
        return [array[head_of(head, array.shape[:-2])]]


@dataclass(frozen=True, repr=False)
class Both(Mask):
    """What two masks both allow: `a & b`."""

    a: Mask
    b: Mask

    def check(self, shape: Shape, leading: Head) -> None:
        """Check both, and that one at most has a tree, a bias, a sink, and a score modification
        of each kind.
        """
        pairs = [(kind, getattr(self.a, name), getattr(self.b, name)) for kind, name in ONE_AT_MOST]
        pairs += [
            (type(a).__name__, a, b)
            for a in self.a.scores
            for b in self.b.scores
            if a.stage == b.stage
        ]
        for kind, a, b in pairs:
            if a is not None and b is not None:
                raise ValueError(f"mask combines {a!r} and {b!r}; expected one {kind} at most")
        self.a.check(shape, leading)
        self.b.check(shape, leading)

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        return allowed_by(self.a, rows, cols, shape, head) & allowed_by(
            self.b, rows, cols, shape, head
        )

    def live(
        self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head
    ) -> Bools:
        corners = (rows, row_ends, cols, col_ends, shape, head)
        band = self.band(shape, head)
        return self.a.live(*corners) & self.b.live(*corners) & (band is None or not band.is_empty)

    def full(
        self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head
    ) -> Bools:
        corners = (rows, row_ends, cols, col_ends, shape, head)
        return self.a.full(*corners) & self.b.full(*corners)

    def keys(self, shape: Shape, head: Head) -> int:
        return min(self.a.keys(shape, head), self.b.keys(shape, head))

    def queries(self, shape: Shape, head: Head) -> int:
        return min(self.a.queries(shape, head), self.b.queries(shape, head))

    def band(self, shape: Shape, head: Head) -> Band | None:
        a = self.a.band(shape, head)
        b = self.b.band(shape, head)
        return None if a is None or b is None else a & b

    @property
    def per_head(self) -> bool:
        return self.a.per_head or self.b.per_head

    def dense(self, head: Head) -> list[Bools]:
        return self.a.dense(head) + self.b.dense(head)

    @property
    def tree(self) -> Any:
        return self.b.tree if self.a.tree is None else self.a.tree

    @property
    def bias(self) -> Any:
        return self.b.bias if self.a.bias is None else self.a.bias

    @property
    def sink(self) -> Any:
        return self.b.sink if self.a.sink is None else self.a.sink

    @property
    def scores(self) -> tuple[Any, ...]:
        return tuple(sorted((*self.a.scores, *self.b.scores), key=lambda mod: mod.stage))

    def without_sink(self) -> Mask:
        return self.a.without_sink() & self.b.without_sink()

    def __repr__(self) -> str:
        return f"{self.a!r} & {self.b!r}"


def allowed_by(mask: Mask, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
    """Return `mask.allows(rows, cols, shape, head)`. Raises TypeError if that is not an array of
    booleans (rows, columns).

    Errors have a note of the line of the mask's file at which they occurred.
    """
    expected = len(rows), len(cols)
    try:
        allowed = mask.allows(rows, cols, shape, head)
        if (
            not isinstance(allowed, np.ndarray)
            or allowed.dtype != bool
            or allowed.shape != expected
        ):
            what = (
                f"an array of {allowed.dtype} of shape {allowed.shape}"
                if isinstance(allowed, np.ndarray)
                else short_repr(allowed)
            )
            raise TypeError(
                f"{mask!r}'s allows returned {what}; expected booleans of shape {expected}, True = "
                "attend, such as "
                "rows[:, None] >= cols"
            )
    except Exception as error:
        note_line(error, type(mask).allows)
        raise
    return allowed


def as_mask(
    mask: Any, causal: bool, shape: Shape, leading: Head, options: Mapping[str, Any] = NO_OPTIONS
) -> Mask:
    """Return the mask of `causal=`, `mask=` and those `options` that are masks, together,
    checked. Raises ValueError.
    """
    rule: Mask = All() if mask is None else mask if isinstance(mask, Mask) else Dense(mask)
    if check_flag("causal", causal):
        rule = Causal() if mask is None else Causal() & rule
    for value in options.values():
        rule = rule & value if isinstance(value, Mask) else rule
    rule.check(shape, leading)
    return rule


def check_broadcast(name: str, shape: tuple[int, ...], onto: tuple[int, ...], what: str) -> None:
    """Raise ValueError for an array that does not broadcast to `onto`, which a message calls
    `what`.
    """
    if not broadcasts(shape, onto):
        raise ValueError(f"{name} has shape {shape}; expected one that broadcasts to {what} {onto}")


def head_of(head: Head, axes: tuple[int, ...]) -> Head:
    """Return a head's index into an array's leading axes, which are counted from the last, and
    may be 1.
    """
    return tuple(
        i if n > 1 else 0 for i, n in zip(head[len(head) - len(axes) :], axes, strict=True)
    )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def at_head(array: NDArray[Any], head: Head) -> int:
    """Return the entry of a head, of whole numbers that broadcast to the leading axes."""
    return int(array[head_of(head, array.shape)])
