"""Figure 2 (middle) of the paper, as a model: HBM accesses against block size, forward and backward."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator
from matplotlib.transforms import ScaledTranslation

from flashsim.algorithms.blocks import Fixed
from flashsim.algorithms.own import chosen
from flashsim.api import Run, Tally, count, forward
from flashsim.checking import check_count
from flashsim.inputs import check_M, float_dtype
from flashsim.plots.chart import Chart
from flashsim.plots.style import BLACK, BLUE, BY_DIRECTION, GREY, ORANGE, hang, looks, ticks
from flashsim.sizes import human_bytes
from flashsim.theory import Exact, exact
from flashsim.tune import cost

_WHAT = "Figure 2 (middle): accesses against block size, both passes"
MOST_TILES = 2**14  # of a run with numbers; above it, shapes alone
CURVE = 2000  # the most points the closed form's curve has


def blocks_data(
    *,
    N: int = 1024,
    d: int = 64,
    M: int | None = None,
    dtype: str = "float32",
    N_q: int | None = None,
    d_v: int | None = None,
    backward: bool = True,
    algorithms: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return Algorithm 1's HBM accesses by column block size B_c, B_r = min(B_c, d), and what to compare them with.

    N is the number of keys; N_q, of queries, and d_v, V's width, default to N and d. One head.

    `theory`: every B_c from 16, or N/8 where that is less, to N (2,000 of them where N is large). `simulator`: powers of
    two and half-way between, run with random numbers where they make at most 16,384 tiles, so up to N = 2048, else on shapes
    alone. `paper`: line 1's own blocks; these and `standard` are counted on shapes.
    `largest_that_fits`: the last B_c whose peak is at most M elements (None: not one); M defaults to 100 KB of `dtype`.
    `floor`: Q, K, V read once and O written, 4Nd. Accesses are elements; `bytes` take each array at its own item size.

    With `backward`, the entry "backward" says the same of Algorithm 4, counted on shapes alone: `curve` instead of
    `theory` and `simulator`, and for `floor` Q, K, V, O, dO read once and dQ, dK, dV written, 8Nd.

    `algorithms`: others, one's own too, counted forward in the simulator's blocks; by name in `others`.
    """
    stored = float_dtype(dtype)
    N, d, M = check_count("N", N), check_count("d", d), check_M(M, stored.itemsize)
    N_q, d_v = check_count("N_q", N if N_q is None else N_q), check_count("d_v", d if d_v is None else d_v)
    shape: dict[str, Any] = {"N_q": N_q, "N_k": N, "d": d, "d_v": d_v, "dtype": dtype}

    def exact_at(B_c: int) -> Exact:
        return exact("flash_basic", **shape, M=M, blocks=(min(B_c, d), B_c))

    first = min(16, max(N // 8, 1))
    powers = [2**e for e in range(N.bit_length())]
    chosen_sizes = sorted({B_c for power in powers for B_c in (power, power * 3 // 2) if first <= B_c <= N} | {N})
    spread = np.geomspace(first, N, CURVE) if N > CURVE else range(first, N + 1)
    every = sorted({int(B_c) for B_c in spread} | set(chosen_sizes))

    as_run = -(-N_q // min(first, d)) * -(-N // first) <= MOST_TILES
    if as_run:
        random = np.random.default_rng(2205_14135)
        sizes = ((N_q, d), (N, d), (N, d_v))
        Q, K, V = (random.standard_normal(size, np.float32).astype(stored) for size in sizes)

    def simulate(B_c: int) -> dict[str, Any]:
        how: dict[str, Any] = {"M": exact_at(B_c).sram.peak, "blocks": (min(B_c, d), B_c)}
        return _numbers(forward("flash_basic", Q, K, V, **how) if as_run else count("flash_basic", **shape, **how))

    def backward_at(B_c: int) -> Tally:
        return count("flash", **shape, M=M, direction="backward", sizing=Fixed(min(B_c, d), B_c, enforced=False))

    def one_pass(paper: str, direction: str, at: Callable[[int], Exact | Tally]) -> dict[str, Any]:
        counted = (count(name, **shape, M=M, direction=direction) for name in (paper, "standard"))
        fitting = bisect_right(range(1, N + 1), M, key=lambda B_c: at(B_c).sram.peak)  # the peak grows with B_c
        return {
            **dict(zip(("paper", "standard"), map(_numbers, counted), strict=True)),
            "largest_that_fits": fitting if fitting >= every[0] else None,
            "floor": (N_q * d + N * (d + d_v) + N_q * d_v) * (1 if direction == "forward" else 2),
        }

    def other(what: Any) -> tuple[str, dict[str, Any]]:
        algorithm = chosen(what, "forward")
        costs = (cost(algorithm, **shape, M=M, blocks=(min(B_c, d), B_c)) for B_c in chosen_sizes)
        return algorithm.name, _curve(chosen_sizes, costs)

    if backward:
        back = {"curve": _curve(every, map(backward_at, every)), **one_pass("flash", "backward", backward_at)}
    return {
        "N": N,
        **shape,
        "M": M,
        "itemsize": stored.itemsize,
        "theory": _curve(every, map(exact_at, every)),
        "simulator_ran_on": "numbers" if as_run else "shapes",
        "simulator": [simulate(B_c) for B_c in chosen_sizes],
        **one_pass("flash_basic", "forward", exact_at),
        **({"backward": back} if backward else {}),
        **({"others": dict(map(other, algorithms))} if algorithms else {}),
    }


def _curve(sizes: list[int], costs: Iterable[Any]) -> dict[str, list[int]]:
    accesses, peak = zip(*((at.hbm.accesses, at.sram.peak) for at in costs), strict=True)
    return {"B_c": sizes, "accesses": list(accesses), "peak": list(peak)}


def _numbers(run: Run | Tally) -> dict[str, Any]:
    costs = {k: getattr(run.hbm, k) for k in ("reads", "writes", "accesses", "bytes")}
    return {"B_r": run.blocks.B_r, "B_c": run.blocks.B_c, **costs, "peak": run.sram.peak}


@partial(Chart, "blocks", blocks_data, _WHAT, lambda data: 5.4 if "backward" in data else 4.6)
def plot_blocks(data: Mapping[str, Any], ax: Axes) -> None:
    """Draw Figure 2 (middle) as a model: HBM accesses (elements) against B_c, as far as SRAM has room, and standard attention.

    Where blocks do not fit is grey, and no curve goes there. The diamond is the paper's choice of B_c, which may lie there.
    """
    N, d, d_v, M, floor, left = *(data[k] for k in ("N", "d", "d_v", "M", "floor")), data["theory"]["B_c"][0]
    passes = {"forward": {**data, "curve": data["theory"]}, **{k: data[k] for k in ("backward",) if k in data}}
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlim(left / 1.15, N * 1.15)
    for direction, numbers in passes.items():
        _draw_pass(ax, direction, numbers, data)
    points = [point for point in data["simulator"] if point["peak"] <= M]
    ran = "simulated run" if data["simulator_ran_on"] == "numbers" else "simulator's count"
    at, accesses = [p["B_c"] for p in points], [p["accesses"] for p in points]
    ax.plot(at, accesses, "o", color=BLUE, markerfacecolor="white", gid="simulator", label=f"Algorithm 1: {ran}")
    for name, look in looks(data.get("others", {})).items():
        moved = _fitting(data["others"][name], M)
        ax.plot(moved["B_c"], moved["accesses"], **look.line, gid=name, label=look.label)
    B_c = data["paper"]["B_c"]
    size = f"⌈M/4d⌉ = {B_c:,}" if B_c < N else f"⌈M/4d⌉ ≥ N = {N:,}"
    needs = " and ".join(f"{numbers['paper']['peak'] / M:.0%}" for numbers in passes.values())
    for direction, numbers in passes.items() if left <= B_c else ():
        label = f"the paper's $B_c$, {size},\nneeds {needs} of M" if direction == "forward" else None
        paper: dict[str, Any] = {
            "color": BLACK,
            "mfc": ORANGE,
            "ms": 6,
            "gid": _gid("paper", direction),
            "label": label,
        }
        ax.plot([B_c], [numbers["paper"]["accesses"]], "D", **paper)
    once = "read Q, K, V, write O once" + ": 4Nd" * (floor == 4 * N * d)
    ax.axhline(floor, color=GREY, linestyle="-.", gid="floor", label=once)

    powers = [e for e in range(N.bit_length()) if 2**e >= left]
    every = math.ceil(len(powers) * len(f"{N:,}") / 36)  # about 36 digits fit
    ticks(ax.xaxis, FixedLocator([2**e for e in powers[::every]]), "{x:,.0f}")
    ticks(ax.yaxis, LogLocator(10, (1, 2, 5)), EngFormatter())
    lengths = f"N = {N:,}" if data["N_q"] == N else f"N_q = {data['N_q']:,}, N_k = {N:,}"
    widths = f"d = {d:,}" if d_v == d else f"d = {d:,}, d_v = {d_v:,}"
    room = f"M = {M:,} ({human_bytes(M * data['itemsize'])})"
    ax.set_xlabel(f"column block size $B_c$ (rows of K, V)\n{lengths}, {widths}, {data['dtype']}, one head\n{room}")
    ax.set_ylabel("HBM accesses (elements)")
    full = ",\nuntil SRAM is full" if data["largest_that_fits"] != N else ""
    ax.set_title(f"Larger blocks move less data{full}", x=hang(ax, -0.21 if N >= 128 else -0.18))
    figure = ax.get_figure(root=True)
    assert figure is not None
    below = ax.transAxes + ScaledTranslation(0, -50 / 72, figure.dpi_scale_trans)  # in points, as labels are high
    ax.legend(loc="upper left", bbox_to_anchor=(hang(ax, -0.21), 0), bbox_transform=below, handlelength=1.8)


def _gid(what: str, direction: str) -> str:
    return what if direction == "forward" else f"{direction} {what}"


def _fitting(curve: Mapping[str, Any], M: int) -> dict[str, list[int]]:
    """Return the points of a curve whose peak is at most M."""
    fits = [peak <= M for peak in curve["peak"]]
    return {
        name: [value for value, there in zip(curve[name], fits, strict=True) if there] for name in ("B_c", "accesses")
    }


def _draw_pass(ax: Axes, direction: str, numbers: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Draw one direction's curve and lines, and shade the blocks that do not fit: twice where neither direction's do."""
    N, limit, colour = data["N"], numbers["largest_that_fits"], BY_DIRECTION[direction]
    (left, right), from_top_to_bottom = ax.get_xlim(), ax.get_xaxis_transform()
    if limit != N:
        grey: dict[str, Any] = {"facecolor": BLACK, "alpha": 0.1, "linewidth": 0, "zorder": 0}
        where, gid = [limit or left, right], _gid("does not fit", direction)
        ax.fill_between(where, 0, 1, transform=from_top_to_bottom, gid=gid, **grey)
    if limit is not None and limit != N:
        ax.axvline(limit, color=colour, linestyle=(0, (1, 1.5)), linewidth=1, gid=_gid("limit", direction))
    fits = {None: "does not fit", N: "all fit"}.get(limit, f"fits if $B_c$ ≤ {limit or 0:,}")
    made = {"forward": "Algorithm 1: closed form", "backward": "Algorithm 4, backward: counted"}[direction]
    curve = _fitting(numbers["curve"], data["M"])
    ax.plot(curve["B_c"], curve["accesses"], color=colour, gid=_gid("theory", direction), label=f"{made}; {fits}")
    standard: dict[str, Any] = {"gid": _gid("standard", direction), "label": f"standard attention, {direction}"}
    ax.axhline(numbers["standard"]["accesses"], color=colour, linestyle="--", **standard)
