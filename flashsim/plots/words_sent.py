"""What a device sends, against how many devices there are: a ring, Ulysses and a mesh, with and without shared KV heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator

from flashsim.attention.problem import Problem
from flashsim.devices import theory
from flashsim.devices.layouts import positions
from flashsim.devices.share import Share
from flashsim.drawing.style import BLUE, GREEN, ORANGE, ticks
from flashsim.plots.chart import Chart
from flashsim.problem.arguments import check_count, check_heads
from flashsim.support.exporting import plain

LOOKS = {"ring": (ORANGE, "o"), "ulysses": (BLUE, "s"), "mesh": (GREEN, "^")}


def words_sent_data(
    *, N: int = 65_536, d: int = 128, heads: int = 64, kv_heads: int = 8, P: Sequence[int] = (2, 4, 8, 16, 32, 64)
) -> dict[str, Any]:
    """Return the most words that a device sends, by program, for each number of devices P, with as many KV heads as asked for.

    `mesh` is the one of R × C devices with the fewest words, `columns` its C. Ulysses has no more devices than query heads.
    Raises ValueError.
    """
    N, d, counts = check_count("N", N), check_count("d", d), [check_count("P", size) for size in P]
    heads, kv_heads = check_heads(heads, kv_heads)
    problem = Problem.of(N=N, d=d, heads=heads, kv_heads=kv_heads)
    lines: dict[str, list[int | None]] = {name: [] for name in LOOKS}
    columns = []
    for size in counts:
        where = positions("contiguous", N, size)
        share = Share(problem, where, where, 1, 1)
        columns.append(theory.fewest_columns(share))
        ranks = range(size)
        lines["ring"].append(max(theory.ring_words(share, p) for p in ranks))
        lines["ulysses"].append(max(theory.ulysses_words(share, p) for p in ranks) if size <= heads else None)
        lines["mesh"].append(max(theory.mesh_words(share, p, columns[-1]) for p in ranks))
    setting = {"N": N, "d": d, "heads": heads, "kv_heads": kv_heads, "P": counts}
    found: dict[str, Any] = plain({**setting, "words": lines, "columns": columns})
    return found


@partial(
    Chart,
    "words_sent",
    words_sent_data,
    "words that a device sends, against how many devices there are",
    2.8,
    x=2,
    y=10,
)
def plot_words_sent(data: Mapping[str, Any], ax: Axes) -> None:
    """Draw a line for each program, log-log; under the mesh's markers stand its rows × columns."""
    for name, (colour, marker) in LOOKS.items():
        drawn = [(P, words) for P, words in zip(data["P"], data["words"][name], strict=True) if words]
        if drawn:
            ax.plot(*zip(*drawn, strict=True), color=colour, marker=marker, markersize=4, label=name, gid=name)
    for P, C, words in zip(data["P"], data["columns"], data["words"]["mesh"], strict=True):
        if words:
            ax.annotate(
                f"{P // C}×{C}",
                (P, words),
                xytext=(0, -11),
                textcoords="offset points",
                fontsize=8,
                ha="center",
                color=GREEN,
            )
    ax.legend(loc="lower left", frameon=False)
    ticks(ax.xaxis, FixedLocator(data["P"]), "{x:.0f}")
    ax.xaxis.set_minor_locator(NullLocator())
    ticks(ax.yaxis, LogLocator(10, (1, 2, 5)), EngFormatter(sep=""))
    heads = f"{data['heads']} query heads, {data['kv_heads']} KV heads"
    ax.set_xlabel(f"devices\n(N = {data['N']:,}, d = {data['d']}, {heads})")
    ax.set_ylabel("words that a device sends")
