"""Figure 2 (right) of the paper, as a model: block-sparse FlashAttention's accesses against s.
Proposition 4.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator
from numpy.typing import NDArray

from flashsim.algorithms.blocks import Fixed
from flashsim.attention.inputs import REFERENCE_D
from flashsim.attention.masks import patterns
from flashsim.drawing.numbers import in_units, power_for, say_in
from flashsim.drawing.style import BY_DIRECTION, GREY, ticks, title_x
from flashsim.plots.chart import Data, chart, count_arguments, describe
from flashsim.simulate.api import count
from flashsim.support.sizes import Size

SEED = 2205_14135
_DENSITIES = [2.0**-e for e in range(12)]
_STRIDE = 8
_PATTERNS: dict[str, Callable[[int, int], NDArray[np.bool_]]] = {
    "local": patterns.local,
    "butterfly": patterns.butterfly,
    "strided": partial(patterns.strided, stride=_STRIDE),
}
_FLOORS = {"forward": "3Nd + 2N", "backward": "7Nd"}


def sparsity_data(
    *,
    N: int = 16_384,
    d: int = REFERENCE_D,
    M: Size | None = None,
    dtype: str = "float32",
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
) -> dict[str, Any]:
    """Return Algorithm 5's HBM accesses (elements, one head), forward and backward, by s, the part
    of tiles computed.

    `random`: seeded random block masks. `patterns`: local (one tile to either side), butterfly,
    strided (every 8th column), as in `flashsim.patterns`. `floor`: an empty mask. `flash`:
    Algorithms 2 and 4, all tiles. Where rows divide evenly, as at the default N with line 1's
    blocks, every count is exactly floor + (flash − floor) · tiles / (T_r·T_c). Blocks and
    `sram_peak` are those of the backward pass.
    """
    arguments = count_arguments(N=N, d=d, M=M, dtype=dtype, blocks=blocks, sizing=sizing)
    larger = count("block_sparse", **arguments, direction="backward")
    sizes = larger.blocks
    peak = larger.sram.peak
    shape = {name: value for name, value in arguments.items() if name not in ("sizing", "blocks")}
    shape["sizing"] = Fixed(sizes.B_r, sizes.B_c, enforced=sizing != "paper" or blocks is not None)
    T = sizes.T_r, sizes.T_c
    total = T[0] * T[1]

    def accesses(name: str, direction: str, mask: NDArray[np.bool_] | None = None) -> int:
        return count(name, **shape, direction=direction, block_mask=mask).hbm.accesses

    def points_of(mask: NDArray[np.bool_]) -> dict[str, dict[str, Any]]:
        tiles = int(np.count_nonzero(mask))
        points = {}
        for direction in BY_DIRECTION:
            number = accesses("block_sparse", direction, mask)
            points[direction] = {"s": tiles / total, "tiles": tiles, "accesses": number}
        return points

    random = [points_of(mask) for mask in _random_masks(T)]
    named = {name: points_of(pattern(*T)) for name, pattern in _PATTERNS.items()}
    return {
        **arguments,
        "sram_peak": peak,
        **sizes.to_dict(),
        "seed": SEED,
        "directions": {
            direction: {
                "random": [point[direction] for point in random],
                "patterns": {name: point[direction] for name, point in named.items()},
                "floor": accesses("block_sparse", direction, np.zeros(T, bool)),
                "flash": accesses("flash", direction),
            }
            for direction in BY_DIRECTION
        },
    }


def _random_masks(T: tuple[int, int]) -> Iterator[NDArray[np.bool_]]:
    """Yield a seeded random mask (T_r, T_c) of each density. A mask may be large, so there is one
    at a time, and its random numbers are drawn by rows.
    """
    random = np.random.default_rng(SEED)
    row = np.empty(T[1])
    mask = np.empty(T, bool)
    for density in _DENSITIES:
        for i in range(T[0]):
            np.less(random.random(out=row), density, out=mask[i])
        yield mask


@chart(
    "sparsity",
    sparsity_data,
    "Figure 2 (right), Proposition 4: accesses against sparsity",
    4.1,
    x=2,
    y=10,
)
def plot_sparsity(data: Data, ax: Axes) -> None:
    """Draw HBM accesses (elements) against s, log-log: the slope of 1 and, where little is left
    to compute, the floor.
    """
    tiles = data["T_r"] * data["T_c"]
    shares = np.geomspace(2.0**-13, 1, 200)
    left = 2.0**-13
    right = 1.35
    forward = data["directions"]["forward"]
    ax.set_xlim(left, right)
    ax.set_ylim(forward["floor"] / 2.6, max(d["flash"] for d in data["directions"].values()) * 1.8)
    for direction, colour in BY_DIRECTION.items():
        numbers = data["directions"][direction]
        floor = numbers["floor"]
        flash = numbers["flash"]
        ax.plot(
            shares,
            floor + (flash - floor) * shares,
            color=colour,
            linewidth=1,
            gid=f"{direction} line",
        )
        looks: tuple[tuple[str, dict[str, Any]], ...] = (
            ("o", {"mfc": "white"}),
            ("D", {"mec": "black", "ms": 5.5}),
        )
        for kind, points, (marker, look) in zip(
            ("random", "patterns"),
            (numbers["random"], numbers["patterns"].values()),
            looks,
            strict=True,
        ):
            s = [point["tiles"] / tiles for point in points]
            accesses = [point["accesses"] for point in points]
            ax.plot(s, accesses, marker, color=colour, gid=f"{direction} {kind}", **look)
        ax.axhline(flash, color=colour, linestyle="--", gid=f"{direction} flash")
        ax.axhline(floor, color=GREY, linestyle="-.", linewidth=1, gid=f"{direction} floor")
    left_of_labels = left * 1.2
    for direction, colour in BY_DIRECTION.items():
        numbers = data["directions"][direction]
        words = f"all tiles, {direction}"
        ax.text(left_of_labels, numbers["flash"] * 1.05, words, color=colour, va="bottom")
        ax.text(
            right / 1.05,
            numbers["floor"] / 1.08,
            f"floor: {_FLOORS[direction]}",
            color=GREY,
            ha="right",
            va="top",
        )
    for name, point in forward["patterns"].items():
        label = f"{name} by {_STRIDE}" if name == "strided" else name
        ax.annotate(
            label, (point["s"], point["accesses"]), (6, -4), textcoords="offset points", va="top"
        )
    middle = np.sqrt(forward["flash"] * data["directions"]["backward"]["floor"])
    ax.text(
        left_of_labels,
        middle * 1.6,
        "circles: tiles at random\nline: floor + s · (all − floor)",
        va="center",
        linespacing=1.4,
    )
    exponents = range(-12, 1, 3)
    parts = [f"1/{2**-e:,}" if e else "1" for e in exponents]
    ticks(ax.xaxis, FixedLocator([2.0**e for e in exponents]), FixedFormatter(parts))
    ticks(ax.yaxis, LogLocator(10, (1, 2, 5)))
    power = power_for(ax.get_ylim()[1] / 10)
    say_in(ax.yaxis, power)
    ax.set_xlabel(
        f"s, the part of {data['T_r']} × {data['T_c']} tiles that is computed\n"
        f"{describe(data, 'N', 'd', 'M')}"
    )
    ax.set_ylabel(f"HBM accesses ({in_units(power)})")
    ax.set_title(
        "Accesses fall in proportion to s,\ndown to a floor of order Nd", x=title_x(ax, -0.2)
    )
