"""Figure 3 (right) of the paper, as a model: HBM that attention needs besides its inputs and
outputs, against N.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from flashsim.attention.inputs import REFERENCE_D
from flashsim.drawing.numbers import as_power
from flashsim.drawing.style import BLACK, GREY, looks, ticks, title_x
from flashsim.memory.traffic import ArrayTraffic
from flashsim.plots.chart import Data, chart, count_arguments, describe_blocks
from flashsim.support.sizes import Size, smallest_true
from flashsim.theory import Exact, exact

LIMIT = 40 * 10**9  # bytes: an A100's 40 GB
HEADS = 1024
_LOOKS = looks(("standard", "rabe_staats", "memory_efficient", "flash"))
_LENGTHS = [2**e for e in range(7, 24)]


def memory_data(
    *,
    d: int = REFERENCE_D,
    M: Size | None = None,
    dtype: str = "float32",
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
) -> dict[str, Any]:
    """Return bytes of HBM by algorithm and N, forward and backward passes together, 1,024 heads.

    `extra`: all arrays of `Traffic.extra`, by name in `arrays`; nothing is freed or reused in
    between. `inputs_outputs`: Q, K, V, O and their gradients, which every algorithm needs.
    `crosses`: the largest N whose extra memory is at most `limit` bytes, and `fills` that at which
    inputs, outputs and extra memory together are at most that. `rabe_staats` has these blocks too,
    so its copies of O, one for each block of keys, grow as N². (Rabe and Staats' own blocks have √N
    keys, and they take few queries at a time, which keeps fewer copies at once.) `sram_peak` is at
    the largest N.
    """
    shape = count_arguments(d=d, M=M, dtype=dtype, blocks=blocks, sizing=sizing)

    def need(N: int, name: str, extra: bool) -> int:
        arrays = _arrays(name, N, shape).values()
        return sum(
            array.size * array.itemsize for array in arrays if (array.role == "extra") == extra
        )

    def everything(N: int, name: str) -> int:
        return need(N, name, extra=True) + need(N, "flash", extra=False)

    extra_arrays = {}
    for name in _LOOKS:
        arrays = _arrays(name, _LENGTHS[0], shape)
        extra_arrays[name] = [name for name, array in arrays.items() if array.role == "extra"]
    arrays = _arrays("flash", _LENGTHS[0], shape)
    inputs_outputs = [name for name, array in arrays.items() if array.role != "extra"]
    return {
        **shape,
        "sram_peak": max(tally.sram.peak for tally in _passes("flash", _LENGTHS[-1], shape)),
        "heads": HEADS,
        "limit": LIMIT,
        "N": _LENGTHS,
        "arrays": extra_arrays,
        "extra": {name: [need(N, name=name, extra=True) for N in _LENGTHS] for name in _LOOKS},
        "crosses": {name: _last(partial(need, name=name, extra=True)) for name in _LOOKS},
        "fills": {name: _last(partial(everything, name=name)) for name in _LOOKS},
        "inputs_outputs": {
            "arrays": inputs_outputs,
            "bytes": [need(N, name="flash", extra=False) for N in _LENGTHS],
            "crosses": _last(partial(need, name="flash", extra=False)),
        },
    }


def _arrays(name: str, N: int, shape: Mapping[str, Any]) -> dict[str, ArrayTraffic]:
    """Return every array that the two passes have in HBM. An array that the forward pass made has
    its role from there.
    """
    forward, backward = (tally.hbm.by_array for tally in _passes(name, N, shape))
    only_backward = {name: array for name, array in backward.items() if name not in forward}
    return {**forward, **only_backward}


def _passes(name: str, N: int, shape: Mapping[str, Any]) -> Iterator[Exact]:
    return (
        exact(name, N=N, **shape, heads=HEADS, direction=way) for way in ("forward", "backward")
    )


def _last(need: Callable[[int], int]) -> int:
    return smallest_true(lambda N: need(N) > LIMIT) - 1


@chart(
    "memory",
    memory_data,
    "Figure 3 (right): extra memory by N; where it exceeds 40 GB",
    4.3,
    x=10,
    y=10,
    docs_arguments={"dtype": "float16"},
)
def plot_memory(data: Data, ax: Axes) -> None:
    """Draw extra memory against N, log-log, and the N at which each algorithm fills 40 GB."""
    N = data["N"]
    limit = data["limit"]
    ax.set_xlim(N[0], N[-1] * 1.3)
    ax.set_ylim(4e5, 4e14)
    ax.axhline(limit, color=BLACK, linestyle=(0, (1, 1.5)), linewidth=1, gid="limit")
    points = zip(N, data["inputs_outputs"]["bytes"], strict=True)
    lengths, nbytes = zip(*(point for point in points if point[1] <= limit), strict=True)
    style: dict[str, Any] = {"color": GREY, "linestyle": "-.", "linewidth": 1}
    ax.plot(lengths, nbytes, **style, gid="inputs and outputs")
    for name, look in _LOOKS.items():
        # FlashAttention's line covers this one
        below = {"linewidth": 3.5, "marker": None} if name == "memory_efficient" else {}
        ax.plot(N, data["extra"][name], **{**look.line, **below}, gid=name)
        diamond: dict[str, Any] = {"color": look.colour, "mec": BLACK, "ms": 6, "zorder": 5}
        ax.plot([data["crosses"][name]], [limit], "D", **diamond, gid=f"{name} crosses")
    _label(ax, data)


def _label(ax: Axes, data: Data) -> None:
    limit = data["limit"]
    crosses = data["crosses"]
    lengths = data["N"]
    ax.text(lengths[0] * 1.15, limit * 1.2, f"A100's\n{limit / 1e9:.0f} GB", va="bottom")
    labels = {
        "standard": ("standard:\nS, P, dP, dS", lengths[0] * 1.15, 2e14, "left", "top"),
        "rabe_staats": (
            "Rabe & Staats,\n$O_j$ by block of keys",
            lengths[-1] * 1.25,
            1e13,
            "right",
            "top",
        ),
        "flash": (
            "FlashAttention: ℓ, m\n(closed form: L, D)",
            lengths[-1] * 1.25,
            1e6,
            "right",
            "bottom",
        ),
    }
    for name, (label, x, y, side, edge) in labels.items():
        words = f"{label}\nalone up to N = {crosses[name]:,}"
        colour = _LOOKS[name].colour
        ax.text(x, y, words, color=colour, ha=side, va=edge, multialignment="left")
    full = (
        f"Q, K, V, O, gradients fill it\nat N = {data['inputs_outputs']['crosses']:,}, with\n"
        f"ℓ, m at {data['fills']['flash']:,}"
    )
    style: dict[str, Any] = {"ha": "right", "va": "bottom", "multialignment": "left"}
    ax.text(lengths[-1] * 1.25, limit * 1.2, full, color=GREY, **style)
    ax.xaxis.set_major_locator(LogLocator(10))
    ax.xaxis.set_major_formatter(as_power)
    ax.xaxis.set_minor_formatter(NullFormatter())
    ticks(ax.yaxis, LogLocator(1000), EngFormatter("B"))
    sizes = f"d = {data['d']}, {data['dtype']}, {data['heads']:,} heads, M = {data['M']:,}"
    ax.set_xlabel(f"sequence length N\n{sizes}\n{describe_blocks(data)}")
    ax.set_ylabel("extra HBM, forward + backward")
    ax.set_title("FlashAttention's extra memory is linear in N", x=title_x(ax, -0.2))
