"""A tile that has a shape and no numbers: what algorithms compute on when only the counts are
wanted.

It takes part in the same expressions as an array (`Q_i @ K_j.T`, `np.exp(S_ij - m_i)`), checks that
the shapes agree, and reports each operation's FLOPs to the memory it lives on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NoReturn

import numpy as np

NOT_COUNTED = (
    "cannot be counted on shapes alone: expected +, −, ×, /, @, .T, slices, sums, maxima, NumPy's "
    "functions of single elements, "
    "np.where, and on_chip(…, over=tile) to change a tile"
)

DECIDES = (
    "lets a tile's numbers decide where to go on, and there are none where a run is counted on "
    "shapes alone, as in count, tune, "
    "sweep and sizing='fit': expected the same steps for all numbers, as with np.where; "
    "flashsim.forward(…, blocks=(B_r, B_c)) "
    "runs it as it is"
)
DECIDING_ATTRIBUTES = frozenset(
    {"any", "all", "item", "tolist", "argmax", "argmin", "argsort", "nonzero"}
)
DECIDING_FUNCTIONS = frozenset(
    {
        np.any,
        np.all,
        np.allclose,
        np.array_equal,
        np.argmax,
        np.argmin,
        np.argsort,
        np.argwhere,
        np.nonzero,
        np.flatnonzero,
        np.count_nonzero,
        np.searchsorted,
        np.unique,
    }
)


class ShapeOnly(np.lib.mixins.NDArrayOperatorsMixin):
    """An operand of a given shape without values. Its `counter`, an SRAM, is told of the
    arithmetic, and knows the turn.

    `base` is what it is a part of, as an array's is; None if it is whole. `lifespan` is that of the
    turn in which it, or its base, was made: it ends with that turn, unless it is on chip.
    """

    __slots__ = ("_counter", "base", "lifespan", "shape")

    def __init__(self, shape: tuple[int, ...], counter: Any, base: ShapeOnly | None = None) -> None:
        self.shape = shape
        self.base = base
        self._counter = counter
        self.lifespan: Any = counter.lifespan if base is None else base.lifespan

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> ShapeOnly:
        """The transpose, which moves and computes nothing."""
        return ShapeOnly(self.shape[::-1], self._counter, self if self.base is None else self.base)

    def __len__(self) -> int:
        """Number of rows."""
        if not self.shape:
            raise TypeError("len() of a single number")
        return self.shape[0]

    def __getitem__(self, parts: slice | tuple[slice, ...]) -> ShapeOnly:
        """Return a part, by a slice of each axis: the shape that a view of an array would have."""
        slices = parts if isinstance(parts, tuple) else (parts,)
        for part in slices:
            if isinstance(part, ShapeOnly):
                raise TypeError(f"an array's [tile] {DECIDES}")
            if not isinstance(part, slice):
                raise TypeError(f"an array's [{part!r:.40}] {NOT_COUNTED}")
        cut = [len(range(n)[part]) for n, part in zip(self.shape, slices, strict=False)]
        return ShapeOnly(
            (*cut, *self.shape[len(cut) :]), self._counter, self if self.base is None else self.base
        )

    def _check_lifespan(self) -> None:
        if self.lifespan.ended:
            self._counter.refuse_ended(self)

    def _reduced(self, axis: int | None = None, keepdims: bool = False) -> ShapeOnly:
        self._check_lifespan()
        self._counter.count_flops(other=self.size)
        axes = range(len(self.shape)) if axis is None else (axis % len(self.shape),)
        kept = [
            (1 if a in axes else n) for a, n in enumerate(self.shape) if keepdims or a not in axes
        ]
        return ShapeOnly(tuple(kept), self._counter)

    def sum(
        self, axis: int | None = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> ShapeOnly:
        """Return the sums along an axis; arguments as an array's."""
        _refuse_reduced_into(dtype, out)
        return self._reduced(axis, keepdims)

    def max(self, axis: int | None = None, out: Any = None, keepdims: bool = False) -> ShapeOnly:
        """Return the largest along an axis; arguments as an array's."""
        _refuse_reduced_into(None, out)
        return self._reduced(axis, keepdims)

    def made(self, shape: tuple[int, ...], *, other: int) -> ShapeOnly:
        """Return what a function that is not a ufunc makes of this, with so many operations."""
        self._check_lifespan()
        self._counter.count_flops(other=other)
        return ShapeOnly(shape, self._counter)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any
    ) -> Any:
        if method == "reduce":
            return self._reduced(kwargs.get("axis", 0), kwargs.get("keepdims", False))
        if method != "__call__":
            return NotImplemented
        shapes = []
        for x in inputs:
            if isinstance(x, ShapeOnly):
                if x.lifespan.ended:
                    x._check_lifespan()
                shapes.append(x.shape)
            else:
                shapes.append(() if type(x) is float else np.shape(x))
        if ufunc is np.matmul:
            a, b = shapes
            if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
                raise ValueError(f"matmul: shapes {a} and {b} do not agree")
            shape = a[0], b[1]
            self._counter.count_flops(matmul=2 * math.prod(shape) * a[1])
        else:
            shape = _broadcast(*shapes)
            self._counter.count_flops(other=math.prod(shape))
        if out is None:
            return ShapeOnly(shape, self._counter)
        (target,) = out
        if target.shape != shape:
            raise ValueError(f"{ufunc.__name__}: out has shape {target.shape}, the result {shape}")
        return target

    def _element_wise(self, other: ShapeOnly) -> ShapeOnly:
        """Return what `+`, `−`, `×` or `/` makes of this and another tile, as NumPy would, but
        sooner.
        """
        for tile in (self, other):
            if tile.lifespan.ended:
                tile._check_lifespan()
        shape = _broadcast(self.shape, other.shape)
        self._counter.count_flops(other=math.prod(shape))
        return ShapeOnly(shape, self._counter)

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Take part in the few functions that algorithms use besides ufuncs: `np.where`,
        `np.ones_like`, `np.sum`, `np.max`.
        """
        if function is np.sum:
            return self.sum(*args[1:], **kwargs)
        if function is np.max:
            return self.max(*args[1:], **kwargs)
        if function is np.ones_like:
            return ShapeOnly(self.shape, self._counter)
        if function is np.where:
            for x in args:
                if isinstance(x, ShapeOnly):
                    x._check_lifespan()
            shape = _broadcast(
                *[x.shape if isinstance(x, ShapeOnly) else np.shape(x) for x in args]
            )
            self._counter.count_flops(other=math.prod(shape))
            return ShapeOnly(shape, self._counter)
        raise TypeError(
            f"np.{function.__name__} {DECIDES if function in DECIDING_FUNCTIONS else NOT_COUNTED}"
        )

    def __setitem__(self, parts: Any, value: Any) -> NoReturn:
        raise TypeError(f"an array's [...] = {NOT_COUNTED}")

    def __repr__(self) -> str:
        return f"ShapeOnly{self.shape}"

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"np.asarray(tile) {NOT_COUNTED}")

    def __format__(self, spec: str) -> str:
        return repr(self)


def _refuse_reduced_into(dtype: Any, out: Any) -> None:
    if dtype is not None or out is not None:
        raise TypeError(f"a sum or a maximum with dtype= or out= {NOT_COUNTED}")


def _refuse(attribute: str, _: ShapeOnly) -> NoReturn:
    raise TypeError(
        f"an array's .{attribute} {DECIDES if attribute in DECIDING_ATTRIBUTES else NOT_COUNTED}"
    )


def _refusal(use: str) -> Any:
    """Return a method by which Python would make of a tile what decides where to go on; it says
    so.
    """

    def refuse(tile: ShapeOnly, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"{use} {DECIDES}")

    return refuse


for _method, _use in {
    "__bool__": "a branch, such as `if tile.max() > 0`,",
    "__float__": "float(tile)",
    "__int__": "int(tile)",
    "__complex__": "complex(tile)",
    "__index__": "a tile as a whole number, as an index or in range(…),",
    "__round__": "round(tile)",
    "__trunc__": "math.trunc(tile)",
    "__floor__": "math.floor(tile)",
    "__ceil__": "math.ceil(tile)",
    "__iter__": "a loop over a tile's rows or numbers",
    "__contains__": "`in` a tile",
}.items():
    setattr(ShapeOnly, _method, _refusal(_use))


# a __getattr__ would make every attribute slow
for _attribute in {*dir(np.ndarray)} - {*dir(ShapeOnly)}:
    if not _attribute.startswith("_"):
        setattr(ShapeOnly, _attribute, property(partial(_refuse, _attribute)))


def _operator_of_tiles(by_numpy: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator between two tiles that does not take NumPy's way, which takes longer
    than all else in a count.
    """

    def operate(tile: ShapeOnly, other: Any) -> Any:
        return tile._element_wise(other) if type(other) is ShapeOnly else by_numpy(tile, other)

    return operate


for _operator in ("__add__", "__sub__", "__mul__", "__truediv__"):
    setattr(ShapeOnly, _operator, _operator_of_tiles(getattr(ShapeOnly, _operator)))


class Ones:
    """A tile of ones that takes no room and changes nothing: `P * ONES` is P itself. It is Z
    where nothing is dropped.
    """

    __array_ufunc__ = None

    def __mul__(self, other: Any) -> Any:
        return other

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return "ONES"


ONES: Any = Ones()


_broadcast = lru_cache(4096)(np.broadcast_shapes)
