"""The lines of a sweep's picture, as numbers: a column over another, a line for each combination
of all else that varies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flashsim.analysis.sweeping.records import Row, is_result
from flashsim.analysis.sweeping.table import Table, is_number
from flashsim.attention.arguments import short_repr

ACCESSES = "accesses_elements"
OTHER_SIDE = {"B_r": "B_c", "B_c": "B_r"}


@dataclass(frozen=True)
class Line:
    """A line of the picture.

    by          the values that it is of, by column
    points      (x, y) of rows with counts
    unfit       the x of rows whose blocks do not fit M
    compulsory  (x, what any exact algorithm moves)
    bounds      (x, the lower bound)
    """

    by: dict[str, Any]
    points: list[tuple[Any, Any]] = field(default_factory=list)
    unfit: set[Any] = field(default_factory=set)
    compulsory: set[tuple[Any, Any]] = field(default_factory=set)
    bounds: set[tuple[Any, Any]] = field(default_factory=set)

    def add(self, row: Row, x: str, y: str) -> None:
        """Add a row's point. Raises ValueError for what is not a number."""
        x_value = _number(row, x)
        y_value = _number(row, y)
        if x_value is None:
            return
        if row.status == "does not fit":
            self.unfit.add(x_value)
        if row.status != "ok" or y_value is None:
            return
        self.points.append((x_value, y_value))
        self.compulsory.add((x_value, row.compulsory_elements))
        if row.lower_bound_elements is not None:
            self.bounds.add((x_value, row.lower_bound_elements))

    @property
    def has_several_at_one_x(self) -> bool:
        """Whether rows differ in something else than x and `by`."""
        return len(dict(self.points)) < len(self.points)


def sweep_data(
    sweep: Table,
    *,
    x: str | None = None,
    y: str = "accesses",
    by: str | Sequence[str] | None = None,
    compulsory: bool = False,
    bound: bool | None = None,
) -> dict[str, Any]:
    """Return the lines of a sweep's column y over its column x, by the values of the columns `by`.

    Each line has `of`, those values by name; `points`, (x, y) of rows with counts, in order of x;
    `unfit`, the x of rows whose blocks do not fit M. x is by default the argument with most values,
    B_c where these are blocks; `by`, all else that varies: of blocks over B_c that is B_r, where it
    varies of its own.

    compulsory  give each line `compulsory` too: (x, what any exact algorithm moves)
    bound       likewise `bounds`, the lower bounds; None: where y is accesses and the sweep has
                them

    `fixed` is `Sweep.fixed`; `mixed` are arguments that vary within a line. Raises ValueError for
    no such column, for one that is not of numbers, where there is nothing to draw, and for bounds
    that the sweep has not, or that are not of y.
    """
    x = default_x(sweep) if x is None else sweep.name_of(x)
    y = sweep.name_of(y)
    has_bounds = "lower_bound_elements" in sweep.columns
    _check_floors(y, compulsory=compulsory, bound=bound, has_bounds=has_bounds)
    keys = _keys(sweep, x, by)
    lines = _lines(sweep, x, y, keys)
    floors = []
    if compulsory:
        floors.append("compulsory")
    if y == ACCESSES and (has_bounds if bound is None else bound):
        floors.append("bounds")
    return {
        "x": x,
        "y": y,
        "what": sweep.about[y],
        "fixed": _fixed(sweep, x, keys),
        "mixed": _mixed(sweep, x, keys, lines),
        "by": keys,
        "algorithms": sweep.algorithms,
        "M": _only_M(sweep),
        "square": all(row.B_r == row.B_c for row in sweep.rows),
        "lines": [_record(line, floors) for line in lines if line.points or line.unfit],
    }


def default_x(sweep: Table) -> str:
    """Return the argument with most values, or, where these are blocks, a side of theirs that
    varies. ValueError: none varies.
    """
    blocks = sweep.axes.get("blocks", ())
    numbers = [len(values) for values in sweep.axes.values() if all(map(is_number, values))]
    if len(blocks) > max(numbers, default=1):
        for side in ("B_c", "B_r"):
            if len(_values(sweep, side)) > 1:
                return side
    return sweep.longest_axis()


def _check_floors(y: str, *, compulsory: bool, bound: bool | None, has_bounds: bool) -> None:
    """Check that what is to be drawn below the lines is of y, and is there."""
    for name, is_drawn in (("compulsory", compulsory), ("bound", bound)):
        if is_drawn and y != ACCESSES:
            raise ValueError(f"{name}=True is of accesses; y is {y!r}")
    if bound and not has_bounds:
        raise ValueError(
            "bound=True: this sweep has no lower bounds; flashsim.sweep(…, bound=True) finds them"
        )


# --------------------------------------------------------------------------------------------------
# what lines are made by


def _keys(sweep: Table, x: str, by: str | Sequence[str] | None) -> list[str]:
    """Return the columns that lines are made by."""
    if by is None:
        return _default_keys(sweep, x)
    names = [by] if isinstance(by, str) else by
    return [sweep.name_of(name) for name in names]


def _default_keys(sweep: Table, x: str) -> list[str]:
    """Return all that varies, but for x, and for the argument along which x varies.

    A result, such as B_c, varies along an argument: blocks, or the one with most values.
    """
    keys = [name for name in sweep.axes if name != x]
    if not is_result(x):
        return keys
    if "blocks" not in keys:
        numbers = [name for name in keys if all(map(is_number, sweep.axes[name]))]
        if numbers:
            keys.remove(max(numbers, key=lambda name: len(sweep.axes[name])))
        return keys
    keys.remove("blocks")
    side = OTHER_SIDE.get(x, "B_r")
    if _varies_of_its_own(sweep, side, keys):
        keys.append(side)
    return keys


def _varies_of_its_own(sweep: Table, side: str, keys: Sequence[str]) -> bool:
    """Return whether blocks with one size of the other side have several of this side."""
    sizes: dict[tuple[Any, ...], set[Any]] = {}
    for row in sweep.rows:
        key = tuple(row[name] for name in (OTHER_SIDE[side], *keys))
        sizes.setdefault(key, set()).add(row[side])
    return any(len(several) > 1 for several in sizes.values())


def _values(sweep: Table, name: str) -> set[Any]:
    return {row[name] for row in sweep.rows}


# --------------------------------------------------------------------------------------------------
# the lines


def _lines(sweep: Table, x: str, y: str, keys: Sequence[str]) -> list[Line]:
    lines: dict[tuple[Any, ...], Line] = {}
    for row in sweep.rows:
        by = {name: row[name] for name in keys}
        line = lines.setdefault(tuple(by.values()), Line(by))
        line.add(row, x, y)
    if not any(line.points for line in lines.values()):
        raise ValueError(f"no row has both {x} and {y}: there is nothing to draw")
    return list(lines.values())


def _number(row: Row, name: str) -> Any:
    value = row[name]
    if value is None or is_number(value):
        return value
    hint = "; B_c and B_r are their sides" if name == "blocks" else ""
    raise ValueError(f"{name} is {short_repr(value)} in a row; expected numbers to draw{hint}")


def _record(line: Line, floors: Sequence[str]) -> dict[str, Any]:
    record = {"of": line.by, "points": sorted(line.points), "unfit": sorted(line.unfit)}
    for name in floors:
        record[name] = sorted(getattr(line, name))
    return record


def _mixed(sweep: Table, x: str, keys: Sequence[str], lines: Sequence[Line]) -> list[str]:
    if not any(line.has_several_at_one_x for line in lines):
        return []
    return [name for name in sweep.axes if name not in (x, *keys)]


def _only_M(sweep: Table) -> Any:
    """Return the M of all rows; None where there are several."""
    sizes = _values(sweep, "M")
    return sizes.pop() if len(sizes) == 1 else None


def _fixed(sweep: Table, x: str, keys: Sequence[str]) -> str:
    """Return `Sweep.fixed`, with the other side of blocks where it is one."""
    side = OTHER_SIDE.get(x)
    if side is None or side in keys or "blocks" not in sweep.axes:
        return sweep.fixed
    sizes = _values(sweep, side)
    if len(sizes) > 1:
        return sweep.fixed
    return f"{sweep.fixed}, {side} = {sizes.pop():,}"
