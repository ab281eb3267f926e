"""What runs moved, array by array: given runs, or every algorithm in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from flashsim.algorithms import FORWARD
from flashsim.algorithms.own import backward_of, chosen
from flashsim.machine.traffic import Traffic
from flashsim.masks.patterns import butterfly
from flashsim.plots.blocks import blocks_data, plot_blocks
from flashsim.plots.chart import Chart, said, setting
from flashsim.plots.style import BLACK, GREY, NAMED, canvas, column_figure, compared_both_ways, looks, styled, tint
from flashsim.run.api import count
from flashsim.support.sizes import Size

_NAMES = {
    "Q": "sky", "K": "green", "V": "yellow", "O": "orange", "S": "vermillion", "P": "purple", "P_dropped": "purple", "Z": "black",
    "l": "blue", "m": "grey", "L": "blue", "D": "grey", "l_parts": "blue", "m_parts": "grey",
}  # fmt: skip
COLOURS = {array: NAMED[name] for array, name in _NAMES.items()}
COLOURS |= {f"d{name}": tint(COLOURS[name]) for name in "QKVOSP"}  # a gradient has its matrix's colour, paler
COLOURS["O_parts"] = COLOURS["dO"]
_SHOWN = {"l": "ℓ", "O_parts": "$O_j$", "l_parts": "$ℓ_j$", "m_parts": "$m_j$", "P_dropped": "P∘Z"}
_WRITTEN = "//////"
_LONG = 10  # a bar is cut that is this many times longer than the shortest
_MOST_NAMED = 8  # so many arrays of a bar have their numbers below it
_ROOM = 0.05  # the share of the x axis from which a part has room for its name
_PLATE = {"boxstyle": "round,pad=0.12", "facecolor": "white", "linewidth": 0}


class Counted(Protocol):
    """Anything that says what it moved: a `Run`, a `Tally`, theory's `Exact`."""

    @property
    def hbm(self) -> Traffic:
        """HBM accesses by array."""


@styled
def plot_run(run_by_name: Mapping[str, Counted], ax: Axes | None = None, *, heads: int = 1) -> Axes:
    """Draw HBM accesses (elements) by array, one stacked bar per run, under the names given; writes are hatched.

    Of `heads` heads, one head's share is drawn.

    Above each bar stands its total, below it each array's, in the order they have in the bar, the largest first. With
    `ax=None` the figure's height follows the number of runs.
    """
    if not run_by_name:
        raise ValueError('run_by_name is empty: give at least one run, such as {"standard": flashsim.count(…)}')
    ax = canvas(ax, 0.8 + 0.95 * len(run_by_name))
    shares = {name: _numbers(run, heads) for name, run in run_by_name.items()}
    most = max(map(_total, shares.values()))
    for row, (name, share) in enumerate(shares.items()):
        _draw_bar(ax, row, name, share, most)
    _finish(ax, len(run_by_name), most)
    ax.set_xlabel("HBM accesses (elements)" + (", one head" if heads > 1 else ""))
    ax.set_title(_point(run_by_name), pad=18)
    _legend(ax)
    return ax


def arrays_data(
    *,
    N: int = 1024,
    d: int = 64,
    M: Size | None = None,
    dtype: str = "float32",
    blocks: tuple[int, int] | None = None,
    algorithms: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return reads and writes (elements, one head) of each array, by direction and algorithm, by default at GPT-2's head shape.

    Of the algorithms that pictures compare, with line 1's sizes and a backward pass by their own name, of "block_sparse" with the
    butterfly pattern, and of those given, one's own too, with their backward pass if there is one. No mask, no dropout.
    `blocks`: (B_r, B_c) of all, instead of line 1's; M enforced.
    """
    shape = setting(N=N, d=d, M=M, dtype=dtype, blocks=blocks)
    directions: dict[str, dict[str, Any]] = {"forward": {}, "backward": {}}
    for what in (*compared_both_ways(), "block_sparse", *algorithms):
        forward = chosen(what, "forward")
        passes = [forward]
        with suppress(ValueError):
            passes.append(backward_of(forward))
        for one in passes:
            mask = butterfly if "block_mask" in forward.parts else None
            tally = count(one, **shape, direction=one.direction, block_mask=mask)
            directions[one.direction][forward.name] = _numbers(tally)
    return {**shape, "block_mask": "butterfly", "directions": directions}


@partial(
    Chart, "arrays", arrays_data, "accesses by array, every algorithm, forward and backward",
    lambda data: 0.7 + 0.88 * len(data["directions"]["forward"]), panels=2, columns=2.1, slide=13.3,
)  # fmt: skip
def plot_arrays(data: Mapping[str, Any], axes: Sequence[Axes]) -> None:
    """Draw `arrays_data` as stacked bars, forward beside backward; a bar much longer than the others is cut, and says so.

    Below each bar stand its largest arrays, eight at most; `arrays_data` has all.
    """
    for panel, (direction, bars) in zip(axes, data["directions"].items(), strict=True):
        totals = [_total(by_array) for by_array in bars.values()]
        most = max(total for total in totals if total <= _LONG * min(totals))
        for row, (name, look) in enumerate(looks(bars).items()):
            sparse = ", butterfly" if name in FORWARD and "block_mask" in FORWARD[name].parts else ""
            _draw_bar(panel, row, look.label + sparse, bars[name], most)
        _finish(panel, len(bars), most)
        panel.set_xlabel(f"HBM accesses (elements), {direction}\n{said(data, 'N', 'd', 'M')}")
        flash, standard = _total(bars["flash"]), _total(bars["standard"])
        panel.set_title(f"{direction.capitalize()}: FlashAttention moves {standard / flash:.3g}× less", pad=18)
    _legend(axes[0])


def _finish(ax: Axes, bars: int, most: int) -> None:
    ax.set_xlim(0, most * 1.005)
    ax.set_ylim(bars - 0.4, -0.4)
    ax.yaxis.set_major_locator(NullLocator())
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(EngFormatter())


def _legend(ax: Axes) -> None:
    keys = [Patch(facecolor="white", edgecolor=BLACK, linewidth=0.5, label="read")]
    keys += [Patch(facecolor="white", edgecolor=BLACK, linewidth=0.5, hatch=_WRITTEN, label="written")]
    figure = ax.get_figure(root=True)
    assert figure is not None
    above = ax.transAxes + ScaledTranslation(0, 3.5 / 72, figure.dpi_scale_trans)  # points, as the title's distance
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "bbox_transform": above, "borderaxespad": 0}
    ax.legend(handles=keys, ncols=2, **place)


@styled
def run_figure(run_by_name: Mapping[str, Counted], *, heads: int = 1, **shape: Any) -> Figure:
    """Return the main job's figure, of one head: what each run moved, beside accesses against block size at that shape.

    `run_by_name`: runs of `heads` heads by the algorithm's name, with its `title` if the run has one. `shape` is passed on to
    `plot_blocks`: N, N_q, d, d_v, dtype, M.
    """
    figure = column_figure(3.5, 2.1)
    by_array, by_block = figure.subplots(1, 2)
    plot_run({getattr(run, "title", name): run for name, run in run_by_name.items()}, ax=by_array, heads=heads)
    labels = looks(run_by_name)
    by_array.set_title(_point({labels[name].label: run for name, run in run_by_name.items()}), pad=18)
    plot_blocks(blocks_data(**shape, backward=False), ax=by_block)
    by_block.set_title(by_block.get_title(loc="left").replace("\n", " "), x=0)  # there is room for one line here
    return figure


ByArray = Mapping[str, Mapping[str, int]]


def _numbers(run: Counted, heads: int = 1) -> dict[str, dict[str, int]]:
    """Return what each array moved; of several heads, the mean, which is each head's where they move the same."""
    return {
        name: {"reads": round(a.reads / heads), "writes": round(a.writes / heads)}
        for name, a in run.hbm.by_array.items()
    }


def _total(by_array: ByArray) -> int:
    return sum(part for parts in by_array.values() for part in parts.values())


def _draw_bar(ax: Axes, y: float, name: str, by_array: ByArray, most: int) -> None:
    arrays = sorted(by_array.items(), key=lambda item: -sum(item[1].values()))
    total = _total(by_array)
    cut = f", cut: {total / most:.0f}× this axis" if total > most else ""
    ax.text(0, y - 0.17, f"{name}: {total:,}{cut}", va="bottom")
    left = 0
    columns = max(min(len(arrays), _MOST_NAMED), 6)
    for column, (array, parts) in enumerate(arrays):
        colour, shown, moved = COLOURS.get(array, GREY), _SHOWN.get(array, array), sum(parts.values())
        for way, hatch in (("reads", ""), ("writes", _WRITTEN)):
            if parts[way]:
                bar = ax.barh(y, parts[way], 0.3, left, color=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.5)
                bar[0].set_gid(f"{name} {array} {way}")
                left += parts[way]
        seen = min(left, most) - (left - moved)
        if seen >= _ROOM * most:
            ax.text(left - moved + seen / 2, y, shown, ha="center", va="center", bbox=_PLATE)
        if column >= _MOST_NAMED:
            continue
        column_at = most * column / columns
        swatch_at = column_at + 0.0125 * most
        ax.plot([swatch_at], [y + 0.28], "s", color=colour, mec=BLACK, mew=0.5, clip_on=False)
        ax.annotate(shown, (column_at, y + 0.28), (9, 0), textcoords="offset points", va="center")
        ax.text(column_at, y + 0.38, _short(moved), va="top")
    if cut:  # a white zigzag through the bar's end
        at = [most * (0.965 + 0.012 * (step % 2)) for step in range(7)]
        ax.plot(at, [y - 0.18 + 0.06 * step for step in range(7)], color="white", linewidth=3, zorder=4)


def _short(elements: int) -> str:
    """Return three digits and a unit: 1.05 M."""
    rounded = int(float(f"{elements:.3g}"))
    thousands = (len(str(rounded)) - 1) // 3
    return f"{rounded / 1000**thousands:.3g} {' kMGTPE'[thousands]}".strip()


def _point(run_by_name: Mapping[str, Counted]) -> str:
    names = list(run_by_name)
    first, last = (run_by_name[name].hbm.accesses for name in (names[0], names[-1]))
    if len(names) == 1:
        return f"{names[0]}: HBM accesses by array"
    if first == last:
        return f"{names[-1]}: as many HBM accesses"
    more, ratio = ("more", last / first) if last > first else ("fewer", first / last)
    return f"{names[-1]}: {ratio:.3g}× {more} HBM accesses"
