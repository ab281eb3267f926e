"""What runs moved, array by array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator

from flashsim.plots.blocks import plot_blocks
from flashsim.plots.style import (
    BLACK,
    BLUE,
    COLUMN,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    column_figure,
    dress,
    styled,
)
from flashsim.records import Traffic

COLOURS = {"Q": SKY, "K": GREEN, "V": YELLOW, "O": ORANGE, "S": VERMILLION, "P": PURPLE, "l": BLUE, "m": GREY}
_SHOWN = {"l": "ℓ"}
_WRITTEN = "//////"
_ROOM = 0.05  # the share of the x axis from which a part has room for its name
_PLATE = {"boxstyle": "round,pad=0.12", "facecolor": "white", "linewidth": 0}


class Counted(Protocol):
    """Anything that says what it moved: a `Run`, a `Tally`, theory's `Exact`."""

    @property
    def hbm(self) -> Traffic:
        """HBM accesses by array."""


@styled
def plot_run(run_by_name: Mapping[str, Counted], ax: Axes | None = None) -> Axes:
    """Draw HBM accesses (elements) by array, one stacked bar per run, under the names given; writes are hatched.

    Above each bar stands its total, below it each array's, in the order they have in the bar, the largest first. With
    `ax=None` the figure's height follows the number of runs.
    """
    if not run_by_name:
        raise ValueError('run_by_name is empty: give at least one run, such as {"standard": flashsim.count(…)}')
    ax = column_figure(0.8 + 0.95 * len(run_by_name)).subplots() if ax is None else ax
    dress(ax)
    most = max(run.hbm.accesses for run in run_by_name.values())
    for row, (name, run) in enumerate(run_by_name.items()):
        _draw_run(ax, row, name, run, most)
    ax.set_xlim(0, most * 1.005)
    ax.set_ylim(len(run_by_name) - 0.4, -0.4)
    ax.yaxis.set_major_locator(NullLocator())
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(EngFormatter())
    ax.set_xlabel("HBM accesses (elements)")
    ax.set_title(_point(run_by_name), pad=18)
    keys = [Patch(facecolor="white", edgecolor=BLACK, linewidth=0.5, label="read")]
    keys += [Patch(facecolor="white", edgecolor=BLACK, linewidth=0.5, hatch=_WRITTEN, label="written")]
    ax.legend(handles=keys, loc="lower left", bbox_to_anchor=(0, 1.02), ncols=2, borderaxespad=0)
    return ax


@styled
def run_figure(run_by_name: Mapping[str, Counted], **shape: Any) -> Figure:
    """Return the main job's figure: what each run moved, beside accesses against block size at that shape.

    `shape` is passed on to `plot_blocks`: N, N_q, d, d_v, dtype, M.
    """
    figure = Figure(figsize=(2.1 * COLUMN, 3.5), layout="constrained")
    by_array, by_block = figure.subplots(1, 2)
    plot_run(run_by_name, ax=by_array)
    plot_blocks(**shape, ax=by_block)
    by_block.set_title(by_block.get_title(loc="left").replace("\n", " "), x=0)  # there is room for one line here
    return figure


def _draw_run(ax: Axes, y: float, name: str, run: Counted, most: int) -> None:
    arrays = sorted(run.hbm.by_array.items(), key=lambda item: -item[1].accesses)
    ax.text(0, y - 0.17, f"{name}: {run.hbm.accesses:,}", va="bottom")
    left = 0
    for column, (array, traffic) in enumerate(arrays):
        colour, shown = COLOURS.get(array, GREY), _SHOWN.get(array, array)
        for part, way, hatch in ((traffic.reads, "reads", ""), (traffic.writes, "writes", _WRITTEN)):
            if part:
                bar = ax.barh(y, part, 0.3, left, color=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.5)
                bar[0].set_gid(f"{name} {array} {way}")
                left += part
        if traffic.accesses >= _ROOM * most:
            ax.text(left - traffic.accesses / 2, y, shown, ha="center", va="center", bbox=_PLATE)
        column_at = most * column / max(len(arrays), 6)
        swatch_at = column_at + 0.0125 * most
        ax.plot([swatch_at], [y + 0.28], "s", color=colour, mec=BLACK, mew=0.5, clip_on=False)
        ax.annotate(shown, (column_at, y + 0.28), (9, 0), textcoords="offset points", va="center")
        ax.text(column_at, y + 0.36, _short(traffic.accesses), va="top")


def _short(elements: int) -> str:
    """Return three digits and a unit: 1.05 M."""
    rounded = int(float(f"{elements:.3g}"))
    thousands = (len(str(rounded)) - 1) // 3
    return f"{rounded / 1000**thousands:.3g} {' kMGTPE'[thousands]}".strip()


def _point(run_by_name: Mapping[str, Counted]) -> str:
    names = list(run_by_name)
    first, last = (run_by_name[name].hbm.accesses for name in (names[0], names[-1]))
    if len(names) == 1:
        return f"What {names[0]} moves, by array"
    if first == last:
        return f"{names[-1]} makes as many HBM accesses"
    more, ratio = ("more", last / first) if last > first else ("fewer", first / last)
    return f"{names[-1]} makes {ratio:.3g}× {more} HBM accesses"
