"""The matrix of bugs and checks, as a picture."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from flashsim.drawing.style import BLUE, GREY, VERMILLION, styled

PARTS = {
    "forward": "bugs of the forward pass",
    "backward": "bugs of the backward pass",
    "dropout": "bugs of dropout",
    "serving": "bugs of kernels that serve",
}
SHADES = LinearSegmentedColormap.from_list("share", ["#FFFFFF", BLUE])


@styled
def plot_kit_matrix(data: dict[str, Any]) -> Axes:
    """Draw the share of cases in which a check notices a bug: a row a bug, a column a check."""
    checks = list(data["checks"])
    mutants = sorted(
        data["mutants"], key=lambda row: (list(PARTS).index(row["part"]), row["written"] == "after")
    )
    shares = np.array(
        [
            [row["failed"].get(name, 0) / max(row["tried"].get(name, 0), 1) for name in checks]
            for row in mutants
        ]
    )
    height = 2.0 + 0.165 * len(mutants)
    figure = Figure(figsize=(7.2, height), layout="constrained")
    ax = figure.subplots()
    colours = ax.pcolormesh(
        shares**0.5, cmap=SHADES, vmin=0, vmax=1, edgecolors="#DDDDDD", linewidth=0.4
    )
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    small: dict[str, Any] = {**middle, "fontsize": 6.5}
    for y, row in enumerate(mutants):
        for x, name in enumerate(checks):
            if name not in row["tried"] or not row["tried"][name]:
                ax.text(x + 0.5, y + 0.5, "–", color=GREY, **small)
            elif shares[y, x]:
                ink = "white" if shares[y, x] > 0.3 else "black"
                ax.text(
                    x + 0.5, y + 0.52, f"{max(1, round(100 * shares[y, x]))}", color=ink, **small
                )
        sign, ink = {True: ("✓", "black"), False: ("·", GREY), None: ("–", GREY)}[row["textbook"]]
        ax.text(
            len(checks) + 0.7, y + 0.52, sign, fontsize=8, color=ink, family="DejaVu Sans", **middle
        )
        known = [k for k in row["first"] if k is not None]
        missed = len(row["first"]) - len(known)
        first = (
            f"{sorted(known)[len(known) // 2]}" + f" ({missed} missed)" * bool(missed)
            if known
            else "never"
        )
        ax.text(
            len(checks) + 2.0, y + 0.52, first, color=VERMILLION if missed else "black", **small
        )
    missed_then = data["missed_when_frozen"]
    labels = [
        row["name"].replace("_", " ")
        + (" ●" if row["name"] in missed_then else " ○" if row["written"] == "after" else "")
        for row in mutants
    ]
    ax.set_yticks(np.arange(len(mutants)) + 0.5, labels, fontsize=7.5)
    ticks = [*(np.arange(len(checks)) + 0.5), len(checks) + 0.7, len(checks) + 2.0]
    names = [*(name.replace("_", " ") for name in checks), "textbook test", "first example"]
    ax.set_xticks(ticks, names, rotation=60, ha="left", rotation_mode="anchor", fontsize=7.5)
    ax.xaxis.tick_top()
    ax.set_xlim(0, len(checks) + 2.8)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    start = 0
    for part, text in PARTS.items():
        count = sum(row["part"] == part for row in mutants)
        if start:
            ax.axhline(start, color="black", linewidth=0.8)
        ax.text(
            len(checks) + 3.0,
            start + count / 2,
            text,
            rotation=90,
            ha="left",
            va="center",
            fontsize=8,
        )
        start += count
    key = figure.colorbar(
        colours, ax=ax, orientation="horizontal", location="bottom", shrink=0.5, aspect=40, pad=0.01
    )
    percents = [0, 1, 5, 10, 25, 50, 100]
    key.set_ticks(
        [(percent / 100) ** 0.5 for percent in percents],
        labels=[f"{percent}%" for percent in percents],
    )
    key.set_label("cases in which the check fails; –: the check was not tried", fontsize=8)
    key.ax.tick_params(labelsize=8)
    figure.suptitle(
        f"Cases of {data['cases']} that fail, in %, by bug and check\n"
        "(○ written after the strategies were frozen, ● and missed by them then)",
        fontsize=8,
        x=0.01,
        ha="left",
    )
    return ax
