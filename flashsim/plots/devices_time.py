"""Time of causal attention against how many devices there are, by the model: arithmetic,
messages, and what a ring wastes.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from flashsim.attention.arguments import check_count, check_heads
from flashsim.devices.planning import plan
from flashsim.drawing.style import BLACK, BLUE, GREEN, ORANGE, ticks
from flashsim.plots.chart import AxesList, Data, chart
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
    """Return time ÷ that of the arithmetic alone, evenly shared, by line, for each speed of links
    in bytes a second.

    A causal mask; `flops` operations a second. Ulysses has no more devices than query heads. Raises
    ValueError.
    """
    N, d, counts = check_count("N", N), check_count("d", d), [check_count("P", size) for size in P]
    heads, kv_heads = check_heads(heads, kv_heads)
    setting: dict[str, Any] = {
        "N": N,
        "d": d,
        "heads": heads,
        "kv_heads": kv_heads,
        "dtype": dtype,
        "flops": flops,
    }

    def lines(link: float, points: Sequence[tuple[int, int]]) -> dict[str, list[float | None]]:
        ratios: dict[str, list[float | None]] = {label: [] for label in LINES}
        for (size, N), (label, (name, layout, *_)) in product(points, LINES.items()):
            if name == "ulysses" and size > heads:
                ratios[label].append(None)
                continue
            options = setting | {"N": N, "causal": True}
            work = plan(name, P=size, layout=layout, link=link, **options)
            assert work.seconds is not None
            ratios[label].append(round(work.seconds * flops / (work.mean * 4 * d), 4))
        return ratios

    panels = [
        {"link": link, "lines": lines(link, [(size, N) for size in counts])} for link in links
    ]
    lengths = [length for length in (N // 16, N // 4, N, 4 * N, 16 * N) if length]
    of_N: dict[str, Any] = {"P": counts[len(counts) // 2 - 1], "N": lengths, "link": links[-1]}
    of_N["lines"] = lines(links[-1], [(of_N["P"], length) for length in lengths])
    data: dict[str, Any] = plain({**setting, "P": counts, "panels": panels, "of_N": of_N})
    return data


@chart(
    "devices_time",
    devices_time_data,
    "time of causal attention over devices, by the model",
    7.4,
    panels=3,
    x=2,
    y=2,
)
def plot_devices_time(data: Data, axes: AxesList) -> None:
    """Draw a panel for each speed of links, and one against N: a line for each program and
    layout, and the arithmetic alone.
    """
    for ax, panel in zip(axes, data["panels"], strict=False):
        _draw(ax, data["P"], panel["lines"])
        ax.set_title(f"links of {panel['link'] / 1e9:g} GB/s, N = {data['N']:,}", fontsize=9)
        ax.set_xlabel("devices")
        ticks(ax.xaxis, FixedLocator(data["P"]), "{x:.0f}")
    of = data["of_N"]
    _draw(axes[-1], of["N"], of["lines"])
    axes[-1].set_title(f"links of {of['link'] / 1e9:g} GB/s, {of['P']} devices", fontsize=9)
    ticks(axes[-1].xaxis, FixedLocator(of["N"]), "{x:,.0f}")
    heads = f"{data['heads']} query heads, {data['kv_heads']} KV heads"
    setting = (
        f"(causal, d = {data['d']}, {data['dtype']},\n{heads}, {data['flops'] / 1e12:g} TFLOP/s "
        "each)"
    )
    axes[-1].set_xlabel(f"N\n{setting}")
    axes[1].legend(loc="upper left", frameon=False)


def _draw(ax: Axes, x: Sequence[int], lines: Mapping[str, Any]) -> None:
    for label, (_, _, colour, marker, style) in LINES.items():
        look: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markersize": 4,
            "linestyle": style,
        }
        ax.plot(x, lines[label], **look, label=label, gid=label)
    ax.axhline(1, color=BLACK, linewidth=0.8)
    ax.xaxis.set_minor_locator(NullLocator())
    ticks(ax.yaxis, LogLocator(2, (1,)), "{x:.0f}")
    ax.set_ylabel("time ÷ arithmetic alone")
