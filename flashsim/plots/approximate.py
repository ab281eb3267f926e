"""Figure 3 of the paper, as a model: accesses, FLOPs and extra memory against N, of exact and
approximate attention.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.ticker import LogLocator

from flashsim import theory
from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import REFERENCE_D
from flashsim.attention.masks import patterns
from flashsim.drawing.numbers import as_power
from flashsim.drawing.style import (
    BLACK,
    GREEN,
    GREY,
    OLIVE,
    PURPLE,
    SKY,
    WINE,
    Look,
    looks,
    ticks,
    title_x,
)
from flashsim.extensions import approximate
from flashsim.memory.traffic import Occupancy
from flashsim.plots.chart import AxesList, Data, chart, count_arguments, describe
from flashsim.support.sizes import Size, ceil_div

EXACT = ("standard", "flash", "q_outer")
BETWEEN = (512, 1024)
BAND: Any = {
    "color": GREY,
    "alpha": 0.2,
    "linewidth": 0,
    "gid": "paper",
    "label": "the paper's crossings",
}
PAPER = {
    "source": (
        "FlashAttention, arXiv:2205.14135, Section 4.3: runtimes of forward + backward on an A100 "
        "begin to cross"
    ),
    "between": BETWEEN,
}
_ABOUT = "Figure 3: exact and approximate attention against N"
_LENGTHS = [2**e for e in range(7, 17)]
# where crossings are looked for
_STEP = 64
_LAST = 2048
_MARKED = ("performer", "linformer", "smyrf", "reformer")  # whose crossings are marked
_MOST_TILES = 2**25  # of the butterfly, which lists them
_CLUSTER = 64  # rows, if they fit
_LONG = 2**20  # an N at which clusters take the most room
_MEASURES = {
    "accesses": "HBM accesses (elements)",
    "flops": "FLOPs of matrix products",
    "extra": "extra memory (elements)",
}
_SIZES = {
    "standard": 9,
    "flash": 7,
    "q_outer": 5,
    "block_sparse": 4,
    "sliding_window": 3,
    "linformer": 7,
    "performer": 4,
    "performer_materialised": 3,
    "reformer": 5,
    "smyrf": 4,
}
_LOOKS = {
    "block_sparse": Look("block-sparse, butterfly", SKY, "s", "-"),
    "sliding_window": Look("sliding window", PURPLE, "v", "-"),
    "linformer": Look("Linformer", GREEN, "P", "--"),
    "performer": Look("Performer", BLACK, "X", "--"),
    "performer_materialised": Look("Performer, φ in HBM", GREY, "d", ":"),
    "reformer": Look("Reformer", WINE, "<", "-."),
    "smyrf": Look("SMYRF", OLIVE, ">", ":"),
}


def approximate_data(
    *,
    d: int = REFERENCE_D,
    k: int | None = None,
    rounds: int = 4,
    C: int | None = None,
    M: Size | None = None,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Return forward accesses, FLOPs of products and extra memory (elements, one head) against N,
    128 … 65,536, by method.

    Exact: standard, flash, q_outer. Sparse: block_sparse in Algorithm 5's butterfly, sliding_window
    of k keys. Linear in N: linformer of k mixtures, performer of k features, φ on chip or in HBM;
    reformer and smyrf in `rounds` of clusters of C rows, whose tables count as extra memory. k is
    the paper's at each N (None: `approximate.compressed`); then C is k/rounds at most. C is 64
    (None), or as many as fit. Each takes the largest blocks of its proportions that fit. `crosses`,
    by method that is not exact and by exact one: the multiple of 64 from which it makes fewer
    accesses (None: not up to 2,048). `paper`: what the paper says of measured runtimes. Raises
    ValueError for what is not a size, a C that does not fit, and an M so small that a method does
    not fit, or that the butterfly has too many tiles.
    """
    shape = count_arguments(d=d, M=M, dtype=dtype)
    del shape["sizing"]
    names = (*EXACT, *_LOOKS)
    if k is not None:
        check_count("k", k)
    clusters = {"rounds": check_count("rounds", rounds), "C": _cluster(C, rounds, shape)}
    near = range(_STEP, _LAST + 1, _STEP)
    costs = {
        name: {N: _cost(name, N, k, clusters, shape) for N in {*_LENGTHS, *near}} for name in names
    }
    series = {}
    for name in names:
        series[name] = {
            measure: [costs[name][N][index] for N in _LENGTHS]
            for index, measure in enumerate(_MEASURES)
        }
    crosses: dict[str, dict[str, int | None]] = {name: {} for name in _LOOKS}
    for name, exact_name in product(_LOOKS, EXACT):
        accesses = {N: cost[0] for N, cost in costs[name].items()}
        not_fewer = [N for N in accesses if accesses[N] >= costs[exact_name][N][0]]
        crosses[name][exact_name] = _from(not_fewer)
    return {
        **shape,
        "sizing": "fit",
        "k": k,
        **clusters,
        "N": _LENGTHS,
        "series": series,
        "crosses": crosses,
        "paper": PAPER,
    }


def _cluster(C: int | None, rounds: int, shape: Mapping[str, Any]) -> int:
    """Return C, or, for None, the largest C up to 64 that fits. Raises ValueError for another that
    does not.
    """

    def fits(C: int) -> bool:
        costs = (
            approximate.exact(name, N=_LONG, rounds=rounds, C=C, **shape)
            for name in approximate.CLUSTERS
        )
        return all(cost.sram.over == 0 for cost in costs)

    if C is None:
        return next((C for C in range(_CLUSTER, 1, -1) if fits(C)), 1)
    if not fits(check_count("C", C)):
        raise ValueError(
            f"C is {C}; expected clusters that fit in M = {shape['M']:,} elements, d = {shape['d']}"
        )
    return C


def _cost(
    name: str, N: int, k: int | None, clusters: Mapping[str, Any], shape: Mapping[str, Any]
) -> tuple[int, int, int]:
    """Return accesses, FLOPs of products, extra memory."""
    if k is None:
        k = approximate.compressed(N)
        clusters = {**clusters, "C": min(clusters["C"], max(1, k // clusters["rounds"]))}
    if name in approximate.CLUSTERS:
        method = approximate.exact(name, N=N, **clusters, **shape)
        tables = 0
        for array, traffic in method.hbm.by_array.items():
            if traffic.role == "input" and array not in "QKV":
                tables += traffic.size
        return _costs(method, tables)
    if name in approximate.METHODS:
        method = approximate.exact(name, N=N, k=k, **shape)
        _check_fits(name, method.sram)
        return _costs(method)
    pattern: dict[str, Any] = {}
    if name == "sliding_window":
        pattern["window"] = (k // 2, k - 1 - k // 2)
    if name == "block_sparse":
        tiles = theory.exact("flash", N=N, sizing="fit", **shape).blocks
        if tiles.T_r * tiles.T_c > _MOST_TILES:
            raise ValueError(
                f"M is {shape['M']:,}, which cuts N = {N:,} into {tiles.T_r:,} × {tiles.T_c:,} "
                f"tiles; expected an M for at most {_MOST_TILES:,}, as the butterfly lists them"
            )
        pattern["block_mask"] = patterns.butterfly(tiles.T_r, tiles.T_c)
    exact = theory.exact(name, N=N, sizing="fit", **shape, **pattern)
    _check_fits(name, exact.sram)
    return _costs(exact)


def _costs(exact: theory.Exact, tables: int = 0) -> tuple[int, int, int]:
    """Return accesses, FLOPs of products, and elements beyond inputs and outputs."""
    assert exact.matmul is not None  # known of all that are drawn
    return exact.hbm.accesses, exact.matmul, exact.hbm.extra + tables


def _check_fits(name: str, use: Occupancy) -> None:
    if use.over:
        raise ValueError(
            f"M is {use.capacity:,}; expected at least {use.peak:,} elements, which {name!r} needs"
        )


def _from(not_fewer: Sequence[int]) -> int | None:
    """Return the multiple of 64 after the last N that has not fewer accesses; None: past 2,048."""
    last = max(not_fewer, default=0)
    return None if last >= _LAST else last // _STEP * _STEP + _STEP


@chart("approximate", approximate_data, _ABOUT, 8.9, panels=3, grid={"sharex": True}, x=2, y=10)
def plot_approximate(data: Data, axes: AxesList) -> None:
    """Draw the three against N, log-log. In the first, the paper's runtimes cross where it is grey,
    and accesses at the vertical lines.
    """
    all_looks = looks(EXACT) | _LOOKS
    for panel, (measure, label) in zip(axes, _MEASURES.items(), strict=True):
        for name, series in data["series"].items():
            look = all_looks[name]
            gid = f"{name} {measure}"
            line = {**look.line, "markerfacecolor": "none", "markersize": _SIZES[name]}
            panel.plot(data["N"], series[measure], **line, label=look.label, gid=gid)
        panel.set_ylabel(label)
        ticks(panel.xaxis, LogLocator(4), lambda x, _: f"{x:,.0f}")
        ticks(panel.yaxis, LogLocator(100), as_power)
    axes[0].axvspan(*data["paper"]["between"], **BAND)
    axes[0].legend(handles=axes[0].patches, loc="lower right")
    for name in _MARKED:
        crossing = data["crosses"][name]["q_outer"]
        if crossing is not None:
            look = _LOOKS[name]
            style: dict[str, Any] = {"linestyle": look.dashes, "linewidth": 0.9}
            axes[0].axvline(crossing, color=look.colour, gid=f"{name} crosses", **style)
    axes[1].set_ylim(top=axes[1].get_ylim()[1] * 1000)  # room for the legend
    axes[1].legend(loc="upper left")
    k = "min(N/8, 256), as in the paper" if data["k"] is None else f"{data['k']:,}"
    at_most = "up to " if data["k"] is None else ""
    clusters = f"clusters of {at_most}{data['C']} in {data['rounds']} rounds"
    axes[2].set_xlabel(f"sequence length N\n{describe(data, 'd', 'M')}\nk = {k}\n{clusters}")
    axes[0].set_title(_point(data), x=title_x(axes[0], -0.19))


def _point(data: Data) -> str:
    labels_at: dict[int, list[str]] = {}
    for name in _MARKED:
        crossing = data["crosses"][name]["q_outer"]
        if crossing is None:
            return "Exact and approximate attention against N"
        labels_at.setdefault(crossing, []).append(_LOOKS[name].label)
    words = [f"{N:,} ({', '.join(labels)})" for N, labels in sorted(labels_at.items())]
    half = ceil_div(len(words), 2)
    return (
        f"Fewer accesses than with loops exchanged from\n"
        f"N = {', '.join(words[:half])},\n{', '.join(words[half:])}"
    )
