"""What a device sends under a ring, Ulysses and a mesh: against how many devices there are, and
how many KV heads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from flashsim.attention.arguments import check_count, check_heads
from flashsim.attention.problem import Problem
from flashsim.devices import theory
from flashsim.devices.layouts import positions
from flashsim.devices.share import Share
from flashsim.drawing.numbers import in_units, power_for, say_in
from flashsim.drawing.style import BLUE, GREEN, GREY, ORANGE, ticks
from flashsim.plots.chart import AxesList, Data, chart
from flashsim.support.exporting import plain

LOOKS = {"ring": (ORANGE, "o"), "ulysses": (BLUE, "s"), "mesh": (GREEN, "^")}


def words_sent_data(
    *,
    N: int = 65_536,
    d: int = 128,
    heads: int = 64,
    kv_heads: int = 8,
    P: Sequence[int] = (2, 4, 8, 16, 32, 64),
    devices: int = 8,
) -> dict[str, Any]:
    """Return the most words that a device sends, by program, for numbers P of devices, and on
    `devices` for KV heads.

    `mesh` is the one of R × C devices with the fewest words, `columns` its C. Ulysses has no more
    devices than query heads. Raises ValueError.
    """
    N, d, counts = check_count("N", N), check_count("d", d), [check_count("P", size) for size in P]
    heads, kv_heads = check_heads(heads, kv_heads)
    shared = [H_kv for H_kv in range(1, heads + 1) if heads % H_kv == 0]

    def lines(points: Sequence[tuple[int, int]]) -> dict[str, Any]:
        words: dict[str, list[int | None]] = {name: [] for name in LOOKS}
        columns = []
        for size, H_kv in points:
            rows = positions("contiguous", N, size)
            problem = Problem.of(N=N, d=d, heads=heads, kv_heads=H_kv)
            share = Share(problem, rows, rows, 1, 1)
            C = theory.fewest_columns(share)
            words["ring"].append(max(theory.ring_words(share, p) for p in range(size)))
            words["ulysses"].append(
                max(theory.ulysses_words(share, p) for p in range(size)) if size <= heads else None
            )
            words["mesh"].append(max(theory.mesh_words(share, p, C) for p in range(size)))
            columns.append(C)
        return {"words": words, "columns": columns}

    of_shared = {
        "P": check_count("devices", devices),
        "kv_heads": shared,
        **lines([(devices, H) for H in shared]),
    }
    setting = {"N": N, "d": d, "heads": heads, "kv_heads": kv_heads, "P": counts}
    data: dict[str, Any] = plain(
        {**setting, **lines([(size, kv_heads) for size in counts]), "of_shared": of_shared}
    )
    return data


@chart(
    "words_sent",
    words_sent_data,
    "words that a device sends, against devices and KV heads",
    5.2,
    panels=2,
    x=2,
    y=10,
)
def plot_words_sent(data: Data, axes: AxesList) -> None:
    """Draw a line for each program, log-log; under the mesh's markers stand its rows × columns.
    A grey line: g = P − 1.
    """
    by_kv_heads = data["of_shared"]
    kv_heads = by_kv_heads["kv_heads"]
    devices = by_kv_heads["P"]
    _draw(axes[0], data["P"], data, data["P"])
    _draw(axes[1], kv_heads, by_kv_heads, [devices] * len(kv_heads))
    axes[0].set_xlabel(f"devices, with {data['kv_heads']} KV heads")
    axes[0].legend(loc="lower left", frameon=False)
    axes[1].set_xlabel(
        f"KV heads, on {devices} devices\n"
        f"(N = {data['N']:,}, d = {data['d']}, {data['heads']} query heads)"
    )
    if devices > 2:
        border = data["heads"] / (devices - 1)
        axes[1].axvline(border, color=GREY, linewidth=0.8, gid="g = P − 1")
        style: dict[str, Any] = {
            "transform": axes[1].get_xaxis_transform(),
            "fontsize": 8,
            "ha": "right",
            "color": GREY,
        }
        axes[1].text(border, 0.95, "groups of P − 1  ", **style)


def _draw(ax: Axes, x: Sequence[int], lines: Mapping[str, Any], counts: Sequence[int]) -> None:
    for name, (colour, marker) in LOOKS.items():
        points = [point for point in zip(x, lines["words"][name], strict=True) if point[1]]
        if points:
            ax.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=marker,
                markersize=4,
                label=name,
                gid=name,
            )
    of_mesh = zip(x, counts, lines["columns"], lines["words"]["mesh"], strict=True)
    for across, P, C, words in of_mesh:
        if words:
            style: dict[str, Any] = {
                "textcoords": "offset points",
                "fontsize": 8,
                "ha": "center",
                "color": GREEN,
            }
            ax.annotate(f"{P // C}×{C}", (across, words), xytext=(0, -11), **style)
    ax.margins(y=0.12)
    ticks(ax.xaxis, FixedLocator(x), "{x:.0f}")
    ax.xaxis.set_minor_locator(NullLocator())
    ticks(ax.yaxis, LogLocator(10, (1, 2, 5)))
    power = power_for(ax.get_ylim()[1] / 10)
    say_in(ax.yaxis, power)
    ax.set_ylabel(f"{in_units(power, 'words')} that a device sends")
