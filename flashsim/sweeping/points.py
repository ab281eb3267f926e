"""Which points a sweep has: the product of all arguments' values, or the rows of a table with each combination of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from flashsim.algorithms import FORWARD, Algorithm
from flashsim.algorithms.own import chosen, forward_of
from flashsim.checking import DIRECTIONS, check_direction, shown
from flashsim.options import check_options
from flashsim.theory import Form, NoClosedForm, form_of

MOST_POINTS = 2**20
LABEL = "label"
ARGUMENTS = (
    "direction", "causal", "mask", "dropout_p", "dtype", "heads", "kv_heads", "gqa", "sizing", "d", "d_v", "M", "blocks",
    "N_k", "N_q", "N",
)  # fmt: skip
"""`count`'s, from the slowest to the fastest; behind the algorithm, and with its own options."""


@dataclass(frozen=True)
class Way:
    """An algorithm in one direction: what to count, its closed form if it has one, the names of its own options; or why not."""

    name: str
    algorithm: Algorithm | None = None
    form: Form | None = None
    options: tuple[str, ...] = ()
    refused: str = ""

    @classmethod
    def of(cls, what: Any, direction: Any) -> Way:
        """Return that of an algorithm as users give it."""
        name = what if isinstance(what, str) else str(getattr(what, "name", getattr(what, "__name__", shown(what))))
        try:
            algorithm = chosen(what, check_direction(direction))
        except ValueError as error:
            return cls(name, refused=str(error))
        try:
            form = form_of(algorithm, direction)
        except NoClosedForm:
            form = None
        options = tuple(option.name for option in forward_of(algorithm).options)
        return cls(algorithm.name, algorithm, form, options)


@dataclass(frozen=True)
class Point:
    """What to count: an algorithm in one direction, and the arguments of `count`, those that are not left out."""

    way: Way
    arguments: Mapping[str, Any]
    label: str = ""


def points_of(algorithms: Any, table: Any, options: Mapping[str, Any], caller: Callable[..., Any]) -> list[Point]:
    """Return the points. `options` are the other arguments by name, those that were given; `caller` is whose they are.

    Raises ValueError or TypeError for what would be wrong at every point.
    """
    rows = [{}] if table is None else _rows(table)
    in_table = {name for row in rows for name in row}
    axes = {name: _many(name, value) for name, value in options.items()}
    names = _many("algorithms", algorithms)
    for twice in sorted(in_table & axes.keys()):
        raise ValueError(f"{twice} is given twice: as an argument, and as a column of points")
    directions = axes.get("direction", ["forward"])
    ways = {(id(what), direction): Way.of(what, direction) for what in names for direction in DIRECTIONS}
    _check_names(names, {*axes, *in_table}, ways, caller)
    if not {"N", "N_q", "N_k"} & {*axes, *in_table}:
        raise ValueError("a length is missing: give N, or both N_q and N_k; one value or many")
    if "d" not in {*axes, *in_table}:
        raise ValueError("d is missing: the head dimension, one value or many")
    number = len(rows) * len(names) * math.prod(map(len, axes.values()))
    if number > MOST_POINTS:
        raise ValueError(f"this is {number:,} points; expected at most {MOST_POINTS:,}. Take fewer values at a time")
    return list(_points(rows, names, directions, axes, ways))


def _points(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[Any],
    directions: Sequence[Any],
    axes: Mapping[str, Sequence[Any]],
    ways: Mapping[tuple[int, str], Way],
) -> Iterator[Point]:
    for row in rows:
        row = dict(row)
        label = str(row.pop(LABEL, ""))
        here = [row.pop("algorithm")] if "algorithm" in row else names
        ways_here = [row.pop("direction")] if "direction" in row else directions
        for what in here:
            for direction in ways_here:
                known = isinstance(direction, str) and ways.get((id(what), direction))
                way = known or Way.of(what, direction)
                own = [name for name in axes if name not in ARGUMENTS and name in way.options]
                order = [*own, *(name for name in ARGUMENTS if name in axes and name != "direction")]
                for values in product(*(axes[name] for name in order)):
                    arguments = {**row, **dict(zip(order, values, strict=True))}
                    yield Point(way, {"direction": direction, **arguments}, label)


def _many(name: str, value: Any) -> list[Any]:
    """Return an argument's values: several, or one alone. A tuple is one where the argument takes tuples."""
    if hasattr(value, "tolist") and name != "mask" and (name == "blocks" or getattr(value, "ndim", 1) < 2):
        value = value.tolist()  # an array, a column of a table, a tensor, a NumPy number
    if isinstance(value, str | bytes | np.ndarray | Mapping | Algorithm) or not isinstance(value, Iterable):
        return [value]
    takes_tuples = name == "blocks" or name not in (*ARGUMENTS, "algorithms")
    if isinstance(value, tuple) and takes_tuples and not any(isinstance(each, tuple | list) for each in value):
        return [value]
    values = [tuple(each) if isinstance(each, list) and takes_tuples else each for each in value]
    if name == "blocks" and len(values) == 2 and all(isinstance(side, int) for side in values):
        return [tuple(values)]
    if not values:
        raise ValueError(f"{name} is {shown(value)}; expected at least one value")
    return values


def _rows(table: Any) -> list[dict[str, Any]]:
    """Return a table's rows: of a DataFrame, of columns by name, or of mappings. What is empty there (None, NaN) is left out."""
    expected = "a table: a DataFrame, a dictionary of columns, or a list of dictionaries"
    if hasattr(table, "to_dict") and hasattr(table, "columns"):  # of pandas
        table = table.to_dict("records")
    elif hasattr(table, "to_dicts"):  # of polars
        table = table.to_dicts()
    elif isinstance(table, Mapping):
        columns = {name: _many("N", column) for name, column in table.items()}
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            said = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
            raise ValueError(f"points has columns of several lengths: {said}; expected one length")
        table = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if isinstance(table, str) or not isinstance(table, Iterable):
        raise ValueError(f"points is {shown(table)}; expected {expected}")
    rows = list(table)
    for row in rows:
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise ValueError(f"points has the row {shown(row)}; expected {expected}")
    if not rows:
        raise ValueError("points has no rows; expected at least one")
    return [{name: _cell(value) for name, value in row.items() if not _is_empty(value)} for row in rows]


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _cell(value: Any) -> Any:
    """Return a cell's value: a column of whole numbers that has gaps is one of floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_names(
    names: Sequence[Any], given: set[str], ways: Mapping[tuple[int, str], Way], caller: Callable[..., Any]
) -> None:
    """Raise for an algorithm that there is not, and for an argument that none of the algorithms takes."""
    for what in names:
        both = [ways[id(what), direction] for direction in DIRECTIONS]
        if all(way.refused for way in both):
            raise ValueError(both[0].refused)
    taken = {name for way in ways.values() for name in way.options}
    others = given - taken - {*ARGUMENTS, "algorithm", LABEL}
    if "algorithm" in given:
        others -= {option.name for record in FORWARD.values() for option in record.options}
    known = [way.algorithm for way in ways.values() if way.algorithm is not None]
    for name in sorted(others):
        swept = " and ".join(dict.fromkeys(repr(record.name) for record in known))
        check_options(caller, {name: object()}, swept, forward_of(known[0]), FORWARD)
