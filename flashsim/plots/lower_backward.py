"""How near backward passes come to what none can beat: accesses divided by the lower bound, against M / d²."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from flashsim.checking import check_count
from flashsim.plots.chart import Chart
from flashsim.plots.lower import CACHES, draw_ratios, share
from flashsim.plots.style import hang, looks, ticks
from flashsim.theory import lower_bound_backward
from flashsim.tune import best_of

_WHAT = "what no backward pass can beat: accesses ÷ the lower bound"
ALGORITHMS = ("standard", "flash", "q_outer", "q_outer_two_pass", "q_outer_streamed", "small_cache")


def lower_backward_data(*, N: int = 16_384, d: int = 64) -> dict[str, Any]:
    """Return the accesses (elements, one head, backward) of each algorithm's best blocks, and the lower bound.

    M is from d²/16 to 32 d². None: nothing fits.
    """
    N, d = check_count("N", N), check_count("d", d)

    def at(M: int) -> dict[str, Any]:
        found = {name: best_of(name, N=N, d=d, M=M, direction="backward") for name in ALGORITHMS}
        moved = {name: choice and choice.accesses for name, choice in found.items()}
        return {"M": M, "bound": lower_bound_backward(N=N, d=d, M=M).accesses, "accesses": moved}

    return {"N": N, "d": d, "by_M": [at(max(int(part * d * d), 1)) for part in CACHES]}


@partial(Chart, "lower_backward", lower_backward_data, _WHAT, 3.3, x=2, y=10)
def plot_lower_backward(data: Mapping[str, Any], ax: Axes) -> None:
    """Draw accesses ÷ bound, log-log."""
    drawn = looks(ALGORITHMS)
    loops = drawn["q_outer"]
    drawn["q_outer_two_pass"] = replace(loops, label="two passes, one tile", marker="^", dashes=":")
    drawn["q_outer_streamed"] = replace(loops, label="two passes, streamed", marker="D", dashes="--")
    x = [point["M"] / data["d"] ** 2 for point in data["by_M"]]
    ax.set_ylim(0.9, draw_ratios(ax, x, data["by_M"], drawn) * 4)
    ticks(ax.xaxis, FixedLocator([2.0**e for e in range(-4, 6, 2)]), share)
    ax.set_xlabel(f"M / d²\nN = {data['N']:,}, d = {data['d']}")
    ax.legend(loc="upper left", ncols=2, columnspacing=1.0)
    ax.set_title(
        "Backward, from M = 2 d² up, two passes with\nrows streamed are nearest to what none can beat",
        x=hang(ax, -0.13),
    )
