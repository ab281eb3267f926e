"""When fusing pays: an MLP's accesses against M, fused and unfused, beside attention's, and Saha
and Ye's border M = d².
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, LogLocator

from flashsim import theory
from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import DEFAULT_DTYPE
from flashsim.drawing.style import BLUE, GREY, ORANGE, VERMILLION, Look, looks, ticks, title_x
from flashsim.extensions import mlp
from flashsim.plots.chart import AxesList, Data, chart

_ABOUT = "when fusing an MLP's layers pays, beside Saha and Ye's border"
_WAYS: dict[str, tuple[dict[str, Any], Look]] = {
    "fused": ({}, Look("fused", BLUE, "o", "-")),
    "unfused, rows": ({"fused": False}, Look("unfused, rows", VERMILLION, "s", "--")),
    "unfused, square tiles": (
        {"fused": False, "tiles": "square"},
        Look("unfused, square tiles", ORANGE, "^", ":"),
    ),
}
_FUSED = ("flash", "q_outer")
_ATTENTION = (*_FUSED, "small_cache")


def fusing_data(*, N: int = 65_536, d: int = 1024) -> dict[str, Any]:
    """Return accesses against M, d²/64 … 16d², of a dense MLP (d, 4d, d), and of attention; None
    where not a row fits.
    """
    N = check_count("N", N)
    d = check_count("d", d)
    rooms = [int(d * d * 2 ** (step / 4)) for step in range(-24, 17)]
    rooms = [M for M in dict.fromkeys(rooms) if d <= M]
    f = 4 * d
    layers = {
        name: [_accesses(mlp.exact(N=N, d=d, f=f, M=M, **options)) for M in rooms]
        for name, (options, _) in _WAYS.items()
    }
    scores = {
        name: [_accesses(theory.exact(name, N=N, d=d, M=M, sizing="fit")) for M in rooms]
        for name in _ATTENTION
    }
    return {
        "N": N,
        "d": d,
        "f": f,
        "dtype": DEFAULT_DTYPE,
        "M": rooms,
        "mlp": layers,
        "attention": scores,
    }


@chart("fusing", fusing_data, _ABOUT, 5.2, panels=2, grid={"sharex": True}, x=2, y=10)
def plot_fusing(data: Data, axes: AxesList) -> None:
    """Draw accesses of an N × f hidden layer, and of N × N scores, per element of these, over
    M/d², log-log.
    """
    N = data["N"]
    d = data["d"]
    panels = (
        (
            "mlp",
            {name: look for name, (_, look) in _WAYS.items()},
            "hidden layer (N × f)",
            N * data["f"],
        ),
        ("attention", looks(_ATTENTION), "S (N × N)", N * N),
    )
    for panel, (key, looks_of_lines, matrix, size) in zip(axes, panels, strict=True):
        for name, look in looks_of_lines.items():
            accesses = np.array(data[key][name], float)  # nan where nothing fits
            if not np.isnan(accesses).all():
                style = {**look.line, "marker": None}
                panel.plot(
                    np.array(data["M"]) / d**2,
                    accesses / size,
                    label=look.label,
                    gid=f"{key} {name}",
                    **style,
                )
        panel.axvline(1, color=GREY, linewidth=0.6, gid="border")
        panel.annotate(
            "M = d²",
            (1, 0.02),
            (3, 0),
            xycoords=panel.get_xaxis_transform(),
            textcoords="offset points",
        )
        panel.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
        panel.set_ylabel(f"HBM accesses per\nelement of {matrix}")
        shares = FixedLocator([1 / 64, 1 / 16, 1 / 4, 1, 4, 16])
        ticks(panel.xaxis, shares, lambda x, _: f"1/{round(1 / x)}" if x < 1 else f"{x:g}")
        ticks(panel.yaxis, LogLocator(10), lambda y, _: f"{y:g}")
    for panel in axes[1:] if axes[0].get_shared_x_axes().joined(*axes) else axes:
        shape = f"N = {N:,}, d = {d:,}, f = {data['f']:,}, {data['dtype']}"
        panel.set_xlabel(f"SRAM size M / d²\n{shape}\nthe largest blocks that fit, one head")
    axes[0].set_title(
        _point(data, "mlp", ["fused"], "An MLP: fusing its two layers"), x=title_x(axes[0], -0.2)
    )
    axes[1].set_title(
        _point(data, "attention", _FUSED, "Attention: fusing"), x=title_x(axes[1], -0.2)
    )


def pays_from(
    rooms: Sequence[int], accesses: Mapping[str, Sequence[int | None]], names: Sequence[str]
) -> float | None:
    """Return the M from which on the curves of these names move less than the others do. It lies
    between two M of `rooms`, on a log-log line. None: there is no such M.
    """

    def lead_at(index: int) -> float | None:
        """Return the logarithm of their lead at an M; None if nothing of one side fits."""
        ours: list[int] = []
        others: list[int] = []
        for name, counts in accesses.items():
            count = counts[index]
            if count is not None:
                (ours if name in names else others).append(count)
        return math.log(min(others) / min(ours)) if ours and others else None

    first = None
    for index in reversed(range(len(rooms))):
        lead = lead_at(index)
        if lead is None:
            break
        if lead <= 0:
            next_lead = lead_at(index + 1) if index + 1 < len(rooms) else None
            if next_lead is None:
                return None
            part = -lead / (next_lead - lead)
            between: float = rooms[index] * (rooms[index + 1] / rooms[index]) ** part
            return between
        first = float(rooms[index])
    return first


def _point(data: Data, key: str, names: Sequence[str], subject: str) -> str:
    least = pays_from(data["M"], data[key], names)
    if least is None:
        return f"{subject} never pays here"
    return f"{subject} pays\nfrom M = {least / data['d'] ** 2:.1f} d² on"


def _accesses(exact: theory.Exact) -> int | None:
    return exact.hbm.accesses if exact.sram.peak <= exact.sram.capacity else None
