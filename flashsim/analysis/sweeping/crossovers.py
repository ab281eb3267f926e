"""Where one algorithm moves less than another: ranges of one argument, for each combination of
the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from operator import gt, lt
from typing import TYPE_CHECKING, Any

from flashsim.support.tables import cell

if TYPE_CHECKING:
    from flashsim.analysis.sweeping.result import Sweep

Row = dict[str, Any]
Line = dict[Any, Any]
"""Accesses by the value of one argument."""
MOST_RANGES = 4


def where_fewer(
    rows: Sequence[Row], axes: Sequence[str], along: str, y: str, algorithm: str, than: str | None
) -> list[Row]:
    """Return what `Sweep.where_fewer` does, of rows with counts. `axes` are the columns that
    vary.
    """
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    for name in (algorithm, *([] if than is None else [than])):
        if name not in names:
            raise ValueError(
                f"there are no counts of {name!r}; there are of "
                f"{', '.join(map(repr, names)) or 'none'}"
            )
    others = [name for name in names if name != algorithm] if than is None else [than]
    if than == algorithm:
        raise ValueError(f"than is {than!r}, the algorithm itself; expected another")
    rest = [name for name in axes if name not in ("algorithm", along)]
    groups = _lines(rows, rest, along, y)
    found = []
    for values, lines in groups.items():
        for other in others:
            fixed = dict(zip(rest, values, strict=True))
            found += [
                {"algorithm": algorithm, "than": other, **fixed, "along": along, **run}
                for run in _runs(lines.get(algorithm, {}), lines.get(other, {}))
            ]
    return found


def _lines(
    rows: Sequence[Row], rest: Sequence[str], along: str, y: str
) -> dict[tuple[Any, ...], dict[str, Line]]:
    """Return for each combination of `rest` each algorithm's line: `y`, where there is one, by
    the value of `along`.
    """
    groups: dict[tuple[Any, ...], dict[str, Line]] = {}
    for row in rows:
        if row[y] is None:
            continue
        lines = groups.setdefault(tuple(row[name] for name in rest), {})
        line = lines.setdefault(row["algorithm"], {})
        value = row[y]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(
                f"y is {y!r}, which is {value!r} in a row; expected numbers to compare"
            )
        if line.setdefault(row[along], value) != value:
            raise ValueError(
                f"several points of {row['algorithm']!r} at {along} = {cell(row[along])} have "
                "other counts, and look alike "
                "(two masks of one name?); give each a label, in a table of points"
            )
    return groups


def _runs(mine: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[Row]:
    """Return the ranges of keys, of those that both have, in which `mine` is less."""
    both = sorted(mine.keys() & other.keys())
    runs = [list(run) for less, run in groupby(both, lambda key: mine[key] < other[key]) if less]
    return [{"from": run[0], "to": run[-1], "points": len(run), "of": len(both)} for run in runs]


def sentences(sweep: Sweep, most: int = 12) -> list[str]:
    """Return what a reader looks for in the rows, in words: where the first algorithm moves
    less; what halves the traffic.
    """
    rows = list(sweep.ok)
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    try:
        along = sweep.longest_axis()
        rest = [name for name in sweep.axes if name not in ("algorithm", along)]
        by_values = _lines(rows, rest, along, "accesses_elements")
    except ValueError:
        return []
    groups = {}
    for values, lines in by_values.items():
        groups[
            ", ".join(f"{name} = {cell(value)}" for name, value in zip(rest, values, strict=True))
        ] = lines
    if len(names) == 1:
        said = _each({where: _halved(along, lines[names[0]]) for where, lines in groups.items()})
    else:
        said = [text for other in names[1:] for text in _against(names[0], other, along, groups)]
    return said[:most] + ([f"and {len(said) - most:,} more such lines"] if len(said) > most else [])


def _each(said: Mapping[str, str]) -> list[str]:
    return [f"{where}: {text}" if where else text for where, text in said.items() if text]


def _against(
    name: str, other: str, along: str, groups: Mapping[str, Mapping[str, Line]]
) -> list[str]:
    """Return where one algorithm moves fewer than another: in a line where that is everywhere or
    nowhere, else by group.
    """
    pairs = {
        where: (lines[name], lines[other])
        for where, lines in groups.items()
        if name in lines and other in lines
    }
    both = [
        (mine[key], theirs[key])
        for mine, theirs in pairs.values()
        for key in mine.keys() & theirs.keys()
    ]
    if not both:
        return []
    points = (
        f"at all {len(both):,} points that both have"
        if len(both) > 1
        else "at the point that both have"
    )
    if all(mine == theirs for mine, theirs in both):
        return [f"{name} and {other} move equally many {points}"]
    for word, holds in (("fewer", lt), ("more", gt)):
        if all(holds(mine, theirs) for mine, theirs in both):
            return [f"{name} moves {word} than {other} {points}"]
    if not any(mine < theirs for mine, theirs in both):
        return [f"{name} nowhere moves fewer than {other}"]
    return _each({where: _compared(name, other, along, *pair) for where, pair in pairs.items()})


def _compared(name: str, other: str, along: str, mine: Line, theirs: Line) -> str:
    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return ""
    runs = _runs(mine, theirs)
    tried = f"tried: {along} = {_range(both[0], both[-1])}, {len(both):,} values"
    if not runs:
        return f"{name} nowhere moves fewer than {other} ({tried})"
    if runs[0]["points"] == len(both):
        return f"{name} moves fewer than {other} everywhere ({tried})"
    parts = [_part(along, run["from"], run["to"], both) for run in runs[:MOST_RANGES]]
    left = len(runs) - MOST_RANGES
    more = f", and in {left:,} more range{'s' * (left > 1)}" if left > 0 else ""
    return f"{name} moves fewer than {other} {', '.join(parts)}{more} ({tried})"


def _part(along: str, first: Any, last: Any, tried: Sequence[Any]) -> str:
    if last == tried[-1]:
        return f"from {along} = {cell(first)} on"
    if first == tried[0]:
        return f"up to {along} = {cell(last)}"
    return f"at {along} = {_range(first, last)}"


def _halved(along: str, line: Line) -> str:
    keys = sorted(line)
    from_there_on = list(takewhile(lambda key: 2 * line[key] <= line[keys[0]], reversed(keys)))
    if not from_there_on:
        return ""
    return (
        f"half of what {along} = {cell(keys[0])} moves, or less: from {along} = "
        f"{cell(from_there_on[-1])} on"
    )


def _range(first: Any, last: Any) -> str:
    return cell(first) if first == last else f"{cell(first)} to {cell(last)}"
