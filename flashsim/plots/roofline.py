"""The roofline of a machine, and where the algorithms and the book chapter's tiles stand under
it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from flashsim.algorithms import PASSES, Algorithm
from flashsim.algorithms.own import backward_of, resolve
from flashsim.algorithms.record import Direction
from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N, float_dtype
from flashsim.drawing.style import BLACK, GREY, compared_both_ways, looks, ticks, title_x
from flashsim.hardware.cache import L2
from flashsim.hardware.machines import Machine, Roofline, kv_tile, predict, roofline
from flashsim.hardware.reading import machine_of
from flashsim.plots.chart import Data, Several, chart, said, setting
from flashsim.simulate.api import backward, count, forward

_THROUGH_L2 = ("standard", "flash")


def roofline_data(
    *,
    machine: str | Machine = "A100-40GB",
    N: int = REFERENCE_N,
    d: int = REFERENCE_D,
    dtype: str | None = None,
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
    algorithms: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return a machine's roof and each algorithm's intensity (FLOP/byte), time (s, one head), and
    what binds it.

    `dtype` is by default what attention runs on: of the machine's types of 16 bits, which tensor
    cores take, the first; one that has none takes its first type.

    By direction: `algorithms`, with M = one SM's SRAM and every HBM access of the model a DRAM
    access; `through_l2`, the same with DRAM traffic being the misses of an SM's share of the L2.
    `chapter`: the book chapter's tiles, prefill 32 × 32 and decode, d = 128, in `dtype`;
    `intensity` exactly, `printed` as the chapter divides. `plain`: the peak is below that of 16
    bits, which tensor cores have. `others`: the names of the `algorithms` given, backward where
    they have such a pass. Raises ValueError for a machine that is neither in `MACHINES` nor in a
    file (`flashsim.hardware.reading`), or cannot compute in `dtype`.
    """
    on = machine_of(machine)
    dtype = usual_dtype(on) if dtype is None else dtype
    shape = setting(N=N, d=d, M=on.M(dtype), dtype=dtype, blocks=blocks, sizing=sizing)
    counts = {name: value for name, value in shape.items() if name != "M"}
    others: dict[str, dict[str, str | Algorithm]] = {"forward": {}, "backward": {}}
    for what in algorithms:
        algorithm = resolve(what, "forward")
        others["forward"][algorithm.name] = algorithm
        with suppress(ValueError):
            others["backward"][algorithm.name] = backward_of(algorithm)
    through_l2 = _dram_bytes(on, **shape)
    directions: dict[str, Any] = {}
    for direction, table in PASSES.items():
        passes = {**{name: name for name in table}, **others[direction]}
        counted = {
            name: predict(on, what, **counts, direction=direction) for name, what in passes.items()
        }
        directions[direction] = {
            "algorithms": {name: _numbers(line) for name, line in counted.items()},
            "through_l2": {
                name: _numbers(roofline(on, moved[direction], counted[name].flops, dtype))
                for name, moved in through_l2.items()
            },
        }
    itemsize = float_dtype(dtype).itemsize
    chapter = {}
    for name, B_q in _QUERIES.items():
        tile = kv_tile(B_q=B_q, B_k=32, d=128, itemsize=itemsize)
        chapter[name] = {
            **_numbers(roofline(on, tile.nbytes, tile.flops, dtype)),
            "printed": float(tile.as_printed),
        }
    return {
        "machine": on.name,
        "bandwidth": on.bandwidth,
        "peak": on.peak_for(dtype),
        "plain": max(on.peak.values()) > on.peak_for(dtype),
        "ridge": on.ridge(dtype),
        "l2_share": on.l2_share(dtype),
        **shape,
        "sram_peak": max(count("flash", **shape, direction=way).sram.peak for way in PASSES),
        "directions": directions,
        "chapter": chapter,
        **({"others": list(others["forward"])} if algorithms else {}),
    }


def usual_dtype(on: Machine) -> str:
    """Return the type that attention runs on: the first of 16 bits that the machine computes in,
    else its first.
    """
    halves = [name for name in on.peak if float_dtype(name).itemsize == 2]
    return (halves or [*on.peak])[0]


def _numbers(line: Roofline) -> dict[str, Any]:
    return {
        "bytes": line.nbytes,
        **{
            name: getattr(line, name) for name in ("flops", "intensity", "time", "reached", "bound")
        },
    }


def _dram_bytes(
    on: Machine, N: int, d: int, M: int, dtype: str, **how: Any
) -> dict[str, dict[Direction, int]]:
    """Return DRAM traffic through an SM's share of the L2, by algorithm and direction."""
    zeros = np.zeros((N, d), dtype)
    moved = {}
    for name in _THROUGH_L2:
        caches = {direction: L2(on.l2_share(dtype)) for direction in PASSES}
        run = forward(name, zeros, zeros, zeros, M=M, **how, observers=[caches["forward"]])
        gradients = backward(name, run, zeros, observers=[caches["backward"]])
        for l2 in caches.values():
            l2.flush()
        traffic = {"forward": run.hbm, "backward": gradients.hbm}
        moved[name] = {
            direction: l2.dram_bytes(traffic[direction]) for direction, l2 in caches.items()
        }
    return moved


_QUERIES = {"prefill": 32, "decode": 1}
_CHAPTER = {"prefill": "tile of 32 × 32", "decode": "decode"}
_APART = 1.05  # points nearer than this factor are not drawn twice


@chart(
    "roofline",
    roofline_data,
    "the roofline of an A100: each algorithm's intensity and limit",
    6.2,
    panels=2,
    x=10,
    y=10,
)
def plot_roofline(data: Data, axes: Several) -> None:
    """Draw the roof, FLOP/s against FLOP/byte, log-log, and the algorithms under it: forward, and
    backward.

    Filled: every HBM access reaches DRAM. Hollow, where that is elsewhere: through an SM's share of
    the L2. The legend has intensities. Black: the book chapter's tiles. What hardly differs from
    FlashAttention is left out.
    """
    for panel, (direction, points) in zip(axes, data["directions"].items(), strict=True):
        _draw(panel, direction, points, data)
    peak = data["peak"] / 1e12
    bandwidth = data["bandwidth"] / 1e9
    plain = "\nwithout tensor cores" if data["plain"] else ""
    axes[0].set_title(
        f"{data['machine']}: {bandwidth:,.4g} GB/s, {peak:,.4g} TFLOP/s, {data['dtype']}{plain}.\n"
        f"{_point(data['directions']['forward'])}",
        x=title_x(axes[0], -0.14),
    )


_BINDS = {"compute": "arithmetic", "bandwidth": "bandwidth"}


def _point(points: Mapping[str, Any]) -> str:
    """Say what binds the two: as every access reaches DRAM, and, where that is not the same,
    through the L2.
    """
    names = {"flash": "FlashAttention", "standard": "standard"}
    plain, cached = (
        {name: points[kind][name]["bound"] for name in names}
        for kind in ("algorithms", "through_l2")
    )
    said = f"{_BINDS[plain['standard']]} binds standard, {_BINDS[plain['flash']]} FlashAttention"
    if plain["standard"] == plain["flash"]:
        said = f"{_BINDS[plain['flash']]} binds FlashAttention and standard"
    changed = [name for name in names if cached[name] != plain[name]]
    if changed:
        now: dict[str, list[str]] = {}
        for name in changed:
            now.setdefault(_BINDS[cached[name]], []).append(names[name])
        clauses = (f"{what} binds {' and '.join(bound)}" for what, bound in now.items())
        said += f";\nwith the L2, {', '.join(clauses)}"
    return said[0].upper() + said[1:]


def _draw(ax: Axes, direction: str, points: Mapping[str, Any], data: Data) -> None:
    bandwidth, peak, ridge = (data[k] for k in ("bandwidth", "peak", "ridge"))
    plain = points["algorithms"]
    cached = points["through_l2"]
    kinds = [kind for way in data["directions"].values() for kind in way.values()]
    left = 0.2
    right = 4 * max(ridge, *(at["intensity"] for kind in kinds for at in kind.values()))
    bottom = left * bandwidth / 2
    ax.plot([left, ridge, right], [left * bandwidth, peak, peak], color=BLACK, gid="roof")
    ax.plot(
        [ridge, ridge], [peak, peak * 5], color=GREY, linestyle="-.", linewidth=0.8, gid="ridge"
    )
    if direction == "forward":
        for name, label in _CHAPTER.items():
            at = data["chapter"][name]
            look: dict[str, Any] = {
                "color": BLACK,
                "marker": "*" if name == "prefill" else "x",
                "markersize": 7,
            }
            _mark(ax, at, name, label=f"{label}: {at['intensity']:.3g}", **look)
    arrow = ""
    for name, one in looks(
        [*compared_both_ways(), *(name for name in data.get("others", ()) if name in plain)]
    ).items():
        look = {"color": one.colour, "marker": one.marker}
        text = f"{one.label}: {plain[name]['intensity']:.3g}"
        if name in cached and _apart(cached[name], plain[name]):
            arrow = " → with L2"
            text = f"{text} → {cached[name]['intensity']:.3g}"
            _mark(ax, cached[name], f"{name} through L2", mfc="white", **look)
        if name == "flash" or name in data.get("others", ()) or _apart(plain[name], plain["flash"]):
            _mark(ax, plain[name], name, label=text, **look)
    ax.legend(
        loc="lower right",
        title=f"FLOP/byte{arrow}\n(ridge {ridge:.3g})",
        alignment="left",
        numpoints=1,
        handlelength=1,
    )
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, peak * 5)
    ticks(ax.yaxis, LogLocator(10), lambda y, _: f"{y / 1e12:g}")
    ticks(ax.xaxis, LogLocator(10), lambda x, _: f"{x:g}")
    shape = f"\n{said(data, 'N', 'd', 'M')}" if direction == "backward" else ""
    ax.set_xlabel(f"{direction}: FLOP / DRAM byte{shape}")
    ax.set_ylabel("attainable TFLOP/s")


def _apart(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    low, high = sorted((one["intensity"], other["intensity"]))
    return high > _APART * low


def _mark(ax: Axes, at: Mapping[str, float], gid: str, **look: Any) -> None:
    ax.plot(at["intensity"], at["reached"], linestyle="none", gid=gid, **look)
