"""`Sweep`: the rows, and where they go."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from flashsim.analysis.sweeping.columns import CERTIFICATE, FOLLOWS, meaning
from flashsim.analysis.sweeping.crossovers import where_fewer
from flashsim.analysis.sweeping.formatting import as_html, as_text, said_fixed
from flashsim.analysis.sweeping.rows import Row
from flashsim.attention.arguments import check_count, near, shown
from flashsim.support.exporting import Exported, given, in_csv, to_pandas
from flashsim.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 10
KINDS = {
    "ok": "with counts",
    "does_not_fit": "that do not fit M",
    "refused": "that make no sense",
    "cross_checked": "cross-checked by counting",
}


@dataclass(frozen=True, repr=False)
class Sweep(Exported, Sequence[Row]):
    """Rows, one for each point: dictionaries with the names of `columns`. A value is None if there
    is nothing to say.

    columns  the columns' names: the arguments, algorithms' own options included; what was found;
             the same by array
    given    the names of the arguments that were given, at some point
    command  what made it, if a command did
    """

    rows: Sequence[Row]
    columns: tuple[str, ...]
    given: Container[str]
    command: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sweep: ...
    def __getitem__(self, index: int | slice) -> Row | Sweep:
        if isinstance(index, slice):
            return replace(self, rows=self.rows[index])
        return {name: self.rows[index].get(name) for name in self.columns}

    @property
    def about(self) -> dict[str, str]:
        """What each column holds, by name. Of what was found, the name ends in its unit."""
        return {name: meaning(name) for name in self.columns}

    @property
    def ok(self) -> Sweep:
        """The rows with counts."""
        return replace(self, rows=[row for row in self.rows if row["status"] == "ok"])

    @property
    def refused(self) -> Sweep:
        """The rows without: of what does not fit, and of what makes no sense."""
        return replace(self, rows=[row for row in self.rows if row["status"] != "ok"])

    @property
    def checked(self) -> int:
        """How many rows were counted as well, and were equal."""
        return sum(row["checked"] for row in self.rows)

    @cached_property
    def axes(self) -> dict[str, list[Any]]:
        """The arguments that vary, each with its values in order of appearance: M is in
        elements.
        """
        follows = {
            name
            for name, of in FOLLOWS.items()
            if of in self.given and all(r[name] == r[of] for r in self.rows)
        }
        names = [
            name
            for name in self.columns
            if name == "algorithm" or (name in self.given and name not in follows)
        ]
        values = {name: list(dict.fromkeys(row.get(name) for row in self.rows)) for name in names}
        return {name: several for name, several in values.items() if len(several) > 1}

    @property
    def fixed(self) -> str:
        """What all rows have in common, in words: "flash, forward, d = 64, M = 25,600, heads =
        1, float32, sizing = fit".
        """
        return said_fixed(self)

    def column(self, name: str) -> list[Any]:
        """Return a column's values by its name; the unit may be left out, as in "accesses".
        ValueError for no such column.
        """
        name = self.name_of(name)
        return [row[name] for row in self]

    def name_of(self, column: str) -> str:
        """Return the whole name of a column whose unit was left out. Raises ValueError for no
        such column.
        """
        if column in self.columns:
            return column
        whole = [
            name
            for name in self.columns
            if isinstance(column, str) and name.startswith(f"{column}_")
        ]
        if not whole:
            short = {name.rpartition("_")[0]: name for name in self.columns if "_" in name}
            close = near(column, [*self.columns, *short])
            meant = f", perhaps you mean {short.get(close, close)!r}" if close else ""
            raise ValueError(
                f"there is no column {shown(column)}{meant}; there are {', '.join(self.columns)}"
            )
        return whole[0]

    def where_fewer(
        self,
        algorithm: str,
        than: str | None = None,
        *,
        along: str | None = None,
        y: str = "accesses",
    ) -> list[Row]:
        """Return the ranges of `along` in which an algorithm moves fewer elements than another, all
        else being equal.

        Each is a row: the other arguments that vary; "from" and "to", the first and last value of
        `along` tried; "points", how many there are in the range; "of", how many both algorithms
        have counts of, with those arguments.

        than   the other algorithm; None: each of the others
        along  an argument of numbers that varies; by default the one with most values
        y      what is compared

        Raises ValueError for no such column or algorithm, where nothing varies, and where points of
        other counts look alike.
        """
        along = self.longest_axis() if along is None else self.name_of(along)
        if along not in (numbers := self._axes_of_numbers()):
            raise ValueError(
                f"along is {along!r}; expected an argument of numbers that varies: "
                f"{', '.join(numbers)}"
            )
        return where_fewer(list(self.ok), list(self.axes), along, self.name_of(y), algorithm, than)

    def longest_axis(self) -> str:
        """Return the argument of numbers that has most values. Raises ValueError where none
        varies.
        """
        return max(self._axes_of_numbers(), key=lambda name: len(self.axes[name]))

    def _axes_of_numbers(self) -> list[str]:
        kinds = {name: set(map(type, values)) for name, values in self.axes.items()}
        found = [
            name
            for name, of in kinds.items()
            if bool not in of and all(issubclass(k, int | float) for k in of)
        ]
        if not found:
            raise ValueError(
                "no argument of numbers varies; expected one, such as N, with several values"
            )
        return found

    def plot(
        self,
        x: str | None = None,
        y: str = "accesses",
        by: str | Sequence[str] | None = None,
        ax: Axes | None = None,
        *,
        compulsory: bool = False,
        bound: bool | None = None,
    ) -> Axes:
        """Draw a column over another, a connected line for each combination of `by`; return the
        axes.

        x           by default the argument with the most values; B_c, where these are blocks
        by          by default all else that varies
        ax          axes of yours, which keep their settings; None: a new figure, as large as
                    matplotlib's settings say
        compulsory  draw, too, what any exact algorithm moves: inputs read once, outputs written
                    once
        bound       draw the lower bound, which `flashsim.sweep(…, bound=True)` finds; None: where
                    this sweep has it

        What does not fit M is grey, with the least size that does not. An axis of numbers of which
        the largest is ten times the least, or that double, is logarithmic. Raises ValueError for no
        such column, and for bounds that are not there.
        """
        from flashsim.analysis.sweeping.series import sweep_data
        from flashsim.drawing.sweep import plot_sweep

        return plot_sweep(
            sweep_data(self, x=x, y=y, by=by, compulsory=compulsory, bound=bound), ax=ax
        )

    @property
    def certificates(self) -> list[dict[str, Any]]:
        """The certificates of the rows' bounds (`flashsim.prove`), each once: each is of one KV
        head.
        """
        found = [row[CERTIFICATE] for row in self.rows if CERTIFICATE in row]
        return list({json.dumps(each): each for each in found}.values())

    @property
    def made(self) -> dict[str, Any]:
        """How the rows were made, and how many there are of each kind."""
        kinds = Counter(row["status"] for row in self.rows)
        return {
            "flashsim": __version__,
            "command": self.command or None,
            "points": len(self),
            **{kind: kinds[kind.replace("_", " ")] for kind in KINDS},
            "cross_checked": self.checked,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all there is: version, command, how many points there are of each kind, what
        columns hold, and the rows.
        """
        return {**self.made, "columns": self.about, "rows": list(self)}

    @overload
    def to_csv(self, path: None = None) -> str: ...
    @overload
    def to_csv(self, path: str | os.PathLike[str]) -> None: ...
    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Return the rows as CSV below the columns' names; with a path, write that file, wholly or
        not at all, and return None.

        A cell is empty where there is nothing to say; truths are true and false; text that a
        spreadsheet would take for a formula has a ' before it, which `--points` takes off again.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(map(in_csv, row.values()) for row in self)
        return given(text.getvalue(), path)

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`; its `attrs` say how they were made. Needs
        pandas, of the extra `pandas`.
        """
        return to_pandas(self, self.columns, attrs={**self.made, "columns": self.about})

    @property
    def summary(self) -> str:
        """What there is, in a line."""
        made = self.made
        over = ", ".join(f"{name} ({len(values):,})" for name, values in self.axes.items())
        parts = ", ".join(f"{made[kind]:,} {said}" for kind, said in KINDS.items() if made[kind])
        return (
            f"{len(self):,} point{'s' * (len(self) != 1)}"
            + (f" over {over}" if over else "")
            + f": {parts}"
        )

    def as_text(self, most: int = SHOWN, width: int = 80) -> str:
        """Return a table of `most` rows, evenly spread, with the algorithms side by side where they
        fit in `width` characters.

        Raises ValueError unless `most` is at least 1.
        """
        return as_text(self, check_count("most", most), width)

    def __repr__(self) -> str:
        return f"<Sweep of {self.summary}>\n{self.as_text()}"

    def _repr_html_(self) -> str:
        return as_html(self, SHOWN)
