"""NumPy's operators, counted by arrays that tell of each operator on them.

`run` gives the function its arrays as `CountedArray`. NumPy's protocols (`__array_ufunc__`,
`__array_function__`) hand such an array's operators over, and functions that create arrays are
replaced in the module `numpy` for the call. A result that shares memory with an operand is a view:
it moves nothing. Not seen are operators on arrays that the function makes in other ways, such as
random ones, until they meet a counted array.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import Array, Block
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.operators import Operators, View
from flashsim.profiling.recording import Recorder, line_outside

CREATORS = (
    *("array", "asarray", "ascontiguousarray", "empty", "zeros", "ones", "full"),
    *("arange", "linspace", "eye", "identity", "tri"),
)
"""Functions that make arrays from none: NumPy's protocols do not hand them over."""
LIBRARIES = ("numpy", "jax", "jaxlib", "torch")
"""Packages whose own use of these functions is not the user's."""
METHODS = (
    *("all", "any", "argmax", "argmin", "argsort", "astype", "byteswap", "choose", "clip"),
    *("compress", "copy", "cumprod", "cumsum", "diagonal", "dot", "fill", "flatten", "max"),
    *("mean", "min", "partition", "prod", "put", "ravel", "repeat", "reshape", "round"),
    *("searchsorted", "sort", "std", "sum", "take", "trace", "var"),
)
"""Methods that move elements or may; the others make views, or call functions that do."""
GATHERING = ("getitem", "take", "take_along_axis", "compress")
"""Operators that read as many elements of their first operand as their result has."""
READING_IN_PLACE = ("sort", "partition")
"""Operators that return nothing and read what they write; the others that return nothing, such as
`copyto` and `fill`, do not.
"""


class NumPy:
    """NumPy's operators: a `Frontend`."""

    kernels = "NumPy's operators"

    def __init__(self) -> None:
        self._listener = _Listener(Recorder())

    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array of NumPy."""
        return isinstance(value, np.ndarray)

    def make(self, values: Any, dtype: str) -> Any:
        """Return an array of its own with these values."""
        return np.array(values, dtype)

    def add(self, recorder: Recorder, name: str, array: Any, role: Role) -> None:
        """Add an array to the recorder's memory, unless it is there."""
        if not array.size:
            return
        view = _view_of(name, array)
        known = {(other.address, other.extents) for other in recorder.memory.arrays()}
        if (view.array.address, view.array.extents) in known:
            return
        row_axis = view.array.row_axis
        if array.ndim == 4:
            row_axis = 4 + recorder.row_axis
        recorder.memory.add(replace(view.array, row_axis=row_axis, role=role), view.block)
        recorder.keep_alive(view.owner)

    @contextmanager
    def listening(self, recorder: Recorder) -> Iterator[None]:
        """Record the operators on arrays that `run` gives its function, in this block."""
        listener = _Listener(recorder)
        self._listener = listener
        with ExitStack() as contexts:
            for name in CREATORS:
                creator = listener.creator(name, getattr(np, name))
                contexts.enter_context(patch.object(np, name, creator))
            try:
                yield
            finally:
                listener.paused = True

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Call a function with counted arrays, and return its result in plain ones."""
        listener = self._listener
        arguments = listener.count_arrays(arguments)
        results = function(*arguments, **listener.count_arrays(dict(keywords)))
        return _plain(results)

    def with_gradient(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        by: Sequence[str],
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Raise ProfilingError: NumPy has no gradients."""
        raise ProfilingError(
            "NumPy differentiates no function; expected one of PyTorch's or JAX's arrays for the "
            "backward pass"
        )

    def arrays_of(self, recorder: Recorder, results: Any) -> Iterator[Array]:
        """Yield the recorder's arrays that are among the results, in their order. Raises
        ProfilingError where a result is an array whose operators were not seen.
        """
        for result in _arrays_in(results):
            view = _view_of("result", result)
            parts = recorder.memory.parts(view.array, view.block)
            if not parts:
                raise ProfilingError(
                    f"the function returns an array of {result.shape} that was made where NumPy's "
                    "operators are not seen; make it by an operator on its arguments, or by one "
                    f"of numpy.{', numpy.'.join(CREATORS)}"
                )
            for array, _ in parts:
                yield array


class _Listener:
    """Runs operators on plain arrays and records them."""

    def __init__(self, recorder: Recorder) -> None:
        self.paused = False
        self._operators = Operators(recorder)
        folders = (Path(np.__file__).parent, Path(__file__).parent)
        self._packages = tuple(f"{folder}{os.sep}" for folder in folders)

    def count_arrays(self, value: Any) -> Any:
        """Return a value with its arrays counted."""
        return _with_arrays(value, self._count_array)

    def _count_array(self, array: np.ndarray) -> np.ndarray:
        counted = np.ndarray.view(array, CountedArray)
        counted.listener = self
        return counted

    def creator(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in for a function that makes an array."""

        @wraps(function)
        def create(*arguments: Any, **keywords: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] in LIBRARIES:
                return function(*arguments, **keywords)
            return self.call(name, function, arguments, keywords)

        return create

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> Any:
        """Run an operator, record it, and return its results, counted."""
        arguments = _plain(arguments)
        keywords = _plain(dict(keywords))
        if self.paused:
            return function(*arguments, **keywords)
        self.paused = True
        try:
            results = function(*arguments, **keywords)
            self._record(name, arguments, keywords, results)
            return self.count_arrays(results)
        finally:
            self.paused = False

    def set_item(self, array: np.ndarray, key: Any, value: Any) -> None:
        """Run `array[key] = value` and record it."""
        array, key, value = _plain((array, key, value))
        was_paused = self.paused
        self.paused = True
        try:
            array[key] = value
            if not was_paused:
                self._record_set_item(array, key, value)
        finally:
            self.paused = was_paused

    def _record_set_item(self, array: np.ndarray, key: Any, value: Any) -> None:
        part = array[key]
        if not np.size(part):
            return
        if np.shares_memory(part, array):
            target = _view_of("setitem.array", part)
        else:
            target = replace(_view_of("setitem.array", array), elements=int(np.size(part)))
        reads = [_view_of("setitem.operand", operand) for operand in _arrays_in((key, value))]
        self._operators.see(_view_of("setitem.array", array))
        self._operators.record("setitem", line_outside(self._packages), reads, [target])

    def _record(
        self, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any], results: Any
    ) -> None:
        out = list(_arrays_in(keywords.get("out")))
        others = {key: value for key, value in keywords.items() if key != "out"}
        operands = [_view_of(f"{name}.operand", array) for array in _arrays_in((arguments, others))]
        targets = [_view_of(f"{name}.out", array) for array in out]
        if results is None and operands:
            targets = operands[:1]
            if name not in READING_IN_PLACE:
                operands = operands[1:]
        memory = {view.block.start for view in (*operands, *targets)}
        outputs = [_view_of(name, array) for array in _arrays_in(results)]
        new = [view for view in outputs if view.block.start not in memory]
        if name in ("empty", "empty_like"):
            for view in new:
                self._operators.allocate(view)
            return
        if outputs and not new and not targets:
            for view in operands:
                self._operators.see(view)
            return
        if name in GATHERING and operands and new:
            operands[0] = replace(operands[0], elements=new[0].array.elements)
        if operands or targets or new:
            self._operators.record(name, line_outside(self._packages), operands, targets, new)


class CountedArray(np.ndarray[Any, Any]):
    """An array that tells a listener of each operator on it."""

    listener: _Listener

    def __array_finalize__(self, parent: Any) -> None:
        if isinstance(parent, CountedArray):
            self.listener = parent.listener

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}_{method}"
        listener = _listener_of((inputs, keywords))
        return listener.call(name, getattr(ufunc, method), inputs, keywords)

    def __array_function__(
        self, function: Any, types: Any, arguments: Any, keywords: Mapping[str, Any]
    ) -> Any:
        listener = _listener_of((arguments, keywords))
        return listener.call(function.__name__, function, arguments, keywords)

    def __getitem__(self, key: Any) -> Any:
        return self.listener.call("getitem", np.ndarray.__getitem__, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.listener.set_item(self, key, value)


def _method(name: str) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)

    def method(self: CountedArray, *arguments: Any, **keywords: Any) -> Any:
        return self.listener.call(name, function, (self, *arguments), keywords)

    return method


for _name in METHODS:
    setattr(CountedArray, _name, _method(_name))


def _listener_of(value: Any) -> _Listener:
    """Return the listener of a counted array in a value."""
    for array in _arrays_in(value):
        if isinstance(array, CountedArray):
            return array.listener
    raise AssertionError("NumPy hands over operators on counted arrays alone")


def _plain(value: Any) -> Any:
    """Return a value without counted arrays."""
    return _with_arrays(value, lambda array: np.ndarray.view(array, np.ndarray))


def _with_arrays(value: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Return a value with its arrays targets: itself, or those of a tuple, list or dictionary."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, dict):
        return {key: _with_arrays(part, change) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_with_arrays(part, change) for part in value)
    return value


def _arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays with elements in a value: itself, or those of a tuple, list or mapping."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, np.ndarray):
        if value.size:
            yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _arrays_in(part)


def _view_of(name: str, array: np.ndarray) -> View:
    """Return the elements of an array in its memory. Raises ProfilingError where they are parts of
    records.
    """
    address = array.__array_interface__["data"][0]
    strides = []
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride % array.itemsize and length > 1:
            raise ProfilingError(
                f"{name} is an array of {array.dtype} with strides of {array.strides} bytes; "
                "expected multiples of an element's"
            )
        if stride < 0:
            address += stride * (length - 1)
        strides.append(abs(stride) // array.itemsize)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    start, end = np.lib.array_utils.byte_bounds(owner)
    view = Array(
        name,
        array.shape,
        tuple(strides),
        array.itemsize,
        str(array.dtype),
        address,
        max(array.ndim - 2, 0),
    )
    return View(view, Block(start, end), owner)
