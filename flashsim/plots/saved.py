"""What FlashAttention saves, against M/d²: one curve for all head dimensions, and where the paper's
Figure 2 stands on it.

S and P are 4N² accesses of standard attention, and FlashAttention makes 3Nd for each of its N/B_c
blocks of keys, in which B_c is nearly M/4d: 12N²d²/M. So forward the factor is near M/3d² while M
is far below Nd, whatever N.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import DEFAULT_DTYPE, REFERENCE_D, REFERENCE_N, check_M, float_dtype
from flashsim.drawing.style import BLACK, BLUE, GREEN, GREY, ORANGE, ticks, title_x
from flashsim.plots.chart import Data, chart
from flashsim.simulate.api import count
from flashsim.theory.measured import A100_M, FACTOR

_PARTS = [2 ** (step / 2) for step in range(-2, 13)]  # of M/d², 1/2 to 64


def saved_data(*, N: int = REFERENCE_N, d: int = REFERENCE_D) -> dict[str, Any]:
    """Return how many times as much as `flash` `standard` accesses, against M/d² of 1/2 to 64, in
    blocks that fit.

    One head of N rows, the largest such blocks. `curves`: forward and backward at d, and forward at
    d/2; None where not even a row fits. `marks`: the reference, M = 100 KB of float32, and an
    A100's 192 KB of float16, forward; `paper`: the factor that the paper measured there, forward
    and backward, with mask and dropout.
    """
    N, d = check_count("N", N), check_count("d", d)
    half = max(d // 2, 1)

    def factor(width: int, M: int, direction: str = "forward") -> float | None:
        sizes: dict[str, Any] = {
            "N": N,
            "d": width,
            "M": M,
            "sizing": "fit",
            "direction": direction,
        }
        try:
            standard, flash = (count(name, **sizes).hbm.accesses for name in ("standard", "flash"))
        except ValueError:  # not even a row fits
            return None
        return round(standard / flash, 4)

    def curve(width: int, direction: str) -> dict[str, Any]:
        rooms = [round(part * width * width) for part in _PARTS]
        return {
            "d": width,
            "direction": direction,
            "M": rooms,
            "factor": [factor(width, max(M, 1), direction) for M in rooms],
        }

    named = {"reference": check_M(None, float_dtype(DEFAULT_DTYPE).itemsize), "figure_2": A100_M}
    curves = [curve(d, "forward"), curve(half, "forward"), curve(d, "backward")]
    marks = {name: {"M": M, "factor": factor(d, M)} for name, M in named.items()}
    return {"N": N, "d": d, "sizing": "fit", "curves": curves, "marks": marks, "paper": FACTOR}


@chart("saved", saved_data, "how much FlashAttention saves, against M/d²", 3.5, x=2, y=2)
def plot_saved(data: Data, ax: Axes) -> None:
    """Draw the factors against M/d², log-log, and the line M/3d²."""
    N = data["N"]
    d = data["d"]
    styles = ((BLUE, "-", "o"), (BLUE, "none", "x"), (GREEN, "--", "s"))
    for curve, (colour, dashes, marker) in zip(data["curves"], styles, strict=True):
        shares = [M / curve["d"] ** 2 for M in curve["M"]]
        label = f"{curve['direction']}, d = {curve['d']}"
        look: dict[str, Any] = {
            "color": colour,
            "linestyle": dashes,
            "marker": marker,
            "mfc": "white",
            "markersize": 4,
        }
        ax.plot(shares, curve["factor"], label=label, gid=label, **look)
    parts = [part for part in _PARTS if part >= 2]
    ax.plot(
        parts, [part / 3 for part in parts], color=GREY, linestyle=":", label="M/3d²", gid="M/3d²"
    )
    for name, mark in data["marks"].items():
        if mark["factor"] is not None:
            place = [mark["M"] / d**2], [mark["factor"]]
            ax.plot(*place, "D", color=ORANGE, mec=BLACK, markersize=6, gid=name, zorder=4)
    measured = [data["marks"]["figure_2"]["M"] / d**2], [data["paper"]]
    ax.plot(*measured, "*", color=BLACK, markersize=9, gid="paper", zorder=4)
    _say(ax, data)
    ax.axhline(1, color=GREY, linewidth=0.6, gid="as much")
    ax.set_ylim(0.2, 40)
    ticks(
        ax.xaxis,
        FixedLocator([0.5, 1, 2, 4, 8, 16, 32, 64]),
        lambda x, _: "1/2" if x < 1 else f"{x:g}",
    )
    ticks(
        ax.yaxis,
        FixedLocator([0.25, 0.5, 1, 2, 4, 8, 16, 32]),
        lambda y, _: f"{y:g}×" if y >= 1 else f"1/{1 / y:g}×",
    )
    ax.legend(loc="lower right")
    ax.set_xlabel(f"M/d²\nN = {N:,}, one head, the largest blocks that fit M")
    ax.set_ylabel("standard's accesses ÷ FlashAttention's")
    ax.set_title("What is saved follows M/d²", x=title_x(ax, -0.15))


def _say(ax: Axes, data: Data) -> None:
    beside: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "bottom"}
    near, far = (data["marks"][name] for name in ("reference", "figure_2"))
    if near["factor"] is not None:
        words = f"100 KB of\nfloat32: {near['factor']:.3g}×"
        ax.annotate(words, (near["M"] / data["d"] ** 2, near["factor"]), (-6, 4), **beside)
    words = f"Figure 2, 192 KB of float16:\nthe paper measured {data['paper']:.1f}×"
    if far["factor"] is not None:
        words += f";\nhere, forward, {far['factor']:.3g}×"
    ax.annotate(
        words, (far["M"] / data["d"] ** 2, data["paper"]), (-8, 2), **beside, multialignment="left"
    )
