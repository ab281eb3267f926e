"""`Kernel`: the kernel under test. It calls the kernel as its spec says, checks the shapes of the
results, and brings them into one form.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.case import STRIDES, Case, Keep
from flashsim.testing.problem import Problem
from flashsim.testing.spec import Spec

# elements of NaN before and after every array: a kernel that reads them returns NaN
GUARD = 64


class Broken(AssertionError):
    """The kernel raised, or returned an invalid result."""


class OutsidePool(Exception):
    """A check would call the kernel with a shape that the spec's `max_shapes` or `multiples` do
    not allow. The call is not made.
    """


class Output(NamedTuple):
    """O (B, H_q, N_q, d_v) in float64, and the log-sum-exp (B, H_q, N_q) or None."""

    O: Array
    lse: Array | None


def _guarded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array of NaN, with NaN around it in memory."""
    size = int(np.prod(shape))
    memory = np.full(size + 2 * GUARD, np.nan, dtype)
    return memory[GUARD : GUARD + size].reshape(shape)


def empty_array(like: Array, strides: str) -> Array:
    """Return a new array of NaN of the shape and dtype of `like`.

    `strides` says how it lies in memory. Axes 1 and 2 are heads and rows in the layout BHND, and
    rows and heads in BNHD.
    """
    first, second, third, last = like.shape
    dtype = like.dtype
    if strides == "heads_last":  # axes 1 and 2 are exchanged in memory, as after a transpose
        return _guarded((first, third, second, last), dtype).swapaxes(1, 2)
    if strides == "rows":  # every other row of an array twice as long
        return _guarded((first, second, 2 * third, last), dtype)[:, :, ::2]
    if strides == "padded":  # rows are part of wider rows, as q, k, v are of a packed array
        return _guarded((first, second, third, last + 3), dtype)[..., 1 : last + 1]
    if strides == "columns":  # the last axis does not have stride 1
        return _guarded((first, second, last, third), dtype).swapaxes(2, 3)
    return _guarded(like.shape, dtype)


MIXED = ("padded", "heads_last", "rows", "contiguous")  # strides of q, k, v and do


def strides_of(spec: Spec) -> tuple[str, ...]:
    """Return the kinds of strides that a kernel with that spec takes, the simplest first."""
    if spec.strides == "any":
        return STRIDES
    if spec.strides == "last_contiguous":
        return STRIDES[:-1]
    return STRIDES[:1]


def lay_out(a: Array, strides: str, layout: str) -> Array:
    """Return a copy of `a` (B, H, N, d) in the spec's layout, with NaN around it in memory.
    `strides` says how the copy lies in memory.
    """
    source = a.swapaxes(1, 2) if layout == "BNHD" else a
    copy = empty_array(source, strides)
    copy[...] = source
    return copy


def memory_of(a: Array) -> Array:
    """Return the array that owns the memory of `a`."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


@dataclass(frozen=True)
class Kernel:
    """The kernel under test.

    fn         its forward function
    spec       what it takes and promises
    back       its backward function, or None
    keep_mask  the function that returns its keep mask of dropout, or None
    shapes     the shapes of (q, k, v) with which it may be called. None: any
    on_try     called with a check's name and a case before each try
    """

    fn: Callable[..., Any]
    spec: Spec
    back: Callable[..., Any] | None = None
    keep_mask: Keep | None = None
    shapes: frozenset[tuple[tuple[int, ...], ...]] | None = None
    on_try: Callable[[str, Case], None] | None = None

    @property
    def name(self) -> str:
        """The name of the forward function."""
        return getattr(self.fn, "__qualname__", None) or type(self.fn).__name__

    def forward(self, problem: Problem, strides: str = "contiguous") -> Output:
        """Call the forward function on new copies of the arrays. Raises Broken."""
        return self.forward_on(self.lay(problem, strides), problem)

    def lay(self, problem: Problem, strides: str, back: bool = False) -> dict[str, Array]:
        """Return new copies of q, k, v, and of do if `back`, in the kernel's layout. `strides` says
        how they lie in memory.
        """
        sources = {"q": problem.q, "k": problem.k, "v": problem.v}
        if back:
            sources["do"] = problem.dO
        kinds = MIXED if strides == "mixed" else (strides,) * len(MIXED)
        copies = {}
        for (name, a), kind in zip(sources.items(), kinds, strict=False):
            copies[name] = lay_out(a, kind, self.spec.layout)
        return copies

    def forward_on(
        self, arrays: dict[str, Array], problem: Problem, *, copies: bool = True
    ) -> Output:
        """Call the forward function on these arrays themselves. With `copies`, the mask and other
        options are copies. Raises Broken.
        """
        self._check_shapes(problem)
        options = _copies(problem.options) if copies else problem.options
        returned = _call(self.fn, *arrays.values(), **options)
        B, H_q, N_q, _ = problem.q.shape
        O_shape = (B, H_q, N_q, problem.v.shape[-1])
        several = isinstance(returned, tuple | list)
        if self.spec.lse is None:
            if several:
                raise Broken(
                    f"returned {_kind(returned)}; the spec does not declare lse, so expected O "
                    "alone"
                )
            return Output(self._from_layout("O", returned, O_shape), None)
        if not several or len(returned) != 2:
            raise Broken(
                f"returned {_kind(returned)}; the spec declares lse, so expected a pair (O, lse)"
            )
        O, lse = returned
        checked_lse = _as_array("lse", lse, (B, H_q, N_q)).astype(np.float64)
        return Output(self._from_layout("O", O, O_shape), checked_lse)

    def backward(self, problem: Problem, strides: str = "contiguous") -> tuple[Array, ...]:
        """Call the backward function on new copies. Return dq, dk, dv, and dsink if there is a
        sink, in float64. Raises Broken.
        """
        return self.backward_on(self.lay(problem, strides, back=True), problem)

    def backward_on(self, arrays: dict[str, Array], problem: Problem) -> tuple[Array, ...]:
        """Call the backward function on these arrays q, k, v, do themselves. Raises Broken."""
        assert self.back is not None
        self._check_shapes(problem)
        returned = _call(self.back, *arrays.values(), **_copies(problem.options))
        names = ("dq", "dk", "dv") if problem.sink is None else ("dq", "dk", "dv", "dsink")
        if not isinstance(returned, tuple | list) or len(returned) != len(names):
            count = "three" if problem.sink is None else "four"
            raise Broken(
                f"returned {_kind(returned)} from its backward function; expected {count} arrays, "
                f"{', '.join(names)}"
            )
        gradients = [
            self._from_layout("dq", returned[0], problem.q.shape),
            self._from_layout("dk", returned[1], problem.k.shape),
            self._from_layout("dv", returned[2], problem.v.shape),
        ]
        if problem.sink is not None:
            dsink = _as_array("dsink", returned[3], problem.sink.shape)
            gradients.append(dsink.astype(np.float64))
        return tuple(gradients)

    def _check_shapes(self, problem: Problem) -> None:
        """Raise OutsidePool where the kernel may not be called with the problem's shapes."""
        N_q, N_k = problem.score_shape[-2:]
        if self.spec.lengths(N_q, N_k) != (N_q, N_k):
            raise OutsidePool
        shapes = (problem.q.shape, problem.k.shape, problem.v.shape)
        if self.shapes is not None and shapes not in self.shapes:
            raise OutsidePool

    def keep(self, problem: Problem) -> Array:
        """Return the keep mask of dropout, booleans (B, H_q, N_q, N_k). Raises Broken."""
        assert self.keep_mask is not None
        shape = problem.score_shape
        function = self.keep_mask

        def keep_array(*args: Any) -> Array:
            return np.asarray(function(*args))

        mask: Array = _call(keep_array, shape, problem.dropout_p, problem.seed)
        if mask.shape != shape or mask.dtype != bool:
            raise Broken(
                f"has {_kind(mask)} for dropout's keep mask; expected booleans of shape {shape}"
            )
        return mask

    def _from_layout(self, name: str, value: Any, shape: tuple[int, ...]) -> Array:
        """Return a result in float64, as (B, H, N, width)."""
        if self.spec.layout == "BHND":
            return _as_array(name, value, shape).astype(np.float64)
        B, H, N, width = shape
        array = _as_array(name, value, (B, N, H, width))
        return array.astype(np.float64).swapaxes(1, 2)


def _copies(options: dict[str, Any]) -> dict[str, Any]:
    return {name: a.copy() if isinstance(a, np.ndarray) else a for name, a in options.items()}


def _call(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function of the kernel. Raises Broken for whatever it raises."""
    try:
        return fn(*args, **options)
    except KeyboardInterrupt as stop:
        if place := _place_of(stop):
            stop.add_note(place)
        raise
    except BaseException as error:  # SystemExit, too
        place = _place_of(error)
        suffix = f" ({place})" if place else ""
        raise Broken(f"raised {type(error).__name__}: {error}{suffix}") from error


def _place_of(error: BaseException) -> str:
    """Return the file and the line that raised an error, or "" if that is the call in this file."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "" if last.filename == __file__ else f"at {last.filename}:{last.lineno}"


def _as_array(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    """Return a result as an array. Raises Broken if it is not floating point, or of another
    shape.
    """
    if value is None:
        raise Broken(f"returned None; expected {name}")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise Broken(
            f"returned {_kind(value)} for {name}, which NumPy cannot read: {error}"
        ) from error
    noun = f"an {name}" if name in ("O", "lse") else f"a {name}"
    if array.dtype.kind not in "fV" or array.dtype.names:
        raise Broken(f"returned {noun} of dtype {array.dtype}; expected floating point")
    if array.shape != shape:
        raise Broken(f"returned {noun} of shape {array.shape}; expected {shape}")
    return array


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"a {type(value).__name__}"
