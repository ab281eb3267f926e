"""Theorem 2, and Theorem 5, which is about the backward pass: of each, three log-log plots of HBM
accesses, against N, d and M.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from flashsim import theory
from flashsim.algorithms import Algorithm
from flashsim.algorithms.own import resolve
from flashsim.attention.inputs import REFERENCE_D
from flashsim.drawing.style import BLACK, BLUE, GREY, SKY, looks, on_slide, ticks, title_x
from flashsim.plots.chart import AxesList, Chart, Data, count_arguments
from flashsim.simulate.api import count
from flashsim.support.sizes import Size

_DIMENSIONS = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
_LABELS = {"N": "sequence length N", "d": "head dimension d", "M": "SRAM size M (elements)"}
_POWER = 0.05  # a series whose residual is below this is called a power


class _Theorem(NamedTuple):
    direction: str
    flash: str
    constants: Callable[[int], tuple[float, float]]
    band: str


_THEOREMS = {
    2: _Theorem("forward", "flash_basic", theory.flash_constants, "2.4 to\n18 + 22/d"),
    5: _Theorem("backward", "flash", theory.flash_backward_constants, "4 to\n32 + 10/d"),
}


def theorem_data(
    number: int,
    *,
    N: int = 16_384,
    d: int = REFERENCE_D,
    M: Size | None = None,
    dtype: str = "float32",
    algorithms: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return HBM accesses (elements) of one head against each of N, d and M, with the other two
    fixed, and their log-log fits.

    By panel: `values` of the variable, all within d ≤ M ≤ Nd, and accesses of `flash_basic` and
    `standard` as counted by the simulator, and of `proof`, the standard attention that reads each
    operand once. `band` is N²d²/M times `theory.flash_constants(d)`. For Theorem 5 the same of the
    backward pass: `flash` is Algorithm 4, `standard` Algorithm 3, `proof` 8Nd + 7N², `band` by
    `theory.flash_backward_constants(d)`. A fit is accesses ≈ 10^intercept · value^slope by least
    squares in log10; `residual` is the greatest |log10 accesses − fit|. Blocks are line 1's, of
    which the constants are; `needs` says what FlashAttention needs of M at most, as a part. Raises
    ValueError where N, d, M leave the theorem's d ≤ M ≤ Nd too few sizes to fit.
    """
    theorem = _THEOREMS[number]
    checked = count_arguments(N=N, d=d, M=M, dtype=dtype, sizing="paper")
    fixed = {name: checked[name] for name in "NdM"}
    others = [resolve(algorithm, theorem.direction) for algorithm in algorithms]
    panels = {
        variable: _panel(variable, values, fixed, theorem, others)
        for variable, values in _ranges(**fixed).items()
    }
    return {
        "theorem": number,
        "direction": theorem.direction,
        "dtype": checked["dtype"],
        "sizing": "paper",
        "panels": panels,
    }


theorem2_data = partial(theorem_data, 2)
theorem5_data = partial(theorem_data, 5)


def _ranges(N: int, d: int, M: int) -> dict[str, list[int]]:
    """Return the sizes on each panel's axis, all of which have d ≤ M ≤ Nd. Raises ValueError if
    an axis has fewer than three.
    """
    first = (2 * M // d).bit_length()  # N from twice what M holds
    ranges = {
        "N": [2**e for e in range(first, first + 8)] if d <= M else [],
        "d": [size for size in _DIMENSIONS if N * size >= 10 * M and 16 * size <= M],
        # 4d … Nd/4, where ⌈M/4d⌉ does not round
        "M": [4 * d * 2**e for e in range((N // 16).bit_length())],
    }
    for variable, sizes in ranges.items():
        if len(sizes) < 3:
            message = f"N = {N:,}, d = {d:,}, M = {M:,} leave no range of {variable} to draw"
            raise ValueError(f"{message}; expected M far above d, far below Nd")
    return ranges


def _panel(
    variable: str,
    values: list[int],
    fixed: Mapping[str, int],
    theorem: _Theorem,
    others: Sequence[Algorithm],
) -> dict[str, Any]:
    points: list[dict[str, Any]] = [{**fixed, variable: value} for value in values]
    algorithms: dict[str, str | Algorithm] = {name: name for name in (theorem.flash, "standard")}
    algorithms |= {other.name: other for other in others}
    options: dict[str, Any] = {"direction": theorem.direction, "sizing": "paper"}
    series = {}
    needs = []
    for name, algorithm in algorithms.items():
        tallies = [count(algorithm, **point, **options) for point in points]
        series[name] = [tally.hbm.accesses for tally in tallies]
        if name == theorem.flash:
            needs = [round(tally.sram.peak / tally.sram.capacity, 4) for tally in tallies]
    proof = []
    band = []
    for point in points:
        accesses = theory.proof_accounting(point["N"], point["d"], direction=theorem.direction)
        proof.append(sum(accesses))
        order = theory.theorem_2_flash(**point)
        band.append([constant * order for constant in theorem.constants(point["d"])])
    series["proof"] = proof
    return {
        "fixed": {name: value for name, value in fixed.items() if name != variable},
        "values": values,
        **series,
        "needs": needs,
        **({"others": [other.name for other in others]} if others else {}),
        "band": band,
        "fits": {name: _fit(values, accesses) for name, accesses in series.items()},
    }


def _fit(x: Sequence[int], y: Sequence[int]) -> dict[str, float]:
    log_x = np.log10(x)
    log_y = np.log10(y)
    slope, intercept = np.polyfit(log_x, log_y, 1)
    residual = np.abs(log_y - (slope * log_x + intercept)).max()
    fit = {"slope": slope, "intercept": intercept, "residual": residual}
    # + 0.0 makes 0 of −0
    return {name: round(float(number), 6) + 0.0 for name, number in fit.items()}


_STANDARD, _FLASH = looks(("standard", "flash")).values()
_PROOF: dict[str, Any] = {"color": BLACK, "marker": "x", "linestyle": ":"}
_TITLES = {
    "N": "Both grow as N²; FlashAttention stays below",
    "d": "FlashAttention grows as d²; standard, past √M",
    "M": "FlashAttention falls as 1/M; standard levels off",
}


def plot_theorem(data: Data, axes: AxesList) -> None:
    """Draw Theorem 2, or 5, in three panels, HBM accesses (elements) against N, d and M, log-log,
    with fitted slopes.

    FlashAttention's line is its fit; the others join their points. The band is what
    `theory.flash_constants` allows, or `theory.flash_backward_constants`. Standard attention "as
    run" reads operands again, as M < d² forces; "in the proof" it reads each once. Where N + 2 > M
    a run must also read S twice, backward, where 2N + 1 > M, P and dP: the small steps.
    """
    for panel, (variable, numbers) in zip(axes, data["panels"].items(), strict=True):
        _draw_panel(panel, variable, numbers, _THEOREMS[data["theorem"]])
        least = f"{min(numbers['needs']):.0%}"
        most = f"{max(numbers['needs']):.0%}"
        needs = least if least == most else f"{least} to {most}"
        panel.set_xlabel(
            f"{panel.get_xlabel()}, {data['dtype']}, one head\n"
            f"line 1's blocks: they need {needs} of M"
        )


def _draw_panel(ax: Axes, variable: str, panel: dict[str, Any], theorem: _Theorem) -> None:
    values = panel["values"]
    fixed = panel["fixed"]
    low, high = zip(*panel["band"], strict=True)
    ax.fill_between(values, low, high, facecolor=SKY, alpha=0.3, linewidth=0, gid="band")
    handles = []
    others = {
        name: (look.label, look.line) for name, look in looks(panel.get("others", ())).items()
    }
    series = {
        "standard": ("standard, as run", _STANDARD.line),
        "proof": ("standard, in the proof", _PROOF),
        theorem.flash: (_FLASH.label, _FLASH.line),
        **others,
    }
    for name, (label, style) in series.items():
        fit = panel["fits"][name]
        words = "bends, no one slope"
        if fit["residual"] < _POWER:
            words = f"slope {fit['slope']:.2f}"
            if not on_slide(ax):
                words += f", residual {fit['residual']:.3f}"
        handles.append(Line2D([], [], **style, label=f"{label}: {words}".replace("-", "−")))
        if name == theorem.flash:
            powers = 10 ** fit["intercept"] * np.array(values, float) ** fit["slope"]
            ax.plot(values, powers, color=style["color"], gid="fit")
            style = {**style, "linestyle": "none"}
        ax.plot(values, panel[name], **style, gid=name)
    if variable != "N":
        turn = fixed["d"] ** 2 if variable == "M" else math.sqrt(fixed["M"])
        ax.axvline(turn, color=GREY, linestyle="-.", linewidth=1, gid="M = d²")
        ax.text(turn, 1, " M = d²", color=GREY, transform=ax.get_xaxis_transform(), va="top")
    x, side = (0.02, "left") if variable == "M" else (1, "right")
    band = f"band: N²d²/M\ntimes {theorem.band}"
    look: dict[str, Any] = {"ha": side, "va": "bottom", "multialignment": "left"}
    ax.text(x, 0.03, band, color=BLUE, transform=ax.transAxes, **look)
    ax.margins(x=0.04)
    sizes = ", ".join(f"{name} = {value:,}" for name, value in fixed.items())
    ax.set_xlabel(f"{_LABELS[variable]}\n{sizes}")
    direction = "" if theorem.direction == "forward" else "backward\n"
    ax.set_ylabel(f"{direction}HBM accesses (elements)")
    ticks(ax.yaxis, LogLocator(10, numticks=8))
    heading = None
    if variable == "N" and not on_slide(ax):
        heading = "residual: greatest |log₁₀(accesses / fit)|"
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(title_x(ax, -0.2), 1),
        handlelength=2.6,
        title=heading,
        alignment="left",
    )
    title = _TITLES[variable].replace("; ", ";\n") if on_slide(ax) else _TITLES[variable]
    ax.set_title(title, x=title_x(ax, -0.2), pad=50 if heading else 38)


_PANELS: dict[str, Any] = {"panels": 3, "x": 10, "y": 10}
_ABOUT = "Theorem 2: accesses against N, d, M, with fitted exponents"
plot_theorem2 = Chart("theorem2", theorem2_data, _ABOUT, 8.6, plot_theorem, **_PANELS)
plot_theorem5 = Chart(
    "theorem5",
    theorem5_data,
    "Theorem 5: the same for the backward pass",
    8.6,
    plot_theorem,
    **_PANELS,
)
