"""What runs moved, array by array, as stacked bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from flashsim.drawing.numbers import format_in_power, in_units, power_for, say_in
from flashsim.drawing.style import BLACK, GREY, NAMED, canvas, styled, tint
from flashsim.memory.traffic import Traffic

_NAMES = {
    "Q": "sky",
    "K": "green",
    "V": "yellow",
    "O": "orange",
    "S": "vermillion",
    "P": "purple",
    "P_dropped": "purple",
    "Z": "black",
    "l": "blue",
    "m": "grey",
    "L": "blue",
    "D": "grey",
    "l_parts": "blue",
    "m_parts": "grey",
}
COLOURS = {array: NAMED[name] for array, name in _NAMES.items()}
# a gradient has its matrix's colour, paler
COLOURS |= {f"d{name}": tint(COLOURS[name]) for name in "QKVOSP"}
COLOURS["O_parts"] = COLOURS["dO"]
_SHOWN = {"l": "ℓ", "O_parts": "$O_j$", "l_parts": "$ℓ_j$", "m_parts": "$m_j$", "P_dropped": "P∘Z"}
_WRITTEN = "//////"
_MOST_NAMED = 8  # so many arrays of a bar have their numbers below it
_FEWER_NAMED = 6  # so many where these are of six digits
_ROOM = 0.05  # the share of the x axis from which a part has room for its name
_PLATE = {"boxstyle": "round,pad=0.12", "facecolor": "white", "linewidth": 0}


class Counted(Protocol):
    """Anything that says what it moved: a `Run`, a `Tally`, theory's `Exact`."""

    @property
    def hbm(self) -> Traffic:
        """HBM accesses by array."""


@styled
def plot_run(run_by_name: Mapping[str, Counted], ax: Axes | None = None, *, heads: int = 1) -> Axes:
    """Draw HBM accesses (elements) by array, one stacked bar per run, under the names given; writes
    are hatched.

    Of `heads` heads, one head's share is drawn.

    Above each bar stands its total, below it each array's, in the order they have in the bar, the
    largest first. With `ax=None` the figure's height follows the number of runs.
    """
    if not run_by_name:
        raise ValueError(
            'run_by_name is empty: give at least one run, such as {"standard": flashsim.count(…)}'
        )
    ax = canvas(ax, 0.8 + 0.95 * len(run_by_name))
    shares = {name: numbers(run, heads) for name, run in run_by_name.items()}
    most = max(map(total_of, shares.values()))
    for row, (name, share) in enumerate(shares.items()):
        draw_bar(ax, row, name, share, most)
    finish(ax, len(run_by_name), most)
    ax.set_xlabel(f"HBM accesses ({unit(most)})" + (", one head" if heads > 1 else ""))
    ax.set_title(point_of(run_by_name), pad=18)
    legend(ax)
    return ax


def finish(ax: Axes, bars: int, most: int) -> None:
    """Set the axes' ends and ticks, for so many bars."""
    ax.set_xlim(0, most * 1.005)
    ax.set_ylim(bars - 0.4, -0.4)
    ax.yaxis.set_major_locator(NullLocator())
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    say_in(ax.xaxis, power_for(most / 10))


def unit(most: int) -> str:
    """Return in which unit the numbers of bars are, on an axis that ends at `most`."""
    return in_units(power_for(most / 10))


def legend(ax: Axes) -> None:
    """Say above the axes what hatching means."""
    keys = [Patch(facecolor="white", edgecolor=BLACK, linewidth=0.5, label="read")]
    keys += [
        Patch(facecolor="white", edgecolor=BLACK, linewidth=0.5, hatch=_WRITTEN, label="written")
    ]
    figure = ax.get_figure(root=True)
    assert figure is not None
    # points, as the title's distance
    above = ax.transAxes + ScaledTranslation(0, 3.5 / 72, figure.dpi_scale_trans)
    place: dict[str, Any] = {
        "loc": "lower left",
        "bbox_to_anchor": (0, 1),
        "bbox_transform": above,
        "borderaxespad": 0,
    }
    ax.legend(handles=keys, ncols=2, **place)


ByArray = Mapping[str, Mapping[str, int]]


def numbers(run: Counted, heads: int = 1) -> dict[str, dict[str, int]]:
    """Return what each array moved; of several heads, the mean, which is each head's where they
    move the same.
    """
    return {
        name: {"reads": round(a.reads / heads), "writes": round(a.writes / heads)}
        for name, a in run.hbm.by_array.items()
    }


def total_of(by_array: ByArray) -> int:
    """Return the elements that all arrays moved."""
    return sum(part for parts in by_array.values() for part in parts.values())


def draw_bar(ax: Axes, y: float, name: str, by_array: ByArray, most: int) -> None:
    """Draw one bar at height `y`, of an axis that ends at `most`; below it each array with its
    number.
    """
    arrays = sorted(by_array.items(), key=lambda item: -sum(item[1].values()))
    total = total_of(by_array)
    cut = f", cut: {total / most:.0f}× this axis" if total > most else ""
    ax.text(0, y - 0.17, f"{name}: {total:,}{cut}", va="bottom")
    left = 0
    power = power_for(most / 10)
    named = _MOST_NAMED if total < 10 ** (power + 5) else _FEWER_NAMED
    columns = max(min(len(arrays), named), _FEWER_NAMED)
    for column, (array, parts) in enumerate(arrays):
        colour = COLOURS.get(array, GREY)
        label = _SHOWN.get(array, array)
        array_total = sum(parts.values())
        for way, hatch in (("reads", ""), ("writes", _WRITTEN)):
            if parts[way]:
                bar = ax.barh(
                    y,
                    parts[way],
                    0.3,
                    left,
                    color=colour,
                    hatch=hatch,
                    edgecolor=BLACK,
                    linewidth=0.5,
                )
                bar[0].set_gid(f"{name} {array} {way}")
                left += parts[way]
        visible = min(left, most) - (left - array_total)
        if visible >= _ROOM * most:
            ax.text(
                left - array_total + visible / 2, y, label, ha="center", va="center", bbox=_PLATE
            )
        if column >= named:
            continue
        column_at = most * column / columns
        ax.plot(
            [column_at + 0.0125 * most],
            [y + 0.28],
            "s",
            color=colour,
            mec=BLACK,
            mew=0.5,
            clip_on=False,
        )
        ax.annotate(label, (column_at, y + 0.28), (9, 0), textcoords="offset points", va="center")
        ax.text(column_at, y + 0.38, _short(array_total, power), va="top")
    if cut:  # a white zigzag through the bar's end
        heights = [most * (0.965 + 0.012 * (step % 2)) for step in range(7)]
        ax.plot(
            heights,
            [y - 0.18 + 0.06 * step for step in range(7)],
            color="white",
            linewidth=3,
            zorder=4,
        )


def _short(elements: int, power: int) -> str:
    """Return a number in that power of ten, with three digits: "2,100"."""
    return format_in_power(float(f"{elements:.3g}"), power)


def point_of(run_by_name: Mapping[str, Counted]) -> str:
    """Return the title: how many times more or fewer the last run moved than the first."""
    names = list(run_by_name)
    first, last = (run_by_name[name].hbm.accesses for name in (names[0], names[-1]))
    if len(names) == 1:
        return f"{names[0]}: HBM accesses by array"
    if first == last:
        return f"{names[-1]}: as many HBM accesses"
    more, ratio = ("more", last / first) if last > first else ("fewer", first / last)
    return f"{names[-1]}: {ratio:.3g}× {more} HBM accesses"
