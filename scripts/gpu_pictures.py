"""What a GPU measured, drawn from its records: predicted against counted traffic, and times.

Unlike the other figures these need a run on a GPU first; the records are kept in figures/ with the
machine that made them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator

from flashsim.drawing.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    NAMED,
    ORANGE,
    VERMILLION,
    Look,
    Panels,
    apply_style,
    canvas,
    column_figure,
    styled,
    ticks,
    tint,
)
from flashsim.gpu.rungs import ladder
from flashsim.plots.approximate import BAND, BETWEEN
from flashsim.plots.saving import figure_of

_PEERS = {
    "hopper_window": ("window, 256 keys", ("sky", "v", "-.")),
    "hopper_butterfly": ("butterfly of blocks", ("sky", "s", "--")),
    "torch_unfused": ("PyTorch, unfused", ("grey", "1", ":")),
    "torch_math": ("PyTorch, math", ("grey", "+", "-.")),
    "torch_flash": ("FlashAttention-2", ("green", "D", "--")),
    "torch_cudnn": ("cuDNN", ("purple", "^", "--")),
    "fa3": ("FlashAttention-3", ("green", "p", ":")),
    "fa4": ("FlashAttention-4", ("green", "*", "-.")),
}
_DRAWN = {name: (rung.short, rung.look) for name, rung in ladder().items()} | _PEERS
LOOKS = {
    name: Look(label, NAMED[colour], *shape) for name, (label, (colour, *shape)) in _DRAWN.items()
}
"""How each contestant is drawn, in the order of the ladder."""


@styled
def plot_validation(
    record: Mapping[str, Any], *, ax: Sequence[Axes] | None = None
) -> Sequence[Axes]:
    """Draw measured bytes over predicted bytes, each pass a point, and Algorithm 1's DRAM bytes and
    time over B_c.

    `record`: what `flashsim.gpu.validation.validate` returned. `ax`: two axes; None: a new column
    of two.
    """
    axes: Sequence[Axes] = Panels(column_figure(5.6), 2, 1) if ax is None else ax
    for panel in axes:
        apply_style(panel)
    _predicted(axes[0], record)
    _theorem_2(axes[1], record)
    return axes


def _predicted(ax: Axes, record: Mapping[str, Any]) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ends: list[float] = []
    for name, (label, look) in _GROUPS.items():
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
            ax.plot(x, y, linestyle="none", mfc="none", label=label, gid=name, **look)
    line = [min(ends) / 1.5, max(ends) * 1.5]
    ax.plot(line, line, color=GREY, linewidth=0.8, gid="equal")
    for axis in (ax.xaxis, ax.yaxis):
        ticks(axis, LogLocator(10), EngFormatter("B", sep=""))
    ax.legend(loc="lower right")  # no pass is there: all lie on the line
    ax.set_xlabel("predicted by the model")
    ax.set_ylabel("counted by the GPU")
    worst: dict[str, float] = {}
    for row in record["rows"]:
        if row["within"] is not None:
            worst[row["level"]] = max(row["error"], worst.get(row["level"], 0.0))
    levels = ", ".join(f"{_LEVELS[level]} within {error:.1%}" for level, error in worst.items())
    ax.set_title(f"{record['machine']['gpu']}: counted bytes are the model's,\n{levels}", x=-0.2)


_LEVELS = {"DRAM": "DRAM", "L2": "SM ↔ L2"}
_GROUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "standard": ("standard attention, DRAM", {"color": BLACK, "marker": "x"}),
    "algorithm_1": ("Algorithm 1, DRAM", {"color": BLUE, "marker": "o"}),
    "algorithm_4": ("Algorithm 4, DRAM", {"color": GREEN, "marker": "D"}),
    "on chip": ("loops exchanged, SM ↔ L2", {"color": ORANGE, "marker": "v"}),
}


def _theorem_2(ax: Axes, record: Mapping[str, Any]) -> None:
    rows = [row for row in record["rows"] if row["group"] == "algorithm_1"]
    sizes = [row["B_c"] for row in rows]
    ax.set_xscale("log", base=2)
    for key, text, style in (("predicted", "predicted", "-"), ("measured", "counted", "none")):
        total = [(row[f"{key}_reads"] + row[f"{key}_writes"]) / 1e9 for row in rows]
        look: dict[str, Any] = {"linestyle": style, "color": BLUE, "gid": f"{key} bytes"}
        ax.plot(
            sizes,
            total,
            marker="o" if key == "measured" else None,
            mfc="none",
            label=f"traffic, {text}",
            **look,
        )
    ax.set_ylim(0, None)
    ax.set_ylabel("DRAM traffic (GB)", color=BLUE)
    ax.set_xlabel("column block size $B_c$ (rows of K, V)")
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    time = ax.twinx()
    ms = [row["ms"] for row in rows]
    (line,) = time.plot(
        sizes, ms, color=VERMILLION, marker="s", linestyle="--", gid="ms", label="runtime (right)"
    )
    ax.legend(handles=[*ax.get_lines(), line], loc="upper right")
    time.set_ylim(0, None)
    time.set_ylabel("runtime (ms)", color=VERMILLION)
    time.spines[["top", "left"]].set_visible(False)
    # so many, and then no more
    falls = next((index for index in range(1, len(ms)) if ms[index] >= ms[index - 1]), len(ms))
    until = f", up to {sizes[falls - 1]}," if falls < len(ms) else ""
    ax.set_title(
        f"Theorem 2 in silicon: Algorithm 1's traffic\nfalls with $B_c$, and{until} its runtime",
        x=-0.2,
    )


def _by_length(
    record: Mapping[str, Any],
    of: Callable[[Any, Any], float],
    d: int,
    direction: str,
    causal: bool = False,
) -> dict[str, dict[int, float]]:
    """Return `of` a result and a timing in it, without dropout, by contestant and N; in `LOOKS`'
    order; 0 is none.
    """
    result: dict[str, dict[int, float]] = {name: {} for name in LOOKS}
    for r in record["results"]:
        if (r["d"], r["direction"], r["causal"], r["dropout_p"]) == (d, direction, causal, 0):
            for t in r["timings"]:
                if t["name"] in result and not t["failed"] and of(r, t):
                    result[t["name"]][r["N"]] = of(r, t)
    return {name: points for name, points in result.items() if points}


@styled
def plot_times(record: Mapping[str, Any], *, ax: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw TFLOP/s over N, log-log, of every contestant: forward, causal, backward, backward causal
    (Figure 3, left, as rates).

    `record`: what `flashsim bench --json` wrote. `ax`: axes for each of these four that it has, and
    each d, row by row; None: new ones, a column for each d, one printed column wide in all: it is
    read on a phone, too.
    """
    heads = {r["d"]: r["H"] for r in reversed(record["results"])}
    widths = sorted(heads)
    passes = list(dict.fromkeys(r["direction"] for r in record["results"]))
    cases = [
        (direction, causal, d) for direction in passes for causal in (False, True) for d in widths
    ]
    if ax is None:
        ax = Panels(
            column_figure(4.4 * len(passes) + 0.4),
            2 * len(passes),
            len(widths),
            sharex=True,
            sharey="row",
        )
    for panel, (direction, causal, d) in zip(ax, cases, strict=True):
        apply_style(panel, x=2, y=10)
        for name, rates in _by_length(
            record, lambda _, t: t["tflops"], d, direction, causal
        ).items():
            panel.plot(
                *zip(*rates.items(), strict=True),
                label=LOOKS[name].label,
                gid=f"{direction} {causal} {name}",
                **LOOKS[name].line,
            )
        panel.set_title(f"{direction}{', causal' if causal else ''}\nd = {d}, {heads[d]} heads")
        ticks(panel.xaxis, LogLocator(4), _in_k)
        panel.set_ylabel("TFLOP/s")
        panel.set_xlabel("N")
        panel.label_outer()
    for panel in ax:
        low, high = panel.get_ylim()
        ticks(
            panel.yaxis,
            LogLocator(10, (1, 2, 5) if high > 10 * low else (1, 2, 3, 4, 5, 6)),
            lambda y, _: f"{y:g}",
        )
    known = {
        label: handle
        for panel in ax
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    output = [look.label for look in LOOKS.values() if look.label in known]
    figure_of(ax).legend(
        [known[label] for label in output], output, loc="outside lower center", ncols=2
    )
    text = f"{record['machine']['gpu']}, {record['results'][0]['dtype']}: rates"
    figure_of(ax).suptitle(text, x=0.02, ha="left", fontsize=8.5, fontweight="bold")
    return ax


def plot_front(record: Mapping[str, Any], *, ax: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw the top rungs' rates over N beside cuDNN's and FlashAttention-4's, forward or backward.
    As `plot_times`.

    `record`: what `flashsim bench --json` or `scripts/bench_hopper_cases.py --only backward` wrote.
    """
    results = [
        {
            "direction": "backward",
            "dtype": "float16",
            "timings": [
                {"name": name, "tflops": rate, "failed": ""}
                for name, rate in r.get("tflops", {}).items()
            ],
            **r,
        }
        for r in record["results"]
    ]
    return plot_times({**record, "results": results}, ax=ax)


@styled
def plot_runtime(record: Mapping[str, Any], *, d: int = 64, ax: Axes | None = None) -> Axes:
    """Draw forward + backward runtime over N, log-log, or of the one that the record has: the
    paper's Figure 3, left.
    """
    ax = canvas(ax, 4.2, x=2, y=10)
    directions = list(dict.fromkeys(r["direction"] for r in record["results"]))
    times = [
        _by_length(record, lambda r, t: t["median"] / r["B"], d, direction)
        for direction in directions
    ]
    for name, look in LOOKS.items():
        parts = [passes.get(name, {}) for passes in times]
        points = {
            N: sum(part[N] for part in parts)
            for N in sorted(parts[0])
            if all(N in part for part in parts)
        }
        if points:
            ax.plot(*zip(*points.items(), strict=True), label=look.label, gid=name, **look.line)
    _over_N(ax, d, record)
    ax.yaxis.set_major_locator(LogLocator(10))
    ax.set_ylabel(f"{' + '.join(directions)}, ms a sequence")
    ax.set_title(f"Runtime, as in Figure 3 (left)\n{record['machine']['gpu']}", x=-0.17)
    return ax


def _over_N(ax: Axes, d: int, record: Mapping[str, Any]) -> None:
    ax.legend(loc="upper left", bbox_to_anchor=(-0.22, -0.22), ncols=2, borderpad=0.1)
    ax.xaxis.set_major_formatter(_in_k)
    ax.set_xlabel(f"N (d = {d}, {record['results'][0]['H']} heads)")


@styled
def plot_figure_3(record: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Draw the runtime of exact and sparse attention over N, log-log: the paper's Figure 3, left,
    of those that exist here.

    Grey: where the paper's own lines begin to cross.
    """
    ax = plot_runtime(record, ax=ax)
    first, last = BETWEEN
    ax.axvspan(first, last, **BAND)
    _over_N(ax, 64, record)  # the key, with this
    window, butterfly = (
        f"{pays_from(record, f'hopper_{name}', 'hopper'):,}" for name in ("window", "butterfly")
    )
    since = window if window == butterfly else f"{window} (window), {butterfly} (butterfly)"
    ax.set_title(
        f"Sparse is faster than exact attention\nfrom N = {since} on, {record['machine']['gpu']}",
        x=-0.17,
    )
    return ax


def pays_from(record: Mapping[str, Any], name: str, exact: str) -> int:
    """Return the least measured N from which on one contestant is faster than another. Raises
    ValueError if there is none.
    """
    since = None
    for r in sorted(record["results"], key=lambda r: int(r["N"])):
        ms = {t["name"]: t["median"] for t in r["timings"] if not t["failed"]}
        if name in ms and exact in ms:
            since = (since or int(r["N"])) if ms[name] < ms[exact] else None
    if since is None:
        raise ValueError(f"{name} is not faster than {exact} at the longest N of the record")
    return since


def _in_k(x: float, _: object) -> str:
    return f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"


@styled
def plot_peak_memory(record: Mapping[str, Any], *, d: int = 64, ax: Axes | None = None) -> Axes:
    """Draw the memory that a forward pass allocates over N, log-log, output included: the
    paper's Figure 3, right.
    """
    ax = canvas(ax, 4.2, x=2, y=10)
    drawn = _by_length(record, lambda r, t: t["extra_bytes"] / r["B"], d, "forward")
    least = min(drawn.values(), key=lambda points: points[max(points)] / max(points))
    alike = [name for name in drawn if name != "standard" and _alike(drawn[name], least)]
    for name, points in drawn.items():
        look = LOOKS[name].line
        if name in alike:  # each has its markers where the others have none
            look |= {
                "markevery": (alike.index(name) % len(points), len(alike)),
                "markerfacecolor": LOOKS[name].colour,
            }
        ax.plot(*zip(*points.items(), strict=True), label=LOOKS[name].label, gid=name, **look)
    if len(alike) > 1:
        last = max(max(drawn[name]) for name in alike)
        apart = max(
            drawn[name][N] / drawn[other][N]
            for name in alike
            for other in alike
            for N in drawn[name].keys() & drawn[other]
        )
        text = f"{len(alike)} on one line,\nwithin {apart - 1:.0%}"
        y = max(drawn[name].get(last, 0) for name in alike)
        ax.annotate(text, (last, y), (0, -36), textcoords="offset points", ha="right", va="top")
    _over_N(ax, d, record)
    ax.yaxis.set_major_formatter(EngFormatter("B", sep=""))
    ax.set_ylabel("allocated in a forward pass, a sequence")
    ax.set_title(f"Memory, as in Figure 3 (right)\n{record['machine']['gpu']}", x=-0.17)
    return ax


def _alike(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Say whether two lines lie on one another, within 10% where both are."""
    return all(abs(one[N] - other[N]) < 0.1 * other[N] for N in one.keys() & other)


# attention in GPT-2, FlashAttention over PyTorch: arXiv:2205.14135, Figure 1 (right), an A100
PAPERS_SPEEDUP = 7.6


@styled
def plot_figure_1(record: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Draw the time of attention in GPT-2 medium, causal, with dropout, forward and backward: the
    paper's Figure 1, right.

    `record` holds results with dropout, of one setting, forward and backward. Beside each bar: how
    many times as fast as unfused attention written in PyTorch, the paper's baseline.
    """
    ax = canvas(ax, 2.8)
    results = {r["direction"]: r for r in record["results"] if r["dropout_p"]}
    ms = {
        direction: {t["name"]: t["median"] for t in r["timings"] if not t["failed"]}
        for direction, r in results.items()
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
        text = f"{total[name]:.1f} ms, {total['torch_unfused'] / total[name]:.1f}×"
        # right of the paper's line
        after = max(total[name], 1.4 * total["torch_unfused"] / PAPERS_SPEEDUP)
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        ax.annotate(
            text,
            (after, row),
            (4, 0),
            bbox={"facecolor": "white", "linewidth": 0, "pad": 0.5},
            **beside,
        )
    baseline = total["torch_unfused"]
    marks = (
        ("baseline", baseline, "baseline: PyTorch, unfused"),
        ("paper", baseline / PAPERS_SPEEDUP, f"{PAPERS_SPEEDUP}×, the paper's on an A100"),
    )
    for above, (gid, index, words) in enumerate(marks):
        top = 1.07 + 0.075 * above  # up to its words
        ax.axvline(
            index,
            ymax=top,
            color=BLACK,
            linestyle=(0, (1, 1.5)),
            linewidth=1,
            gid=gid,
            zorder=0,
            clip_on=False,
        )
        ax.annotate(
            words,
            (index, top),
            (3, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
        )
    ax.set_yticks(range(len(names)), [LOOKS[name].label for name in names])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.52 * max(total.values()))
    one = results["forward"]
    ax.set_xlabel(
        f"ms, forward and (hatched) backward\nB = {one['B']}, H = {one['H']}, N = {one['N']:,}, d "
        f"= {one['d']}"
    )
    ax.set_title(
        (
            f"GPT-2 medium, as in Figure 1 (right):\ncausal, dropout {one['dropout_p']}, "
            f"{record['machine']['gpu']}"
        ),
        x=-0.42,
        pad=26,
    )
    return ax


@styled
def plot_ladder(record: Mapping[str, Any], *, ax: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw a step a row, peers last: its rate; and what it moves, by the model and by the
    hardware's counters, log.

    `record`: what `flashsim bench --ladder --json` wrote. `ax`: two axes with the same rows; None:
    new ones, side by side, one printed column wide.
    """
    steps = [step for step in record["steps"] if not step["failed"]]
    if ax is None:
        ax = Panels(column_figure(1.8 + 0.2 * len(steps)), 1, 2, sharey=True, width_ratios=(1, 1.6))
    rates, traffic = ax
    places = range(len(steps))
    for panel in ax:
        apply_style(panel)
    whose = [_whose(step) for step in steps]
    rates.barh(places, [s["tflops"] for s in steps], color=[_BARS[who] for who in whose])
    for place, step in zip(places, steps, strict=True):
        rates.text(step["tflops"], place, f" {step['tflops']:.0f}", va="center")
    labels = [
        LOOKS[s["name"]].label if "simulated" not in s else s["name"].removeprefix("hopper, ")
        for s in steps
    ]
    rates.set_yticks(list(places), labels)
    rates.invert_yaxis()
    rates.set_xlim(0, 1.45 * max(s["tflops"] for s in steps))
    rates.set_xlabel("TFLOP/s")
    own = {place: step for place, step in zip(places, steps, strict=True) if "simulated" in step}
    kinds: dict[str, tuple[dict[str, Any], Callable[[Any], float]]] = {
        "simulated accesses × an input's bytes": (
            {"marker": "s", "mfc": "none", "color": BLACK},
            lambda step: step["width"] * sum(step["simulated"].values()),
        ),
        "counted, L2 ↔ multiprocessors": (
            {"marker": "o", "color": ORANGE},
            lambda step: step["seen"]["l2_reads"] + step["seen"]["l2_writes"],
        ),
        "counted, DRAM": (
            {"marker": "D", "color": BLUE},
            lambda step: step["seen"]["dram_reads"] + step["seen"]["dram_writes"],
        ),
    }
    for name, (look, of) in kinds.items():
        traffic.plot(
            [*map(of, own.values())], [*own], linestyle="none", label=name, gid=name, **look
        )
    traffic.set_xscale("log")
    ticks(traffic.xaxis, LogLocator(10, (1, 3)), EngFormatter("B", sep=""))
    traffic.set_xlabel("reads + writes")
    setting = record["setting"]
    causal = ", causal" if setting["causal"] else ""
    text = f"N = {setting['N']:,}, d = {setting['d']}{causal}, {setting['dtype']}"
    title = f"{record['machine']['gpu']}: rate and traffic, forward\n{text}"
    figure_of(ax).suptitle(title, x=0.02, ha="left", fontsize=8.5, fontweight="bold")
    bars = [Patch(facecolor=colour, label=who) for who, colour in _BARS.items() if who in whose]
    figure_of(ax).legend(handles=[*bars, *traffic.get_lines()], loc="outside lower left")
    return ax


_BARS = {
    "flashsim's kernels": tint(BLUE),
    "flashsim's kernels for Hopper": tint(VERMILLION),
    "peers": tint(BLACK),
}
"""The colours of a ladder's bars: whose kernel."""


def _whose(step: Mapping[str, Any]) -> str:
    any_gpu, hopper, peers = _BARS
    return (
        peers
        if "simulated" not in step
        else hopper
        if step["name"].startswith("hopper")
        else any_gpu
    )
