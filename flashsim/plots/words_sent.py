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
from flashsim.plots.chart import Data, Several, chart
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

    def lines(of: Sequence[tuple[int, int]]) -> dict[str, Any]:
        found: dict[str, Any] = {"words": {name: [] for name in LOOKS}, "columns": []}
        for size, H_kv in of:
            where = positions("contiguous", N, size)
            share = Share(Problem.of(N=N, d=d, heads=heads, kv_heads=H_kv), where, where, 1, 1)
            C, (ring, ulysses, mesh) = theory.fewest_columns(share), found["words"].values()
            ring.append(max(theory.ring_words(share, p) for p in range(size)))
            ulysses.append(
                max(theory.ulysses_words(share, p) for p in range(size)) if size <= heads else None
            )
            mesh.append(max(theory.mesh_words(share, p, C) for p in range(size)))
            found["columns"].append(C)
        return found

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
def plot_words_sent(data: Data, axes: Several) -> None:
    """Draw a line for each program, log-log; under the mesh's markers stand its rows × columns.
    A grey line: g = P − 1.
    """
    of = data["of_shared"]
    _draw(axes[0], data["P"], data, data["P"])
    _draw(axes[1], of["kv_heads"], of, [of["P"]] * len(of["kv_heads"]))
    axes[0].set_xlabel(f"devices, with {data['kv_heads']} KV heads")
    axes[0].legend(loc="lower left", frameon=False)
    axes[1].set_xlabel(
        f"KV heads, on {of['P']} devices\n(N = {data['N']:,}, d = {data['d']}, {data['heads']} "
        "query heads)"
    )
    if of["P"] > 2:
        axes[1].axvline(data["heads"] / (of["P"] - 1), color=GREY, linewidth=0.8, gid="g = P − 1")
        how: dict[str, Any] = {
            "transform": axes[1].get_xaxis_transform(),
            "fontsize": 8,
            "ha": "right",
            "color": GREY,
        }
        axes[1].text(data["heads"] / (of["P"] - 1), 0.95, "groups of P − 1  ", **how)


def _draw(ax: Axes, x: Sequence[int], lines: Mapping[str, Any], counts: Sequence[int]) -> None:
    for name, (colour, marker) in LOOKS.items():
        drawn = [(at, words) for at, words in zip(x, lines["words"][name], strict=True) if words]
        if drawn:
            ax.plot(
                *zip(*drawn, strict=True),
                color=colour,
                marker=marker,
                markersize=4,
                label=name,
                gid=name,
            )
    for at, P, C, words in zip(x, counts, lines["columns"], lines["words"]["mesh"], strict=True):
        if words:
            how: dict[str, Any] = {
                "textcoords": "offset points",
                "fontsize": 8,
                "ha": "center",
                "color": GREEN,
            }
            ax.annotate(f"{P // C}×{C}", (at, words), xytext=(0, -11), **how)
    ax.margins(y=0.12)
    ticks(ax.xaxis, FixedLocator(x), "{x:.0f}")
    ax.xaxis.set_minor_locator(NullLocator())
    ticks(ax.yaxis, LogLocator(10, (1, 2, 5)))
    power = power_for(ax.get_ylim()[1] / 10)
    say_in(ax.yaxis, power)
    ax.set_ylabel(f"{in_units(power, 'words')} that a device sends")
