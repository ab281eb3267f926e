"""The pictures' common look: colours, fonts, figures one printed column wide, and their axes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, NullLocator

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.algorithms.blocks import paper_rows

COLUMN = 3.5  # inches: one column of a two-column page

# Okabe & Ito's colours, which colour-blind readers can tell apart.
BLACK = "#000000"
GREY = "#666666"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
# P. Tol's, for a figure of more lines
WINE = "#882255"
OLIVE = "#999933"
BY_DIRECTION = {"forward": BLUE, "backward": GREEN}
NAMED = {
    "black": BLACK,
    "grey": GREY,
    "orange": ORANGE,
    "sky": SKY,
    "green": GREEN,
    "yellow": YELLOW,
    "blue": BLUE,
    "vermillion": VERMILLION,
    "purple": PURPLE,
}
# for algorithms whose record gives no look
SPARE = ((SKY, "P", "-."), (GREY, "X", "-."), (YELLOW, "p", "-."))


@dataclass(frozen=True)
class Look:
    """How an algorithm is drawn, everywhere."""

    label: str
    colour: str
    marker: str
    dashes: str

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of `Axes.plot` for a line with markers, hollow ones."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markerfacecolor": "white",
        }


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return the look of each algorithm: what its record says; one that is not known, or says
    nothing, has one of its own.
    """
    by_name: dict[str, Look] = {}
    names = list(names)
    spare = 0
    used = [FORWARD[name].look for name in names if name in FORWARD]
    free = [
        (colour, *shape)
        for colour, *shape in SPARE
        if not any(look and look[1] == shape[0] for look in used)
    ]
    for name in names:
        record = FORWARD.get(name)
        if record is not None and record.look is not None:
            colour, *shape = record.look
            look = (NAMED[colour], *shape)
        else:
            look = free[spare % len(free)]
            spare += 1
        by_name[name] = Look(record.short if record is not None and record.short else name, *look)
    return by_name


def compared() -> list[str]:
    """Return the names of the forward passes that pictures of all algorithms show: those with a
    look.
    """
    return [name for name, record in FORWARD.items() if record.look is not None]


def compared_both_ways() -> list[str]:
    """Return those of them that have a backward pass by their own name, and line 1's sizes."""
    return [name for name in compared() if name in BACKWARD and FORWARD[name].rows is paper_rows]


def tint(colour: str) -> str:
    """Return a colour half as far from white."""
    return "#" + "".join(
        f"{(int(colour[start : start + 2], 16) + 255) // 2:02X}" for start in (1, 3, 5)
    )


STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0.3,
    "legend.handletextpad": 0.6,
    "legend.labelspacing": 0.25,
    "hatch.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "flashsim",
}

styled = matplotlib.rc_context(STYLE)
"""Runs a function under the common style, and leaves matplotlib's settings as they were."""
SAVED: Any = {"svg.fonttype": "path", "svg.hashsalt": "flashsim"}  # of files, in whatever style
FORMS = ("png", "svg", "pdf")
NO_DATE: dict[str, Any] = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


class Panel(Axes):
    """Axes of a figure of ours, which shows in a notebook where they are a cell's result."""

    def _repr_png_(self) -> bytes:
        return drawn(self.figure, dpi=getattr(self.figure, "dpi_shown", 200))


class Panels(list[Axes]):
    """Several axes of one figure, likewise."""

    def __init__(self, figure: Figure, rows: int, columns: int, **grid: Any) -> None:
        super().__init__(figure.subplots(rows, columns, squeeze=False, **grid).flat)

    def _repr_png_(self) -> bytes:
        return drawn(self[0].figure)


class Picture(Figure):
    """A figure that shows itself in a notebook, as pyplot, which would, is not used here."""

    in_columns = True  # else a slide
    settings: Mapping[str, Any] = STYLE
    dpi_shown = 200.0

    def add_subplot(self, *args: Any, **kwargs: Any) -> Axes:
        """Add axes that show in a notebook too."""
        return cast(Axes, super().add_subplot(*args, **{"axes_class": Panel, **kwargs}))

    def _repr_png_(self) -> bytes:
        return drawn(self, dpi=self.dpi_shown)


def drawn(figure: Any, form: str = "png", dpi: float = 200) -> bytes:
    """Return a figure as PNG, SVG (text as paths) or PDF: the same bytes for the same figure."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({**getattr(figure, "settings", STYLE), **SAVED}):
        figure.savefig(buffer, format=form, dpi=dpi, metadata=NO_DATE[form])
    return buffer.getvalue()


def own_figure() -> Picture:
    """Return an empty figure of the size, and in the style, that matplotlib's settings say:
    those of whoever calls this.
    """
    figure = Picture(layout="constrained")
    figure.in_columns = False
    figure.dpi_shown = figure.dpi
    settings = dict(matplotlib.rcParams)
    figure.settings = {
        name: value
        for name, value in settings.items()
        if not name.startswith(("backend", "toolbar"))
    }
    return figure


def column_figure(height: float, columns: float = 1) -> Figure:
    """Return an empty figure so many printed columns wide and `height` inches high."""
    return Picture(figsize=(columns * COLUMN, height), layout="constrained")


def title_x(ax: Axes, x: float) -> float:
    """Return where a title begins: at x, left of the axes, where those fill a printed column;
    elsewhere above the axes.
    """
    return x if isinstance(ax.figure, Picture) and ax.figure.in_columns else 0.0


def left_edge(ax: Axes) -> float:
    """Return where the left edge of the figure is, as a part of the axes' width, once the figure
    is laid out.
    """
    box = ax.get_window_extent()
    return float(0.01 - box.x0 / box.width)


def on_slide(ax: Axes) -> bool:
    """Say whether these are a slide's axes, which have little room and must be read from afar."""
    return isinstance(ax.figure, Picture) and not ax.figure.in_columns


@styled
def slide(panels: int = 1, width: float = 0.0) -> Panels:
    """Return so many axes side by side on a new figure of 16:9, `width` inches wide, by default
    as its panels need.
    """
    width = width or max(7.2, 3.5 * panels)
    figure = Picture(figsize=(width, width * 9 / 16), layout="constrained")
    figure.in_columns = False
    return Panels(figure, 1, panels)


def apply_style(ax: Axes, *, x: int = 0, y: int = 0) -> None:
    """Give axes made elsewhere the common look: the style alone reaches only what is made under it.

    x, y  the base of a scale that is to be logarithmic
    """
    if x:
        ax.set_xscale("log", base=x)
    if y:
        ax.set_yscale("log", base=y)
    ax.spines[["top", "right"]].set_visible(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_fontsize(8)
        axis.set_tick_params(which="both", labelsize=8, width=0.6)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)


def canvas(ax: Axes | None, height: float, *, x: int = 0, y: int = 0) -> Axes:
    """Return axes, dressed: those given, or new ones a printed column wide and `height` inches
    high.
    """
    ax = column_figure(height).subplots() if ax is None else ax
    apply_style(ax, x=x, y=y)
    return ax


def ticks(axis: Axis, locator: Locator, formatter: Any = None) -> None:
    """Set where an axis has ticks, without minor ones, and what they say, if not their numbers."""
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    if formatter is not None:
        axis.set_major_formatter(formatter)
