"""The rows on a page: what varies, and what it costs; algorithms beside each other, where there
are several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, TypeVar

from flashsim.analysis.sweeping.records import Row
from flashsim.analysis.sweeping.table import Table
from flashsim.support.exporting import html_table
from flashsim.support.tables import aligned, cell

T = TypeVar("T")
WIDTH = 80
HTML_WIDTH = 160
MOST_REASONS = 5
PREDICATES = {
    "does not fit": ("does not fit", "do not fit"),
    "refused": ("makes no sense", "make no sense"),
}
"""What is said of one point of each status, and of several."""
BESIDE_BOUNDS = ("bound", "least ÷ bound")


@dataclass(frozen=True)
class Layout:
    """Headings and cells, all of them text, and how many of how many rows these are."""

    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    total: int

    @property
    def lines(self) -> list[str]:
        """The table as text; the second line is as wide as any."""
        rule = []
        for column in zip(self.headings, *self.cells, strict=True):
            rule.append("─" * max(map(len, column)))
        return aligned([self.headings, rule, *self.cells])

    @property
    def width(self) -> int:
        """How many characters its lines have at most."""
        return len(self.lines[1])

    @property
    def omission(self) -> list[str]:
        """A line that says how many rows are left out; none where all are there."""
        if len(self.cells) == self.total:
            return []
        return [f"{len(self.cells):,} of {self.total:,} shown"]


def as_text(table: Table, most: int, width: int = WIDTH) -> str:
    """Return `most` rows, evenly spread, as lines of at most `width` characters where that can
    be; and why others have none.
    """
    layout = _layout(table, most, width)
    lines = layout.lines
    for note in _notes(table, layout):
        lines += wrap(note, width, subsequent_indent="    ")
    return "\n".join(lines)


def as_html(table: Table, caption: str, most: int) -> str:
    """Return the same as a table in HTML."""
    layout = _layout(table, most, HTML_WIDTH)
    return html_table(caption, layout.headings, layout.cells, _notes(table, layout))


def _layout(table: Table, most: int, width: int) -> Layout:
    """Return the algorithms side by side where that is possible and not too wide; else a line for
    each row.
    """
    axes = list(table.axes)
    with suppress(ValueError):
        longest = table.longest_axis()
        axes.remove(longest)
        axes.append(longest)
    if "algorithm" in axes:
        layout = _side_by_side(table, [name for name in axes if name != "algorithm"], most)
        if layout is not None and layout.width <= width:
            return layout
    return _row_by_row(table, axes or ["algorithm"], most, width)


# --------------------------------------------------------------------------------------------------
# the algorithms side by side


def _side_by_side(table: Table, axes: Sequence[str], most: int) -> Layout | None:
    """Return a line for each combination of the arguments, with a column for each algorithm.

    None where nothing can be compared so: no two algorithms have a point in common, or two points
    of one algorithm look alike, as with two masks of one name.
    """
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in table.rows:
        by_name = groups.setdefault(tuple(row[name] for name in axes), {})
        name = str(row["algorithm"])
        if name in by_name:
            return None
        by_name[name] = row
    if all(len(by_name) == 1 for by_name in groups.values()):
        return None
    has_bounds = _has_bounds(table)
    names = table.algorithms
    lines = []
    for values, by_name in _spread(list(groups.items()), most):
        counts = _counts(by_name)
        line = [cell(value) for value in values]
        line += [cell(counts.get(name)) for name in names]
        line.append(_names_of_fewest(counts))
        if has_bounds:
            line += _cells_of_bounds(by_name.values())
        lines.append(line)
    headings = [*axes, *names, "fewest"]
    if has_bounds:
        headings += BESIDE_BOUNDS
    return Layout(headings, lines, len(groups))


def _counts(by_name: dict[str, Row]) -> dict[str, int]:
    counts = {}
    for name, row in by_name.items():
        if row.accesses_elements is not None:
            counts[name] = row.accesses_elements
    return counts


def _names_of_fewest(counts: dict[str, int]) -> str:
    if len(counts) < 2:
        return ""
    least = min(counts.values())
    names = [name for name, count in counts.items() if count == least]
    return "all equal" if len(names) == len(counts) else " = ".join(names)


def _cells_of_bounds(rows: Iterable[Row]) -> list[str]:
    bounds = []
    ratios = []
    for row in rows:
        if row.lower_bound_elements is not None and row.over_bound is not None:
            bounds.append(row.lower_bound_elements)
            ratios.append(row.over_bound)
    return [cell(max(bounds, default=None)), _ratio(min(ratios, default=None))]


# --------------------------------------------------------------------------------------------------
# a line for each row


def _row_by_row(table: Table, axes: Sequence[str], most: int, width: int) -> Layout:
    """Return a line for each row; columns that are too many for the width are left out, the last
    ones first.
    """
    rows = _spread(table.rows, most)
    columns = {name: [cell(row[name]) for row in rows] for name in axes}
    columns["accesses"] = [cell(row.accesses_elements) for row in rows]
    if "algorithm" not in axes:
        columns["÷ first"] = _ratios_to_first(table, axes[:-1], rows)
    if _has_bounds(table):
        columns["lower bound"] = [cell(row.lower_bound_elements) for row in rows]
        columns["÷ bound"] = [_ratio(row.over_bound) for row in rows]
    columns["÷ compulsory"] = [_ratio(row.over_compulsory) for row in rows]
    columns["peak ÷ M"] = [_ratio(row.peak_over_M) for row in rows]
    columns["B_r × B_c"] = [_blocks(row) for row in rows]
    layout = _of_columns(columns, len(table))
    while layout.width > width and len(columns) > len(axes) + 1:
        columns.popitem()
        layout = _of_columns(columns, len(table))
    return layout


def _of_columns(columns: dict[str, list[str]], total: int) -> Layout:
    return Layout(list(columns), list(zip(*columns.values(), strict=True)), total)


def _ratios_to_first(table: Table, axes: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """Return accesses divided by those of the first row with the same values of `axes`."""
    first: dict[tuple[Any, ...], int] = {}
    for row in table.rows:
        if row.accesses_elements is not None:
            first.setdefault(tuple(row[name] for name in axes), row.accesses_elements)
    ratios = []
    for row in rows:
        accesses = row.accesses_elements
        divisor = first.get(tuple(row[name] for name in axes))
        if accesses is None or divisor is None:
            ratios.append(_ratio(None))
        else:
            ratios.append(_ratio(accesses / divisor))
    return ratios


def _blocks(row: Row) -> str:
    return "–" if row.B_r is None else f"{row.B_r:,} × {row.B_c:,}"


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spread, with the first and, if there are several, the
    last.
    """
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / max(1, most - 1)
    return [items[round(index * step)] for index in range(most)]


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _has_bounds(table: Table) -> bool:
    return "over_bound" in table.columns


# --------------------------------------------------------------------------------------------------
# the lines below


def _notes(table: Table, layout: Layout) -> list[str]:
    return [
        *layout.omission,
        f"{table.fixed}; HBM accesses in elements",
        *_reasons(table.rows),
        *_excesses(table.rows),
        *_remarks_on_bounds(table.rows),
    ]


def _points(number: int) -> str:
    return f"{number:,} point" if number == 1 else f"{number:,} points"


def _reasons(rows: Iterable[Row]) -> list[str]:
    """Return why points have no counts, each reason once, the most frequent first."""
    reasons = Counter((row.status, row.reason) for row in rows if row.status != "ok")
    lines = []
    for (status, reason), number in reasons.most_common(MOST_REASONS):
        predicate = PREDICATES[status][number > 1]
        lines.append(f"{_points(number)} {predicate}: {reason}")
    if len(reasons) > MOST_REASONS:
        lines.append(f"and {len(reasons) - MOST_REASONS:,} other reasons")
    return lines


def _excesses(rows: Iterable[Row]) -> list[str]:
    """Return how many points have a peak that exceeds M, and by how much at most."""
    excesses = []
    for row in rows:
        if row.status == "ok" and row.over_M_elements:
            excesses.append(row.over_M_elements)
    if not excesses:
        return []
    largest = f"{max(excesses):,} elements"
    if len(excesses) > 1:
        largest += " at most"
    points = _points(len(excesses))
    return [f"{points} whose peak exceeds M, by {largest}: M is not enforced there"]


def _remarks_on_bounds(rows: Sequence[Row]) -> list[str]:
    """Return why points have no bound, each reason once; and what to make of points below
    theirs.
    """
    reasons = Counter(row.no_bound for row in rows if row.no_bound)
    lines = []
    for reason, number in reasons.most_common(MOST_REASONS):
        lines.append(f"{_points(number)} without a bound: {reason}")
    below = []
    for row in rows:
        if row.over_bound is not None and row.over_bound < 1:
            below.append(str(row["algorithm"]))
    if below:
        names = ", ".join(dict.fromkeys(below))
        lines.append(
            f"{_points(len(below))} below the bound: {names} computes less than attention, or in "
            "another way"
        )
    return lines
