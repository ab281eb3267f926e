"""The rows on a page: what varies, and what was found; algorithms beside each other, where there
are several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

from flashsim.analysis.sweeping.columns import ARGUMENTS, FOLLOWS
from flashsim.support.exporting import table
from flashsim.support.tables import aligned, cell

if TYPE_CHECKING:
    from flashsim.analysis.sweeping.result import Sweep

Row = dict[str, Any]
T = TypeVar("T")
SILENT = {None, False, "separate"}
WIDTH = 80
REASONS = 5
WITHOUT = {
    "does not fit": ("does not fit", "do not fit"),
    "refused": ("makes no sense", "make no sense"),
}


@dataclass(frozen=True)
class Shown:
    """Headings and cells, all of them text, and lines to stand below."""

    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    notes: Sequence[str]

    @property
    def lines(self) -> list[str]:
        """The table as text; the second line is as wide as any."""
        line = [
            "─" * max(map(len, column)) for column in zip(self.headings, *self.cells, strict=True)
        ]
        return aligned([self.headings, line, *self.cells])


def as_text(sweep: Sweep, most: int, width: int = WIDTH) -> str:
    """Return `most` rows, evenly spread, as lines of at most `width` characters where that can
    be; and why others have none.
    """
    shown = _shown(sweep, most, width)
    notes = [line for note in shown.notes for line in wrap(note, width, subsequent_indent="    ")]
    return "\n".join([*shown.lines, *notes])


def as_html(sweep: Sweep, most: int) -> str:
    """Return the same as a table in HTML."""
    shown = _shown(sweep, most, 160)
    return table(sweep.summary, shown.headings, shown.cells, shown.notes)


def said_fixed(sweep: Sweep) -> str:
    """Return `Sweep.fixed`, without arguments that follow another one, and without defaults that
    change nothing.
    """
    rows = sweep.rows
    fixed = {
        name: {row.get(name) for row in rows}
        for name in sweep.columns
        if name in ARGUMENTS or name in sweep.given
    }
    for name, of in FOLLOWS.items():
        if all(row[name] == row[of] for row in rows):
            del fixed[name]
    return ", ".join(
        _word(name, *values)
        for name, values in fixed.items()
        if len(values) == 1 and not values & SILENT
    )


def _word(name: str, value: Any) -> str:
    if name in ("algorithm", "direction", "dtype", "mask"):
        return str(value)
    return name if value is True else f"{name} = {cell(value)}"


def _shown(sweep: Sweep, most: int, width: int) -> Shown:
    rows = list(sweep)
    axes = list(sweep.axes)
    with suppress(ValueError):
        axes.sort(key=[sweep.longest_axis()].count)  # it is the last
    shown = _beside(rows, axes, most) if "algorithm" in axes else None
    if shown is None or len(shown.lines[1]) > width:
        shown = _below(rows, axes or ["algorithm"], most, width)
    notes = [
        *shown.notes,
        f"{sweep.fixed}; HBM accesses in elements",
        *_reasons(rows),
        *_over_M(rows),
        *_without_bound(rows),
    ]
    return replace(shown, notes=notes)


def _beside(rows: Sequence[Row], axes: Sequence[str], most: int) -> Shown | None:
    """Return the algorithms beside each other; None where nothing can be compared so."""
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    axes = [name for name in axes if name != "algorithm"]
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    alike = False  # two masks of one name, say: one would hide the other
    for row in rows:
        line = lines.setdefault(tuple(row[name] for name in axes), {})
        alike |= row["algorithm"] in line
        line[row["algorithm"]] = row
    if alike or all(len(by_name) == 1 for by_name in lines.values()):
        return None
    cells = []
    for values, by_name in _spread(list(lines.items()), most):
        counts = {
            name: row["accesses_elements"] for name, row in by_name.items() if row["status"] == "ok"
        }
        least = [name for name, count in counts.items() if count == min(counts.values())]
        fewest = (
            ""
            if len(counts) < 2
            else " = ".join(least)
            if len(least) < len(counts)
            else "all equal"
        )
        cells.append([*map(cell, values), *(cell(counts.get(name)) for name in names), fewest])
        if _has_bounds(rows):
            bounds = [
                row["lower_bound_elements"]
                for row in by_name.values()
                if row["lower_bound_elements"] is not None
            ]
            ratios = [
                row["over_bound"] for row in by_name.values() if row["over_bound"] is not None
            ]
            cells[-1] += [cell(max(bounds, default=None)), _ratio(min(ratios, default=None), 1)]
    bounded = ["bound", "least ÷ bound"] if _has_bounds(rows) else []
    return Shown([*axes, *names, "fewest", *bounded], cells, _omitted(len(cells), len(lines)))


def _below(rows: Sequence[Row], axes: Sequence[str], most: int, width: int) -> Shown:
    first: dict[tuple[Any, ...], Any] = {}  # of each line of the last argument
    for row in rows:
        if row["status"] == "ok":
            first.setdefault(_group(row, axes), row["accesses_elements"])
    chosen = _spread(rows, most)
    columns = {name: [cell(row[name]) for row in chosen] for name in axes}
    columns["accesses"] = [cell(row["accesses_elements"]) for row in chosen]
    if "algorithm" not in axes:
        columns["÷ first"] = [
            _ratio(row["accesses_elements"], first.get(_group(row, axes))) for row in chosen
        ]
    if _has_bounds(rows):
        columns["lower bound"] = [cell(row["lower_bound_elements"]) for row in chosen]
        columns["÷ bound"] = [_ratio(row["over_bound"], 1) for row in chosen]
    columns["÷ compulsory"] = [_ratio(row["over_compulsory"], 1) for row in chosen]
    columns["peak ÷ M"] = [_ratio(row["peak_over_M"], 1) for row in chosen]
    columns["B_r × B_c"] = [
        "–" if row["B_r"] is None else f"{row['B_r']:,} × {row['B_c']:,}" for row in chosen
    ]
    while True:
        shown = Shown(
            list(columns),
            list(zip(*columns.values(), strict=True)),
            _omitted(len(chosen), len(rows)),
        )
        if len(shown.lines[1]) <= width or len(columns) <= len(axes) + 1:
            return shown
        columns.popitem()


def _group(row: Row, axes: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in axes[:-1])


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spread, with the first and, if there are several, the
    last.
    """
    if len(items) <= most:
        return list(items)
    return [items[round(at * (len(items) - 1) / max(1, most - 1))] for at in range(most)]


def _omitted(shown: int, there: int) -> list[str]:
    return [f"{shown:,} of {there:,} shown"] if shown < there else []


def _reasons(rows: Sequence[Row]) -> list[str]:
    found = Counter((row["status"], row["reason"]) for row in rows if row["status"] != "ok")
    lines = [
        f"{number:,} point{'s' * (number > 1)} {WITHOUT[status][number > 1]}: {reason}"
        for (status, reason), number in found.most_common(REASONS)
    ]
    return [
        *lines,
        *([f"and {len(found) - REASONS:,} other reasons"] if len(found) > REASONS else []),
    ]


def _over_M(rows: Sequence[Row]) -> list[str]:
    """Return how many points have a peak that exceeds M, and by how much at most."""
    over = [
        row["over_M_elements"] for row in rows if row["status"] == "ok" and row["over_M_elements"]
    ]
    if not over:
        return []
    points = f"{len(over):,} point{'s' * (len(over) > 1)}"
    return [
        (
            f"{points} whose peak exceeds M, by {max(over):,} "
            f"elements{' at most' * (len(over) > 1)}: M is not enforced there"
        )
    ]


def _has_bounds(rows: Sequence[Row]) -> bool:
    return any("over_bound" in row for row in rows)


def _without_bound(rows: Sequence[Row]) -> list[str]:
    """Return why points have no bound, each reason once; and what to make of points below
    theirs.
    """
    found = Counter(row["no_bound"] for row in rows if row.get("no_bound"))
    lines = [
        f"{number:,} point{'s' * (number > 1)} without a bound: {why}"
        for why, number in found.most_common(REASONS)
    ]
    below = [row["algorithm"] for row in rows if (row.get("over_bound") or 1) < 1]
    if below:
        names = ", ".join(dict.fromkeys(below))
        points = f"{len(below):,} point{'s' * (len(below) > 1)}"
        lines.append(
            f"{points} below the bound: {names} computes less than attention, or in another way"
        )
    return lines


def _ratio(value: Any, of: Any) -> str:
    return "–" if value is None or of is None else f"{value / of:,.2f}"
