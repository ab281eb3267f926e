"""Where one algorithm moves less than another: ranges of one argument, for each combination of
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import gt, lt
from typing import Any

from flashsim.analysis.sweeping.table import Table, is_number
from flashsim.support.tables import cell

Line = dict[Any, Any]
"""A column, such as accesses, by the value of one argument."""
Lines = dict[tuple[Any, ...], dict[str, Line]]
"""Each algorithm's line, for each combination of the other arguments that vary."""
MOST_RANGES = 4


def where_fewer(
    table: Table, algorithm: str, than: str | None, along: str | None, y: str
) -> list[dict[str, Any]]:
    """Return what `Sweep.where_fewer` does."""
    along = table.longest_axis() if along is None else table.name_of(along)
    numbers = table.axes_of_numbers()
    if along not in numbers:
        raise ValueError(
            f"along is {along!r}; expected an argument of numbers that varies: {', '.join(numbers)}"
        )
    y = table.name_of(y)
    names = table.ok.algorithms
    for name in (algorithm, than):
        if name is not None and name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise ValueError(f"there are no counts of {name!r}; there are of {known}")
    if than == algorithm:
        raise ValueError(f"than is {than!r}, the algorithm itself; expected another")
    others = [name for name in names if name != algorithm] if than is None else [than]
    rest = _other_axes(table, along)
    records = []
    for values, lines in _lines(table, along, y).items():
        fixed = dict(zip(rest, values, strict=True))
        for other in others:
            record = {"algorithm": algorithm, "than": other, **fixed, "along": along}
            ranges = _ranges(lines.get(algorithm, {}), lines.get(other, {}))
            records += [record | each_range for each_range in ranges]
    return records


def _other_axes(table: Table, along: str) -> list[str]:
    return [name for name in table.axes if name not in ("algorithm", along)]


def _lines(table: Table, along: str, y: str) -> Lines:
    """Return the lines of `y` over the values of `along`, of rows with counts.

    Raises ValueError where `y` is not a number, and where points of other counts look alike.
    """
    rest = _other_axes(table, along)
    groups: Lines = {}
    for row in table.ok.rows:
        value = row[y]
        if value is None:
            continue
        if not is_number(value):
            raise ValueError(
                f"y is {y!r}, which is {value!r} in a row; expected numbers to compare"
            )
        algorithm = str(row["algorithm"])
        lines = groups.setdefault(tuple(row[name] for name in rest), {})
        line = lines.setdefault(algorithm, {})
        if line.setdefault(row[along], value) != value:
            raise ValueError(
                f"several points of {algorithm!r} at {along} = {cell(row[along])} have other "
                "counts, and look alike (two masks of one name?); give each a label, in a table of "
                "points"
            )
    return groups


def _ranges(line: Line, other: Line) -> list[dict[str, Any]]:
    """Return the ranges of keys in which `line` is less: "from", "to", "points"; and "of", how many
    keys both lines have.
    """
    keys = sorted(line.keys() & other.keys())
    ranges = []
    for is_less, group in groupby(keys, lambda key: line[key] < other[key]):
        if is_less:
            run = list(group)
            ends = {"from": run[0], "to": run[-1]}
            ranges.append({**ends, "points": len(run), "of": len(keys)})
    return ranges


# --------------------------------------------------------------------------------------------------
# in words


def sentences(table: Table, most: int = 12) -> list[str]:
    """Return what a reader looks for in the rows, in at most `most` sentences: where the first
    algorithm moves less than the others; of one algorithm, what halves its traffic.
    """
    try:
        along = table.longest_axis()
        groups = _named_lines(table, along)
    except ValueError:
        return []
    names = table.ok.algorithms
    texts = []
    if len(names) == 1:
        halves = {place: _halves(along, lines[names[0]]) for place, lines in groups.items()}
        texts += _with_places(halves)
    for other in names[1:]:
        texts += _comparison(names[0], other, along, groups)
    if len(texts) > most:
        return [*texts[:most], f"and {len(texts) - most:,} more such lines"]
    return texts


def _named_lines(table: Table, along: str) -> dict[str, dict[str, Line]]:
    """Return the lines of accesses; their place, such as "d = 64", says what else is fixed."""
    rest = _other_axes(table, along)
    groups = {}
    for values, lines in _lines(table, along, "accesses_elements").items():
        pairs = zip(rest, values, strict=True)
        place = ", ".join(f"{name} = {cell(value)}" for name, value in pairs)
        groups[place] = lines
    return groups


def _with_places(texts: Mapping[str, str]) -> list[str]:
    """Return the texts that are not empty, each with its place, if it has one."""
    return [f"{place}: {text}" if place else text for place, text in texts.items() if text]


def _comparison(
    name: str, other: str, along: str, groups: Mapping[str, Mapping[str, Line]]
) -> list[str]:
    """Return where one algorithm moves fewer than another: in one line where that is everywhere or
    nowhere, else in a line for each place.
    """
    lines = {}
    pairs = []
    for place, by_name in groups.items():
        if name in by_name and other in by_name:
            line = by_name[name]
            other_line = by_name[other]
            lines[place] = (line, other_line)
            pairs += [(line[key], other_line[key]) for key in line.keys() & other_line.keys()]
    if not pairs:
        return []
    points = "at the point that both have"
    if len(pairs) > 1:
        points = f"at all {len(pairs):,} points that both have"
    if all(count == other_count for count, other_count in pairs):
        return [f"{name} and {other} move equally many {points}"]
    if _holds(lt, pairs):
        return [f"{name} moves fewer than {other} {points}"]
    if _holds(gt, pairs):
        return [f"{name} moves more than {other} {points}"]
    if not any(count < other_count for count, other_count in pairs):
        return [f"{name} nowhere moves fewer than {other}"]
    texts = {}
    for place, (line, other_line) in lines.items():
        texts[place] = _comparison_of_lines(name, other, along, line, other_line)
    return _with_places(texts)


def _holds(relation: Callable[[Any, Any], bool], pairs: Sequence[tuple[Any, Any]]) -> bool:
    return all(relation(count, other_count) for count, other_count in pairs)


def _comparison_of_lines(name: str, other: str, along: str, line: Line, other_line: Line) -> str:
    keys = sorted(line.keys() & other_line.keys())
    if not keys:
        return ""
    ranges = _ranges(line, other_line)
    tried = f"tried: {along} = {_from_to(keys[0], keys[-1])}, {len(keys):,} values"
    if not ranges:
        return f"{name} nowhere moves fewer than {other} ({tried})"
    if ranges[0]["points"] == len(keys):
        return f"{name} moves fewer than {other} everywhere ({tried})"
    parts = []
    for each_range in ranges[:MOST_RANGES]:
        parts.append(_range_in_words(along, each_range["from"], each_range["to"], keys))
    more = ""
    if len(ranges) > MOST_RANGES:
        number = len(ranges) - MOST_RANGES
        more = f", and in {number:,} more range{'s' if number > 1 else ''}"
    return f"{name} moves fewer than {other} {', '.join(parts)}{more} ({tried})"


def _range_in_words(along: str, first: Any, last: Any, keys: Sequence[Any]) -> str:
    if last == keys[-1]:
        return f"from {along} = {cell(first)} on"
    if first == keys[0]:
        return f"up to {along} = {cell(last)}"
    return f"at {along} = {_from_to(first, last)}"


def _halves(along: str, line: Line) -> str:
    """Return from which key on a line is at most half of what it is at its first key; "" where it
    nowhere is.
    """
    keys = sorted(line)
    first = None
    for key in reversed(keys):
        if 2 * line[key] > line[keys[0]]:
            break
        first = key
    if first is None:
        return ""
    return f"half of what {along} = {cell(keys[0])} moves, or less: from {along} = {cell(first)} on"


def _from_to(first: Any, last: Any) -> str:
    return cell(first) if first == last else f"{cell(first)} to {cell(last)}"
