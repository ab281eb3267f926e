"""Checks of a student's results: numbers are compared up to rounding, and counts with ==. A mistake is
recognised by the wrong numbers that it leads to.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.submission import Mistake
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM, Event, Observer

ROUNDING = 1e-9  # relative; the exercises compute in float64, on numbers of ordinary size


def as_numbers(value: Any) -> Array | None:
    """Return a value as an array of real numbers, or None if it is something else."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array.astype(float) if array.dtype.kind in "biuf" else None


def equal(actual: Any, expected: Any) -> bool:
    """Return whether two arrays are equal up to rounding; NaN equals NaN. Anything but an array of
    numbers equals nothing.
    """
    a = as_numbers(actual)
    b = as_numbers(expected)
    if a is None or b is None or a.shape != b.shape:
        return False
    return bool(np.allclose(a, b, rtol=ROUNDING, atol=ROUNDING, equal_nan=True))


def expect(label: str, actual: Any, expected: Any, mistakes: Mapping[str, Any]) -> None:
    """Compare numbers. Raises Mistake if they differ.

    label     the numbers' name in a message
    mistakes  hints, each with the wrong numbers that a mistake leads to
    """
    expected = np.asarray(expected, float)
    numbers = as_numbers(actual)
    if numbers is None:
        raise Mistake(
            f"{label} is a {type(actual).__name__}; expected an array of real numbers, of shape "
            f"{expected.shape}."
        )
    if equal(numbers, expected):
        return
    hint = next((hint for hint, wrong in mistakes.items() if equal(numbers, wrong)), "")
    if numbers.shape != expected.shape:
        raise Mistake(f"{label} has shape {numbers.shape}; expected {expected.shape}.", hint)
    differ = ~np.isclose(numbers, expected, rtol=ROUNDING, atol=ROUNDING)
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    place = f"[{', '.join(map(str, index))}]" if index else ""
    number = float(numbers[index])
    right = float(expected[index])
    digits = 17
    for n in (6, 9, 12):
        if f"{number:.{n}g}" != f"{right:.{n}g}":
            digits = n
            break
    raise Mistake(f"{label}{place} is {number:.{digits}g}; expected {right:.{digits}g}.", hint)


def common_mistake(
    results: Iterable[tuple[Any, Mapping[str, Any]]], are_equal: Callable[[Any, Any], bool] = eq
) -> str:
    """Return the first hint whose mistake leads to all results, or "".

    results  pairs of a result, and hints with the wrong result that each mistake leads to
    """
    hints: list[str] | None = None
    for actual, mistakes in results:
        fitting = [hint for hint, wrong in mistakes.items() if are_equal(actual, wrong)]
        hints = fitting if hints is None else [hint for hint in hints if hint in fitting]
    return hints[0] if hints else ""


def check_results(function: str, result: Any, names: str) -> tuple[Any, ...]:
    """Return a function's result as a tuple. Raises Mistake if it has not as many values as `names`
    lists.
    """
    count = names.count(",") + 1
    if not isinstance(result, tuple | list):
        raise Mistake(f"{function} returned a {type(result).__name__}; expected {names}.")
    if len(result) != count:
        raise Mistake(f"{function} returned {len(result)} values; expected {count}: {names}.")
    return tuple(result)


WHOLE = "// divides whole numbers; / makes a float."


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, Python's or NumPy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def expect_count(label: str, actual: Any, expected: int, mistakes: Mapping[str, int]) -> None:
    """Compare counts with ==. Raises Mistake if they differ. `mistakes` as in `expect`."""
    if not is_whole(actual):
        raise Mistake(f"{label} is {actual!r}; expected a whole number, an int.", WHOLE)
    if actual != expected:
        hint = next((hint for hint, wrong in mistakes.items() if actual == wrong), "")
        text = f"{actual:,}" if abs(actual) < 10**30 else "more digits than a count has"
        raise Mistake(f"{label}: {text}; expected {expected:,}.", hint)


class ExerciseMemory:
    """An HBM and an SRAM for a student's function. The inputs are placed by name."""

    def __init__(
        self, inputs: Mapping[str, Array], M: int = 10**6, observers: Sequence[Observer] = ()
    ) -> None:
        self.hbm = HBM()
        self.sram = SRAM(self.hbm, M, observers=observers)
        for name, values in inputs.items():
            self.hbm.place(name, values)

    def in_blocks(self, name: str, rows: int) -> Matrix:
        """Return a matrix in blocks of so many rows."""
        return self.hbm.matrix(name).divide(rows)

    def output(
        self, name: str, shape: tuple[int, int], rows: int, value: float | None = None
    ) -> Matrix:
        """Return a new matrix in blocks of so many rows, filled with `value`, or not written."""
        if value is None:
            matrix = self.hbm.empty(name, shape, np.float64, "output")
        else:
            matrix = self.hbm.full(name, shape, value, np.float64, "output")
        return matrix.divide(rows)

    def accesses(self, name: str) -> tuple[int, int]:
        """Return how many elements of a matrix were read, and written."""
        traffic = self.hbm.traffic.by_array[name]
        return traffic.reads, traffic.writes


@dataclass
class TurnRecorder:
    """An observer of two nested loops. At each end of a turn of the inner loop it records both
    indices, and the values of matrices in HBM and of tiles.

    matrices, tiles  their names
    turns            (indices, values by name) of each turn
    """

    matrices: Sequence[str] = ()
    tiles: Sequence[str] = ()
    turns: list[tuple[list[int], dict[str, Array]]] = field(default_factory=list)
    _last: dict[str, Array] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Record one event."""
        if event.kind == "compute" and event.name in self.tiles and event.tile is not None:
            self._last[event.name] = np.array(event.tile)
        elif event.kind == "turn end" and len(event.loops) == 2:
            values = {name: np.array(event.sram.hbm.peek(name)) for name in self.matrices}
            indices = [index for _, index in event.loops]
            self.turns.append((indices, values | self._last))

    def check(
        self, run: Callable[[], object], check_turn: Callable[..., None], expected: int
    ) -> None:
        """Run a student's loops, and check the values of each turn: check_turn(values, *indices).
        Raises Mistake unless there are as many turns as expected.
        """
        try:
            run()
        finally:  # if a turn fails, those before it may show why
            for indices, values in self.turns:
                check_turn(values, *indices)
        if len(self.turns) != expected:
            hint = (
                "Both loops are sram.loop(…), one within the other, as in the file at first: its "
                "turns are what is judged."
            )
            count = len(self.turns)
            raise Mistake(f"{count} turns of the inner loop were seen; expected {expected}.", hint)
