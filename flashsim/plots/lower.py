"""Accesses of each schedule divided by the lower bound, which no schedule can beat; forward and
backward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from flashsim.analysis.tune import best_of
from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import DEFAULT_DTYPE, REFERENCE_D, check_M, float_dtype
from flashsim.drawing.style import GREY, Look, looks, ticks, title_x
from flashsim.plots.chart import AxesList, Data, chart
from flashsim.theory import lower_bound, lower_bound_backward

FORWARD = ("standard", "flash", "q_outer", "q_outer_pinned", "small_cache", "small_cache_hybrid")
BACKWARD = ("standard", "flash", "q_outer", "q_outer_two_pass", "q_outer_streamed", "small_cache")
LENGTHS = tuple(2**e for e in range(8, 17))
CACHES = tuple(2.0**e for e in range(-4, 6))  # M / d²


def lower_data(
    *, N: int = 16_384, d: int = REFERENCE_D, M: Any = None, dtype: str = "float32"
) -> dict[str, Any]:
    """Return the accesses (elements, one head, forward) of each algorithm's best blocks, and the
    lower bound.

    `by_N`: at lengths from 256 to 65,536 with M; `by_M`: with M from d²/16 to 32 d² at N. None:
    nothing fits.
    """
    N, d, M = check_count("N", N), check_count("d", d), check_M(M, float_dtype(dtype).itemsize)

    def point(N: int, M: int) -> dict[str, Any]:
        return {
            "N": N,
            "M": M,
            "bound": lower_bound(N=N, d=d, M=M).accesses,
            "accesses": _accesses(FORWARD, N=N, d=d, M=M),
        }

    by_N = [point(length, M) for length in LENGTHS]
    by_M = [point(N, int(part * d * d)) for part in CACHES]
    return {"N": N, "d": d, "M": M, "dtype": dtype, "by_N": by_N, "by_M": by_M}


def lower_backward_data(*, N: int = 16_384, d: int = REFERENCE_D) -> dict[str, Any]:
    """Return the same of backward passes, `by_M` alone: each algorithm's best blocks, and the
    lower bound.
    """
    N, d = check_count("N", N), check_count("d", d)

    def point(M: int) -> dict[str, Any]:
        accesses = _accesses(BACKWARD, N=N, d=d, M=M, direction="backward")
        return {"M": M, "bound": lower_bound_backward(N=N, d=d, M=M).accesses, "accesses": accesses}

    return {
        "N": N,
        "d": d,
        "dtype": DEFAULT_DTYPE,
        "by_M": [point(max(int(part * d * d), 1)) for part in CACHES],
    }


def _accesses(names: Sequence[str], **sizes: Any) -> dict[str, int | None]:
    choices = {name: best_of(name, **sizes) for name in names}
    return {name: choice.accesses if choice else None for name, choice in choices.items()}


@chart("lower", lower_data, "accesses ÷ lower bound, forward", 5.8, panels=2, x=2, y=10)
def plot_lower(data: Data, axes: AxesList) -> None:
    """Draw accesses ÷ bound, log-log, with Saha and Ye's border at M = d²."""
    above, below = axes
    d = data["d"]
    lengths = [point["N"] for point in data["by_N"]]
    parts = [point["M"] / d**2 for point in data["by_M"]]
    panels: list[tuple[Axes, list[dict[str, Any]], list[float]]] = [
        (above, data["by_N"], lengths),
        (below, data["by_M"], parts),
    ]
    for ax, points, x in panels:
        drawn = looks(points[0]["accesses"])
        drawn["q_outer_pinned"] = replace(
            drawn["q_outer"], label=drawn["q_outer_pinned"].label, marker="^", dashes=":"
        )
        ax.set_ylim(0.9, _draw_ratios(ax, x, points, drawn) * 1.3)
    above.legend(loc="upper left", ncols=2, columnspacing=1.0)
    above.set_ylim(0.9, above.get_ylim()[1] * 2.5)
    ticks(above.xaxis, FixedLocator([2.0**e for e in range(8, 17, 2)]), "{x:,.0f}")
    above.set_xlabel(
        f"N\nd = {d}, M = {data['M']:,}, {data['dtype']}\nthe best blocks that fit, one head"
    )
    title = "No schedule moves less than 1:\nwith Q outermost, nearly nothing is left to gain"
    above.set_title(title, x=title_x(above, -0.13))
    below.axvline(1, color=GREY, linestyle="--", linewidth=0.8, gid="Saha and Ye's border")
    below.text(
        1.06, below.get_ylim()[1] / 1.1, "M = d²: Saha and\nYe's border", color=GREY, va="top"
    )
    ticks(below.xaxis, FixedLocator([2.0**e for e in range(-4, 6, 2)]), _share)
    below.set_xlabel(
        f"M / d²\nN = {data['N']:,}, d = {d}, {data['dtype']}\nthe best blocks that fit, one head"
    )
    title = "Below d²/4 small cache is nearest, about d²\nthe hybrid, above the loops exchanged"
    below.set_title(title, x=title_x(below, -0.13))


@chart("lower_backward", lower_backward_data, "accesses ÷ lower bound, backward", 3.3, x=2, y=10)
def plot_lower_backward(data: Data, ax: Axes) -> None:
    """Draw accesses ÷ bound, log-log."""
    drawn = looks(BACKWARD)
    loops = drawn["q_outer"]
    drawn["q_outer_two_pass"] = replace(loops, label="two passes, one tile", marker="^", dashes=":")
    drawn["q_outer_streamed"] = replace(
        loops, label="two passes, streamed", marker="D", dashes="--"
    )
    x = [point["M"] / data["d"] ** 2 for point in data["by_M"]]
    ax.set_ylim(0.9, _draw_ratios(ax, x, data["by_M"], drawn) * 4)
    ticks(ax.xaxis, FixedLocator([2.0**e for e in range(-4, 6, 2)]), _share)
    ax.set_xlabel(
        f"M / d²\nN = {data['N']:,}, d = {data['d']}, {data['dtype']}\nthe best blocks that fit, "
        "one head"
    )
    ax.legend(loc="upper left", ncols=2, columnspacing=1.0)
    title = (
        "Backward, from M = 2 d² up, two passes with\nrows streamed are nearest to what none can "
        "beat"
    )
    ax.set_title(title, x=title_x(ax, -0.13))


def _draw_ratios(
    ax: Axes, x: Sequence[float], points: Sequence[Mapping[str, Any]], drawn: Mapping[str, Look]
) -> float:
    most = 1.0
    for name, look in drawn.items():
        positions = []
        ratios = []
        for position, point in zip(x, points, strict=True):
            accesses = point["accesses"][name]
            if accesses is not None:
                positions.append(position)
                ratios.append(accesses / point["bound"])
        most = max([most, *ratios])
        ax.plot(positions, ratios, **look.line, label=look.label, gid=name)
    ax.axhline(1, color=GREY, linewidth=0.8, gid="bound")
    ticks(ax.yaxis, FixedLocator([1, 2, 5, 10, 20, 50, 100, 200, 500]), lambda y, _: f"{y:g}")
    ax.set_ylabel("accesses ÷ lower bound")
    return most


def _share(x: float, _: Any) -> str:
    return f"{x:g}" if x >= 1 else f"1/{1 / x:g}"
