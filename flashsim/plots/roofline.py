"""The roofline of a machine, and the points of the algorithms and of the book chapter's tiles
under it.
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
from flashsim.plots.chart import AxesList, Data, chart, count_arguments, describe
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
    machine = machine_of(machine)
    dtype = usual_dtype(machine) if dtype is None else dtype
    M = machine.M(dtype)
    shape = count_arguments(N=N, d=d, M=M, dtype=dtype, blocks=blocks, sizing=sizing)
    shape_without_M = {name: value for name, value in shape.items() if name != "M"}
    others: dict[str, dict[str, str | Algorithm]] = {"forward": {}, "backward": {}}
    for name_or_record in algorithms:
        algorithm = resolve(name_or_record, "forward")
        others["forward"][algorithm.name] = algorithm
        with suppress(ValueError):
            others["backward"][algorithm.name] = backward_of(algorithm)
    dram_bytes = _dram_bytes(machine, **shape)
    directions: dict[str, Any] = {}
    for direction, table in PASSES.items():
        passes = {**{name: name for name in table}, **others[direction]}
        times = {
            name: predict(machine, algorithm, **shape_without_M, direction=direction)
            for name, algorithm in passes.items()
        }
        through_l2 = {}
        for name, nbytes in dram_bytes.items():
            line = roofline(machine, nbytes[direction], times[name].flops, dtype)
            through_l2[name] = _numbers(line)
        directions[direction] = {
            "algorithms": {name: _numbers(line) for name, line in times.items()},
            "through_l2": through_l2,
        }
    itemsize = float_dtype(dtype).itemsize
    chapter = {}
    for name, B_q in _QUERIES.items():
        tile = kv_tile(B_q=B_q, B_k=32, d=128, itemsize=itemsize)
        chapter[name] = {
            **_numbers(roofline(machine, tile.nbytes, tile.flops, dtype)),
            "printed": float(tile.as_printed),
        }
    return {
        "machine": machine.name,
        "bandwidth": machine.bandwidth,
        "peak": machine.peak_for(dtype),
        "plain": max(machine.peak.values()) > machine.peak_for(dtype),
        "ridge": machine.ridge(dtype),
        "l2_share": machine.l2_share(dtype),
        **shape,
        "sram_peak": max(count("flash", **shape, direction=way).sram.peak for way in PASSES),
        "directions": directions,
        "chapter": chapter,
        **({"others": list(others["forward"])} if algorithms else {}),
    }


def usual_dtype(machine: Machine) -> str:
    """Return the type that attention runs on: the first of 16 bits that the machine computes in,
    else its first.
    """
    halves = [name for name in machine.peak if float_dtype(name).itemsize == 2]
    return (halves or [*machine.peak])[0]


def _numbers(line: Roofline) -> dict[str, Any]:
    return {
        "bytes": line.nbytes,
        "flops": line.flops,
        "intensity": line.intensity,
        "time": line.time,
        "reached": line.reached,
        "bound": line.bound,
    }


def _dram_bytes(
    machine: Machine, N: int, d: int, M: int, dtype: str, **blocks: Any
) -> dict[str, dict[Direction, int]]:
    """Return DRAM traffic through an SM's share of the L2, by algorithm and direction."""
    zeros = np.zeros((N, d), dtype)
    nbytes = {}
    for name in _THROUGH_L2:
        caches = {direction: L2(machine.l2_share(dtype)) for direction in PASSES}
        run = forward(name, zeros, zeros, zeros, M=M, **blocks, observers=[caches["forward"]])
        gradients = backward(name, run, zeros, observers=[caches["backward"]])
        for l2 in caches.values():
            l2.flush()
        traffic = {"forward": run.hbm, "backward": gradients.hbm}
        nbytes[name] = {
            direction: l2.dram_bytes(traffic[direction]) for direction, l2 in caches.items()
        }
    return nbytes


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
def plot_roofline(data: Data, axes: AxesList) -> None:
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
    """Return a sentence on what binds the two: where every access reaches DRAM and, where that
    is not the same, through the L2.
    """
    names = {"flash": "FlashAttention", "standard": "standard"}
    plain = {name: _BINDS[points["algorithms"][name]["bound"]] for name in names}
    cached = {name: _BINDS[points["through_l2"][name]["bound"]] for name in names}
    sentence = f"{plain['standard']} binds standard, {plain['flash']} FlashAttention"
    if plain["standard"] == plain["flash"]:
        sentence = f"{plain['flash']} binds FlashAttention and standard"
    bound_by: dict[str, list[str]] = {}
    for name, label in names.items():
        if cached[name] != plain[name]:
            bound_by.setdefault(cached[name], []).append(label)
    if bound_by:
        clauses = [f"{limit} binds {' and '.join(labels)}" for limit, labels in bound_by.items()]
        sentence += f";\nwith the L2, {', '.join(clauses)}"
    return sentence[0].upper() + sentence[1:]


def _draw(ax: Axes, direction: str, points: Mapping[str, Any], data: Data) -> None:
    bandwidth = data["bandwidth"]
    peak = data["peak"]
    ridge = data["ridge"]
    plain = points["algorithms"]
    cached = points["through_l2"]
    highest = ridge
    for kinds in data["directions"].values():
        for rooflines in kinds.values():
            highest = max(highest, *(line["intensity"] for line in rooflines.values()))
    left = 0.2
    right = 4 * highest
    bottom = left * bandwidth / 2
    ax.plot([left, ridge, right], [left * bandwidth, peak, peak], color=BLACK, gid="roof")
    above = [peak, peak * 5]
    ax.plot([ridge, ridge], above, color=GREY, linestyle="-.", linewidth=0.8, gid="ridge")
    if direction == "forward":
        for name, label in _CHAPTER.items():
            tile = data["chapter"][name]
            style: dict[str, Any] = {
                "color": BLACK,
                "marker": "*" if name == "prefill" else "x",
                "markersize": 7,
            }
            _mark(ax, tile, name, label=f"{label}: {tile['intensity']:.3g}", **style)
    arrow = ""
    others = [name for name in data.get("others", ()) if name in plain]
    for name, look in looks([*compared_both_ways(), *others]).items():
        style = {"color": look.colour, "marker": look.marker}
        text = f"{look.label}: {plain[name]['intensity']:.3g}"
        if name in cached and _are_apart(cached[name], plain[name]):
            arrow = " → with L2"
            text = f"{text} → {cached[name]['intensity']:.3g}"
            _mark(ax, cached[name], f"{name} through L2", mfc="white", **style)
        named = name == "flash" or name in others
        if named or _are_apart(plain[name], plain["flash"]):
            _mark(ax, plain[name], name, label=text, **style)
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
    shape = f"\n{describe(data, 'N', 'd', 'M')}" if direction == "backward" else ""
    ax.set_xlabel(f"{direction}: FLOP / DRAM byte{shape}")
    ax.set_ylabel("attainable TFLOP/s")


def _are_apart(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    low, high = sorted((first["intensity"], second["intensity"]))
    return high > _APART * low


def _mark(ax: Axes, line: Mapping[str, float], gid: str, **style: Any) -> None:
    ax.plot(line["intensity"], line["reached"], linestyle="none", gid=gid, **style)
