"""The error of a ring against how many devices there are, with unfinished O kept in float32 and
in bfloat16.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from flashsim import devices
from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import float_dtype
from flashsim.devices.programs import programs
from flashsim.drawing.style import BLUE, ORANGE, ticks
from flashsim.plots.chart import Data, chart
from flashsim.reference import attention
from flashsim.support.exporting import plain
from flashsim.tracing.planting import mutated

CHANGE = ('hbm.empty("O_run", shape, sram.dtype)', 'hbm.empty("O_run", shape, V.dtype)')
SEEDS = 2
LOOKS = {
    "float32": (BLUE, "s", "float32, as the ring here"),
    "bfloat16": (ORANGE, "o", "bfloat16, as the inputs"),
}


def hops_data(*, N: int = 512, d: int = 32, P: Sequence[int] = (1, 2, 4, 8, 16)) -> dict[str, Any]:
    """Return the root of the mean squared error of O, in units of bfloat16's roundoff, 2⁻⁸, for
    each number of devices P.

    Q, K, V are normal, in bfloat16, and so is O at the end; two draws. `kept`: the type in which
    unfinished O_i are written between steps. Raises ValueError.
    """
    N = check_count("N", N)
    d = check_count("d", d)
    counts = [check_count("P", n) for n in P]
    ring = programs()["ring"]
    rings = {
        "float32": ring,
        "bfloat16": replace(ring, run=mutated(ring.run, CHANGE, name="bfloat16 parts")),
    }
    errors: dict[str, list[float]] = {name: [] for name in rings}
    normal = (np.random.default_rng(seed).normal(size=(3, N, d)) for seed in range(SEEDS))
    drawn = [inputs.astype(float_dtype("bfloat16")) for inputs in normal]
    expected = [attention(*(X.astype(float) for X in inputs)) for inputs in drawn]
    for size in counts:
        for name, program in rings.items():
            how: dict[str, Any] = {
                "P": size,
                "layout": "contiguous",
                "blocks": (32, 32),
                "M": "100KB",
            }
            outputs = [devices.forward(program, *inputs, **how).O for inputs in drawn]
            squares = [
                np.square(O.astype(float) - reference).mean()
                for O, reference in zip(outputs, expected, strict=True)
            ]
            errors[name].append(round(float(np.sqrt(np.mean(squares)) * 2**8), 5))
    data: dict[str, Any] = plain({"N": N, "d": d, "P": counts, "seeds": SEEDS, "kept": errors})
    return data


@chart(
    "hops", hops_data, "error of a ring, against how many devices there are", 2.6, x=2, exact=False
)
def plot_hops(data: Data, ax: Axes) -> None:
    """Draw a line for each type that unfinished O is kept in."""
    for name, (colour, marker, label) in LOOKS.items():
        ax.plot(
            data["P"],
            data["kept"][name],
            color=colour,
            marker=marker,
            markersize=4,
            label=label,
            gid=name,
        )
    ticks(ax.xaxis, FixedLocator(data["P"]), "{x:.0f}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left", frameon=False, title="unfinished O in", title_fontsize=8)
    ax.set_xlabel(f"devices\n(N = {data['N']:,}, d = {data['d']}, {data['seeds']} draws)")
    ax.set_ylabel("error of O, in 2⁻⁸")
