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
from flashsim.plots.chart import Data, Several, chart

_WHAT = "when fusing an MLP's layers pays, beside Saha and Ye's border"
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
        name: [_moved(mlp.exact(N=N, d=d, f=f, M=M, **how)) for M in rooms]
        for name, (how, _) in _WAYS.items()
    }
    scores = {
        name: [_moved(theory.exact(name, N=N, d=d, M=M, sizing="fit")) for M in rooms]
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


@chart("fusing", fusing_data, _WHAT, 5.2, panels=2, grid={"sharex": True}, x=2, y=10)
def plot_fusing(data: Data, axes: Several) -> None:
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
    for panel, (what, its, matrix, size) in zip(axes, panels, strict=True):
        for name, look in its.items():
            moved = np.array(data[what][name], float)  # nan where nothing fits
            if not np.isnan(moved).all():
                style = {**look.line, "marker": None}
                panel.plot(
                    np.array(data["M"]) / d**2,
                    moved / size,
                    label=look.label,
                    gid=f"{what} {name}",
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
    rooms: Sequence[int], moved: Mapping[str, Sequence[int | None]], what: Sequence[str]
) -> float | None:
    """Return the M from which on `what` moves less than the others do, between two M on a
    log-log line; None: never.
    """

    def ahead(at: int) -> float | None:
        """Say by how much it is ahead, as a logarithm; None where nothing of one of them fits."""
        fits = {name: count for name, counts in moved.items() if (count := counts[at]) is not None}
        ones, others = (
            [n for name, n in fits.items() if (name in what) == which] for which in (True, False)
        )
        return math.log(min(others) / min(ones)) if ones and others else None

    found = None
    for at in reversed(range(len(rooms))):
        lead = ahead(at)
        if lead is None:
            break
        if lead <= 0:
            after = ahead(at + 1) if at + 1 < len(rooms) else None
            return (
                None
                if after is None
                else rooms[at] * (rooms[at + 1] / rooms[at]) ** (-lead / (after - lead))
            )
        found = float(rooms[at])
    return found


def _point(data: Data, what: str, names: Sequence[str], of: str) -> str:
    least = pays_from(data["M"], data[what], names)
    return (
        f"{of} never pays here"
        if least is None
        else f"{of} pays\nfrom M = {least / data['d'] ** 2:.1f} d² on"
    )


def _moved(exact: theory.Exact) -> int | None:
    return exact.hbm.accesses if exact.sram.peak <= exact.sram.capacity else None
