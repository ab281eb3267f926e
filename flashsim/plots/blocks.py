"""Figure 2 (middle) of the paper, as a model: HBM accesses against block size."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator

from flashsim import theory
from flashsim.api import Run, Tally, count, forward
from flashsim.inputs import check_count, check_M, float_dtype
from flashsim.plots.style import BLACK, BLUE, GREY, ORANGE, VERMILLION, column_figure, dress, styled

LARGEST_RUN = 2048  # the longest N run with numbers; above it, shapes alone
CURVE = 2000  # the most points the closed form's curve has


def blocks_data(
    *,
    N: int = 1024,
    d: int = 64,
    M: int | None = None,
    dtype: str = "float16",
    N_q: int | None = None,
    d_v: int | None = None,
) -> dict[str, Any]:
    """Return Algorithm 1's HBM accesses by column block size B_c, B_r = min(B_c, d), and what to compare them with.

    N is the number of keys; N_q, of queries, and d_v, V's width, default to N and d. One head.

    `theory`: every B_c from 16 to N (2,000 of them where N is large). `simulator`: powers of two and half-way between,
    run with random numbers up to N = 2048, else on shapes alone. `paper`: line 1's own blocks. `largest_that_fits`: the
    last B_c whose peak is at most M elements (None: not one); M defaults to 100 KB of `dtype`. `floor`: Q, K, V read
    once and O written, 4Nd. Accesses are elements; `bytes` take each array at its own item size.
    """
    stored = float_dtype(dtype)
    N, d, M = check_count("N", N), check_count("d", d), check_M(M, stored)
    N_q, d_v = check_count("N_q", N if N_q is None else N_q), check_count("d_v", d if d_v is None else d_v)
    shape: dict[str, Any] = {"N_q": N_q, "N_k": N, "d": d, "d_v": d_v, "dtype": dtype}

    def exact_at(B_c: int) -> theory.Exact:
        return theory.exact("flash_basic", **shape, M=M, blocks=(min(B_c, d), B_c))

    powers = [2**e for e in range(4, N.bit_length())]
    chosen = sorted({B_c for power in powers for B_c in (power, power * 3 // 2) if B_c <= N} | {N})
    spread = np.geomspace(min(16, N), N, CURVE) if N > CURVE else range(min(16, N), N + 1)
    every = sorted({int(B_c) for B_c in spread} | set(chosen))
    exact = [exact_at(B_c) for B_c in every]
    fitting = bisect_right(range(1, N + 1), M, key=lambda B_c: exact_at(B_c).sram.peak)  # the peak grows with B_c
    as_run = max(N, N_q) <= LARGEST_RUN
    if as_run:
        random = np.random.default_rng(2205_14135)
        sizes = ((N_q, d), (N, d), (N, d_v))
        Q, K, V = (random.standard_normal(size, np.float32).astype(stored) for size in sizes)

    def simulate(name: str, M: int, blocks: tuple[int, int] | None = None) -> dict[str, Any]:
        run: Run | Tally = (
            forward(name, Q, K, V, M=M, blocks=blocks) if as_run else count(name, **shape, M=M, blocks=blocks)
        )
        costs = {k: getattr(run.hbm, k) for k in ("reads", "writes", "accesses", "bytes")}
        return {"B_r": run.blocks.B_r, "B_c": run.blocks.B_c, **costs, "peak": run.sram.peak}

    return {
        "N": N,
        **shape,
        "M": M,
        "itemsize": stored.itemsize,
        "theory": {
            "B_c": every,
            "accesses": [e.accesses for e in exact],
            "peak": [e.sram.peak for e in exact],
        },
        "simulator_ran_on": "numbers" if as_run else "shapes",
        "simulator": [simulate("flash_basic", exact_at(B_c).sram.peak, (min(B_c, d), B_c)) for B_c in chosen],
        "paper": simulate("flash_basic", M),
        "standard": simulate("standard", M),
        "largest_that_fits": fitting if fitting >= every[0] else None,
        "floor": N_q * d + N * (d + d_v) + N_q * d_v,
    }


@styled
def plot_blocks(
    *,
    N: int = 1024,
    d: int = 64,
    M: int | None = None,
    dtype: str = "float16",
    N_q: int | None = None,
    d_v: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw Figure 2 (middle) as a model: HBM accesses (elements) against B_c, where SRAM ends, standard attention.

    Arguments as for `blocks_data`; `ax=None` draws on a new figure.
    The right axis is accesses × item size. Under 16-bit inputs ℓ and m take 4 bytes, so there its label says by how
    much the true bytes of Algorithm 1 are higher.
    """
    data = blocks_data(N=N, d=d, M=M, dtype=dtype, N_q=N_q, d_v=d_v)
    ax = column_figure(3.4).subplots() if ax is None else ax
    dress(ax)
    curve, points, paper, standard, floor = (data[k] for k in ("theory", "simulator", "paper", "standard", "floor"))
    limit: int | None = data["largest_that_fits"]
    left, right = curve["B_c"][0] / 1.15, N * 1.15
    bottom, top = floor / 1.5, max(2.2 * standard["accesses"], 1.4 * max(curve["accesses"]))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)

    if limit != N:
        ax.fill_between([limit or left, right], floor, top, facecolor="0.9", linewidth=0, zorder=0, gid="does not fit")
    if limit is not None and limit != N:
        ax.plot([limit, limit], [floor, top], color=BLACK, linestyle=(0, (1, 1.5)), linewidth=1, gid="limit")
    ax.axhline(standard["accesses"], color=VERMILLION, linestyle="--", gid="standard")
    ax.axhline(floor, color=GREY, linestyle="-.", gid="floor")
    ax.plot(curve["B_c"], curve["accesses"], color=BLUE, gid="theory", label="closed form")
    ran = "simulated run" if data["simulator_ran_on"] == "numbers" else "simulator's count"
    at, accesses = [p["B_c"] for p in points], [p["accesses"] for p in points]
    ax.plot(at, accesses, "o", color=BLUE, markerfacecolor="white", gid="simulator", label=ran)
    if curve["B_c"][0] <= paper["B_c"]:
        label = f"⌈M/4d⌉ = {paper['B_c']:,}" if paper["B_c"] < N else f"⌈M/4d⌉ ≥ N = {N:,}"
        ax.plot([paper["B_c"]], [paper["accesses"]], "D", color=BLACK, mfc=ORANGE, ms=6, gid="paper", label=label)
    _label(ax, data)
    return ax


def _label(ax: Axes, data: dict[str, Any]) -> None:
    N, d, M, itemsize, limit, floor = (data[k] for k in ("N", "d", "M", "itemsize", "largest_that_fits", "floor"))
    standard, left, top = data["standard"]["accesses"], data["theory"]["B_c"][0], ax.get_ylim()[1]
    room = M * itemsize / 1024
    in_M = f"does not fit\nM = {M:,}\n({room:,.4g} KB)"
    ax.text(N * 1.07, standard * 1.06, "standard\nattention", color=VERMILLION, ha="right", va="bottom")
    ax.text(left, floor / 1.06, "read Q, K, V, write O once" + ": 4Nd" * (floor == 4 * N * d), color=GREY, va="top")
    if limit != N:
        ax.text(N * 1.07, standard / 1.12, in_M, ha="right", va="top")
    if limit is not None and limit != N:
        if (limit / left) ** 2 > N / left:
            ax.text(limit / 1.06, top, f"fits up to\n$B_c$ = {limit:,}", ha="right", va="top")
        else:
            ax.text(limit * 1.06, top, f"← fits up to\n$B_c$ = {limit:,}", va="top")
    at_floor = (0, ax.transAxes.inverted().transform(ax.transData.transform((left, floor)))[1])
    ax.legend(
        loc="lower left",
        bbox_to_anchor=at_floor,
        title="Algorithm 1",
        alignment="left",
        handlelength=1.6,
        frameon=True,  # hides the limit line where that runs through it
        edgecolor="none",
        framealpha=0.9,
    )

    powers = [e for e in range(N.bit_length()) if 2**e >= left]
    every = math.ceil(len(powers) * len(f"{N:,}") / 36)  # about 36 digits fit
    ax.xaxis.set_major_locator(FixedLocator([2**e for e in powers[::every]]))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.xaxis.set_minor_locator(NullLocator())
    in_bytes = ax.secondary_yaxis("right", functions=(lambda a: a * itemsize, lambda b: b / itemsize))
    in_bytes.spines["right"].set_linewidth(0.6)
    in_bytes.tick_params(which="both", labelsize=8, width=0.6)
    for axis, unit in ((ax.yaxis, ""), (in_bytes.yaxis, "B")):
        axis.set_major_locator(LogLocator(10, (1, 2, 5)))
        axis.set_major_formatter(EngFormatter(unit))
        axis.set_minor_locator(NullLocator())
    more = max(p["bytes"] / (p["accesses"] * itemsize) - 1 for p in data["simulator"])
    lengths = f"N = {N:,}" if data["N_q"] == N else f"N_q = {data['N_q']:,}, N_k = {N:,}"
    ax.set_xlabel(f"column block size $B_c$ (rows of K, V)\n{lengths}, d = {d:,}, {data['dtype']}, one head")
    ax.set_ylabel("HBM accesses (elements)")
    in_bytes.set_ylabel(f"at {itemsize} bytes each" + (f"\n(ℓ, m take 4: ≤ {more:.1%} more)" if more else ""), size=8)
    ax.set_title("Larger blocks move less data" + (",\nuntil SRAM is full" if limit != N else ""), x=-0.28)
