"""The kernel under test, called as its spec says, its answers checked for shape and brought into
one form.
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

# elements of NaN before and behind every array, and in its gaps: what is read there shows
GUARD = 64


class Broken(AssertionError):
    """A kernel that raised, or returned what is not an answer."""


class OutsidePool(Exception):
    """A call with a shape beyond those that a spec's `max_shapes` or `multiples` allow: it is
    not made.
    """


class Output(NamedTuple):
    """O (B, H_q, N_q, d_v) in float64, and the log-sum-exp (B, H_q, N_q) or None."""

    O: Array
    lse: Array | None


def _place(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = int(np.prod(shape))
    return np.full(size + 2 * GUARD, np.nan, dtype)[GUARD : GUARD + size].reshape(shape)


# Empty arrays of a's shape and dtype, by how they lie in memory. Axes 1 and 2 are rows and heads in
# the layout BNHD.
EMPTY: dict[str, Callable[[Array], Array]] = {
    "contiguous": lambda a: _place(a.shape, a.dtype),
    # the two middle axes the other way about, as after a transpose
    "heads_last": lambda a: _place(a.swapaxes(1, 2).shape, a.dtype).swapaxes(1, 2),
    # every other row of an array twice as long
    "rows": lambda a: _place((*a.shape[:2], 2 * a.shape[2], a.shape[3]), a.dtype)[:, :, ::2],
    # rows that are part of wider ones, as q, k, v are of a packed array
    "padded": lambda a: _place((*a.shape[:3], a.shape[3] + 3), a.dtype)[..., 1 : a.shape[3] + 1],
    # the last axis is not the one with stride 1
    "columns": lambda a: _place(a.swapaxes(2, 3).shape, a.dtype).swapaxes(2, 3),
}


MIXED = ("padded", "heads_last", "rows", "contiguous")  # of q, k, v and do: each in its own way


def strides_of(spec: Spec) -> tuple[str, ...]:
    """Return how arrays may lie for a kernel with that spec, the simplest first."""
    return {"any": STRIDES, "last_contiguous": STRIDES[:-1], "contiguous": STRIDES[:1]}[
        spec.strides
    ]


def lay_out(a: Array, strides: str, layout: str) -> Array:
    """Return a copy of `a` (B, H, N, d) in the spec's layout, lying in memory as `strides` says,
    guarded by NaN.
    """
    ordered = a.swapaxes(1, 2) if layout == "BNHD" else a
    placed = EMPTY[strides](ordered)
    placed[...] = ordered
    return placed


def memory_of(a: Array) -> Array:
    """Return the whole of the memory that `a` is a part of."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


@dataclass(frozen=True)
class Subject:
    """The kernel under test, its functions: forward, backward or None, and the keep mask of
    dropout or None.
    """

    fn: Callable[..., Any]
    spec: Spec
    back: Callable[..., Any] | None = None
    keep_mask: Keep | None = None
    # of q, k, v, that it may be called with
    shapes: frozenset[tuple[tuple[int, ...], ...]] | None = None
    on_try: Callable[[str, Case], None] | None = None  # called before each check on each case

    @property
    def name(self) -> str:
        """What the forward function is called."""
        return getattr(self.fn, "__qualname__", None) or type(self.fn).__name__

    def forward(self, problem: Problem, strides: str = "contiguous") -> Output:
        """Run the forward function on fresh copies of the arrays. Raises Broken."""
        return self.forward_on(self.lay(problem, strides), problem)

    def lay(self, problem: Problem, strides: str, back: bool = False) -> dict[str, Array]:
        """Return fresh q, k, v, and do if `back`, as the kernel wants them, lying in memory as
        `strides` says.
        """
        given = {
            "q": problem.q,
            "k": problem.k,
            "v": problem.v,
            **({"do": problem.dO} if back else {}),
        }
        kinds = MIXED if strides == "mixed" else (strides,) * len(MIXED)
        return {
            name: lay_out(a, kind, self.spec.layout)
            for (name, a), kind in zip(given.items(), kinds, strict=False)
        }

    def forward_on(
        self, arrays: dict[str, Array], problem: Problem, *, copies: bool = True
    ) -> Output:
        """Run the forward function on these very arrays, and on this very mask unless on a copy.
        Raises Broken.
        """
        self._stay_within(problem)
        returned = _called(
            self.fn, *arrays.values(), **(_copied(problem.options) if copies else problem.options)
        )
        B, H_q, N_q, _ = problem.q.shape
        lse = None
        if self.spec.lse is not None:
            if not isinstance(returned, tuple | list) or len(returned) != 2:
                raise Broken(
                    f"returned {_what(returned)}; the spec declares lse, so expected a pair (O, "
                    "lse)"
                )
            returned, given = returned
            lse = _array("lse", given, (B, H_q, N_q)).astype(np.float64)
        elif isinstance(returned, tuple | list):
            raise Broken(
                f"returned {_what(returned)}; the spec does not declare lse, so expected O alone"
            )
        return Output(self._from_layout("O", returned, (B, H_q, N_q, problem.v.shape[-1])), lse)

    def backward(self, problem: Problem, strides: str = "contiguous") -> tuple[Array, ...]:
        """Run the backward function on fresh copies; return dq, dk, dv, and a sink's gradient,
        in float64. Raises Broken.
        """
        return self.backward_on(self.lay(problem, strides, back=True), problem)

    def backward_on(self, arrays: dict[str, Array], problem: Problem) -> tuple[Array, ...]:
        """Run the backward function on these very arrays q, k, v, do. Raises Broken."""
        assert self.back is not None
        self._stay_within(problem)
        returned = _called(self.back, *arrays.values(), **_copied(problem.options))
        names = ("dq", "dk", "dv") if problem.sink is None else ("dq", "dk", "dv", "dsink")
        if not isinstance(returned, tuple | list) or len(returned) != len(names):
            count = {3: "three", 4: "four"}[len(names)]
            said = f"returned {_what(returned)} from its backward function; expected {count} arrays"
            raise Broken(f"{said}, {', '.join(names)}")
        shapes = (problem.q.shape, problem.k.shape, problem.v.shape)
        three = (
            self._from_layout(*each) for each in zip(names[:3], returned[:3], shapes, strict=True)
        )
        dsink = (
            ()
            if problem.sink is None
            else (_array("dsink", returned[3], problem.sink.shape).astype(np.float64),)
        )
        return *three, *dsink

    def _stay_within(self, problem: Problem) -> None:
        N_q, N_k = problem.score_shape[-2:]
        if self.spec.lengths(N_q, N_k) != (N_q, N_k):
            raise OutsidePool
        if (
            self.shapes is not None
            and (problem.q.shape, problem.k.shape, problem.v.shape) not in self.shapes
        ):
            raise OutsidePool

    def keep(self, problem: Problem) -> Array:
        """Return the keep mask of dropout, booleans (B, H_q, N_q, N_k). Raises Broken."""
        assert self.keep_mask is not None
        shape = problem.score_shape
        mask = self.keep_mask
        kept: Array = _called(
            lambda *given: np.asarray(mask(*given)), shape, problem.dropout_p, problem.seed
        )
        if kept.shape != shape or kept.dtype != bool:
            raise Broken(
                f"has {_what(kept)} for dropout's keep mask; expected booleans of shape {shape}"
            )
        return kept

    def _from_layout(self, name: str, given: Any, shape: tuple[int, ...]) -> Array:
        swapped = self.spec.layout == "BNHD"
        B, H, N, width = shape
        found = _array(name, given, (B, N, H, width) if swapped else shape).astype(np.float64)
        return found.swapaxes(1, 2) if swapped else found


def _copied(options: dict[str, Any]) -> dict[str, Any]:
    return {name: a.copy() if isinstance(a, np.ndarray) else a for name, a in options.items()}


def _called(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return fn(*args, **options)
    except KeyboardInterrupt as stop:
        if place := _where(stop):
            stop.add_note(place)
        raise
    except BaseException as error:  # sys.exit's, too
        place = _where(error)
        raise Broken(
            f"raised {type(error).__name__}: {error}" + f" ({place})" * bool(place)
        ) from error


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    # the call itself says nothing
    return "" if last.filename == __file__ else f"at {last.filename}:{last.lineno}"


def _array(name: str, given: Any, shape: tuple[int, ...]) -> Array:
    if given is None:
        raise Broken(f"returned None; expected {name}")
    try:
        found = np.asarray(given)
    except Exception as error:
        raise Broken(
            f"returned {_what(given)} for {name}, which NumPy cannot read: {error}"
        ) from error
    which = f"an {name}" if name in ("O", "lse") else f"a {name}"
    if found.dtype.kind not in "fV" or found.dtype.names:
        raise Broken(f"returned {which} of dtype {found.dtype}; expected floating point")
    if found.shape != shape:
        raise Broken(f"returned {which} of shape {found.shape}; expected {shape}")
    return found


def _what(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"a {type(value).__name__}"
