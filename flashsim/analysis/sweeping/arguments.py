"""The arguments of a sweep as users give them: one value or many, and tables of points."""

import math
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from flashsim.algorithms import Algorithm
from flashsim.algorithms import options as declared_options
from flashsim.analysis.sweeping.records import is_result
from flashsim.attention.arguments import short_repr
from flashsim.attention.problem import Problem

MOST_POINTS = 2**20
CHOICES = {name: entries[0][1].choices for name, entries in declared_options().items()}
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
"""The arguments of `flashsim.count` that may vary, from the slowest to the fastest. The algorithm
and its own options vary more slowly.
"""
TABLES = "a table: a DataFrame, a dictionary of columns, or a list of dictionaries"


def values_of(name: str, argument: Any) -> list[Any]:
    """Return an argument's values: several, or one alone.

    A tuple is one value where the argument takes tuples. Raises ValueError for no values, and for
    too many.
    """
    if _is_array_of_values(name, argument):
        argument = argument.tolist()
    if not _is_collection(argument):
        return [argument]
    takes_tuples = name == "blocks" or name not in (*ARGUMENTS, "algorithms")
    if takes_tuples and _is_plain_tuple(argument):
        return [argument]
    values = [_native(value) for value in _listed(name, argument)]
    if takes_tuples:
        values = [tuple(value) if isinstance(value, list) else value for value in values]
    if name == "blocks" and len(values) == 2 and all(isinstance(side, int) for side in values):
        return [tuple(values)]
    if not values:
        raise ValueError(f"{name} is {short_repr(argument)}; expected at least one value")
    return values


def _is_array_of_values(name: str, argument: Any) -> bool:
    """Return whether this is an array, a column of a table, a tensor or a NumPy number; a mask is
    one value.
    """
    if name == "mask" or not hasattr(argument, "tolist"):
        return False
    return name == "blocks" or getattr(argument, "ndim", 1) < 2


def _is_collection(argument: Any) -> bool:
    if isinstance(argument, str | bytes | np.ndarray | Mapping | Algorithm):
        return False
    return isinstance(argument, Iterable)


def _is_plain_tuple(argument: Any) -> bool:
    """Return whether this is a tuple that holds neither tuples nor lists."""
    if not isinstance(argument, tuple):
        return False
    return not any(isinstance(value, tuple | list) for value in argument)


def _native(value: Any) -> Any:
    """Return a NumPy number as Python's own, and anything else as it is."""
    if hasattr(value, "tolist") and getattr(value, "ndim", 1) == 0:
        return value.tolist()
    return value


def _listed(name: str, values: Iterable[Any]) -> list[Any]:
    listed = list(islice(values, MOST_POINTS + 1))
    if len(listed) > MOST_POINTS:
        raise ValueError(f"{name} has more than {MOST_POINTS:,} values; expected fewer")
    return listed


def rows_of_table(table: Any) -> list[dict[str, Any]]:
    """Return the arguments that each row of a table sets.

    A table is a DataFrame, columns by name, mappings, or problems. Cells that are empty (None, NaN)
    and columns of results are left out. Raises ValueError for what is no table, or has no rows.
    """
    rows = _listed("points", _records(table))
    arguments = []
    for row in rows:
        record = row.arguments if isinstance(row, Problem) else row
        if not isinstance(record, Mapping) or not all(isinstance(name, str) for name in record):
            raise ValueError(f"points has the row {short_repr(record)}; expected {TABLES}")
        arguments.append(_arguments(record))
    if not rows:
        raise ValueError("points has no rows; expected at least one")
    return arguments


def _records(table: Any) -> Iterable[Any]:
    if isinstance(table, Problem):
        return [table]
    if hasattr(table, "iloc"):  # of pandas
        return table.to_dict("records")  # type: ignore[no-any-return]
    if hasattr(table, "to_dicts"):  # of polars
        return table.to_dicts()  # type: ignore[no-any-return]
    if isinstance(table, Mapping):
        return _records_of_columns(table)
    if isinstance(table, str) or not isinstance(table, Iterable):
        raise ValueError(f"points is {short_repr(table)}; expected {TABLES}")
    return table


def _records_of_columns(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = {name: values_of("N", column) for name, column in table.items()}
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise ValueError(f"points has columns of several lengths: {lengths}; expected one length")
    records = []
    for values in zip(*columns.values(), strict=True):
        records.append(dict(zip(columns, values, strict=True)))
    return records


def _arguments(record: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {}
    for name, cell in record.items():
        if not is_result(name) and not _is_empty(cell):
            arguments[name] = _value_of_cell(name, cell)
    return arguments


def _is_empty(cell: Any) -> bool:
    if isinstance(cell, float):
        return math.isnan(cell)
    if isinstance(cell, str):
        return not cell
    return cell is None or type(cell).__name__ == "NAType"  # pandas'


def _value_of_cell(name: str, cell: Any) -> Any:
    """Return a cell's value. Whole numbers in a column with gaps are floats; blocks and the choices
    of options may be text.
    """
    if name == "blocks" and isinstance(cell, str):
        sides = re.split("[×x,]", cell)
        is_pair = all(side.strip().isdecimal() for side in sides)
        return tuple(int(side) for side in sides) if is_pair else cell
    if name in CHOICES and isinstance(cell, str):
        return CHOICES[name].get(cell, cell)
    cell = _native(cell)
    if name != "dropout_p" and isinstance(cell, float) and cell.is_integer():
        return int(cell)
    return cell
