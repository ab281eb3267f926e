"""`Sweep`: the rows of a sweep, and what they can be written as: text, CSV, JSON, a DataFrame, a
picture.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from flashsim.analysis.sweeping import crossovers, formatting
from flashsim.analysis.sweeping.table import Table
from flashsim.attention.arguments import check_count
from flashsim.support.exporting import Exported, csv_cell, to_pandas, write_or_return
from flashsim.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS_SHOWN = 10
KINDS = {
    "ok": "with counts",
    "does_not_fit": "that do not fit M",
    "refused": "that make no sense",
    "cross_checked": "cross-checked by counting",
}
"""The kinds of rows, and how a summary calls them."""


@dataclass(frozen=True, repr=False)
class Sweep(Exported, Table):
    """Rows, one for each point: dictionaries with the names of `columns`. A value is None if there
    is nothing to say.

    rows     the rows as records
    columns  the columns' names: the arguments, algorithms' own options included; the results; the
             accesses of each array
    given    the names of the arguments that were set, at some point
    command  what made it, if a command did
    """

    command: str = ""

    @property
    def checked(self) -> int:
        """How many rows were counted as well, and were equal."""
        return sum(row.checked for row in self.rows)

    def where_fewer(
        self,
        algorithm: str,
        than: str | None = None,
        *,
        along: str | None = None,
        y: str = "accesses",
    ) -> list[dict[str, Any]]:
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
        return crossovers.where_fewer(self, algorithm, than, along, y)

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

        data = sweep_data(self, x=x, y=y, by=by, compulsory=compulsory, bound=bound)
        return plot_sweep(data, ax=ax)

    @property
    def certificates(self) -> list[dict[str, Any]]:
        """The certificates of the rows' bounds (`flashsim.prove`), each once: each is of one KV
        head.
        """
        certificates = {}
        for row in self.rows:
            if row.certificate is not None:
                certificates[json.dumps(row.certificate)] = row.certificate
        return list(certificates.values())

    @property
    def made(self) -> dict[str, Any]:
        """How the rows were made, and how many there are of each kind."""
        kinds = Counter(row.status.replace(" ", "_") for row in self.rows)
        return {
            "flashsim": __version__,
            "command": self.command or None,
            "points": len(self),
            **{kind: kinds[kind] for kind in KINDS},
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
        for row in self:
            writer.writerow(csv_cell(value) for value in row.values())
        return write_or_return(text.getvalue(), path)

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`; its `attrs` say how they were made. Needs
        pandas, of the extra `pandas`.
        """
        return to_pandas(self, self.columns, attrs={**self.made, "columns": self.about})

    @property
    def summary(self) -> str:
        """What there is, in a line."""
        points = f"{len(self):,} point" if len(self) == 1 else f"{len(self):,} points"
        if self.axes:
            axes = [f"{name} ({len(values):,})" for name, values in self.axes.items()]
            points += f" over {', '.join(axes)}"
        made = self.made
        kinds = [f"{made[kind]:,} {text}" for kind, text in KINDS.items() if made[kind]]
        return f"{points}: {', '.join(kinds)}"

    def as_text(self, most: int = ROWS_SHOWN, width: int = 80) -> str:
        """Return a table of `most` rows, evenly spread, with the algorithms side by side where they
        fit in `width` characters.

        Raises ValueError unless `most` is at least 1.
        """
        return formatting.as_text(self, check_count("most", most), width)

    def __repr__(self) -> str:
        return f"<Sweep of {self.summary}>\n{self.as_text()}"

    def _repr_html_(self) -> str:
        return formatting.as_html(self, self.summary, ROWS_SHOWN)
