"""Accesses against M, from M ≪ d² to M ≥ Nd: where FlashAttention is optimal, and where it is
not.
"""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from flashsim import theory
from flashsim.algorithms.own import resolve
from flashsim.analysis.tune import best_of
from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import DEFAULT_DTYPE, REFERENCE_D, REFERENCE_N
from flashsim.drawing.numbers import as_power
from flashsim.drawing.style import GREY, compared, looks, ticks, title_x
from flashsim.plots.chart import Data, chart


def cache_size_data(
    *, N: int = REFERENCE_N, d: int = REFERENCE_D, algorithms: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return forward HBM accesses (elements, one head) against M, powers of two from 8 to 4Nd, by
    algorithm.

    Each algorithm takes, at each M, its blocks of fewest accesses that truly fit (None: not even a
    row does). `bound` is Saha and Ye's min(N²d²/M, N²d/√M), the order of what any exact algorithm
    moves, without its constant; `floor` is 4Nd, inputs read once and the output written.
    """
    N = check_count("N", N)
    d = check_count("d", d)
    rooms = [2**e for e in range(3, (4 * N * d).bit_length())]
    series = {}
    for algorithm in (resolve(name, "forward") for name in (*compared(), *algorithms)):
        choices = (best_of(algorithm, N=N, d=d, M=M) for M in rooms)
        series[algorithm.name] = [choice.accesses if choice else None for choice in choices]
    bound = [min(theory.theorem_2_flash(N, d, M), theory.theorem_saha_ye(N, d, M)) for M in rooms]
    sizes = {"N": N, "d": d, "dtype": DEFAULT_DTYPE, "M": rooms}
    return {**sizes, "series": series, "bound": bound, "floor": theory.compulsory(N, N, d, d)}


@chart(
    "cache_size",
    cache_size_data,
    "accesses against M, and where FlashAttention is not optimal",
    3.6,
    x=10,
    y=10,
)
def plot_cache_size(data: Data, ax: Axes) -> None:
    """Draw accesses over M, log-log, with M = d² and M = Nd marked, and the bound's order, or
    4Nd where that is more.
    """
    N = data["N"]
    d = data["d"]
    rooms = data["M"]
    drawn: list[list[int | None]] = []
    for name, look in looks(data["series"]).items():
        accesses = data["series"][name]
        alike = sum(_alike(accesses, other) for other in drawn)
        style = {"markersize": 3 + 2 * alike} | ({"linestyle": "none"} if alike else {})
        ax.plot(
            rooms,
            accesses,
            label=look.label,
            gid=name,
            **{**look.line, "markerfacecolor": "none", **style},
        )
        drawn.append(accesses)
    bound = [max(order, data["floor"]) for order in data["bound"]]
    ax.plot(
        rooms,
        bound,
        color=GREY,
        linestyle="-.",
        linewidth=0.9,
        label="order of the bound",
        gid="bound",
    )
    bottom = data["floor"] / 2
    most = max(accesses for curve in drawn for accesses in curve if accesses is not None)
    ax.set_ylim(bottom, 20 * most)  # room for the legend
    for M, label in ((d * d, "M = d²"), (N * d, "M = Nd")):
        ax.axvline(M, color=GREY, linewidth=0.6, gid=label)
        ax.annotate(label, (M, bottom), xytext=(2, 3), textcoords="offset points", fontsize=8)
    ax.legend(
        loc="upper right",
        ncols=2,
        handlelength=1.8,
        columnspacing=1,
        frameon=True,
        framealpha=0.9,
        edgecolor="none",
    )
    ax.set_title(_point(data), x=title_x(ax, -0.165))
    for axis in (ax.xaxis, ax.yaxis):
        ticks(axis, LogLocator(10), as_power)
    ax.set_xlabel(
        f"SRAM size M (elements)\nN = {N:,}, d = {d}, {data['dtype']}\nthe best blocks that fit, "
        "one head"
    )
    ax.set_ylabel("HBM accesses (elements)")


def _alike(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """Say whether two curves lie on one another, within 5% where both are: then one is drawn as
    markers around the other's.
    """
    return all(abs(a - b) < 0.05 * b for a, b in zip(one, other, strict=True) if a and b)


def _point(data: Data) -> str:
    points = zip(data["M"], data["series"]["flash"], strict=True)
    rooms = [M for M, accesses in points if accesses is not None]
    near = min(rooms, key=lambda M: abs(math.log(M / (data["d"] ** 2 / 8))))
    index = data["M"].index(near)
    flash = data["series"]["flash"][index]
    small = data["series"]["small_cache"][index]
    if not small or not flash:
        return "HBM accesses against M"
    more = f"at M = {near:,} it moves {flash / small:.1f} × what small cache does"
    return f"Left of M = d², FlashAttention is not optimal:\n{more}"
