"""Figure 2 (left) of the paper, as a model: what GPT-2 medium's attention computes and moves, pass
by pass.

N = 1,024, d = 64, 16 heads, batch 64, float16, a causal mask, dropout 0.1, forward and backward.
The paper gives 40.3 GB and 66.6 GFLOPs for standard attention against 4.4 GB and 75.2 GFLOPs for
FlashAttention, measured on an A100. The model counts elements, times their item size. What agrees,
and what does not:

- Standard, bytes. With every operand of every pass read once (M so large that T_r = 1): N × N
  elements of 2 bytes are read or written 18 times (one of them is dropout's Z, a byte each, written
  and read), N × d 12 times, which is 40.27 GB. At smaller M products read K, V, dO, Q again, T_r
  times. On an A100 the L2 cache serves many such repeats, and PyTorch may fuse or split passes
  otherwise than we do; that 40.27 comes so near is not proof that it moved these arrays.
- FlashAttention, bytes. Algorithm 2 reads Q, O, ℓ, m, and Algorithm 4 Q, O, dO, dQ, ℓ, m, once for
  each of T_c blocks of keys, so bytes follow M. docs/paper.md sets them beside the paper's, in
  blocks that fit and in line 1's. The kernel measured is not this listing: its blocks need not be
  ⌈M/4d⌉, and the L2 cache, which all SMs share, serves reads again.
- FLOPs. All 1,024 heads need six products of 2N²d, 825 GFLOPs, and FlashAttention seven, 962. The
  paper's 66.6 and 75.2 are about a twelfth of that, so they are not for this whole batch, whatever
  their unit. Their difference, 8.6, is one product for 64 heads (8.59 GFLOPs: the S that Algorithm
  4 computes again); but six products for 64 heads are 51.5, not 66.6. What fits both is not known
  to us, so nothing is scaled. The ratios can be compared: 1.17 here, 1.13 there.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from flashsim.drawing.style import BLACK, looks, title_x
from flashsim.memory.sram import Event
from flashsim.plots.chart import AxesList, Data, chart
from flashsim.simulate.api import count
from flashsim.simulate.results import Result
from flashsim.theory.measured import FIGURE_2

_ABOUT = "Figure 2 (left): GPT-2 medium's GB and GFLOPs, pass by pass"
_SHAPE: dict[str, Any] = {"N": 1024, "d": 64, "heads": 16 * 64, "dtype": "float16"}
_VARIANT: dict[str, Any] = {"causal": True, "dropout_p": 0.1}
# the default, an A100's SM, and 4Nd elements: every operand of every pass is read once
_KB = (100, 192, 512)
_WAYS = ("forward", "backward")

_LOOKS = looks(("standard", "flash"))
_ALGORITHM = {"forward": "Algorithm 2", "backward": "Algorithm 4"}
_PASSES = {
    "Q, K → S": "QKᵀ",
    "S → S": "mask",
    "S → P": "softmax",
    "P → Z, P_dropped": "dropout",
    "P_dropped, V → O": "PV",
    "P_dropped, dO → dV": "dV",
    "dO, V → dP": "dP",
    "dP, Z → dP": "dropout",
    "P, dP → dS": "softmax",
    "dS, K → dQ": "dQ",
    "dS, Q → dK": "dK",
}


def traffic_data(*, sizing: str = "fit") -> dict[str, Any]:
    """Return bytes and FLOPs of `standard` (mask and dropout as passes of their own) and `flash`,
    and the paper's numbers.

    For each: `by_M`, at M = 100 KB, 192 KB and 512 KB, bytes of both directions and the most T_r,
    T_c; `flops`; and at 100 KB `passes`, each with the bytes it reads and writes. GB are 10⁹ bytes,
    KB 1,024 bytes. `product_flops` is 2N²d for all heads: the paper's GFLOPs are not for all of
    them (see the module's text).
    """
    N = _SHAPE["N"]
    d = _SHAPE["d"]
    heads = _SHAPE["heads"]
    return {
        **_SHAPE,
        **_VARIANT,
        "sizing": sizing,
        "paper": FIGURE_2,
        "product_flops": 2 * N * N * d * heads,
        "model": {name: _model(name, sizing) for name in _LOOKS},
    }


def _model(name: str, sizing: str) -> dict[str, Any]:
    by_M = []
    for kilobytes in _KB:
        tallies = [_count(name, way, sizing, kilobytes) for way in _WAYS]
        by_M.append(
            {
                "KB": kilobytes,
                "M": tallies[0].sram.capacity,
                "peak": max(tally.sram.peak for tally in tallies),
                "T_r": max(tally.blocks.T_r for tally in tallies),
                "T_c": max(tally.blocks.T_c for tally in tallies),
                "bytes": sum(tally.hbm.bytes for tally in tallies),
            }
        )
    flops = [_count(name, way, sizing, _KB[0]).flops for way in _WAYS]
    passes = []
    for way in _WAYS:
        passes += _passes(name, way, sizing)
    return {
        "by_M": by_M,
        "flops": {
            "matmul": sum(tally.matmul for tally in flops),
            "total": sum(tally.total for tally in flops),
        },
        "passes": passes,
    }


def _count(
    name: str,
    way: str,
    sizing: str,
    kilobytes: int,
    observers: Sequence[Callable[[Event], None]] = (),
) -> Result:
    return count(
        name,
        **_SHAPE,
        **_VARIANT,
        M=kilobytes * 1024 // 2,
        direction=way,
        sizing=sizing,
        observers=observers,
    )


def _passes(name: str, way: str, sizing: str) -> list[dict[str, Any]]:
    """Return what each pass over the data moves. A pass is an outermost loop, with what is moved
    before it.
    """
    passes: list[dict[str, Counter[str]]] = [{"reads": Counter(), "writes": Counter()}]

    def follow(event: Event) -> None:
        if event.kind == "leave" and not event.loops:
            passes.append({"reads": Counter(), "writes": Counter()})
        elif event.kind in ("load", "store", "init"):
            sums = passes[-1]["reads" if event.kind == "load" else "writes"]
            sums[event.name.partition("[")[0]] += event.elements * event.times

    tally = _count(name, way, sizing, _KB[0], [follow])

    def in_bytes(elements: Mapping[str, int]) -> dict[str, int]:
        return {
            array: number * _SHAPE["heads"] * tally.hbm.by_array[array].itemsize
            for array, number in elements.items()
        }

    rows = []
    for elements in passes[:-1]:  # after the last loop nothing moves
        moves = f"{', '.join(elements['reads'])} → {', '.join(elements['writes'])}"
        title = _ALGORITHM[way] if name == "flash" else _PASSES[moves]
        reads = in_bytes(elements["reads"])
        writes = in_bytes(elements["writes"])
        sums = {"reads": sum(reads.values()), "writes": sum(writes.values())}
        rows.append(
            {
                "direction": way,
                "pass": title,
                "moves": moves,
                **sums,
                "by_array": {"reads": reads, "writes": writes},
            }
        )
    return rows


_WRITTEN = "//////"
_KEYS = (("read", ""), ("written", _WRITTEN))
_EDGE: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.5}


@chart("traffic", traffic_data, _ABOUT, 8.8, panels=3, grid={"height_ratios": [10.5, 6.5, 17]})
def plot_traffic(data: Data, axes: AxesList) -> None:
    """Draw three panels: HBM traffic in GB at three M beside the paper's, FLOPs as ratios
    likewise, and the model's passes.
    """
    for panel in axes:
        panel.spines["left"].set_visible(False)
        panel.tick_params(axis="y", left=False)
    _draw_bytes(axes[0], data)
    _draw_flops(axes[1], data)
    _draw_passes(axes[2], data)


class _Rows:
    def __init__(self, ax: Axes) -> None:
        self._ax = ax
        self._y = 0.0
        self._labels: list[tuple[float, str]] = []

    def heading(self, text: str, colour: str) -> None:
        self._y += 0.35 if self._labels else 0
        beside_axis = self._ax.get_yaxis_transform()
        self._ax.text(0, self._y, text, color=colour, transform=beside_axis, va="center")
        self._y += 0.95

    def bar(self, label: str, parts: Mapping[str, float], text: str, colour: str) -> None:
        left = 0.0
        for (gid, part), hatch in zip(parts.items(), ("", _WRITTEN), strict=False):
            bars = self._ax.barh(self._y, part, 0.75, left, color=colour, hatch=hatch, **_EDGE)
            bars[0].set_gid(gid)
            left += part
        self._ax.annotate(text, (left, self._y), (3, 0), textcoords="offset points", va="center")
        self._labels.append((self._y, label))
        self._y += 1

    def finish(
        self, xlim: float, xlabel: str, title: str, pad: float = 6, unit: float = 1e9
    ) -> None:
        heights, labels = zip(*self._labels, strict=True)
        self._ax.set_yticks(heights, labels)
        self._ax.yaxis.set_minor_locator(NullLocator())
        self._ax.set_ylim(self._y - 0.4, -0.6)
        self._ax.set_xlim(0, xlim)
        self._ax.xaxis.set_major_locator(MaxNLocator(5))
        self._ax.xaxis.set_major_formatter(lambda x, _: f"{x / unit:,g}")
        self._ax.set_xlabel(xlabel)
        self._ax.set_title(title, x=title_x(self._ax, -0.3), pad=pad)


def _draw_bytes(ax: Axes, data: Data) -> None:
    rows = _Rows(ax)
    paper = data["paper"]
    for name, model in data["model"].items():
        rows.heading(_LOOKS[name].label, _LOOKS[name].colour)
        for point in model["by_M"]:
            KB = point["KB"]
            text = f"{point['bytes'] / 1e9:.3g}"
            if point["T_r" if name == "standard" else "T_c"] == 1:
                text += "  all read once"
            if point["peak"] > point["M"]:
                text += f"  needs {point['peak'] / point['M']:.0%} of M"
            parts = {f"{name} {KB}": point["bytes"]}
            rows.bar(f"M = {KB} KB", parts, text, _LOOKS[name].colour)
        measured = paper[name]["GB"]
        rows.bar("paper", {f"{name} paper": measured * 1e9}, f"{measured}  A100, measured", "white")
    standard, flash = (data["model"][name]["by_M"] for name in _LOOKS)
    most = standard[0]["bytes"] / flash[0]["bytes"]
    least = standard[-1]["bytes"] / flash[-1]["bytes"]
    in_paper = paper["standard"]["GB"] / paper["flash"]["GB"]
    title = f"{most:.1f}× to {least:.1f}× less HBM traffic (paper: {in_paper:.1f}×)"
    blocks = {"fit": "the largest blocks that fit M", "paper": "line 1's blocks"}[data["sizing"]]
    rows.finish(88e9, f"HBM reads + writes, forward + backward (GB)\n{blocks}", title)


def _draw_flops(ax: Axes, data: Data) -> None:
    rows = _Rows(ax)
    paper = data["paper"]
    for name, model in data["model"].items():
        rows.heading(_LOOKS[name].label, _LOOKS[name].colour)
        flops = model["flops"]["total"]
        printed = paper[name]["GFLOPs"]
        ratio = flops / data["model"]["standard"]["flops"]["total"]
        in_paper = printed / paper["standard"]["GFLOPs"]
        text = f"{ratio:.3g}  ({flops / 1e9:.3g} GFLOPs)"
        rows.bar("model", {f"{name} flops": ratio}, text, _LOOKS[name].colour)
        text = f"{in_paper:.3g}  ({printed} GFLOPs)"
        rows.bar("paper", {f"{name} paper flops": in_paper}, text, "white")
    xlabel = (
        f"FLOPs over standard attention's\nmodel: {data['heads']:,} heads; paper: not of as many"
    )
    rows.finish(2.2, xlabel, f"{ratio:.2f}× the FLOPs (paper: {in_paper:.2f}×)", unit=1)


def _draw_passes(ax: Axes, data: Data) -> None:
    rows = _Rows(ax)
    longest = 0
    for name, model in data["model"].items():
        heading = ""
        for row in model["passes"]:
            direction = row["direction"]
            reads = row["reads"]
            writes = row["writes"]
            longest = max(longest, reads + writes)
            above = "FlashAttention, forward and backward"
            if name == "standard":
                above = f"standard, {direction}"
            if above != heading:
                heading = above
                rows.heading(heading, _LOOKS[name].colour)
            gid = f"{name} {direction} {row['pass']}"
            parts = {f"{gid} reads": reads, f"{gid} writes": writes}
            text = f"{reads / 1e9:.2f} + {writes / 1e9:.2f}"
            rows.bar(row["pass"], parts, text, _LOOKS[name].colour)
    total = data["model"]["standard"]["by_M"][0]["bytes"] / 1e9
    shape = f"N = {data['N']:,}, d = {data['d']}, {data['heads']:,} heads, {data['dtype']}"
    xlabel = f"HBM reads + writes (GB), M = {_KB[0]} KB\n{shape}"
    rows.finish(1.4 * longest, xlabel, f"Where standard attention's {total:.1f} GB go", pad=18)
    keys = [Patch(facecolor="white", label=label, hatch=hatch, **_EDGE) for label, hatch in _KEYS]
    ax.legend(
        handles=keys,
        loc="lower left",
        bbox_to_anchor=(title_x(ax, -0.3), 1.01),
        ncols=2,
        borderaxespad=0,
    )
