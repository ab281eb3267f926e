"""What a GPU measured, drawn from its records: predicted against counted traffic, and times.

Unlike the other figures these need a run on a GPU first; the records are kept in figures/ with the machine that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator

from flashsim.gpu.rungs import ladder
from flashsim.plots.saving import figure_of
from flashsim.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    NAMED,
    ORANGE,
    VERMILLION,
    Look,
    column_figure,
    dress,
    styled,
    tint,
)

_PEERS = {
    "torch_unfused": ("PyTorch, unfused", ("grey", "1", ":")),
    "torch_math": ("PyTorch, math", ("grey", "+", "-.")),
    "torch_flash": ("FlashAttention-2", ("green", "D", "--")),
    "torch_cudnn": ("cuDNN", ("purple", "^", "--")),
    "fa4": ("FlashAttention-4", ("green", "*", "-.")),
}
_DRAWN = {name: (rung.short, rung.look) for name, rung in ladder().items()} | _PEERS
LOOKS = {name: Look(label, NAMED[colour], *shape) for name, (label, (colour, *shape)) in _DRAWN.items()}
"""How each contestant is drawn, in the order of the ladder."""


@styled
def plot_validation(record: Mapping[str, Any], *, ax: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw measured bytes over predicted bytes, each pass a point, and Algorithm 1's DRAM bytes and time over B_c.

    `record`: what `flashsim.gpu.validation.validate` returned. `ax`: two axes; None: a new column of two.
    """
    axes: Sequence[Axes] = list(column_figure(5.6).subplots(2)) if ax is None else ax
    for panel in axes:
        dress(panel)
    _predicted(axes[0], record)
    _theorem_2(axes[1], record)
    return axes


def _predicted(ax: Axes, record: Mapping[str, Any]) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    groups = {
        "standard": (BLACK, "x"),
        "algorithm_1": (BLUE, "o"),
        "algorithm_4": (GREEN, "D"),
        "on chip": (ORANGE, "v"),
    }
    ends: list[float] = []
    for name, (colour, marker) in groups.items():
        points = [
            (row[f"predicted_{way}"], row[f"measured_{way}"])
            for row in record["rows"]
            if row["group"] == name
            for way in ("reads", "writes")
            if row.get(f"predicted_{way}")
        ]
        if points:
            x, y = zip(*points, strict=True)
            ends += [*x, *y]
            ax.plot(x, y, linestyle="none", marker=marker, color=colour, mfc="none", label=_GROUPS[name], gid=name)
    line = [min(ends) / 1.5, max(ends) * 1.5]
    ax.plot(line, line, color=GREY, linewidth=0.8, gid="equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(10))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(EngFormatter("B", sep=""))
    ax.legend(loc="upper left")
    ax.set_xlabel("predicted by the model")
    ax.set_ylabel("counted by the GPU")
    worst = max(row["error"] for row in record["rows"] if row["within"] is not None and row["level"] == "DRAM")
    ax.set_title(f"{record['machine']['gpu']}: the model's DRAM bytes are\nthe hardware's, within {worst:.1%}", x=-0.2)


_GROUPS = {
    "standard": "standard attention, DRAM",
    "algorithm_1": "Algorithm 1, DRAM",
    "algorithm_4": "Algorithm 4, DRAM",
    "on chip": "loops exchanged, SM ↔ L2",
}


def _theorem_2(ax: Axes, record: Mapping[str, Any]) -> None:
    rows = [row for row in record["rows"] if row["group"] == "algorithm_1"]
    sizes = [row["B_c"] for row in rows]
    ax.set_xscale("log", base=2)
    for key, colour, style in (("predicted", BLUE, "-"), ("measured", BLUE, "none")):
        total = [(row[f"{key}_reads"] + row[f"{key}_writes"]) / 1e9 for row in rows]
        look: dict[str, Any] = {"linestyle": style, "color": colour, "gid": f"{key} bytes"}
        ax.plot(sizes, total, marker="o" if key == "measured" else None, mfc="none", label=f"{key}", **look)
    ax.set_ylim(0, None)
    ax.set_ylabel("DRAM traffic (GB)", color=BLUE)
    ax.set_xlabel("block of keys B_c")
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.legend(loc="upper center")
    time = ax.twinx()
    time.plot(sizes, [row["ms"] for row in rows], color=VERMILLION, marker="s", linestyle="--", gid="ms")
    time.set_ylim(0, None)
    time.set_ylabel("runtime (ms)", color=VERMILLION)
    time.spines[["top", "left"]].set_visible(False)
    ax.set_title("Theorem 2 in silicon: Algorithm 1's traffic\nfalls with B_c, and its runtime", x=-0.2)


@styled
def plot_times(record: Mapping[str, Any], *, d: int = 128, ax: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw TFLOP/s over N of every contestant: forward, causal, backward, backward causal (Figure 3, left, as rates).

    `record`: what `flashsim bench --json` wrote. `ax`: four axes; None: new ones, two by two.
    """
    if ax is None:
        figure = column_figure(5.4)
        figure.set_figwidth(2 * figure.get_figwidth())
        ax = list(figure.subplots(2, 2, sharex=True).flat)
    cases = [(direction, causal) for direction in ("forward", "backward") for causal in (False, True)]
    for panel, (direction, causal) in zip(ax, cases, strict=True):
        dress(panel)
        panel.set_xscale("log", base=2)
        chosen = [
            r
            for r in record["results"]
            if (r["d"], r["direction"], r["causal"]) == (d, direction, causal) and not r["dropout_p"]
        ]
        for name, look in LOOKS.items():
            points = [
                (r["N"], t["tflops"]) for r in chosen for t in r["timings"] if t["name"] == name and not t["failed"]
            ]
            if points:
                panel.plot(
                    *zip(*points, strict=True), label=look.label, gid=f"{direction} {causal} {name}", **look.line
                )
        panel.set_ylim(0, None)
        panel.set_title(f"{direction}{', causal' if causal else ''}")
        panel.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}")
        panel.set_ylabel("TFLOP/s")
        panel.set_xlabel(f"N (d = {d}, 16 heads, {record['results'][0]['dtype']})")
    handles, labels = ax[0].get_legend_handles_labels()
    figure_of(ax).legend(handles, labels, loc="outside upper center", ncols=4)
    return ax


@styled
def plot_runtime(record: Mapping[str, Any], *, d: int = 64, ax: Axes | None = None) -> Axes:
    """Draw forward + backward runtime over N, log-log: the paper's Figure 3, left."""
    ax = column_figure(4.2).subplots() if ax is None else ax
    dress(ax)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    times: dict[str, dict[int, dict[str, float]]] = {}
    for r in record["results"]:
        if r["d"] == d and not r["causal"] and not r["dropout_p"]:
            for t in r["timings"]:
                if not t["failed"]:
                    times.setdefault(t["name"], {}).setdefault(r["N"], {})[r["direction"]] = t["median"] / r["B"]
    for name, look in LOOKS.items():
        points = [(N, sum(both.values())) for N, both in sorted(times.get(name, {}).items()) if len(both) == 2]
        if points:
            ax.plot(*zip(*points, strict=True), label=look.label, gid=name, **look.line)
    ax.legend(loc="upper left", bbox_to_anchor=(-0.22, -0.22), ncols=2)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}")
    ax.yaxis.set_major_locator(LogLocator(10))
    ax.set_xlabel(f"N (d = {d}, 16 heads)")
    ax.set_ylabel("forward + backward, ms a sequence")
    ax.set_title(f"Runtime, as in Figure 3 (left), {record['machine']['gpu']}", x=-0.17)
    return ax


@styled
def plot_peak_memory(record: Mapping[str, Any], *, d: int = 64, ax: Axes | None = None) -> Axes:
    """Draw the memory that a forward pass allocates over N, log-log, output included: the paper's Figure 3, right."""
    ax = column_figure(4.2).subplots() if ax is None else ax
    dress(ax)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for name, look in LOOKS.items():
        points = [
            (r["N"], t["extra_bytes"] / r["B"])
            for r in record["results"]
            if (r["d"], r["direction"], r["causal"]) == (d, "forward", False) and not r["dropout_p"]
            for t in r["timings"]
            if t["name"] == name and t["extra_bytes"]
        ]
        if points:
            ax.plot(*zip(*points, strict=True), label=look.label, gid=name, **look.line)
    ax.legend(loc="upper left", bbox_to_anchor=(-0.22, -0.22), ncols=2)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}")
    ax.yaxis.set_major_formatter(EngFormatter("B", sep=""))
    ax.set_xlabel(f"N (d = {d}, 16 heads)")
    ax.set_ylabel("allocated in a forward pass, a sequence")
    ax.set_title(f"Memory, as in Figure 3 (right), {record['machine']['gpu']}", x=-0.17)
    return ax


@styled
def plot_figure_1(record: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Draw the time of attention in GPT-2 medium, causal, with dropout, forward and backward: the paper's Figure 1, right.

    `record` holds results with dropout, of one setting, forward and backward. Beside each bar: how many times as fast as
    unfused attention written in PyTorch, the paper's baseline.
    """
    ax = column_figure(2.4).subplots() if ax is None else ax
    dress(ax)
    results = {r["direction"]: r for r in record["results"] if r["dropout_p"]}
    ms = {
        direction: {t["name"]: t["median"] for t in r["timings"] if not t["failed"]} for direction, r in results.items()
    }
    names = [name for name in LOOKS if name in ms["forward"] and name in ms["backward"]]
    total = {name: ms["forward"][name] + ms["backward"][name] for name in names}
    for row, name in enumerate(names):
        colour = tint(LOOKS[name].colour)
        forward = ms["forward"][name]
        ax.barh(row, forward, color=colour, edgecolor=BLACK, linewidth=0.6)
        ax.barh(
            row,
            total[name] - forward,
            left=forward,
            color=colour,
            edgecolor=BLACK,
            linewidth=0.6,
            hatch="//////",
        )
        said = f" {total[name]:.1f} ms, {total['torch_unfused'] / total[name]:.1f}×"
        ax.text(total[name], row, said, va="center", fontsize=8)
    ax.set_yticks(range(len(names)), [LOOKS[name].label for name in names])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.5 * max(total.values()))
    one = results["forward"]
    ax.set_xlabel(
        f"ms, forward and (hatched) backward\nB = {one['B']}, H = {one['H']}, N = {one['N']:,}, d = {one['d']}"
    )
    ax.set_title(
        f"GPT-2 medium, as in Figure 1 (right):\ncausal, dropout {one['dropout_p']}, {record['machine']['gpu']}",
        x=-0.42,
    )
    return ax


@styled
def plot_ladder(record: Mapping[str, Any], *, ax: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw a step a row, peers last: its rate; and what it moves, by the model and by the hardware's counters, log.

    `record`: what `flashsim bench --ladder --json` wrote. `ax`: two axes with the same rows; None: new ones, side by side.
    """
    steps = [step for step in record["steps"] if not step["failed"]]
    if ax is None:
        figure = column_figure(0.8 + 0.24 * len(steps))
        figure.set_figwidth(2 * figure.get_figwidth())
        ax = list(figure.subplots(1, 2, sharey=True))
    rates, moved = ax
    places = range(len(steps))
    for panel in ax:
        dress(panel)
    colours = [BLACK if "simulated" not in s else VERMILLION if s["name"].startswith("hopper") else BLUE for s in steps]
    rates.barh(places, [s["tflops"] for s in steps], color=[tint(colour) for colour in colours])
    for place, step in zip(places, steps, strict=True):
        rates.text(step["tflops"], place, f" {step['tflops']:.0f}", va="center")
    labels = [LOOKS[s["name"]].label if "simulated" not in s else s["name"] for s in steps]
    rates.set_yticks(list(places), labels)
    rates.invert_yaxis()
    rates.set_xlim(0, 1.15 * max(s["tflops"] for s in steps))
    setting = record["setting"]
    rates.set_xlabel(
        f"TFLOP/s, N = {setting['N']:,}, d = {setting['d']}{', causal' if setting['causal'] else ''}, {setting['dtype']}"
    )
    rates.set_title(f"{record['machine']['gpu']}: rate, forward")
    own = [(place, step) for place, step in zip(places, steps, strict=True) if "simulated" in step]
    kinds: dict[str, tuple[dict[str, Any], Callable[[Any], float]]] = {
        "simulated accesses × an input's bytes": (
            {"marker": "s", "mfc": "none", "color": BLACK},
            lambda step: step["width"] * sum(step["simulated"].values()),
        ),
        "L2 ↔ multiprocessors": (
            {"marker": "o", "color": ORANGE},
            lambda step: step["seen"]["l2_reads"] + step["seen"]["l2_writes"],
        ),
        "DRAM": ({"marker": "D", "color": BLUE}, lambda step: step["seen"]["dram_reads"] + step["seen"]["dram_writes"]),
    }
    for name, (look, of) in kinds.items():
        moved.plot(
            [of(step) for _, step in own], [place for place, _ in own], linestyle="none", label=name, gid=name, **look
        )
    moved.set_xscale("log")
    moved.xaxis.set_major_formatter(EngFormatter("B", sep=""))
    moved.set_xlabel("reads + writes")
    moved.set_title("traffic")
    figure_of(ax).legend(*moved.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return ax
