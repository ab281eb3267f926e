"""Figure 2 (middle) of the paper, as a model: HBM accesses against block size, forward and backward."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator

from flashsim.algorithms.blocks import Fixed
from flashsim.algorithms.own import chosen
from flashsim.drawing.style import BLACK, BLUE, BY_DIRECTION, GREY, ORANGE, hang, looks, ticks
from flashsim.optimal.tune import cost
from flashsim.plots.chart import Data, chart
from flashsim.problem.arguments import check_count
from flashsim.problem.inputs import REFERENCE_D, REFERENCE_N, check_M, float_dtype
from flashsim.run.api import Run, Tally, count, forward
from flashsim.support.sizes import human_bytes
from flashsim.theory import Exact, exact

_WHAT = "Figure 2 (middle): accesses against block size, both passes"
MOST_TILES = 2**14  # of a run with numbers; above it, shapes alone
(_STANDARD,) = looks(["standard"]).values()
CURVE = 2000  # the most points the closed form's curve has


def blocks_data(
    *, N: int = REFERENCE_N, d: int = REFERENCE_D, M: int | None = None, dtype: str = "float32", N_q: int | None = None,
    d_v: int | None = None, backward: bool = True, algorithms: Sequence[Any] = ()
) -> dict[str, Any]:  # fmt: skip
    """Return Algorithm 1's HBM accesses by column block size B_c, B_r = min(B_c, d), and what to compare them with.

    N is the number of keys; N_q, of queries, and d_v, V's width, default to N and d. One head.

    `theory`: every B_c from 16, or N/8 where that is less, to N (2,000 of them where N is large). `simulator`: powers of
    two and half-way between, run with random numbers where they make at most 16,384 tiles, so up to N = 2048, else on shapes
    alone. `paper`: line 1's own blocks. `standard`: standard attention in the largest blocks that fit, or in line 1's where
    none do. Both are counted on shapes.
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
        Q, K, V = (random.standard_normal(size, np.float32).astype(stored) for size in ((N_q, d), (N, d), (N, d_v)))

    def simulate(B_c: int) -> dict[str, Any]:
        how: dict[str, Any] = {"M": exact_at(B_c).sram.peak, "blocks": (min(B_c, d), B_c)}
        return _numbers(forward("flash_basic", Q, K, V, **how) if as_run else count("flash_basic", **shape, **how))

    def backward_at(B_c: int) -> Tally:
        return count("flash", **shape, M=M, direction="backward", sizing=Fixed(min(B_c, d), B_c, enforced=False))

    def one_pass(paper: str, direction: str, at: Callable[[int], Exact | Tally]) -> dict[str, Any]:
        how: dict[str, Any] = {**shape, "M": M, "direction": direction}
        try:
            standard = count("standard", **how, sizing="fit")
        except ValueError:  # M is too small for single rows
            standard = count("standard", **how, sizing="paper")
        fitting = bisect_right(range(1, N + 1), M, key=lambda B_c: at(B_c).sram.peak)  # the peak grows with B_c
        return {
            "paper": _numbers(count(paper, **how, sizing="paper")),
            "standard": _numbers(standard),
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
        "N": N, **shape, "M": M, "itemsize": stored.itemsize, "theory": _curve(every, map(exact_at, every)),
        "simulator_ran_on": "numbers" if as_run else "shapes", "simulator": [simulate(B_c) for B_c in chosen_sizes],
        **one_pass("flash_basic", "forward", exact_at), **({"backward": back} if backward else {}),
        **({"others": dict(map(other, algorithms))} if algorithms else {}),
    }  # fmt: skip


def _curve(sizes: list[int], costs: Iterable[Any]) -> dict[str, list[int]]:
    accesses, peak = zip(*((at.hbm.accesses, at.sram.peak) for at in costs), strict=True)
    return {"B_c": sizes, "accesses": list(accesses), "peak": list(peak)}


def _numbers(run: Run | Tally) -> dict[str, Any]:
    costs = {k: getattr(run.hbm, k) for k in ("reads", "writes", "accesses", "bytes")}
    return {"B_r": run.blocks.B_r, "B_c": run.blocks.B_c, **costs, "peak": run.sram.peak}


@chart("blocks", blocks_data, _WHAT, lambda data: 4.6 if "backward" in data else 3.4)
def plot_blocks(data: Data, ax: Axes) -> None:
    """Draw Figure 2 (middle) as a model: HBM accesses (elements) against B_c, as far as SRAM has room, and standard attention.

    Where blocks do not fit is grey, and no curve goes there. The diamond is the paper's choice of B_c, which may lie there.
    """
    N, passes = data["N"], {"forward": {**data, "curve": data["theory"]}}
    if "backward" in data:
        passes["backward"] = data["backward"]
    both = len(passes) > 1
    top = max(max(2.8 * p["standard"]["accesses"], 1.4 * max(p["curve"]["accesses"])) for p in passes.values())
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlim(data["theory"]["B_c"][0] / 1.15, N * 1.15)
    ax.set_ylim(data["floor"] / 1.5, top * (2.6 if both else 1))
    for direction, numbers in passes.items():
        _draw_pass(ax, direction, numbers, data, f"{direction}: " if both else "")

    points = [point for point in data["simulator"] if point["peak"] <= data["M"]]
    ran = "simulated run" if data["simulator_ran_on"] == "numbers" else "simulator's count"
    at, accesses = [p["B_c"] for p in points], [p["accesses"] for p in points]
    ax.plot(at, accesses, "o", color=BLUE, markerfacecolor="white", gid="simulator", label=ran if at else None)
    for name, look in looks(data.get("others", {})).items():
        moved = _fitting(data["others"][name], data["M"])
        ax.plot(moved["B_c"], moved["accesses"], **look.line, gid=name, label=look.label)
    B_c = data["paper"]["B_c"]
    chosen_size = f"⌈M/4d⌉ = {B_c:,}" if B_c < N else f"⌈M/4d⌉ ≥ N = {N:,}"
    needs = " and ".join(f"{numbers['paper']['peak'] / data['M']:.0%}" for numbers in passes.values())
    label: str | None = f"the paper's $B_c$:\n{chosen_size}, which\nneeds {needs} of M"
    for direction, numbers in passes.items():
        if data["theory"]["B_c"][0] <= B_c:
            accesses = [numbers["paper"]["accesses"]]
            marker: dict[str, Any] = {"color": BY_DIRECTION[direction] if both else BLACK, "markerfacecolor": ORANGE}
            ax.plot([B_c], accesses, "D", **marker, markersize=6, gid=_gid("paper", direction), label=label)
            label = None
    _label(ax, data, passes)


def _gid(what: str, direction: str) -> str:
    return what if direction == "forward" else f"{direction} {what}"


def _fitting(curve: Mapping[str, Any], M: int) -> dict[str, list[int]]:
    fits = [number for number, peak in enumerate(curve["peak"]) if peak <= M]
    return {name: [curve[name][number] for number in fits] for name in ("B_c", "accesses")}


def _draw_pass(ax: Axes, direction: str, numbers: Mapping[str, Any], data: Data, which: str) -> None:
    N, floor, limit = data["N"], data["floor"], numbers["largest_that_fits"]
    (left, right), top = ax.get_xlim(), ax.get_ylim()[1]
    if limit != N:
        grey: dict[str, Any] = {"facecolor": BLACK, "alpha": 0.1, "linewidth": 0, "zorder": 0}
        ax.fill_between([limit or left, right], floor, top, **grey, gid=_gid("does not fit", direction))
    if limit is not None and limit != N:
        ax.plot([limit, limit], [floor, top], color=BLACK, linestyle=(0, (1, 1.5)), linewidth=1, gid=_gid("limit", direction))
    ax.axhline(numbers["standard"]["accesses"], color=_STANDARD.colour, linestyle="--", gid=_gid("standard", direction))
    if direction == "forward":
        ax.axhline(floor, color=GREY, linestyle="-.", gid="floor")
    curve = _fitting(numbers["curve"], data["M"])
    label = which + ("closed form" if direction == "forward" else "counted") if curve["B_c"] else None
    ax.plot(curve["B_c"], curve["accesses"], color=BY_DIRECTION[direction], gid=_gid("theory", direction), label=label)


def _label(ax: Axes, data: Data, passes: Mapping[str, Mapping[str, Any]]) -> None:
    N, d, M, itemsize, floor = (data[k] for k in ("N", "d", "M", "itemsize", "floor"))
    standard, left = data["standard"]["accesses"], data["theory"]["B_c"][0]
    both, within = len(passes) > 1, f"M = {M:,}\n({human_bytes(M * itemsize)})"
    ax.text(left, floor / 1.06, "read Q, K, V, write O once" + ": 4Nd" * (floor == 4 * N * d), color=GREY, va="top")
    narrow = not both and data["largest_that_fits"] is not None and data["largest_that_fits"] > left * (N / left) ** 0.7
    end = data["largest_that_fits"] / 1.06 if narrow else N * 1.07  # of words: the grey has no room for them
    limits = [numbers["largest_that_fits"] or left for numbers in passes.values()]
    crossed = both and any(0.6 < math.log(limit / left) / math.log(N / left) < 1 for limit in limits if limit != N)
    plate = {"bbox": {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5}} if crossed else {}
    for direction, numbers in passes.items():
        label = f"standard, {direction}" if both else "standard\nattention"
        at = numbers["standard"]["accesses"] * 1.06
        ax.text(end, at, label, color=_STANDARD.colour, ha="right", va="bottom", **plate)
    if any(numbers["largest_that_fits"] != N for numbers in passes.values()):
        what = within if both else f"does not fit{' →' * narrow}\n{within}"
        at, edge = (floor * 1.04, "bottom") if both else (standard / 1.12, "top")
        ax.text(end, at, what, ha="right", va=edge, **plate)
    _label_limits(ax, N, passes)
    at_floor = (0, ax.transAxes.inverted().transform(ax.transData.transform((left, floor)))[1])
    if ax.get_legend_handles_labels()[0]:
        ax.legend(
            loc="lower left",
            bbox_to_anchor=at_floor,
            title=None if both else "Algorithm 1",
            alignment="left",
            handlelength=1.6,
            frameon=True,  # hides the limit line where that runs through it
            edgecolor="none",
            framealpha=0.9,
        )

    powers = [e for e in range(N.bit_length()) if 2**e >= left]
    every = math.ceil(len(powers) * len(f"{N:,}") / 36)  # about 36 digits fit
    ticks(ax.xaxis, FixedLocator([2**e for e in powers[::every]]), "{x:,.0f}")
    ticks(ax.yaxis, LogLocator(10, (1, 2, 5)), EngFormatter())
    limit = data["largest_that_fits"]
    lengths = f"N = {N:,}" if data["N_q"] == N else f"N_q = {data['N_q']:,}, N_k = {N:,}"
    widths = f"d = {d:,}" if data["d_v"] == d else f"d = {d:,}, d_v = {data['d_v']:,}"
    ax.set_xlabel(f"column block size $B_c$ (rows of K, V)\n{lengths}, {widths}, {data['dtype']}, one head")
    ax.set_ylabel("HBM accesses (elements)")
    title = "Larger blocks move less data" + (",\nuntil SRAM is full" if limit != N else "")
    if limit is None:
        title = f"No blocks of {left:,} or more\nrows of K and V fit M"
    ax.set_title(title, x=hang(ax, -0.21 if N >= 128 else -0.18))


def _label_limits(ax: Axes, N: int, passes: Mapping[str, Mapping[str, Any]]) -> None:
    """Say at each limit what it is; of two, the one whose words would cross the other's line has them above its end."""
    left, (low, top), both = ax.get_xlim()[0], ax.get_ylim(), len(passes) > 1
    limits = {name: numbers["largest_that_fits"] for name, numbers in passes.items()}
    shown = {name: limit for name, limit in limits.items() if limit is not None and limit != N}
    rooms = {"forward": 0.68 if both else 0.5, "backward": 0.4}  # what the words need to their left
    on_left = {name: math.log(limit / left) > rooms[name] * math.log(N / left) for name, limit in shown.items()}
    lower = "backward" if both and on_left.get("forward") else "forward"
    for name, limit in shown.items():
        y = top / (top / low) ** 0.1 if both and name == lower else top
        words = f"{name} fits\nif $B_c$ ≤ {limit:,}" if both else f"fits up to\n$B_c$ = {limit:,}"
        if on_left[name]:
            ax.text(limit / 1.06, y, words, ha="right", va="top")
        else:
            ax.text(limit * 1.06, y, words if both else f"← {words}", va="top")
        (line,) = (line for line in ax.get_lines() if line.get_gid() == _gid("limit", name))
        line.set_data([limit, limit], [passes["forward"]["floor"], y])
