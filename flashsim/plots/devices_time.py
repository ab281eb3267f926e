"""Time of causal attention against how many devices there are, by the model: arithmetic, messages, and what a ring wastes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from flashsim.devices.planning import plan
from flashsim.drawing.style import BLACK, BLUE, GREEN, ORANGE, ticks
from flashsim.plots.chart import Chart
from flashsim.problem.arguments import check_count, check_heads
from flashsim.support.exporting import plain

LINES = {
    "ring, contiguous": ("ring", "contiguous", ORANGE, "o", "--"),
    "ring, zigzag": ("ring", "zigzag", ORANGE, "o", "-"),
    "ulysses": ("ulysses", "contiguous", BLUE, "s", "-"),
    "mesh, striped": ("mesh", "striped", GREEN, "^", "-"),
}


def devices_time_data(
    *,
    N: int = 65_536,
    d: int = 128,
    heads: int = 64,
    kv_heads: int = 8,
    dtype: str = "bfloat16",
    flops: float = 312e12,
    links: Sequence[float] = (300e9, 25e9),
    P: Sequence[int] = (4, 16, 64, 256),
) -> dict[str, Any]:
    """Return time ÷ that of the arithmetic alone, evenly shared, by line, for each speed of links in bytes a second.

    A causal mask; `flops` operations a second. Ulysses has no more devices than query heads. Raises ValueError.
    """
    N, d, counts = check_count("N", N), check_count("d", d), [check_count("P", size) for size in P]
    heads, kv_heads = check_heads(heads, kv_heads)
    asked: dict[str, Any] = {
        "N": N,
        "d": d,
        "heads": heads,
        "kv_heads": kv_heads,
        "dtype": dtype,
        "causal": True,
        "flops": flops,
    }
    panels = []
    for link in links:
        lines: dict[str, list[float | None]] = {name: [] for name in LINES}
        for size in counts:
            for said, (name, layout, *_) in LINES.items():
                if name == "ulysses" and size > heads:
                    lines[said].append(None)
                    continue
                found = plan(name, P=size, layout=layout, link=link, **asked)
                assert found.seconds is not None
                lines[said].append(round(found.seconds * flops / (found.mean * 4 * d), 4))
        panels.append({"link": link, "lines": lines})
    setting = {"N": N, "d": d, "heads": heads, "kv_heads": kv_heads, "dtype": dtype, "flops": flops, "P": counts}
    data: dict[str, Any] = plain({**setting, "panels": panels})
    return data


@partial(
    Chart, "devices_time", devices_time_data, "time of causal attention over devices, by the model", 5.0, panels=2,
    grid={"sharex": True}, x=2, y=2,
)  # fmt: skip
def plot_devices_time(data: Mapping[str, Any], axes: Sequence[Axes]) -> None:
    """Draw a panel for each speed of links: a line for each program and layout, and 1, the arithmetic alone."""
    for ax, panel in zip(axes, data["panels"], strict=True):
        for said, (_, _, colour, marker, style) in LINES.items():
            drawn = [(P, y) for P, y in zip(data["P"], panel["lines"][said], strict=True) if y is not None]
            ax.plot(
                *zip(*drawn, strict=True),
                color=colour,
                marker=marker,
                markersize=4,
                linestyle=style,
                label=said,
                gid=said,
            )
        ax.axhline(1, color=BLACK, linewidth=0.8)
        ax.set_title(f"links of {panel['link'] / 1e9:g} GB/s", fontsize=9)
        ticks(ax.xaxis, FixedLocator(data["P"]), "{x:.0f}")
        ax.xaxis.set_minor_locator(NullLocator())
        ticks(ax.yaxis, LogLocator(2, (1,)), "{x:.0f}")
        ax.set_ylabel("time ÷ arithmetic alone")
    heads = f"{data['heads']} query heads, {data['kv_heads']} KV heads"
    setting = f"(causal, N = {data['N']:,}, d = {data['d']}, {data['dtype']},\n{heads}, {data['flops'] / 1e12:g} TFLOP/s each)"
    axes[-1].set_xlabel(f"devices\n{setting}")
    axes[-1].legend(loc="upper left", frameon=False)
