"""The lines of a sweep's picture, as numbers: a column over another, a line for each combination
of all else that varies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flashsim.analysis.sweeping.columns import is_found
from flashsim.attention.arguments import shown

if TYPE_CHECKING:
    from flashsim.analysis.sweeping.result import Sweep

Row = dict[str, Any]
ACCESSES = "accesses_elements"
OTHER_SIDE = {"B_r": "B_c", "B_c": "B_r"}


def sweep_data(
    sweep: Sweep,
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
    for name, is_drawn in (("compulsory", compulsory), ("bound", bound)):
        if is_drawn and y != ACCESSES:
            raise ValueError(f"{name}=True is of accesses; y is {y!r}")
    has_bounds = "lower_bound_elements" in sweep.columns
    if bound and not has_bounds:
        raise ValueError(
            "bound=True: this sweep has no lower bounds; flashsim.sweep(…, bound=True) finds them"
        )
    named = [by] if isinstance(by, str) else by
    keys = _keys(sweep, x) if named is None else [sweep.name_of(name) for name in named]
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sweep:
        _put(row, x, y, lines.setdefault(tuple(row[name] for name in keys), _line(keys, row)))
    if not any(line["points"] for line in lines.values()):
        raise ValueError(f"no row has both {x} and {y}: there is nothing to draw")
    mixed = _mixed(sweep, x, keys, list(lines.values()))
    floors = _floors(y, compulsory=compulsory, bound=has_bounds if bound is None else bound)
    drawn = [_finished(line, floors) for line in lines.values() if line["points"] or line["unfit"]]
    rooms = {row["M"] for row in sweep}
    return {
        "x": x,
        "y": y,
        "what": sweep.about[y],
        "fixed": _fixed(sweep, x, keys),
        "mixed": mixed,
        "by": keys,
        "algorithms": list(dict.fromkeys(row["algorithm"] for row in sweep)),
        "M": rooms.pop() if len(rooms) == 1 else None,
        "square": all(row["B_r"] == row["B_c"] for row in sweep),
        "lines": drawn,
    }


def default_x(sweep: Sweep) -> str:
    """Return the argument with most values, or, where these are blocks, a side of theirs that
    varies. ValueError: none varies.
    """
    blocks = len(sweep.axes.get("blocks", ()))
    try:
        longest = sweep.longest_axis()
    except ValueError:
        longest = ""
    if blocks > (len(sweep.axes[longest]) if longest else 1):
        for side in ("B_c", "B_r"):
            if len(_values(sweep, side)) > 1:
                return side
    return longest or sweep.longest_axis()


def _values(sweep: Sweep, name: str) -> set[Any]:
    return {row[name] for row in sweep}


def _keys(sweep: Sweep, x: str) -> list[str]:
    """Return what lines are made by: all that varies, but for x, and for the argument along
    which x varies.
    """
    keys = [name for name in sweep.axes if name != x]
    if not is_found(x) or not keys:
        return keys
    numbers = [name for name in keys if all(_is_number(value) for value in sweep.axes[name])]
    if "blocks" not in keys and not numbers:
        return keys
    along = "blocks" if "blocks" in keys else max(numbers, key=lambda name: len(sweep.axes[name]))
    keys.remove(along)
    if along != "blocks":
        return keys
    side = OTHER_SIDE.get(x, "B_r")
    of_one_size: dict[tuple[Any, ...], set[Any]] = {}
    for row in sweep:
        of_one_size.setdefault(tuple(row[name] for name in (OTHER_SIDE[side], *keys)), set()).add(
            row[side]
        )
    if any(len(sides) > 1 for sides in of_one_size.values()):
        keys.append(side)
    return keys


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _line(keys: Sequence[str], row: Row) -> dict[str, Any]:
    return {
        "of": {name: row[name] for name in keys},
        "points": [],
        "unfit": set(),
        "compulsory": set(),
        "bounds": set(),
    }


def _put(row: Row, x: str, y: str, line: dict[str, Any]) -> None:
    """Put a row into its line. Raises ValueError for what is not a number."""
    for name in (x, y):
        value = row[name]
        if value is not None and not _is_number(value):
            also = "; B_c and B_r are their sides" if name == "blocks" else ""
            raise ValueError(f"{name} is {shown(value)} in a row; expected numbers to draw{also}")
    if row["status"] == "does not fit" and row[x] is not None:
        line["unfit"].add(row[x])
    if row["status"] != "ok" or row[x] is None or row[y] is None:
        return
    line["points"].append((row[x], row[y]))
    line["compulsory"].add((row[x], row["compulsory_elements"]))
    if row.get("lower_bound_elements") is not None:
        line["bounds"].add((row[x], row["lower_bound_elements"]))


def _floors(y: str, *, compulsory: bool, bound: bool) -> set[str]:
    """Return which of the lines below all others are wanted."""
    floors = {"bounds"} if bound and y == ACCESSES else set()
    return floors | {"compulsory"} if compulsory else floors


def _finished(line: dict[str, Any], floors: set[str]) -> dict[str, Any]:
    dropped = {"compulsory", "bounds"} - floors
    return {
        name: values if name == "of" else sorted(values)
        for name, values in line.items()
        if name not in dropped
    }


def _mixed(sweep: Sweep, x: str, keys: Sequence[str], lines: Sequence[dict[str, Any]]) -> list[str]:
    # nothing twice at one x
    if not any(len(dict(line["points"])) < len(line["points"]) for line in lines):
        return []
    return [name for name in sweep.axes if name not in (x, *keys)]


def _fixed(sweep: Sweep, x: str, keys: Sequence[str]) -> str:
    """Return `Sweep.fixed`, with the other side of blocks where it is one."""
    side = OTHER_SIDE.get(x)
    if (
        side is None
        or side in keys
        or "blocks" not in sweep.axes
        or len(sides := _values(sweep, side)) > 1
    ):
        return sweep.fixed
    return f"{sweep.fixed}, {side} = {sides.pop():,}"
