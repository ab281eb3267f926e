"""Figure 2 (middle) of the paper, as a model: HBM accesses against block size, forward and
backward.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from flashsim.algorithms import Algorithm
from flashsim.algorithms.blocks import Fixed
from flashsim.algorithms.own import resolve
from flashsim.analysis.tune import cost
from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N, check_M, float_dtype
from flashsim.drawing.labels import Labels, Spot
from flashsim.drawing.numbers import AtValues, in_units, power_for, say_in
from flashsim.drawing.style import (
    BLACK,
    BLUE,
    BY_DIRECTION,
    GREY,
    ORANGE,
    left_edge,
    looks,
    ticks,
    title_x,
)
from flashsim.plots.chart import Data, chart
from flashsim.simulate.api import count, forward
from flashsim.simulate.results import Result
from flashsim.support.sizes import ceil_div, human_bytes
from flashsim.theory import Exact, exact

_ABOUT = "Figure 2 (middle): accesses against block size"
MOST_TILES = 2**14  # of a run with numbers; above it, shapes alone
(_STANDARD,) = looks(["standard"]).values()
CURVE = 2000  # the most points the closed form's curve has
GREY_PART = 0.19  # of the picture's width, where nothing fits
LINE = 10.5  # points: the height of a line of words


def blocks_data(
    *,
    N: int = REFERENCE_N,
    d: int = REFERENCE_D,
    M: int | None = None,
    dtype: str = "float32",
    N_q: int | None = None,
    d_v: int | None = None,
    backward: bool = False,
    algorithms: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return Algorithm 1's HBM accesses by column block size B_c, B_r = min(B_c, d), and what to
    compare them with.

    N is the number of keys; N_q, of queries, and d_v, V's width, default to N and d. One head.

    `theory`: every B_c to N (2,000 of them where N is large), from 16, or N/8, or a quarter of what
    fits, where that is less. `simulator`: powers of two and half-way between, run with random
    numbers where they make at most 16,384 tiles, so up to N = 2048, else on shapes alone. `paper`:
    line 1's own blocks. `standard`: standard attention in the largest blocks that fit, or in line
    1's where none do. Both are counted on shapes. `largest_that_fits`: the last B_c whose peak is
    at most M elements (None: not one); M defaults to 100 KB of `dtype`. `floor`: Q, K, V read once
    and O written, 4Nd. Accesses are elements; `bytes` take each array at its own item size.

    With `backward`, the entry "backward" says the same of Algorithm 4, counted on shapes alone:
    `curve` instead of `theory` and `simulator`, and for `floor` Q, K, V, O, dO read once and dQ,
    dK, dV written, 8Nd.

    `algorithms`: others, one's own too, counted forward in the simulator's blocks; by name in
    `others`.
    """
    stored = float_dtype(dtype)
    N = check_count("N", N)
    d = check_count("d", d)
    M = check_M(M, stored.itemsize)
    N_q = check_count("N_q", N if N_q is None else N_q)
    d_v = check_count("d_v", d if d_v is None else d_v)
    shape: dict[str, Any] = {"N_q": N_q, "N_k": N, "d": d, "d_v": d_v, "dtype": dtype}

    def exact_at(B_c: int) -> Exact:
        return exact("flash_basic", **shape, M=M, blocks=(min(B_c, d), B_c))

    fitting = _last_that_fits(exact_at, N, M)
    first = min(16, max(N // 8, 1), max(fitting // 4, 1))
    powers = [2**e for e in range(N.bit_length())]
    powers += [power * 3 // 2 for power in powers]
    simulated_sizes = sorted({N, *(B_c for B_c in powers if first <= B_c <= N)})
    spread = np.geomspace(first, N, CURVE) if N > CURVE else range(first, N + 1)
    all_sizes = sorted({int(B_c) for B_c in spread} | set(simulated_sizes))

    most_tiles = ceil_div(N_q, min(first, d)) * ceil_div(N, first)
    with_numbers = most_tiles <= MOST_TILES
    if with_numbers:
        random = np.random.default_rng(2205_14135)
        Q, K, V = (
            random.standard_normal(size, np.float32).astype(stored)
            for size in ((N_q, d), (N, d), (N, d_v))
        )

    def simulate(B_c: int) -> dict[str, Any]:
        sizes: dict[str, Any] = {"M": exact_at(B_c).sram.peak, "blocks": (min(B_c, d), B_c)}
        if with_numbers:
            return _numbers(forward("flash_basic", Q, K, V, **sizes))
        return _numbers(count("flash_basic", **shape, **sizes))

    def backward_at(B_c: int) -> Result:
        blocks = Fixed(min(B_c, d), B_c, enforced=False)
        return count("flash", **shape, M=M, direction="backward", sizing=blocks)

    def one_pass(
        algorithm: str, direction: str, count_at: Callable[[int], Exact | Result]
    ) -> dict[str, Any]:
        options: dict[str, Any] = {**shape, "M": M, "direction": direction}
        try:
            standard = count("standard", **options, sizing="fit")
        except ValueError:  # M is too small for single rows
            standard = count("standard", **options, sizing="paper")
        fitting = _last_that_fits(count_at, N, M)
        floor = N_q * d + N * (d + d_v) + N_q * d_v
        return {
            "paper": _numbers(count(algorithm, **options, sizing="paper")),
            "standard": _numbers(standard),
            "largest_that_fits": fitting if fitting >= all_sizes[0] else None,
            "floor": floor if direction == "forward" else 2 * floor,
        }

    def other_curve(algorithm: Algorithm) -> dict[str, Any]:
        costs = [
            cost(algorithm, **shape, M=M, blocks=(min(B_c, d), B_c)) for B_c in simulated_sizes
        ]
        return _curve(simulated_sizes, costs)

    data = {
        "N": N,
        **shape,
        "M": M,
        "itemsize": stored.itemsize,
        "theory": _curve(all_sizes, map(exact_at, all_sizes)),
        "simulator_ran_on": "numbers" if with_numbers else "shapes",
        "simulator": [simulate(B_c) for B_c in simulated_sizes],
        **one_pass("flash_basic", "forward", exact_at),
    }
    if backward:
        data["backward"] = {
            "curve": _curve(all_sizes, map(backward_at, all_sizes)),
            **one_pass("flash", "backward", backward_at),
        }
    if algorithms:
        others = [resolve(algorithm, "forward") for algorithm in algorithms]
        data["others"] = {algorithm.name: other_curve(algorithm) for algorithm in others}
    return data


def _last_that_fits(count_at: Callable[[int], Exact | Result], N: int, M: int) -> int:
    """Return the last B_c up to N that fits M, 0 if none does: the peak grows with B_c."""
    return bisect_right(range(1, N + 1), M, key=lambda B_c: count_at(B_c).sram.peak)


def blocks_rows(data: Data) -> list[dict[str, Any]]:
    """Return the figure's numbers as rows: of each curve and point its B_c, accesses, peak, and
    whether that fits M.
    """
    curves: list[tuple[str, str, Mapping[str, Any]]] = [("closed form", "forward", data["theory"])]
    if "backward" in data:
        curves.append(("count", "backward", data["backward"]["curve"]))
    curves += [(name, "forward", curve) for name, curve in data.get("others", {}).items()]
    rows = []
    for label, direction, curve in curves:
        points_of_curve = zip(curve["B_c"], curve["accesses"], curve["peak"], strict=True)
        for B_c, accesses, peak in points_of_curve:
            B_r = min(B_c, data["d"])
            rows.append(_row(label, direction, B_r, B_c, accesses, peak, data["M"]))
    ran = "run" if data["simulator_ran_on"] == "numbers" else "simulator's count"
    points = [(ran, "forward", point) for point in data["simulator"]]
    for direction in ("forward", "backward"):
        if direction == "forward" or "backward" in data:
            numbers = data if direction == "forward" else data["backward"]
            points += [
                ("line 1's blocks", direction, numbers["paper"]),
                ("standard", direction, numbers["standard"]),
            ]
    for label, direction, point in points:
        blocks = point["B_r"], point["B_c"]
        rows.append(_row(label, direction, *blocks, point["accesses"], point["peak"], data["M"]))
    return rows


def _row(
    label: str, direction: str, B_r: int, B_c: int, accesses: int, peak: int, M: int
) -> dict[str, Any]:
    sizes = {"B_r": B_r, "B_c": B_c, "accesses_elements": accesses, "peak_elements": peak}
    return {"curve": label, "direction": direction, **sizes, "fits": peak <= M}


def _curve(sizes: list[int], costs: Iterable[Any]) -> dict[str, list[int]]:
    runs = list(costs)
    accesses = [run.hbm.accesses for run in runs]
    peak = [run.sram.peak for run in runs]
    return {"B_c": sizes, "accesses": accesses, "peak": peak}


def _numbers(run: Result) -> dict[str, Any]:
    costs = {k: getattr(run.hbm, k) for k in ("reads", "writes", "accesses", "bytes")}
    return {"B_r": run.blocks.B_r, "B_c": run.blocks.B_c, **costs, "peak": run.sram.peak}


@chart(
    "blocks", blocks_data, _ABOUT, lambda data: 4.4 if "backward" in data else 3.6, rows=blocks_rows
)
def plot_blocks(data: Data, ax: Axes) -> None:
    """Draw Figure 2 (middle) as a model: HBM accesses (elements) against B_c, as far as SRAM has
    room, and standard attention.

    Where blocks of no pass fit is grey, and no curve goes there. The diamond is the paper's choice
    of B_c, which may lie there.
    """
    passes = {"forward": {**data, "curve": data["theory"]}}
    if "backward" in data:
        passes["backward"] = data["backward"]
    _set_ends(ax, data, passes)
    for direction, numbers in passes.items():
        _draw_pass(ax, direction, numbers, data)
    points = [point for point in data["simulator"] if point["peak"] <= data["M"]]
    sizes = [point["B_c"] for point in points]
    accesses = [point["accesses"] for point in points]
    ax.plot(sizes, accesses, "o", color=BLUE, markerfacecolor="white", gid="simulator")
    for name, look in looks(data.get("others", {})).items():
        curve = _fitting(data["others"][name], data["M"])
        ax.plot(curve["B_c"], curve["accesses"], **look.line, gid=name)
    B_c = data["paper"]["B_c"]
    for direction, numbers in passes.items():
        if ax.get_xlim()[0] <= B_c <= ax.get_xlim()[1]:
            edge = BY_DIRECTION[direction] if "backward" in data else BLACK
            diamond: dict[str, Any] = {"color": edge, "markerfacecolor": ORANGE, "markersize": 6}
            gid = _gid("paper", direction)
            ax.plot([B_c], [numbers["paper"]["accesses"]], "D", **diamond, gid=gid)
    _name_axes(ax, data)
    _label(ax, data, passes)


def _gid(part: str, direction: str) -> str:
    return part if direction == "forward" else f"{direction} {part}"


def _fitting(curve: Mapping[str, Any], M: int) -> dict[str, list[int]]:
    fits = [number for number, peak in enumerate(curve["peak"]) if peak <= M]
    return {name: [curve[name][number] for number in fits] for name in ("B_c", "accesses")}


def _set_ends(ax: Axes, data: Data, passes: Mapping[str, Mapping[str, Any]]) -> None:
    """Scale the axes; of the width, what fits has all but the part for grey."""
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    N = data["N"]
    limit = data["largest_that_fits"]
    left = data["theory"]["B_c"][0] / 1.15
    right = N * 1.15
    if limit is not None:
        right = min(right, limit * (limit / left) ** (GREY_PART / (1 - GREY_PART)))
    ax.set_xlim(left, right)
    highest = 0
    for numbers in passes.values():
        on_curve = _fitting(numbers["curve"], data["M"])["accesses"]
        highest = max(highest, numbers["standard"]["accesses"], *on_curve)
    ax.set_ylim(data["floor"] / 1.7, 1.7 * highest)


def _draw_pass(ax: Axes, direction: str, numbers: Mapping[str, Any], data: Data) -> None:
    N = data["N"]
    floor = data["floor"]
    limit = numbers["largest_that_fits"]
    right = ax.get_xlim()[1]
    top = ax.get_ylim()[1]
    if direction == "forward" and limit is not None and limit < N:
        grey: dict[str, Any] = {"facecolor": BLACK, "alpha": 0.12, "linewidth": 0, "zorder": 0}
        ax.fill_between([limit, right], floor, top, **grey, gid="does not fit")
    if limit is not None and limit < N:
        colour = BY_DIRECTION[direction]
        gid = _gid("limit", direction)
        if direction == "forward":
            dotted: dict[str, Any] = {"linestyle": (0, (1, 1.5)), "linewidth": 1}
            ax.plot([limit, limit], [floor, top], color=colour, **dotted, gid=gid)
        else:  # the curve's end alone: words are on both of its sides
            last = _fitting(numbers["curve"], data["M"])["accesses"][-1:]
            bar: dict[str, Any] = {"markersize": 9, "markeredgewidth": 1.2}
            ax.plot([limit][: len(last)], last, "|", color=colour, **bar, gid=gid)
    ax.axhline(
        numbers["standard"]["accesses"],
        color=_STANDARD.colour,
        linestyle="--",
        gid=_gid("standard", direction),
    )
    if direction == "forward":
        ax.axhline(floor, color=GREY, linestyle="-.", gid="floor")
    curve = _fitting(numbers["curve"], data["M"])
    ax.plot(
        curve["B_c"],
        curve["accesses"],
        color=BY_DIRECTION[direction],
        gid=_gid("theory", direction),
    )


def _name_axes(ax: Axes, data: Data) -> None:
    N = data["N"]
    left = data["theory"]["B_c"][0]
    limit = data["largest_that_fits"]
    powers = [e for e in range(N.bit_length()) if left <= 2**e <= ax.get_xlim()[1]]
    ticks(ax.xaxis, AtValues([2**e for e in powers]), "{x:,.0f}")
    power = power_for(ax.get_ylim()[1] / 10)
    ticks(ax.yaxis, LogLocator(10, (1, 2, 5)))
    say_in(ax.yaxis, power)
    lengths = f"N = {N:,}" if data["N_q"] == N else f"N_q = {data['N_q']:,}, N_k = {N:,}"
    widths = f"d = {data['d']:,}"
    if data["d_v"] != data["d"]:
        widths += f", d_v = {data['d_v']:,}"
    ax.set_xlabel(
        f"column block size $B_c$ (rows of K, V)\n{lengths}, {widths}, {data['dtype']}, one head"
    )
    if "backward" in data:
        ax.set_xlabel(f"{ax.get_xlabel()}\n{_circles(data)}")
    ax.set_ylabel(f"HBM accesses ({in_units(power)})")
    title = "Larger blocks move less data" + (",\nuntil SRAM is full" if limit != N else "")
    if limit is None:
        title = "Not even single rows\nof K and V fit M"
    ax.set_title(title)


# --------------------------------------------------------------------- names, beside what they name


def _label(ax: Axes, data: Data, passes: Mapping[str, Mapping[str, Any]]) -> None:
    labels = Labels(ax)
    both = len(passes) > 1
    N = data["N"]
    M = data["M"]
    floor = data["floor"]
    limit = data["largest_that_fits"]
    left, right = ax.get_xlim()
    top = ax.get_ylim()[1]
    ax.set_title(ax.get_title(loc="left"), x=title_x(ax, left_edge(ax)))
    end = right if limit is None or limit >= N else limit
    form = ": 4Nd" if floor == 4 * N * data["d"] else ""
    spot = Spot(left, floor, 3, -2, "left", "top")
    labels.put(f"read Q, K, V, write O once{form}", [spot], color=GREY)
    if limit is not None and limit < N:
        _say_what_does_not_fit(labels, ax, data)
        if not both:
            spots = [
                Spot(limit, top, -3, -2, "right", "top"),
                Spot(limit, floor, -3, 3, "right", "bottom"),
            ]
            labels.put(f"fits up to\n$B_c$ = {limit:,}", spots)
    for direction, numbers in passes.items():
        _name_curve(labels, direction, numbers, data, both=both)
    for direction, numbers in passes.items():
        name = f"standard, {direction}" if both else "standard attention"
        _name_standard(labels, name, numbers["standard"]["accesses"], left, end)
    for name, look in looks(data.get("others", {})).items():
        curve = _fitting(data["others"][name], M)
        if curve["B_c"]:
            spots = _around(curve["B_c"][-1], curve["accesses"][-1])
            labels.put(look.label, spots, color=look.colour)
    _name_paper(labels, ax, data, passes)


def _say_what_does_not_fit(labels: Labels, ax: Axes, data: Data) -> None:
    """Say it in the grey, in as many lines as that is wide."""
    M = data["M"]
    limit = data["largest_that_fits"]
    right = ax.transData.transform((ax.get_xlim()[1], 1))[0]
    figure = ax.get_figure(root=True)
    assert figure is not None
    left = ax.transData.transform((limit, 1))[0]
    points = (right - left) * 72 / figure.dpi
    lines = ["does not fit", f"M = {M:,}", f"({human_bytes(M * data['itemsize'])})"]
    room = int((points - 4) / LINE)
    words = "\n".join(lines[:room]) if room > 1 else " ".join(lines[:2])
    top = ax.get_ylim()[1]
    floor = data["floor"]
    above = Spot(limit, top, 3, -3, "left", "top")
    below = Spot(limit, floor, 3, 3, "left", "bottom")
    spots = [above, below]
    labels.put(words, spots, rotation=90, gid="why")


def _name_standard(labels: Labels, words: str, accesses: int, left: float, end: float) -> None:
    spots = [
        Spot(end, accesses, -3, 2, "right", "bottom"),
        Spot(end, accesses, -3, -2, "right", "top"),
    ]
    spots += [
        Spot(left, accesses, 3, -2, "left", "top"),
        Spot(left, accesses, 3, 2, "left", "bottom"),
    ]
    labels.put(words, spots, color=_STANDARD.colour)


def _name_curve(
    labels: Labels, direction: str, numbers: Mapping[str, Any], data: Data, *, both: bool
) -> None:
    curve = _fitting(numbers["curve"], data["M"])
    most = numbers["largest_that_fits"]
    if not curve["B_c"]:
        return
    words = ["FlashAttention"]
    if both:
        words = [f"FlashAttention, {direction}"]
        if most < data["N"]:
            words.append(f"fits up to $B_c$ = {most:,}")
    if direction == "forward" and not both:
        words.append(_circles(data))
    points = list(zip(curve["B_c"], curve["accesses"], strict=True))
    first = points[0]
    middle = points[len(points) // 2]
    last = points[-1]
    above = [
        Spot(*first, 8, 2, "left", "bottom"),
        Spot(*middle, 6, 4, "left", "bottom"),
        Spot(*last, 6, 0, "left", "center"),
    ]
    below = [Spot(*last, -4, -6, "right", "top"), Spot(*middle, -5, -5, "right", "top")]
    spots = [*below, *above] if direction == "forward" else [*above, *below]
    labels.put("\n".join(words), spots, color=BY_DIRECTION[direction])


def _around(x: float, y: float) -> list[Spot]:
    return [
        Spot(x, y, 6, 0, "left", "center"),
        Spot(x, y, -6, -6, "right", "top"),
        Spot(x, y, -6, 6, "right", "bottom"),
        Spot(x, y, 6, -6, "left", "top"),
        Spot(x, y, 6, 6, "left", "bottom"),
    ]


def _circles(data: Data) -> str:
    if data["simulator_ran_on"] == "numbers":
        return "circles: simulated runs"
    return "circles: the simulator's counts"


def _name_paper(
    labels: Labels, ax: Axes, data: Data, passes: Mapping[str, Mapping[str, Any]]
) -> None:
    """Say near the diamonds that they are the paper's choice, and what it needs of M."""
    B_c = data["paper"]["B_c"]
    N = data["N"]
    size = f"⌈M/4d⌉ = {B_c:,}" if B_c < N else f"⌈M/4d⌉ ≥ N = {N:,}"
    peaks = [numbers["paper"]["peak"] for numbers in passes.values()]
    needs = " and ".join(f"{peak / data['M']:.0%}" for peak in peaks)
    left, right = ax.get_xlim()
    lowest = min(numbers["paper"]["accesses"] for numbers in passes.values())
    spot = Spot(right, data["floor"], -3, 4, "right", "bottom")
    if left <= B_c <= right:
        spot = Spot(B_c, lowest, -8, -8, "right", "top")
    labels.put(f"◆ the paper's $B_c$:\n{size},\nneeds {needs} of M", [spot], gid="paper's choice")
