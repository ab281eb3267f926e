"""Figure 3 of the paper, as a model: accesses, FLOPs and extra memory of exact and approximate
attention against N.
"""

from collections.abc import Mapping, Sequence
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
from flashsim.plots.chart import Data, Several, chart, said, setting
from flashsim.support.sizes import Size

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
_WHAT = "Figure 3: exact and approximate attention against N"
_LENGTHS = [2**e for e in range(7, 17)]
# where crossings are looked for
_STEP = 64
_LAST = 2048
_TOLD = ("performer", "linformer", "smyrf", "reformer")  # whose crossings are marked
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
_DRAWN = {
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
    shape = setting(N=1, d=d, M=M, dtype=dtype)
    del shape["N"], shape["sizing"]
    names = (*EXACT, *_DRAWN)
    if k is not None:
        check_count("k", k)
    clusters = {"rounds": check_count("rounds", rounds), "C": _cluster(C, rounds, shape)}
    near = range(_STEP, _LAST + 1, _STEP)
    moved = {
        name: {N: _cost(name, N, k, clusters, shape) for N in {*_LENGTHS, *near}} for name in names
    }
    return {
        **shape,
        "sizing": "fit",
        "k": k,
        **clusters,
        "N": _LENGTHS,
        "series": {
            name: {
                what: [moved[name][N][at] for N in _LENGTHS] for at, what in enumerate(_MEASURES)
            }
            for name in names
        },
        "crosses": {
            name: {
                of: _from([N for N in moved[name] if moved[name][N][0] >= moved[of][N][0]])
                for of in EXACT
            }
            for name in _DRAWN
        },
        "paper": PAPER,
    }


def _cluster(C: int | None, rounds: int, shape: Mapping[str, Any]) -> int:

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
        tables = sum(
            a.size
            for array, a in method.hbm.by_array.items()
            if a.role == "input" and array not in "QKV"
        )
        return _costs(method, tables)
    if name in approximate.METHODS:
        method = approximate.exact(name, N=N, k=k, **shape)
        _check_fits(name, method.sram)
        return _costs(method)
    more: dict[str, Any] = {}
    if name == "sliding_window":
        more["window"] = (k // 2, k - 1 - k // 2)
    if name == "block_sparse":
        tiles = theory.exact("flash", N=N, sizing="fit", **shape).blocks
        if tiles.T_r * tiles.T_c > _MOST_TILES:
            raise ValueError(
                f"M is {shape['M']:,}, which cuts N = {N:,} into {tiles.T_r:,} × {tiles.T_c:,} "
                "tiles; expected an M "
                f"for at most {_MOST_TILES:,}, as the butterfly lists them"
            )
        more["block_mask"] = patterns.butterfly(tiles.T_r, tiles.T_c)
    exact = theory.exact(name, N=N, sizing="fit", **shape, **more)
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
    last = max(not_fewer, default=0)
    return None if last >= _LAST else last // _STEP * _STEP + _STEP


@chart("approximate", approximate_data, _WHAT, 8.9, panels=3, grid={"sharex": True}, x=2, y=10)
def plot_approximate(data: Data, axes: Several) -> None:
    """Draw the three against N, log-log; in the first, grey where the paper's runtimes cross, a
    bar where accesses do.
    """
    known = looks(EXACT) | _DRAWN
    for panel, (what, label) in zip(axes, _MEASURES.items(), strict=True):
        for name, series in data["series"].items():
            look = known[name]
            gid = f"{name} {what}"
            line = {**look.line, "markerfacecolor": "none", "markersize": _SIZES[name]}
            panel.plot(data["N"], series[what], **line, label=look.label, gid=gid)
        panel.set_ylabel(label)
        ticks(panel.xaxis, LogLocator(4), lambda x, _: f"{x:,.0f}")
        ticks(panel.yaxis, LogLocator(100), as_power)
    axes[0].axvspan(*data["paper"]["between"], **BAND)
    axes[0].legend(handles=axes[0].patches, loc="lower right")
    for name in _TOLD:
        at = data["crosses"][name]["q_outer"]
        if at is not None:
            look = _DRAWN[name]
            axes[0].axvline(
                at, color=look.colour, linestyle=look.dashes, linewidth=0.9, gid=f"{name} crosses"
            )
    axes[1].set_ylim(top=axes[1].get_ylim()[1] * 1000)  # room for the legend
    axes[1].legend(loc="upper left")
    k = "min(N/8, 256), as in the paper" if data["k"] is None else f"{data['k']:,}"
    at_most = "up to " if data["k"] is None else ""
    clusters = f"clusters of {at_most}{data['C']} in {data['rounds']} rounds"
    axes[2].set_xlabel(f"sequence length N\n{said(data, 'd', 'M')}\nk = {k}\n{clusters}")
    axes[0].set_title(_point(data), x=title_x(axes[0], -0.19))


def _point(data: Data) -> str:
    found: dict[int, list[str]] = {}
    for name in _TOLD:
        at = data["crosses"][name]["q_outer"]
        if at is None:
            return "Exact and approximate attention against N"
        found.setdefault(at, []).append(_DRAWN[name].label)
    words = [f"{at:,} ({', '.join(names)})" for at, names in sorted(found.items())]
    half = -(-len(words) // 2)
    return (
        f"Fewer accesses than with loops exchanged from\nN = {', '.join(words[:half])},\n"
        f"{', '.join(words[half:])}"
    )
