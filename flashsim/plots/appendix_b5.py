"""Appendix B.5's three differences between FlashAttention and Rabe & Staats' attention, measured;
and B.1's closed form.

1. FlashAttention reduces HBM accesses; Rabe and Staats, the memory that is needed. As counted here,
   the two move nearly the same: where FlashAttention reads and writes O again, T_c times, Rabe and
   Staats write T_c temporary outputs and read them back; backward, they need not set dK and dV to
   zero first, but need more room on chip, so that the blocks that fit are smaller. The closed form,
   which needs as little memory as FlashAttention, moves far more: memory and accesses are two
   things.
2. One running output against T_c temporary ones: the extra memory.
3. Rabe and Staats' backward pass also recomputes each block's temporary output: a sixth product P V
   beside FlashAttention's five. The closed form computes S anew for each of dV, dQ and dK, and dP
   twice: eight.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator

from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N
from flashsim.drawing.style import BLACK, GREY, looks, ticks, title_x
from flashsim.plots.chart import Data, chart, count_arguments, describe
from flashsim.simulate.api import count
from flashsim.support.sizes import Size

_LOOKS = looks(("flash", "rabe_staats", "memory_efficient"))
_MEASURES = {
    "forward accesses": "1. HBM accesses, forward (elements)",
    "backward accesses": "1. HBM accesses, backward (elements)",
    "extra": "2. extra HBM, both passes (elements)",
    "backward matmul": "3. FLOPs of products, backward",
}


def appendix_b5_data(
    *,
    N: int = REFERENCE_N,
    d: int = REFERENCE_D,
    M: Size | None = None,
    dtype: str = "float32",
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
) -> dict[str, Any]:
    """Return, by measure and algorithm, the counts for one head, by default GPT-2's, with the
    largest blocks of each that fit.

    `products` is how many products of 2N²d the backward pass computes.
    """
    shape = count_arguments(N=N, d=d, M=M, dtype=dtype, blocks=blocks, sizing=sizing)
    forward, backward = (
        {name: count(name, **shape, direction=way) for name in _LOOKS}
        for way in ("forward", "backward")
    )
    matmul = {name: tally.flops.matmul for name, tally in backward.items()}
    return {
        **shape,
        "sram_peak": max(way["flash"].sram.peak for way in (forward, backward)),
        "T_c": forward["flash"].blocks.T_c,
        "measures": {
            "forward accesses": {name: tally.hbm.accesses for name, tally in forward.items()},
            "backward accesses": {name: tally.hbm.accesses for name, tally in backward.items()},
            "extra": {name: forward[name].hbm.extra + backward[name].hbm.extra for name in _LOOKS},
            "backward matmul": matmul,
        },
        "products": {name: flops / (2 * N * N * d) for name, flops in matmul.items()},
    }


@chart(
    "appendix_b5",
    appendix_b5_data,
    "Appendix B.5: FlashAttention and Rabe & Staats compared",
    4.5,
    x=10,
)
def plot_appendix_b5(data: Data, ax: Axes) -> None:
    """Draw each measure as a multiple of FlashAttention's, on a log axis, with the count beside
    the dot.
    """
    ax.set_xlim(0.75, 60_000)
    labels = []
    y = 0.0
    for measure, title in _MEASURES.items():
        counts = data["measures"][measure]
        ax.text(
            title_x(ax, -0.4),
            y,
            title,
            transform=ax.get_yaxis_transform(),
            va="center",
            weight="bold",
        )
        y += 1
        ax.plot([1, 1], [y - 0.4, y + 2.4], color=GREY, linestyle=(0, (1, 1.5)), linewidth=1)
        for name, look in _LOOKS.items():
            ratio = counts[name] / counts["flash"]
            ax.plot(
                [ratio],
                [y],
                "o",
                color=look.colour,
                mec=BLACK,
                mew=0.6,
                ms=6,
                gid=f"{measure} {name}",
                zorder=3,
            )
            times = "" if name == "flash" else f"  ({ratio:.3g}×)"
            ax.annotate(
                f"{counts[name]:,}{times}",
                (ratio, y),
                (6, 0),
                textcoords="offset points",
                va="center",
            )
            labels.append((y, look.label))
            y += 1
        y += 0.4
    heights, names = zip(*labels, strict=True)
    ax.set_yticks(heights, names)
    ax.set_ylim(y - 0.7, -0.6)
    ax.tick_params(axis="y", left=False)
    ax.spines["left"].set_visible(False)
    ticks(ax.xaxis, FixedLocator([1, 10, 100]), FixedFormatter(["1×", "10×", "100×"]))
    ax.set_xlabel(f"times FlashAttention's\n{describe(data, 'N', 'd', 'M')}")
    both = (data["measures"][f"{way} accesses"] for way in ("forward", "backward"))
    more = (
        " and ".join(f"{accesses['rabe_staats'] / accesses['flash']:.3g}×" for accesses in both)
        + " the accesses"
    )
    ax.set_title(f"Rabe & Staats: {more},\nmore memory and one product more", x=title_x(ax, -0.4))
