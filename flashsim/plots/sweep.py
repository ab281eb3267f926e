"""A sweep's column over another: a line for each combination of the other arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from flashsim.checking import shown
from flashsim.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    column_figure,
    dress,
    looks,
    styled,
)

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FEW = 40  # points of a line up to which each has a marker
WIDE = 10  # a scale is logarithmic where its largest number is that many times its smallest, or more


class Rows(Protocol):
    """What of `flashsim.sweeping.Sweep` is drawn."""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The arguments that vary."""

    @property
    def about(self) -> dict[str, str]:
        """What each column holds."""

    @property
    def ok(self) -> Sequence[dict[str, Any]]:
        """The rows with counts."""

    def name_of(self, column: str) -> str:
        """Return the whole name of a column."""

    def longest_axis(self) -> str:
        """Return the argument with most values."""


def sweep_data(
    sweep: Rows, *, x: str | None = None, y: str = "accesses", by: str | Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the lines of a sweep's column y over its column x, of rows with counts, by the values of the columns `by`.

    Each line has `of`, those values by name, and `points`, (x, y) in order of x. x is by default the argument with most
    values; `by`, the others that vary. Raises ValueError for no such column, for one that is not of numbers, and where there is
    nothing to draw.
    """
    x, y = sweep.longest_axis() if x is None else sweep.name_of(x), sweep.name_of(y)
    named = [by] if isinstance(by, str) else by
    keys = [name for name in sweep.axes if name != x] if named is None else [sweep.name_of(name) for name in named]
    lines: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
    for row in sweep.ok:
        at = row[x], row[y]
        for name, value in zip((x, y), at, strict=True):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(f"{name} is {shown(value)} in a row; expected numbers to draw")
        if None not in at:
            lines.setdefault(tuple(row[name] for name in keys), []).append(at)
    if not lines:
        raise ValueError(f"no row has both {x} and {y}: there is nothing to draw")
    drawn = [{"of": dict(zip(keys, key, strict=True)), "points": sorted(points)} for key, points in lines.items()]
    return {"x": x, "y": y, "what": sweep.about[y], "lines": drawn}


@styled
def plot_sweep(data: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Draw the lines of `sweep_data` on axes, by default of a new figure; return the axes."""
    ax = column_figure(2.8).subplots() if ax is None else ax
    dress(ax)
    lines = data["lines"]
    names = list(dict.fromkeys(line["of"]["algorithm"] for line in lines if "algorithm" in line["of"]))
    look, spare = looks(names), cycle(zip(COLOURS, MARKERS, strict=True))
    alone = len(names) == len(lines)
    for line in lines:
        name = line["of"].get("algorithm")
        rest = [f"{key} = {_said(value)}" for key, value in line["of"].items() if key != "algorithm"]
        label = ", ".join([*([look[name].label] if name else []), *rest])
        colour, marker = (look[name].colour, look[name].marker) if name and alone else next(spare)
        dashes = look[name].dashes if name else "-"
        xs, ys = zip(*line["points"], strict=True)
        few = marker if len(xs) <= FEW else None
        ax.plot(xs, ys, color=colour, linestyle=dashes, marker=few, markerfacecolor="white", label=label or None)
    for axis, scale, index in ((ax.xaxis, ax.set_xscale, 0), (ax.yaxis, ax.set_yscale, 1)):
        values = [point[index] for line in lines for point in line["points"]]
        if min(values) > 0 and max(values) >= WIDE * min(values):
            scale("log")
            axis.set_major_locator(LogLocator(10))
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(EngFormatter(sep=""))
    if len(lines) > 1:
        ax.legend(loc="best", fontsize=8 if len(lines) <= 6 else 6)
    ax.set_xlabel(_titled(data["x"]))
    ax.set_ylabel(_titled(data["y"]))
    ax.set_title(data["what"].partition(":")[0])
    return ax


def _titled(column: str) -> str:
    """Return a column's name as an axis has it: the unit in brackets."""
    for unit in ("elements", "bytes", "flops_per_byte", "flops"):
        if column.endswith(f"_{unit}"):
            return f"{column.removesuffix(f'_{unit}').replace('_', ' ')} ({unit.replace('_', ' ')})"
    return f"{column} (elements)" if column == "M" else column.replace("_", " ")


def _said(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
