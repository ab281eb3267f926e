"""How a student's results are judged: numbers up to rounding, counts with ==, and a typical
mistake by what it leads to.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.work import Wrong
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM, Event, Observer

ROUNDING = 1e-9  # relative; the exercises compute in float64, on numbers of ordinary size


def numbers(given: Any) -> Array | None:
    """Return an array of real numbers; None for anything else."""
    try:
        found = np.asarray(given)
    except (TypeError, ValueError):
        return None
    return found.astype(float) if found.dtype.kind in "biuf" else None


def same(got: Any, want: Any) -> bool:
    """Say whether two arrays are equal up to rounding; NaN equals NaN. What is not an array of
    numbers equals nothing.
    """
    found = numbers(got)
    wanted = numbers(want)
    if found is None or wanted is None or found.shape != wanted.shape:
        return False
    return bool(np.allclose(found, wanted, rtol=ROUNDING, atol=ROUNDING, equal_nan=True))


def expect(what: str, got: Any, want: Any, mistakes: Mapping[str, Any]) -> None:
    """Compare numbers; `mistakes` are hints with the wrong numbers that each mistake leads to.
    Raises Wrong.
    """
    want = np.asarray(want, float)
    found = numbers(got)
    if found is None:
        raise Wrong(
            f"{what} is a {type(got).__name__}; expected an array of real numbers, of shape "
            f"{want.shape}."
        )
    if same(found, want):
        return
    hint = next((hint for hint, wrong in mistakes.items() if same(found, wrong)), "")
    if found.shape != want.shape:
        raise Wrong(f"{what} has shape {found.shape}; expected {want.shape}.", hint)
    at = tuple(
        int(i) for i in np.argwhere(~np.isclose(found, want, rtol=ROUNDING, atol=ROUNDING))[0]
    )
    where = f"[{', '.join(map(str, at))}]" if at else ""
    digits = next((n for n in (6, 9, 12) if f"{found[at]:.{n}g}" != f"{want[at]:.{n}g}"), 17)
    raise Wrong(f"{what}{where} is {found[at]:.{digits}g}; expected {want[at]:.{digits}g}.", hint)


def explained(
    answers: Iterable[tuple[Any, Mapping[str, Any]]], alike: Callable[[Any, Any], bool] = eq
) -> str:
    """Return the first mistake, a hint, that leads to all of these answers, each given with what
    mistakes lead to; else "".
    """
    fits = [
        {hint: None for hint, wrong in mistakes.items() if alike(got, wrong)}
        for got, mistakes in answers
    ]
    return next((hint for hint in fits[0] if all(hint in others for others in fits)), "")


def pair(function: str, result: Any, what: str) -> tuple[Any, ...]:
    """Return what a function returned if it is as many things as `what` names. Raises Wrong."""
    count = what.count(",") + 1
    if not isinstance(result, tuple | list):
        raise Wrong(f"{function} returned a {type(result).__name__}; expected {what}.")
    if len(result) != count:
        raise Wrong(f"{function} returned {len(result)} values; expected {count}: {what}.")
    return tuple(result)


WHOLE = "// divides whole numbers; / makes a float."


def is_whole(given: Any) -> bool:
    """Say whether it is a whole number, Python's or NumPy's."""
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


def expect_count(what: str, got: Any, want: int, mistakes: Mapping[str, int]) -> None:
    """Compare counts with ==; `mistakes` as in `expect`. Raises Wrong."""
    if not is_whole(got):
        raise Wrong(f"{what} is {got!r}; expected a whole number, an int.", WHOLE)
    if got != want:
        hint = next((hint for hint, wrong in mistakes.items() if got == wrong), "")
        said = f"{got:,}" if abs(got) < 10**30 else "more digits than a count has"
        raise Wrong(f"{what}: {said}; expected {want:,}.", hint)


class Stage:
    """An HBM and an SRAM for a student's function: inputs placed by name, and the matrices by
    name.
    """

    def __init__(
        self, inputs: Mapping[str, Array], M: int = 10**6, observers: Sequence[Observer] = ()
    ) -> None:
        self.hbm = HBM()
        self.sram = SRAM(self.hbm, M, observers=observers)
        for name, values in inputs.items():
            self.hbm.place(name, values)

    def divided(self, name: str, rows: int) -> Matrix:
        """Return a matrix in blocks of so many rows."""
        return self.hbm.matrix(name).divide(rows)

    def output(
        self, name: str, shape: tuple[int, int], rows: int, value: float | None = None
    ) -> Matrix:
        """Allocate a matrix, in blocks of so many rows; filled with `value`, or not written."""
        if value is None:
            return self.hbm.empty(name, shape, np.float64, "output").divide(rows)
        return self.hbm.full(name, shape, value, np.float64, "output").divide(rows)

    def moved(self, name: str) -> tuple[int, int]:
        """Return the elements of a matrix that were read, and written."""
        traffic = self.hbm.traffic.by_array[name]
        return traffic.reads, traffic.writes


@dataclass
class Turns:
    """An observer that keeps, for each turn of the inner of two loops, both indices, and by name
    matrices of HBM and tiles.
    """

    matrices: Sequence[str] = ()
    tiles: Sequence[str] = ()
    seen: list[tuple[list[int], dict[str, Array]]] = field(default_factory=list)
    _last: dict[str, Array] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        if event.kind == "compute" and event.name in self.tiles and event.tile is not None:
            self._last[event.name] = np.array(event.tile)
        elif event.kind == "turn end" and len(event.loops) == 2:
            values = {name: np.array(event.sram.hbm.peek(name)) for name in self.matrices}
            self.seen.append(([index for _, index in event.loops], values | dict(self._last)))

    def judge(self, run: Callable[[], object], judged: Callable[..., None], want: int) -> None:
        """Run a student's loops, and judge the values of each turn, with its indices. Raises
        Wrong unless there are `want`.
        """
        try:
            run()
        finally:  # where a turn fails, those before it may show why
            for at, values in self.seen:
                judged(values, *at)
        if (got := len(self.seen)) != want:
            hint = (
                "Both loops are sram.loop(…), one within the other, as in the file at first: its "
                "turns are what is judged."
            )
            raise Wrong(f"{got} turns of the inner loop were seen; expected {want}.", hint)
