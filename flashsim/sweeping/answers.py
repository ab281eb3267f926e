"""Where one algorithm moves less than another: ranges of one argument, for each combination of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashsim.sweeping.result import Sweep

Row = dict[str, Any]


def where_fewer(
    rows: Sequence[Row], axes: Sequence[str], along: str, y: str, algorithm: str, than: str | None
) -> list[Row]:
    """Return what `Sweep.where_fewer` does, of rows with counts. `axes` are the columns that vary."""
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    for name in (algorithm, *([] if than is None else [than])):
        if name not in names:
            raise ValueError(f"there are no counts of {name!r}; there are of {', '.join(map(repr, names)) or 'none'}")
    others = [name for name in names if name != algorithm] if than is None else [than]
    groups: dict[tuple[Any, ...], dict[str, dict[Any, Any]]] = {}
    rest = [name for name in axes if name not in ("algorithm", along)]
    for row in rows:
        lines = groups.setdefault(tuple(row[name] for name in rest), {})
        lines.setdefault(row["algorithm"], {})[row[along]] = row[y]
    found = []
    for values, lines in groups.items():
        for other in others:
            fixed = dict(zip(rest, values, strict=True))
            found += [
                {"algorithm": algorithm, "than": other, **fixed, "along": along, **run}
                for run in _runs(lines.get(algorithm, {}), lines.get(other, {}))
            ]
    return found


def _runs(mine: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[Row]:
    """Return the ranges of keys, of those that both have, in which `mine` is less."""
    both = sorted(mine.keys() & other.keys())
    runs: list[Row] = []
    open_ = False
    for key in both:
        less = mine[key] < other[key]
        if less and not open_:
            runs.append({"from": key, "to": key, "points": 0, "of": len(both)})
        if less:
            runs[-1]["to"], runs[-1]["points"] = key, runs[-1]["points"] + 1
        open_ = less
    return runs


def sentences(sweep: Sweep, most: int = 12) -> list[str]:
    """Return what a reader looks for in the rows, in words: where the first algorithm moves less; what halves the traffic."""
    try:
        along = sweep.longest_axis()
    except ValueError:
        return []
    rows = list(sweep.ok)
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    rest = [name for name in sweep.axes if name not in ("algorithm", along)]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in rest), []).append(row)
    said = []
    for values, of_group in groups.items():
        where = ", ".join(f"{name} = {_value(value)}" for name, value in zip(rest, values, strict=True))
        lines: dict[str, dict[Any, Any]] = {name: {} for name in names}
        for row in of_group:
            lines[row["algorithm"]][row[along]] = row["accesses_elements"]
        found = [_compared(names[0], other, along, lines[names[0]], lines[other]) for other in names[1:]]
        if len(names) == 1:
            found = [_halved(along, lines[names[0]])]
        said += [f"{where}: {text}" if where else text for text in found if text]
    return said[:most] + ([f"and {len(said) - most:,} more such lines"] if len(said) > most else [])


def _compared(name: str, other: str, along: str, mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> str:
    both = sorted(mine.keys() & theirs.keys())
    if len(both) < 2:
        return ""
    runs, tried = _runs(mine, theirs), f"{along} = {_value(both[0])} to {_value(both[-1])}, {len(both):,} values"
    if not runs:
        return f"{name} nowhere moves fewer than {other} ({tried})"
    if runs[0]["points"] == len(both):
        return f"{name} moves fewer than {other} everywhere ({tried})"
    parts = []
    for run in runs[:4]:
        first, last = run["from"], run["to"]
        if last == both[-1] and first != last:
            parts.append(f"from {along} = {_value(first)} on")
        elif first == both[0] and first != last:
            parts.append(f"up to {along} = {_value(last)}")
        else:
            parts.append(f"{along} = {_value(first)}" + (f" to {_value(last)}" if first != last else ""))
    more = f", and in {len(runs) - 4:,} more ranges" if len(runs) > 4 else ""
    return f"{name} moves fewer than {other} {', '.join(parts)}{more} ({tried})"


def _halved(along: str, line: Mapping[Any, Any]) -> str:
    keys = sorted(line)
    half = [key for key in keys if 2 * line[key] <= line[keys[0]]]
    if not half:
        return ""
    return f"half of what {along} = {_value(keys[0])} moves, or less: from {along} = {_value(half[0])} on"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
