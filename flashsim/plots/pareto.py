"""Accesses against occupancy: every block size of the two loop orders, and how little each may
move in how much room.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from flashsim import theory
from flashsim.algorithms import FORWARD
from flashsim.algorithms.own import resolve
from flashsim.analysis.tune import cost, sides
from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N, check_M, float_dtype
from flashsim.drawing.numbers import as_power
from flashsim.drawing.style import BLACK, GREY, looks, ticks, title_x
from flashsim.plots.chart import Data, chart

LOOPS = ("flash", "q_outer")


def pareto_data(
    *,
    N: int = REFERENCE_N,
    d: int = REFERENCE_D,
    M: int | None = None,
    dtype: str = "float32",
    algorithms: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return peaks and accesses (elements, one head, forward) of K/V-outer and Q-outer loops over
    all block sizes.

    By algorithm: `points`, (B_r, B_c, peak, accesses) of blocks 1, 2, 3, 4, 6, 8, 12, … and N;
    `frontier`, of all block sizes, those that no other undercuts in both; `paper`, line 1's blocks
    for M; `best`, the fewest accesses with a peak of at most M (None: nothing fits). `floor`: 4Nd,
    inputs read once and the output written.
    """
    N, d, M = check_count("N", N), check_count("d", d), check_M(M, float_dtype(dtype).itemsize)

    def point_of(algorithm: Any, **sizes: Any) -> list[int]:
        run = cost(algorithm, N=N, d=d, M=M, dtype=dtype, **sizes)
        return [run.blocks.B_r, run.blocks.B_c, run.sram.peak, run.hbm.accesses]

    few = sorted(
        {size for e in range(N.bit_length()) for size in (2**e, 3 * 2**e // 2) if 1 <= size <= N}
        | {N}
    )
    drawn = {}
    for algorithm in (resolve(name, "forward") for name in (*LOOPS, *algorithms)):
        frontier = _frontier(
            point_of(algorithm, blocks=(B_r, B_c)) for B_r in sides(N) for B_c in sides(N)
        )
        fitting = [point for point in frontier if point[2] <= M]
        drawn[algorithm.name] = {
            "points": [point_of(algorithm, blocks=(B_r, B_c)) for B_r in few for B_c in few],
            "frontier": frontier,
            "paper": point_of(algorithm, sizing="paper"),
            "best": fitting[-1] if fitting else None,
        }
    return {
        "N": N,
        "d": d,
        "M": M,
        "dtype": dtype,
        "floor": theory.compulsory(N, N, d, d),
        "algorithms": drawn,
    }


def _frontier(points: Iterable[list[int]]) -> list[list[int]]:
    frontier: list[list[int]] = []
    for point in sorted(points, key=lambda p: (p[2], p[3])):
        if not frontier or point[3] < frontier[-1][3]:
            frontier.append(point)
    return frontier


@chart(
    "pareto",
    pareto_data,
    "accesses against occupancy: every block size, both loop orders",
    3.3,
    x=10,
    y=10,
)
def plot_pareto(data: Data, ax: Axes) -> None:
    """Draw accesses over peak occupancy, log-log: points for block sizes, steps for the
    frontiers, × the paper's choice.
    """
    for name, look in looks(data["algorithms"]).items():
        drawn = data["algorithms"][name]
        colour = look.colour
        marker = look.marker
        label = (FORWARD[name].loops if name in FORWARD else None) or look.label
        faint: dict[str, Any] = {
            "linestyle": "none",
            "marker": marker,
            "markersize": 1.8,
            "alpha": 0.25,
            "mew": 0,
        }
        ax.plot(*_columns(drawn["points"]), color=colour, **faint)
        ax.step(
            *_columns(drawn["frontier"]),
            where="post",
            color=colour,
            label=label,
            gid=f"{name} frontier",
        )
        ax.plot(
            *_columns([drawn["paper"]]),
            linestyle="none",
            marker="x",
            color=colour,
            gid=f"{name} paper",
        )
        if drawn["best"]:
            ax.plot(
                *_columns([drawn["best"]]),
                linestyle="none",
                marker="*",
                markersize=8,
                color=colour,
                mec="white",
                mew=0.5,
                gid=f"{name} best",
            )
    floor = data["floor"]
    M = data["M"]
    ax.axhline(floor, color=GREY, linestyle=":", gid="floor")
    ax.axvline(M, color=BLACK, linestyle="--", linewidth=0.8, gid="M")
    ax.plot([], [], linestyle="none", marker="x", color=GREY, label="line 1's blocks")
    ax.plot(
        [], [], linestyle="none", marker="*", markersize=8, color=GREY, label="fewest that fit M"
    )
    ax.plot([], [], color=GREY, linestyle=":", label="4Nd, each moved once")
    ax.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
    best = {name: drawn["best"] for name, drawn in data["algorithms"].items()}
    if best["flash"] and best["q_outer"]:
        ratio = best["flash"][3] / best["q_outer"][3]
        title = (
            f"In M = {M:,} elements, K, V outermost moves\n{ratio:.2f} × what Q outermost does, at "
            "best"
        )
        ax.set_title(title, x=title_x(ax, -0.165))
    for axis in (ax.xaxis, ax.yaxis):
        ticks(axis, LogLocator(10), as_power)
    ax.annotate("M", (M, ax.get_ylim()[0]), xytext=(2, 3), textcoords="offset points", fontsize=8)
    shape = f"N = {data['N']:,}, d = {data['d']}, M = {M:,}, {data['dtype']}"
    ax.set_xlabel(f"most elements on chip at once\n{shape}\nall block sizes, one head")
    ax.set_ylabel("HBM accesses (elements)")


def _columns(points: list[list[int]]) -> tuple[list[int], list[int]]:
    return [point[2] for point in points], [point[3] for point in points]
