"""DRAM traffic against the size of an L2 cache between SRAM and DRAM."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from flashsim.algorithms.own import resolve
from flashsim.attention.arguments import check_callback
from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N
from flashsim.drawing.style import GREY, looks, ticks, title_x
from flashsim.hardware.cache import L2
from flashsim.hardware.machines import MACHINES, Machine
from flashsim.hardware.reading import machine_of
from flashsim.memory.sram import Event
from flashsim.plots.chart import Data, chart, count_arguments, describe
from flashsim.simulate.api import count, forward
from flashsim.support.sizes import Size

OnDone = Callable[[int, int], object]
_SIZES = [round(2 ** (e / 2)) for e in range(2 * 14, 2 * 22)]
_MARKED = ("A100-40GB", "H200")


def l2_data(
    *,
    N: int = REFERENCE_N,
    d: int = REFERENCE_D,
    M: Size | None = None,
    dtype: str = "float32",
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
    algorithms: Sequence[Any] = (),
    machine: str | Machine | None = None,
    on_done: OnDone | None = None,
) -> dict[str, Any]:
    """Return DRAM traffic (elements, one head) of standard and FlashAttention against the size of
    the L2 (elements).

    `accesses`: the model's HBM accesses, what SMs and L2 exchange. `compulsory`: what is left when
    the L2 holds everything, by array. A line is a row of Q. `per_sm`: an SM's share of the L2 of
    `machine` (a name, a file, or a `Machine`; by default an A100's and an H200's), in elements of
    `dtype`. It takes a time of order N², four seconds at N = 1024, and minutes where tiles are of
    single rows, as for M = 300. `on_done` is called with (percent of the accesses, 100).
    """
    on_done = check_callback("on_done", on_done)
    shape = count_arguments(N=N, d=d, M=M, dtype=dtype, blocks=blocks, sizing=sizing)
    N = shape["N"]
    d = shape["d"]
    options = {name: shape[name] for name in ("M", "sizing", "blocks") if name in shape}
    Q, K, V = (np.zeros((N, d), np.float32) for _ in range(3))  # only the order of accesses matters
    curves = {}
    peak = 0
    resolved = [resolve(what, "forward") for what in ("standard", "flash", *algorithms)]
    observers: list[_Progress] = []
    if on_done is not None:
        tallies = (count(algorithm, N=N, d=d, **options) for algorithm in resolved)
        observers = [_Progress(sum(tally.hbm.accesses for tally in tallies), on_done)]
    for algorithm in resolved:
        caches = [L2(size, line=d) for size in _SIZES]
        everything = L2(10**9, line=d)
        run = forward(algorithm, Q, K, V, **options, observers=[*caches, everything, *observers])
        for l2 in (*caches, everything):
            l2.flush()
        if algorithm.name == "flash":
            peak = run.sram.peak
        curves[algorithm.name] = {
            "accesses": run.hbm.accesses,
            "dram_reads": [l2.dram_reads for l2 in caches],
            "dram_writes": [l2.dram_writes for l2 in caches],
            "compulsory": {
                array: traffic.dram_accesses for array, traffic in everything.by_array.items()
            },
        }
    marked = [MACHINES[name] for name in _MARKED] if machine is None else [machine_of(machine)]
    shares = {on.name: on.l2_share(shape["dtype"]) for on in marked}
    return {
        **shape,
        "sram_peak": peak,
        "line": d,
        "sizes": _SIZES,
        "per_sm": shares,
        "curves": curves,
    }


class _Progress:
    """An observer that says how many percent of `of` accesses there have been, each time it is
    one more.
    """

    def __init__(self, of: int, on_done: OnDone) -> None:
        self.of = of
        self.on_done = on_done
        self.moved = 0
        self.percent = 0

    def __call__(self, event: Event) -> None:
        if event.kind in ("init", "load", "store"):
            self.moved += event.elements
            while 100 * self.moved >= self.of * (self.percent + 1):
                self.percent += 1
                self.on_done(self.percent, 100)


@chart("l2", l2_data, "a third level: DRAM traffic against the size of an L2", 3.8, x=2, y=10)
def plot_l2(data: Data, ax: Axes) -> None:
    """Draw DRAM traffic against L2 size, log-log, down to the compulsory traffic of each
    (dotted).
    """
    N = data["N"]
    d = data["d"]
    sizes = data["sizes"]
    curves = data["curves"]
    forms = {4 * N * d + 2 * N: "4Nd + 2N", 4 * N * d + 2 * N * N: "4Nd + 2N²"}
    beside: dict[str, Any] = {"textcoords": "offset points"}
    for name, look in looks(curves).items():
        curve = curves[name]
        colour = look.colour
        dram = [r + w for r, w in zip(curve["dram_reads"], curve["dram_writes"], strict=True)]
        ax.plot(sizes, dram, **look.line, gid=name)
        floor = sum(curve["compulsory"].values())
        ax.axhline(floor, color=colour, linestyle=":", linewidth=1, gid=f"{name} compulsory")
        ax.annotate(look.label, (sizes[0], dram[0]), (4, 5), color=colour, **beside)
        least = f"compulsory: {forms.get(floor, f'{floor:,}')}"
        ax.annotate(
            least, (sizes[-1], floor), (0, -3), color=colour, ha="right", va="top", **beside
        )
    shares = data["per_sm"]
    for machine, share in shares.items():
        ax.axvline(share, color=GREY, linestyle="-.", linewidth=0.8, gid=machine)
    names = " and ".join(machine.removesuffix("-40GB") for machine in shares)
    largest = max(shares.values())
    above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "va": "top"}
    ax.annotate(
        f"an SM's share\nof the L2: {names}", (largest, 1), (3, 0), color=GREY, **above, **beside
    )
    ax.set_ylim(1.5e5, 1.6e7)
    ax.set_xlim(sizes[0] / 1.1, sizes[-1] * 1.1)
    ticks(ax.xaxis, LogLocator(4), lambda x, _: f"$2^{{{round(math.log2(x))}}}$")
    ax.set_xlabel(f"size of the L2 (elements)\n{describe(data, 'N', 'd', 'M')}")
    ax.set_ylabel("DRAM reads + writes (elements)")
    ax.set_title(
        "An L2 that holds Q and O leaves FlashAttention\nonly what it must move",
        x=title_x(ax, -0.16),
    )
