"""A sweep's picture: lines, what does not fit, ticks at what was counted; on axes of whoever
asks, in matplotlib's settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import LogLocator
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from flashsim.drawing.numbers import AtValues, as_power, in_units, power_for, say_in
from flashsim.drawing.style import NAMED, looks, own_figure, ticks

COLOURS = [
    NAMED[name] for name in ("blue", "vermillion", "green", "orange", "purple", "sky", "grey")
]
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
WIDTHS = (1.0, 2.0, 0.5)  # times `lines.linewidth`
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST_NAMED = 14
FEW = 20  # points of a line up to which each has a marker
MOST_TICKS = 20  # values up to which ticks are at these
# a scale is logarithmic where its largest number is that many times its smallest, or more
WIDE = 10
GREY_PART = 0.17  # of the picture's width, where nothing fits
BESIDE = 0.55  # of the letters that the axes have room for: a longer key stands below them
HANDLE = 7  # letters that a line in the key takes
LETTER = 0.6  # of a font's size: how wide a letter is
MOST_REASONS = 3
SYMBOL = re.compile(r"\b([A-Za-z])_([a-z])\b")
FLOORS = {
    "compulsory": ("compulsory", "compulsory", (0, (1, 1.5))),
    "bounds": ("lower bound", "lower bound", "-"),
}


def plot_sweep(data: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Draw the lines of `sweep_data` on axes, by default of a new figure; return the axes.

    Sizes, fonts and colours of all but the lines are those of matplotlib's settings; so is the size
    of a new figure.
    """
    is_new = ax is None
    ax = own_figure().subplots() if ax is None else ax
    is_empty = not ax.has_data()
    lines = [line for line in data["lines"] if line["points"]]
    _draw_lines(ax, data, lines)
    for what in FLOORS:
        _draw_floor(ax, what, data, lines)
    limits = _limits(data)
    _scale_x(ax, lines, limits)
    unit = _scale_y(ax, data, lines)
    _look_at(ax, lines, limits, is_empty=is_empty)
    _shade(ax, limits)
    _name_axes(ax, data, unit)
    _say_why(ax, data, limits)
    _add_key(ax, lines, hint(data) if data["mixed"] else "", is_new=is_new)
    _fit_words(ax, is_new=is_new)
    return ax


# --------------------------------------------------------------------------------------------------
# the lines


def _draw_lines(ax: Axes, data: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
    width = matplotlib.rcParams["lines.linewidth"]
    for number, (line, look) in enumerate(zip(lines, _looks(lines), strict=True)):
        xs, ys = zip(*line["points"], strict=True)
        if data["mixed"]:
            look["linestyle"] = "none"
        elif len(xs) > FEW:
            look["marker"] = None
        look["linewidth"] *= width
        label = _name_of(line, data) if number < MOST_NAMED else "_nolegend_"
        ax.plot(xs, ys, **look, markerfacecolor=ax.get_facecolor(), label=label, gid="series")


def _draw_floor(
    ax: Axes, what: str, data: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Draw the compulsory accesses, or the lower bound, of each line: once where several have
    the same.
    """
    label, gid, dashes = FLOORS[what]
    if data["mixed"]:
        return
    width = matplotlib.rcParams["lines.linewidth"] * 0.7
    colour = matplotlib.rcParams["axes.edgecolor"]
    for least in dict.fromkeys(tuple(map(tuple, line.get(what, ()))) for line in lines):
        if least:
            ax.plot(
                *zip(*least, strict=True),
                color=colour,
                linewidth=width,
                linestyle=dashes,
                label=label,
                gid=gid,
                zorder=1,
            )
            label = "_nolegend_"


def _looks(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how each line is drawn: colour and marker by the first value that it is of, dashes
    by the others; no two alike.
    """
    of: list[list[tuple[str, Any]]] = [list(line["of"].items()) for line in lines]
    firsts: list[Any] = list(dict.fromkeys(values[0][1] if values else None for values in of))
    if of[0] and of[0][0][0] == "algorithm":
        own = looks(firsts)
        colours = {name: (own[name].colour, own[name].marker) for name in firsts}
    else:
        colours = dict(zip(firsts, cycle(zip(COLOURS, MARKERS, strict=True)), strict=False))
    rests = dict(
        zip(dict.fromkeys(tuple(values[1:]) for values in of), cycle(DASHES), strict=False)
    )
    styles: list[dict[str, Any]] = []
    used: set[tuple[Any, ...]] = set()
    for values in of:
        colour, marker = colours[values[0][1] if values else None]
        candidate = rests[tuple(values[1:])], WIDTHS[0], colour
        others = (
            (dashes, width, other)
            for other in (colour, *COLOURS)
            for width in WIDTHS
            for dashes in DASHES
        )
        look = next((look for look in (candidate, *others) if look not in used), candidate)
        used.add(look)
        styles.append(
            dict(zip(("linestyle", "linewidth", "color"), look, strict=True)) | {"marker": marker}
        )
    return styles


# --------------------------------------------------------------------------------------------------
# scales, ticks, words


def _scale_x(
    ax: Axes, lines: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, Any]]
) -> None:
    fitting = sorted({x for line in lines for x, _ in line["points"]})
    ends = [limit[end] for limit in limits for end in ("from", "to") if limit[end] is not None]
    if _doubles(fitting):
        ax.set_xscale("log", base=2)
    elif _is_wide(fitting):
        ax.set_xscale("log")
    values = {*fitting, *ends}
    if len(values) <= MOST_TICKS:
        ticks(ax.xaxis, AtValues([*values]))
    elif ax.get_xscale() == "log":
        ticks(ax.xaxis, LogLocator(10, _steps(fitting)))
    say_in(ax.xaxis, 0)


def _scale_y(ax: Axes, data: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """Scale the axis, and return in which unit it says its numbers."""
    values = [y for line in lines for what in ("points", *FLOORS) for _, y in line.get(what, ())]
    unit, _ = _unit(data["y"])
    if _is_wide(values):
        ax.set_yscale("log")
        ticks(ax.yaxis, LogLocator(10, _steps(values)))
        if _steps(values) == (1,):
            ax.yaxis.set_major_formatter(as_power)
            return unit
    power = power_for(max(values))
    say_in(ax.yaxis, power)
    return in_units(power, unit)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) >= WIDE * min(values)


def _steps(values: Sequence[float]) -> tuple[int, ...]:
    return (1, 2, 5) if max(values) < WIDE**3 * min(values) else (1,)


def _doubles(values: Sequence[float]) -> bool:
    """Say whether there are three or more, each twice the one before it."""
    return len(values) >= 3 and all(2 * before == after for before, after in pairwise(values))


def _name_axes(ax: Axes, data: Mapping[str, Any], unit: str) -> None:
    ax.set_xlabel("$B_c$ = $B_r$ (rows of a block)" if _is_square(data) else _titled(data["x"]))
    name = "HBM accesses" if data["y"] == "accesses_elements" else _typeset(_unit(data["y"])[1])
    ax.set_ylabel(f"{name} ({unit})" if unit else name)
    fixed = data["fixed"].replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    lines = wrap(fixed, _letters(ax, "small"), break_long_words=False)
    ax.set_title("\n".join(map(_typeset, lines)), fontsize="small", fontweight="normal")


def _is_square(data: Mapping[str, Any]) -> bool:
    return data["square"] and data["x"] in ("B_r", "B_c")


def _letters(ax: Axes, size: str) -> int:
    """Return about how many letters of that size the axes have room for, side by side."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    points = ax.get_window_extent().width / figure.dpi * 72
    return max(16, int(points / (LETTER * FontProperties(size=size).get_size_in_points())))


def _titled(column: str) -> str:
    """Return a column's name as an axis has it: typeset, the unit in brackets."""
    meanings = {
        "B_c": "rows of a block of keys",
        "B_r": "rows of a block of queries",
        "M": "elements",
    }
    unit, name = _unit(column)
    unit = meanings.get(column, unit)
    return f"{_typeset(name)} ({unit})" if unit else _typeset(name)


def _unit(column: str) -> tuple[str, str]:
    """Return a column's unit, if it has one, and its name without."""
    for unit in ("elements", "bytes", "flops_per_byte", "flops"):
        if column.endswith(f"_{unit}"):
            return unit.replace("_", " "), column.removesuffix(f"_{unit}").replace("_", " ")
    return "", column if SYMBOL.fullmatch(column) else column.replace("_", " ")


def _typeset(words: str) -> str:
    """Return words with their symbols, such as B_c, typeset."""
    return SYMBOL.sub(r"$\1_\2$", words)


def _name_of(line: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return what a line differs by; of a line alone, its algorithm."""
    if not line["of"] and len(data["algorithms"]) == 1:
        return _text("algorithm", *data["algorithms"])
    return ", ".join(_text(*pair) for pair in line["of"].items()) or "all"


def _text(name: str, value: Any) -> str:
    if name == "algorithm":
        return looks([value])[value].label
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return name if value else f"not {name}"
    symbol = _typeset(name)
    return f"{symbol} = {value:,}" if isinstance(value, int) else f"{symbol} = {value}"


# --------------------------------------------------------------------------------------------------
# what does not fit


def _limits(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each line of which something does not fit: whose, from which x on, or up to
    which; neither: nowhere fits.
    """
    limits = []
    for line in data["lines"]:
        xs = [x for x, _ in line["points"]]
        unfit = line["unfit"]
        if not unfit or data["mixed"]:
            continue
        limit = {"of": _name_of(line, data), "from": None, "to": None}
        if xs and min(unfit) > max(xs):
            limit["from"] = min(unfit)
        elif xs and max(unfit) < min(xs):
            limit["to"] = max(unfit)
        elif xs:
            continue  # neither up nor down: the lines' gaps are all there is to see
        limits.append(limit)
    return limits


def _look_at(
    ax: Axes,
    lines: Sequence[Mapping[str, Any]],
    limits: Sequence[Mapping[str, Any]],
    *,
    is_empty: bool,
) -> None:
    """Set the x axis' ends: grey has its part of the width beyond the last size of which something
    fits.

    On axes that are not empty what was in view stays there.
    """
    fitting = [x for line in lines for x, _ in line["points"]]
    above = [limit["from"] for limit in limits if limit["from"] is not None]
    below = [limit["to"] for limit in limits if limit["to"] is not None]
    forth = ax.xaxis.get_transform().transform
    back = ax.xaxis.get_transform().inverted().transform
    first, last = (float(forth(end)) for end in (min(fitting), max(fitting)))
    pad = ax.get_xmargin() * (last - first) or 0.5
    left = first - pad
    right = last + pad
    part = GREY_PART / (1 - GREY_PART)
    if len(above) == len(lines) and max(above) > max(fitting):
        edge = float(forth(max(above)))
        right = edge + (edge - left) * part
    if len(below) == len(lines) and min(below) < min(fitting):
        edge = float(forth(min(below)))
        left = edge - (right - edge) * part
    ends = [float(back(left)), float(back(right))]
    if not is_empty:
        ends += ax.get_xlim()
    ax.set_xlim(min(ends), max(ends))


def _shade(ax: Axes, limits: Sequence[Mapping[str, Any]]) -> None:
    """Shade what does not fit, once for each limit: where two overlap it is darker."""
    low, high = ax.get_xlim()
    grey: dict[str, Any] = {
        "facecolor": matplotlib.rcParams["axes.edgecolor"],
        "alpha": 0.13,
        "linewidth": 0,
        "zorder": 0,
    }
    spans = [(limit["from"], high) for limit in limits if limit["from"] is not None]
    spans += [(low, limit["to"]) for limit in limits if limit["to"] is not None]
    for start, end in dict.fromkeys(spans):
        if start < end:
            ax.axvspan(start, end, **grey, gid="does not fit")
    ax.set_xlim(low, high)


def _say_why(ax: Axes, data: Mapping[str, Any], limits: Sequence[Mapping[str, Any]]) -> None:
    """Say in the grey, along its edge, what does not fit, and from which size on: of which
    lines, where they differ.
    """
    if not limits:
        return
    x = _typeset(data["x"])
    room = "M" if data["M"] is None else f"M = {data['M']:,}"
    names: dict[str, list[str]] = {}
    for limit in limits:
        names.setdefault(_where(limit, x), []).append(limit["of"])
    lines = [f"does not fit {room}"]
    if len(names) == 1 and len(limits) == len(data["lines"]):
        lines += names
    else:
        lines += [f"{where}: {', '.join(of)}" for where, of in names.items()]
    if len(lines) > MOST_REASONS + 1:
        lines = [*lines[:MOST_REASONS], f"and {len(lines) - MOST_REASONS:,} more sizes"]
    above = [limit["from"] for limit in limits if limit["from"] is not None]
    below = [limit["to"] for limit in limits if limit["to"] is not None]
    place = ax.get_xlim()[1]
    offset = -3
    side = "right"
    if above:
        place = max(above)
        offset = 3
        side = "left"
    elif below:
        place = min(below)
    why = ax.annotate(
        "\n".join(lines),
        (place, 0.5),
        (offset, 0),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        ha=side,
        va="center",
        rotation=90,
        fontsize="small",
        color=matplotlib.rcParams["text.color"],
        gid="why",
    )
    why.set_in_layout(False)


def _where(limit: Mapping[str, Any], x: str) -> str:
    if limit["from"] is not None:
        return f"from {x} = {limit['from']:,} on"
    return f"up to {x} = {limit['to']:,}" if limit["to"] is not None else "at no size"


# --------------------------------------------------------------------------------------------------
# the key


def _add_key(ax: Axes, lines: Sequence[Any], title: str, *, is_new: bool) -> None:
    """Name the lines: beside a new figure's axes, below where names are long; on axes of others
    where there is most room.
    """
    named = [
        str(line.get_label())
        for line in ax.get_lines()
        if not str(line.get_label()).startswith("_")
    ]
    if len(named) < 2 and not title:
        return
    if len(lines) > MOST_NAMED:
        ax.plot([], [], linestyle="none", label=f"and {len(lines) - MOST_NAMED} more")
    figure = ax.get_figure(root=True)
    assert figure is not None
    how: dict[str, Any] = {"loc": "best", "handlelength": 3}  # so long that dashes differ
    if title:
        how["title"] = "\n".join(wrap(title, _letters(ax, "medium")))
    if is_new:
        letters = _letters(ax, matplotlib.rcParams["legend.fontsize"])
        longest = max(map(len, named), default=0) + HANDLE
        if title or longest > BESIDE * letters:
            below = ax.transAxes + ScaledTranslation(
                0, -_height_below(ax) / 72, figure.dpi_scale_trans
            )
            place = blended_transform_factory(figure.transFigure, below)
            columns = int(letters * figure.bbox.width / ax.bbox.width) // longest
            how |= {
                "loc": "upper center",
                "bbox_to_anchor": (0.5, 0),
                "bbox_transform": place,
                "ncols": max(1, columns),
            }
        else:
            how |= {"loc": "upper left", "bbox_to_anchor": (1.02, 1)}
        how["borderaxespad"] = 0
    ax.legend(**how)


def _height_below(ax: Axes) -> float:
    """Return how many points the numbers and the name of the x axis take below it."""
    settings = matplotlib.rcParams
    sizes = [
        FontProperties(size=settings[name]).get_size_in_points()
        for name in ("xtick.labelsize", "axes.labelsize")
    ]
    pads = [settings[name] for name in ("xtick.major.size", "xtick.major.pad", "axes.labelpad")]
    return 1.35 * sum(sizes) + float(sum(pads)) + 5


def _fit_words(ax: Axes, *, is_new: bool) -> None:
    """Shorten what is longer than the axes: the title and the name of the y axis, in more lines;
    reasons, without names.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    if is_new:
        figure.draw_without_rendering()  # lays it out
    height = ax.get_window_extent().height
    if ax.title.get_window_extent().width > ax.get_window_extent().width:
        ax.title.set_text("\n".join(wrap(ax.get_title().replace("\n", " "), _letters(ax, "small"))))
    if ax.yaxis.label.get_window_extent().height > height:
        ax.set_ylabel(ax.get_ylabel().replace(" (", "\n("))
    for why in (text for text in ax.texts if text.get_gid() == "why"):
        lines = [line.partition(":")[0] for line in why.get_text().split("\n")]
        for shorter in ("\n".join(lines), lines[0], "does not fit"):
            if why.get_window_extent().height > height:
                why.set_text(shorter)


def hint(data: Mapping[str, Any]) -> str:
    """Say what the lines differ by, and what separates what is mixed in one; "" of a line alone
    that mixes nothing.
    """
    by = data["by"]
    mixed = data["mixed"]
    if mixed:
        vary = "vary" if mixed[1:] else "varies"
        return f"{' and '.join(mixed)} {vary} within a line: --by {' '.join([*by, *mixed])}"
    return f"a line for each of --by {' '.join(by)}" if len(data["lines"]) > 1 else ""
