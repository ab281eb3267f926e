"""What several GPUs measured: how many times as fast as one they are, and from which length on
messages hide behind kernels.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from flashsim.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    Panels,
    apply_style,
    column_figure,
    styled,
    ticks,
)
from flashsim.plots.saving import figure_of

LOOKS = {
    "ring": ("ring", ORANGE, "o", "-"),
    "ring, no overlap": ("ring, no overlap", ORANGE, "", ":"),
    "ring, no graph": ("ring, no graph", GREY, "", "--"),
    "ulysses": ("Ulysses", BLUE, "s", "-"),
    "context_parallel, allgather": ("PyTorch's context_parallel", PURPLE, "^", "-."),
}
CASES = [(direction, causal) for direction in ("forward", "backward") for causal in (False, True)]


def results_of(record: Mapping[str, Any], direction: str, causal: bool) -> list[Mapping[str, Any]]:
    """Return the results of a direction, with a causal mask or without, by length."""
    return [r for r in record["results"] if (r["direction"], r["causal"]) == (direction, causal)]


def median(result: Mapping[str, Any], name: str) -> float:
    """Return a contestant's ms."""
    return float(result["ms"][name][0])


def times_one(result: Mapping[str, Any], name: str) -> float:
    """Return how many times as fast as one GPU a contestant is."""
    return median(result, "one GPU") / median(result, name)


def rates(record: Mapping[str, Any], causal: bool) -> tuple[float, float]:
    """Return the operations a second of a GPU's forward kernels, and the bytes a second that it
    sends, at the longest N.
    """
    last = results_of(record, "forward", causal)[-1]
    P = record["machine"]["gpus"]
    pairs = last["N"] * (last["N"] + 1) / 2 if causal else last["N"] ** 2
    flops = 4 * record["heads"] * record["d"] * pairs / P
    sent = last["bytes"]["ring"]["model"][0]
    return 1e3 * flops / median(last, "kernels alone"), 1e3 * sent / median(last, "messages alone")


def predicted(record: Mapping[str, Any], causal: bool) -> float:
    """Return the N from which on a forward step's messages hide: P·F/B, and twice that under a
    causal mask, in 16 bits.
    """
    operations, bytes_sent = rates(record, causal)
    return (2 if causal else 1) * int(record["machine"]["gpus"]) * operations / bytes_sent


def measured(record: Mapping[str, Any], causal: bool) -> float:
    """Return the N from which on messages alone take less than the kernels of their steps, between
    measured lengths log-log.

    Raises ValueError where there is none.
    """
    P = record["machine"]["gpus"]
    over = [
        (r["N"], median(r, "messages alone") / (median(r, "kernels alone") * (P - 1) / P))
        for r in results_of(record, "forward", causal)
    ]
    for (N, before), (longer, after) in pairwise(over):
        if before > 1 >= after:
            return float(N * (longer / N) ** (math.log(before) / math.log(before / after)))
    raise ValueError(
        f"messages take {over[0][1]:.2f} to {over[-1][1]:.2f} times as long as kernels; expected 1 "
        "between"
    )


@styled
def plot_devices(record: Mapping[str, Any], *, ax: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw how many times as fast as one GPU each contestant is, against N: forward and backward,
    full and causal.

    `record`: what `scripts/bench_devices.py` wrote. `ax`: four axes; None: new ones, two by two.
    """
    if ax is None:
        ax = Panels(column_figure(4.6), 2, 2, sharex=True, sharey=True)
    P = record["machine"]["gpus"]
    for panel, (direction, causal) in zip(ax, CASES, strict=True):
        apply_style(panel, x=2)
        results = results_of(record, direction, causal)
        lengths = [r["N"] for r in results]
        for name, (label, colour, marker, dashes) in LOOKS.items():
            if name in results[0]["ms"]:
                speeds = [times_one(r, name) for r in results]
                panel.plot(
                    lengths,
                    speeds,
                    color=colour,
                    marker=marker,
                    markersize=4,
                    linestyle=dashes,
                    label=label,
                    gid=f"{direction} {causal} {name}",
                )
        panel.axhline(1, color=BLACK, linewidth=0.8)
        panel.set_ylim(0, P)
        panel.set_title(f"{direction}{', causal' if causal else ''}")
        ticks(
            panel.xaxis,
            FixedLocator([N for N in lengths if N & (N - 1) == 0][1::2]),
            FuncFormatter(_in_k),
        )
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("N")
        panel.set_ylabel(f"speed of {P} GPUs ÷ one's")
        panel.label_outer()
    known = {
        label: line
        for panel in ax
        for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure_of(ax).legend(known.values(), known, loc="outside lower center", ncols=2)
    text = f"{P} × {record['machine']['gpu']}\n{record['heads']} heads, d = {record['d']}"
    figure_of(ax).suptitle(text, x=0.02, ha="left", fontsize=8.5, fontweight="bold")
    return ax


def _in_k(N: float, _: int) -> str:
    return f"{N / 1024:g}K"
