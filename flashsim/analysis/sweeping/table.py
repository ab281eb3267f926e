"""`Table`: the rows of a sweep, and which of its arguments vary."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, overload

from flashsim.analysis.sweeping.records import ARGUMENTS, DEFAULTS_TO, Row, meaning
from flashsim.attention.arguments import near, short_repr
from flashsim.support.tables import cell

WITHOUT_NAME = ("algorithm", "direction", "dtype", "mask")
"""Arguments whose values say what they are."""
UNREMARKABLE = {None, False, "separate"}
"""Defaults that change nothing."""


@dataclass(frozen=True, repr=False)
class Table(Sequence[dict[str, Any]]):
    """Rows, one for each point: dictionaries with the names of `columns`. A value is None if there
    is nothing to say.

    rows     the rows as records
    columns  the columns' names: the arguments, algorithms' own options included; the results; the
             accesses of each array
    given    the names of the arguments that were set, at some point
    """

    rows: Sequence[Row]
    columns: tuple[str, ...]
    given: Container[str]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Self:
        if isinstance(index, slice):
            return replace(self, rows=self.rows[index])
        values = self.rows[index].to_dict()
        return {name: values.get(name) for name in self.columns}

    @property
    def about(self) -> dict[str, str]:
        """What each column holds, by name. The name of a result ends in its unit."""
        return {name: meaning(name) for name in self.columns}

    @property
    def ok(self) -> Self:
        """The rows with counts."""
        return replace(self, rows=[row for row in self.rows if row.status == "ok"])

    @property
    def refused(self) -> Self:
        """The rows without: of what does not fit, and of what makes no sense."""
        return replace(self, rows=[row for row in self.rows if row.status != "ok"])

    @property
    def algorithms(self) -> list[str]:
        """The names of the algorithms, in order of appearance."""
        return list(dict.fromkeys(str(row["algorithm"]) for row in self.rows))

    @cached_property
    def axes(self) -> dict[str, list[Any]]:
        """The arguments that vary, each with its values in order of appearance: M is in
        elements.
        """
        axes = {}
        for name in self.columns:
            if name != "algorithm" and (name not in self.given or self._is_by_default(name)):
                continue
            values = list(dict.fromkeys(row.arguments.get(name) for row in self.rows))
            if len(values) > 1:
                axes[name] = values
        return axes

    def _is_by_default(self, name: str) -> bool:
        """Return whether an argument is, at all points, the other one that it defaults to."""
        other = DEFAULTS_TO.get(name)
        return other is not None and other in self.given and self._are_equal(name, other)

    def _are_equal(self, name: str, other: str) -> bool:
        return all(row.arguments[name] == row.arguments[other] for row in self.rows)

    @property
    def fixed(self) -> str:
        """What all rows have in common, in words: "flash, forward, d = 64, M = 25,600, heads =
        1, float32, sizing = fit".

        Left out are arguments that equal the one they default to, and defaults that change nothing.
        """
        words = []
        for name in self.columns:
            if name not in ARGUMENTS and name not in self.given:
                continue
            other = DEFAULTS_TO.get(name)
            if other is not None and self._are_equal(name, other):
                continue
            values = {row[name] for row in self.rows}
            if len(values) == 1 and not values & UNREMARKABLE:
                words.append(_in_words(name, values.pop()))
        return ", ".join(words)

    def column(self, name: str) -> list[Any]:
        """Return a column's values by its name; the unit may be left out, as in "accesses".
        ValueError for no such column.
        """
        name = self.name_of(name)
        return [row[name] for row in self.rows]

    def name_of(self, column: str) -> str:
        """Return the whole name of a column whose unit was left out. Raises ValueError for no
        such column.
        """
        if column in self.columns:
            return column
        if isinstance(column, str):
            for name in self.columns:
                if name.startswith(f"{column}_"):
                    return name
        without_unit = {name.rpartition("_")[0]: name for name in self.columns if "_" in name}
        close = near(column, [*self.columns, *without_unit])
        hint = f", perhaps you mean {without_unit.get(close, close)!r}" if close else ""
        raise ValueError(
            f"there is no column {short_repr(column)}{hint}; there are {', '.join(self.columns)}"
        )

    def longest_axis(self) -> str:
        """Return the argument of numbers that has most values. Raises ValueError where none
        varies.
        """
        return max(self.axes_of_numbers(), key=lambda name: len(self.axes[name]))

    def axes_of_numbers(self) -> list[str]:
        """Return the arguments of numbers that vary. Raises ValueError where none does."""
        names = [name for name, values in self.axes.items() if all(map(is_number, values))]
        if not names:
            raise ValueError(
                "no argument of numbers varies; expected one, such as N, with several values"
            )
        return names


def is_number(value: Any) -> bool:
    """Return whether a value can be compared and drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_words(name: str, value: Any) -> str:
    if name in WITHOUT_NAME:
        return str(value)
    return name if value is True else f"{name} = {cell(value)}"
