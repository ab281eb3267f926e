"""A sweep's column over another: a line for each combination of the other arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator
from matplotlib.transforms import ScaledTranslation

from flashsim.drawing.style import BLACK, NAMED, canvas, looks, styled, ticks
from flashsim.problem.arguments import shown

if TYPE_CHECKING:
    from flashsim.sweeping import Sweep

COLOURS = [NAMED[name] for name in ("blue", "vermillion", "green", "orange", "purple", "sky", "grey")]
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
WIDTHS = (1.2, 2.4, 0.6)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST_NAMED = 14
TITLE = 46  # characters of a line of the title
FEW = 40  # points of a line up to which each has a marker
WIDE = 10  # a scale is logarithmic where its largest number is that many times its smallest, or more


def sweep_data(
    sweep: Sweep, *, x: str | None = None, y: str = "accesses", by: str | Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the lines of a sweep's column y over its column x, of rows with counts, by the values of the columns `by`.

    Each line has `of`, those values by name, and `points`, (x, y) in order of x; of accesses, `bounds` too, where the sweep has
    them. x is by default the argument with most values; `by`, the others that vary. `fixed` is `Sweep.fixed`; `mixed` are
    arguments that vary within a line. Raises ValueError for no such column, for one that is not of numbers, and where there is
    nothing to draw.
    """
    x, y = sweep.longest_axis() if x is None else sweep.name_of(x), sweep.name_of(y)
    named = [by] if isinstance(by, str) else by
    keys = [name for name in sweep.axes if name != x] if named is None else [sweep.name_of(name) for name in named]
    lines: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
    bounds: dict[tuple[Any, ...], set[tuple[Any, Any]]] = {}
    for row in sweep.ok:
        at = row[x], row[y]
        for name, value in zip((x, y), at, strict=True):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(f"{name} is {shown(value)} in a row; expected numbers to draw")
        if None not in at:
            key = tuple(row[name] for name in keys)
            lines.setdefault(key, []).append(at)
            if row.get("lower_bound_elements") is not None:
                bounds.setdefault(key, set()).add((row[x], row["lower_bound_elements"]))
    if not lines:
        raise ValueError(f"no row has both {x} and {y}: there is nothing to draw")
    drawn = [{"of": dict(zip(keys, key, strict=True)), "points": sorted(points)} for key, points in lines.items()]
    mixed = [name for name in sweep.axes if name not in (x, *keys)]
    if not any(len(dict(points)) < len(points) for points in lines.values()):  # nothing twice at one x
        mixed = []
    if y == "accesses_elements":
        for line, key in zip(drawn, lines, strict=True):
            line["bounds"] = sorted(bounds.get(key, ()))
    return {"x": x, "y": y, "what": sweep.about[y], "fixed": sweep.fixed, "mixed": mixed, "by": keys, "lines": drawn}


@styled
def plot_sweep(data: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Draw the lines of `sweep_data` on axes, by default of a new figure; return the axes."""
    lines = data["lines"]
    ax = canvas(ax, 2.8 + 0.13 * min(len(lines), MOST_NAMED + 1))
    for number, (line, look) in enumerate(zip(lines, _looks(lines), strict=True)):
        label = ", ".join(_said(*pair) for pair in line["of"].items()) if number < MOST_NAMED else None
        xs, ys = zip(*line["points"], strict=True)
        if data["mixed"]:
            look["linestyle"] = "none"
        elif len(xs) > FEW:
            look["marker"] = None
        ax.plot(xs, ys, **look, markerfacecolor="white", label=label or None)
    said = "lower bound"
    for least in dict.fromkeys(tuple(map(tuple, line.get("bounds", ()))) for line in lines):
        if least and not data["mixed"]:
            ax.plot(*zip(*least, strict=True), color=BLACK, linewidth=0.6, label=said, gid="lower bound", zorder=1)
            said = "_nolegend_"
    for axis, scale, index in ((ax.xaxis, ax.set_xscale, 0), (ax.yaxis, ax.set_yscale, 1)):
        values = [point[index] for line in lines for point in (*line["points"], *line.get("bounds", ()))]
        if min(values) > 0 and max(values) >= WIDE * min(values):
            scale("log")
            ticks(axis, LogLocator(10, (1, 2, 5) if max(values) < WIDE**3 * min(values) else (1,)))
        axis.set_major_formatter(EngFormatter(sep=""))
        if index == 0 and (steps := _doubling(values)):
            scale("log", base=2)
            ticks(axis, FixedLocator(steps), lambda value, _: f"{value:,.0f}")
    if len(ax.get_lines()) > 1 or data["mixed"]:
        if len(lines) > MOST_NAMED:
            ax.plot([], [], linestyle="none", label=f"and {len(lines) - MOST_NAMED} more")
        below = ax.transAxes + ScaledTranslation(0, -28 / 72, ax.figure.dpi_scale_trans)  # points, as the axis' label
        at: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (-0.1, 0), "bbox_transform": below}
        title = "\n".join(wrap(hint(data), TITLE)) if data["mixed"] else None
        at["handlelength"] = 4  # so long that dashes differ
        ax.legend(**at, fontsize=7, title=title, title_fontsize=7, alignment="left")
    ax.set_xlabel(_titled(data["x"]))
    ax.set_ylabel(_titled(data["y"]))
    fixed = wrap(data["fixed"].replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"), TITLE)
    ax.set_title("\n".join([data["what"].partition(":")[0], *fixed]), fontsize=7)
    return ax


def _doubling(values: Sequence[float]) -> list[float]:
    """Return the values, or every second, third, …, if three or more are each twice the one before it; else none."""
    steps = sorted({*values})
    if len(steps) < 3 or any(2 * before != after for before, after in pairwise(steps)):
        return []
    most = 9 if steps[-1] < 10_000 else 5  # as wide as their numbers
    return steps[:: -(-len(steps) // most)]


def hint(data: Mapping[str, Any]) -> str:
    """Say what the lines differ by, and what separates what is mixed in one; "" of a line alone that mixes nothing."""
    by, mixed = data["by"], data["mixed"]
    if mixed:
        vary = "vary" if mixed[1:] else "varies"
        return f"{' and '.join(mixed)} {vary} within a line: --by {' '.join([*by, *mixed])}"
    return f"a line for each of --by {' '.join(by)}" if len(data["lines"]) > 1 else ""


def _titled(column: str) -> str:
    """Return a column's name as an axis has it: the unit in brackets."""
    for unit in ("elements", "bytes", "flops_per_byte", "flops"):
        if column.endswith(f"_{unit}"):
            return f"{column.removesuffix(f'_{unit}').replace('_', ' ')} ({unit.replace('_', ' ')})"
    return f"{column} (elements)" if column == "M" else column.replace("_", " ")


def _looks(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how each line is drawn: colour and marker by the first value that it is of, dashes by the others; no two alike."""
    of: list[list[tuple[str, Any]]] = [list(line["of"].items()) for line in lines]
    firsts: list[Any] = list(dict.fromkeys(values[0][1] if values else None for values in of))
    if of[0] and of[0][0][0] == "algorithm":
        own = looks(firsts)
        colours = {name: (own[name].colour, own[name].marker) for name in firsts}
    else:
        colours = dict(zip(firsts, cycle(zip(COLOURS, MARKERS, strict=True)), strict=False))
    rests = dict(zip(dict.fromkeys(tuple(values[1:]) for values in of), cycle(DASHES), strict=False))
    found: list[dict[str, Any]] = []
    taken: set[tuple[Any, ...]] = set()
    for values in of:
        colour, marker = colours[values[0][1] if values else None]
        wanted = rests[tuple(values[1:])], WIDTHS[0], colour
        others = ((dashes, width, other) for other in (colour, *COLOURS) for width in WIDTHS for dashes in DASHES)
        look = next((look for look in (wanted, *others) if look not in taken), wanted)
        taken.add(look)
        found.append(dict(zip(("linestyle", "linewidth", "color"), look, strict=True)) | {"marker": marker})
    return found


def _said(name: str, value: Any) -> str:
    if name == "algorithm":
        return looks([value])[value].label
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} = {value:,}" if isinstance(value, int) else f"{name} = {value}"
