"""The points of a sweep: the product of all arguments' values, or of a table's rows with each
combination of the other arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from flashsim.algorithms import FORWARD, Algorithm
from flashsim.algorithms.own import forward_of, resolve
from flashsim.analysis.sweeping.arguments import (
    ARGUMENTS,
    CHOICES,
    MOST_POINTS,
    rows_of_table,
    values_of,
)
from flashsim.attention.arguments import DIRECTIONS, check_direction, short_repr
from flashsim.attention.options import check_options
from flashsim.theory import Form, NoClosedForm, form_of

LABEL = "label"


@dataclass(frozen=True)
class AlgorithmPass:
    """An algorithm in one direction; or the reason why there is none.

    algorithm  its record; None: there is none, and `refusal` says why
    form       its closed form, if it has one
    options    the names of its own options
    """

    name: str
    algorithm: Algorithm | None = None
    form: Form | None = None
    options: tuple[str, ...] = ()
    refusal: str = ""

    @classmethod
    def of(cls, algorithm: Any, direction: Any) -> AlgorithmPass:
        """Return that of an algorithm as users give it: a name, a record or a function."""
        try:
            record = resolve(algorithm, check_direction(direction))
        except ValueError as error:
            return cls(_name_of(algorithm), refusal=str(error))
        try:
            form = form_of(record, direction)
        except NoClosedForm:
            form = None
        options = tuple(option.name for option in forward_of(record).options)
        return cls(record.name, record, form, options)

    def __reduce__(self) -> Any:  # another process finds the form anew: a user's may have lambdas
        if self.algorithm is None:
            return super().__reduce__()
        return AlgorithmPass.of, (self.algorithm, self.algorithm.direction)


def _name_of(algorithm: Any) -> str:
    if isinstance(algorithm, str):
        return algorithm
    for attribute in ("name", "__name__"):
        if hasattr(algorithm, attribute):
            return str(getattr(algorithm, attribute))
    return short_repr(algorithm)


@dataclass(frozen=True)
class Point:
    """What to count: an algorithm's pass, and the arguments of `flashsim.count` that are not left
    out.
    """

    algorithm_pass: AlgorithmPass
    arguments: Mapping[str, Any]
    label: str = ""


@dataclass(frozen=True)
class _Passes:
    """The passes of a sweep, each made once."""

    by_key: dict[tuple[Any, str], AlgorithmPass] = field(default_factory=dict)

    def of(self, algorithm: Any, direction: Any) -> AlgorithmPass:
        name = algorithm if isinstance(algorithm, str) else id(algorithm)
        key = (name, repr(direction))
        if key not in self.by_key:
            self.by_key[key] = AlgorithmPass.of(algorithm, direction)
        return self.by_key[key]


def points_of(
    algorithms: Any, table: Any, arguments: Mapping[str, Any], caller: Callable[..., Any]
) -> list[Point]:
    """Return the points of `caller`'s arguments: one value or many each, and a table or None.

    Raises ValueError or TypeError for what would be wrong at every point.
    """
    rows = [{}] if table is None else rows_of_table(table)
    axes = {name: values_of(name, argument) for name, argument in arguments.items()}
    algorithms = values_of("algorithms", algorithms)
    columns = {name for row in rows for name in row}
    for name in sorted(columns & axes.keys()):
        raise ValueError(f"{name} is given twice: as an argument, and as a column of points")
    passes = _Passes()
    _check_names(algorithms, columns | axes.keys(), passes, caller)
    number = len(rows) * len(algorithms) * math.prod(map(len, axes.values()))
    if number > MOST_POINTS:
        raise ValueError(
            f"this is {number:,} points; expected at most {MOST_POINTS:,}. Take fewer values at a "
            "time"
        )
    points: list[Point] = []
    for row in rows:
        points += _points_of_row(row, algorithms, axes, passes)
    return points


def _check_names(
    algorithms: Sequence[Any], names: set[str], passes: _Passes, caller: Callable[..., Any]
) -> None:
    """Check that each algorithm has a pass, that some algorithm takes each argument, and that none
    is missing.
    """
    for algorithm in algorithms:
        both = [passes.of(algorithm, direction) for direction in DIRECTIONS]
        if all(each.refusal for each in both):
            raise ValueError(both[0].refusal)
    records = []
    options: set[str] = set()
    for each in passes.by_key.values():
        options.update(each.options)
        if each.algorithm is not None:
            records.append(each.algorithm)
    if "algorithm" in names:  # each row names its own
        options |= CHOICES.keys()
    for name in sorted(names - options - {*ARGUMENTS, "algorithm", LABEL}):
        takers = " and ".join(dict.fromkeys(repr(record.name) for record in records))
        check_options(caller, {name: object()}, takers, forward_of(records[0]), FORWARD)
    if not {"N", "N_q", "N_k"} & names:
        raise ValueError("a length is missing: give N, or both N_q and N_k; one value or many")
    if "d" not in names:
        raise ValueError("d is missing: give the head dimension; one value or many")


def _points_of_row(
    row: Mapping[str, Any],
    algorithms: Sequence[Any],
    axes: Mapping[str, Sequence[Any]],
    passes: _Passes,
) -> Iterator[Point]:
    """Yield the points of a table's row with each combination of the other arguments."""
    fixed = dict(row)
    label = str(fixed.pop(LABEL, ""))
    if "algorithm" in row:
        algorithms = [fixed.pop("algorithm")]
    directions = axes.get("direction", ["forward"])
    if "direction" in row:
        directions = [fixed.pop("direction")]
    shared = [name for name in ARGUMENTS if name in axes and name != "direction"]
    for algorithm, direction in product(algorithms, directions):
        algorithm_pass = passes.of(algorithm, direction)
        options = algorithm_pass.options
        own = [name for name in axes if name in options and name not in ARGUMENTS]
        names = [*own, *shared]
        for values in product(*(axes[name] for name in names)):
            varied = dict(zip(names, values, strict=True))
            arguments = {"direction": direction, **fixed, **varied}
            yield Point(algorithm_pass, arguments, label)


def pieces_of(points: Sequence[Point], size: int) -> list[list[Point]]:
    """Return the points in pieces of this size; the last may be smaller."""
    return [list(points[first : first + size]) for first in range(0, len(points), size)]
