"""Which points a sweep has: the product of all arguments' values, or the rows of a table with
each combination of the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np

from flashsim.algorithms import FORWARD, Algorithm
from flashsim.algorithms import options as declared
from flashsim.algorithms.own import forward_of, resolve
from flashsim.analysis.sweeping.columns import is_found
from flashsim.attention.arguments import DIRECTIONS, check_direction, shown
from flashsim.attention.options import check_options
from flashsim.attention.problem import Problem
from flashsim.theory import Form, NoClosedForm, form_of

MOST_POINTS = 2**20
LABEL = "label"
CHOICES = {name: whose[0][1].choices for name, whose in declared().items()}
ARGUMENTS = (
    "direction",
    "causal",
    "mask",
    "dropout_p",
    "dtype",
    "heads",
    "kv_heads",
    "gqa",
    "sizing",
    "enforce",
    "d",
    "d_v",
    "M",
    "blocks",
    "N_k",
    "N_q",
    "N",
)
"""`count`'s, from the slowest to the fastest; behind the algorithm, and with its own options."""


@dataclass(frozen=True)
class Way:
    """An algorithm in one direction: what to count, its closed form if it has one, the names of
    its own options; or why not.
    """

    name: str
    algorithm: Algorithm | None = None
    form: Form | None = None
    options: tuple[str, ...] = ()
    refused: str = ""

    @classmethod
    def of(cls, what: Any, direction: Any) -> Way:
        """Return that of an algorithm as users give it."""
        name = (
            what
            if isinstance(what, str)
            else str(getattr(what, "name", getattr(what, "__name__", shown(what))))
        )
        try:
            algorithm = resolve(what, check_direction(direction))
        except ValueError as error:
            return cls(name, refused=str(error))
        try:
            form = form_of(algorithm, direction)
        except NoClosedForm:
            form = None
        return cls(
            algorithm.name,
            algorithm,
            form,
            tuple(option.name for option in forward_of(algorithm).options),
        )

    def __reduce__(self) -> Any:  # a user's form may have lambdas: another process finds it anew
        known = self.algorithm
        return super().__reduce__() if known is None else (Way.of, (known, known.direction))


@dataclass(frozen=True)
class Point:
    """What to count: an algorithm in one direction, and the arguments of `count`, those that are
    not left out.
    """

    way: Way
    arguments: Mapping[str, Any]
    label: str = ""


def points_of(
    algorithms: Any, table: Any, options: Mapping[str, Any], caller: Callable[..., Any]
) -> list[Point]:
    """Return the points of `caller`'s arguments. Raises ValueError or TypeError for what would
    be wrong at every point.
    """
    rows = [{}] if table is None else _rows(table)
    axes = {name: _many(name, value) for name, value in options.items()}
    names = _many("algorithms", algorithms)
    given = {*axes, *(name for row in rows for name in row)}
    for twice in sorted({name for row in rows for name in row} & axes.keys()):
        raise ValueError(f"{twice} is given twice: as an argument, and as a column of points")
    ways = _Ways()
    _check_names(names, given, ways, caller)
    if not {"N", "N_q", "N_k"} & given:
        raise ValueError("a length is missing: give N, or both N_q and N_k; one value or many")
    if "d" not in given:
        raise ValueError("d is missing: give the head dimension; one value or many")
    number = len(rows) * len(names) * math.prod(map(len, axes.values()))
    if number > MOST_POINTS:
        raise ValueError(
            f"this is {number:,} points; expected at most {MOST_POINTS:,}. Take fewer values at a "
            "time"
        )
    return list(_points(rows, names, axes, ways))


class _Ways(dict[tuple[Any, str], Way]):
    def of(self, what: Any, direction: Any) -> Way:
        key = what if isinstance(what, str) else id(what), repr(direction)
        if key not in self:
            self[key] = Way.of(what, direction)
        return self[key]


def _points(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[Any],
    axes: Mapping[str, Sequence[Any]],
    ways: _Ways,
) -> Iterator[Point]:
    for row in rows:
        fixed = {
            name: value
            for name, value in row.items()
            if name not in ("algorithm", "direction", LABEL)
        }
        directions = (
            [row["direction"]] if "direction" in row else axes.get("direction", ["forward"])
        )
        for what, direction in product(
            [row["algorithm"]] if "algorithm" in row else names, directions
        ):
            way = ways.of(what, direction)
            own = [name for name in axes if name not in ARGUMENTS and name in way.options]
            order = [*own, *(name for name in ARGUMENTS if name in axes and name != "direction")]
            for values in product(*(axes[name] for name in order)):
                arguments = {
                    "direction": direction,
                    **fixed,
                    **dict(zip(order, values, strict=True)),
                }
                yield Point(way, arguments, str(row.get(LABEL, "")))


def _check_names(
    names: Sequence[Any], given: set[str], ways: _Ways, caller: Callable[..., Any]
) -> None:
    for what in names:
        both = [ways.of(what, direction) for direction in DIRECTIONS]
        if all(way.refused for way in both):
            raise ValueError(both[0].refused)
    known = [way.algorithm for way in ways.values() if way.algorithm is not None]
    taken = {name for way in ways.values() for name in way.options}
    if "algorithm" in given:  # each row says which
        taken |= CHOICES.keys()
    for name in sorted(given - taken - {*ARGUMENTS, "algorithm", LABEL}):
        swept = " and ".join(dict.fromkeys(repr(record.name) for record in known))
        check_options(caller, {name: object()}, swept, forward_of(known[0]), FORWARD)


def _many(name: str, value: Any) -> list[Any]:
    """Return an argument's values: several, or one alone. A tuple is one where the argument
    takes tuples.
    """
    if (
        hasattr(value, "tolist")
        and name != "mask"
        and (name == "blocks" or getattr(value, "ndim", 1) < 2)
    ):
        value = value.tolist()  # an array, a column of a table, a tensor, a NumPy number
    if isinstance(value, str | bytes | np.ndarray | Mapping | Algorithm) or not isinstance(
        value, Iterable
    ):
        return [value]
    takes_tuples = name == "blocks" or name not in (*ARGUMENTS, "algorithms")
    if (
        isinstance(value, tuple)
        and takes_tuples
        and not any(isinstance(each, tuple | list) for each in value)
    ):
        return [value]
    values = [
        tuple(each) if isinstance(each, list) and takes_tuples else each
        for each in _ended(name, value)
    ]
    if name == "blocks" and len(values) == 2 and all(isinstance(side, int) for side in values):
        return [tuple(values)]
    if not values:
        raise ValueError(f"{name} is {shown(value)}; expected at least one value")
    return values


def _ended(name: str, values: Iterable[Any]) -> list[Any]:
    found = list(islice(values, MOST_POINTS + 1))
    if len(found) > MOST_POINTS:
        raise ValueError(f"{name} has more than {MOST_POINTS:,} values; expected fewer")
    return found


def _rows(table: Any) -> list[dict[str, Any]]:
    """Return a table's rows, of a DataFrame, columns by name, mappings, or problems, but for
    what is empty there (None, NaN).
    """
    expected = "a table: a DataFrame, a dictionary of columns, or a list of dictionaries"
    table = [table] if isinstance(table, Problem) else table
    if hasattr(table, "iloc"):  # of pandas
        table = table.to_dict("records")
    elif hasattr(table, "to_dicts"):  # of polars
        table = table.to_dicts()
    elif isinstance(table, Mapping):
        columns = {name: _many("N", column) for name, column in table.items()}
        if len({len(column) for column in columns.values()}) > 1:
            said = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
            raise ValueError(f"points has columns of several lengths: {said}; expected one length")
        table = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
    if isinstance(table, str) or not isinstance(table, Iterable):
        raise ValueError(f"points is {shown(table)}; expected {expected}")
    rows = [row.arguments if isinstance(row, Problem) else row for row in _ended("points", table)]
    for row in rows:
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise ValueError(f"points has the row {shown(row)}; expected {expected}")
    if not rows:
        raise ValueError("points has no rows; expected at least one")
    asked = [
        {name: value for name, value in row.items() if not is_found(name) and not _is_empty(value)}
        for row in rows
    ]
    return [{name: _cell(name, value) for name, value in row.items()} for row in asked]


def _is_empty(value: Any) -> bool:
    missing = value is None or type(value).__name__ == "NAType"  # pandas'
    return (
        missing
        or (isinstance(value, str) and not value)
        or (isinstance(value, float) and math.isnan(value))
    )


def _cell(name: str, value: Any) -> Any:
    """Return a cell's value. Whole numbers in a column with gaps are floats; blocks, and
    options' choices, may be text.
    """
    if name == "blocks" and isinstance(value, str):
        sides = re.split("[×x,]", value)
        return (
            tuple(int(side) for side in sides)
            if all(side.strip().isdecimal() for side in sides)
            else value
        )
    if name in CHOICES and isinstance(value, str):
        return CHOICES[name].get(value, value)
    if hasattr(value, "tolist") and getattr(value, "ndim", 1) == 0:  # a NumPy number
        value = value.tolist()
    return (
        int(value)
        if name != "dropout_p" and isinstance(value, float) and value.is_integer()
        else value
    )
