"""`Frontend`: what counting needs to know of a kernel language and its arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import Array
from flashsim.profiling.recording import Recorder


class Frontend(Protocol):
    """A kernel language: how its calls run on this machine, and how their accesses are recorded.
    Each counted call has one of its own.

    kernels  what it counts, in words
    """

    kernels: str

    def is_array(self, value: Any) -> bool:
        """Return whether a value is one of its arrays, with `shape` and `dtype`."""

    def make(self, values: Any, dtype: str) -> Any:
        """Return an array of its own with these values, from NumPy's."""

    def add(self, recorder: Recorder, name: str, array: Any, role: Role) -> None:
        """Add an array to the recorder's memory, unless it is there."""

    def listening(self, recorder: Recorder) -> AbstractContextManager[None]:
        """Return a context in which the recorder is told each access of a kernel."""

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Call the function, and return its result. Raises ProfilingError for what goes wrong in a
        kernel.
        """

    def with_gradient(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        by: Sequence[str],
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Call the function with arguments by name. Return its first result, and the function that
        maps its gradient to the gradients by the arguments `by`. Raises ProfilingError where there
        is none.
        """

    def arrays_of(self, recorder: Recorder, results: Any) -> Iterator[Array]:
        """Yield the recorder's arrays that are among the results of a call, in their order."""
