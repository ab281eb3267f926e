"""What serving moves: against the size of pages, the length of a prefix, the share of padding,
and the number of splits.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, PercentFormatter

from flashsim import serving
from flashsim.analysis.verify.serving import document_stream
from flashsim.attention.arguments import check_count
from flashsim.attention.masks.paddings import KeyPadding
from flashsim.drawing.style import BLUE, GREEN, GREY, ORANGE, VERMILLION, ticks, title_x
from flashsim.plots.chart import AxesList, Data, chart
from flashsim.serving.schedules import schedule_of
from flashsim.simulate.api import count

_COLOURS = (BLUE, VERMILLION, GREEN)
ROOM = 10**7  # no block that is asked for here fails to fit


def serving_data(*, d: int = 128, workers: int = 108) -> dict[str, Any]:
    """Return what the four panels show. Lengths and blocks are fixed; d is of keys and values.

    pages    for each p: rows kept that are empty, a share of those filled, and the table's bytes,
             of what K and V move
    prefix   for each length: how many times fewer accesses a cascade makes, by B_r
    padding  for each share of rows that are padding: accesses over those of a packed batch
    splits   for each t: the busiest worker's tiles over ⌈T/G⌉, and parts; first of Stream-K

    Raises ValueError.
    """
    d = check_count("d", d)
    workers = check_count("workers", workers)
    data: dict[str, Any] = {
        "d": d,
        "workers": workers,
        "pages": [],
        "prefix": [],
        "padding": [],
        "splits": [],
    }
    lengths = range(373, 629)
    for page in [2**power for power in range(9)]:
        arguments: dict[str, Any] = {
            "queries": 1,
            "keys": lengths,
            "dtype": "float16",
            "page": page,
            "blocks": (1, page),
        }
        arrays = serving.count("paged", **arguments, d=d, M=ROOM).hbm.by_array
        share = arrays["table"].bytes / (arrays["K"].bytes + arrays["V"].bytes)
        waste = arrays["K"].size / (d * sum(lengths)) - 1
        data["pages"].append((page, waste, share))
    for n in [4**power for power in range(9)]:
        times = []
        for B_r in (16, 64, 128):
            options: dict[str, Any] = {
                "queries": 1,
                "d": d,
                "dtype": "float16",
                "M": ROOM,
                "blocks": (B_r, 64),
            }
            shared = serving.count("cascade", keys=[128] * 128, prefix=n, **options)
            alone = serving.count("cascade", keys=[128 + n] * 128, **options)
            times.append(alone.hbm.accesses / shared.hbm.accesses)
        data["prefix"].append((n, times))
    N = 512
    dense: dict[str, Any] = {"N": N, "d": d, "blocks": (64, 64), "M": ROOM}
    whole = count("q_outer", **dense).hbm.accesses
    for least in range(512, 0, -56):
        lengths = np.linspace(least, N, 16).round().astype(int).tolist()
        batch: dict[str, Any] = {"queries": lengths, "keys": lengths, "causal": False}
        tally = serving.count("varlen", **batch, d=d, blocks=(64, 64), M=ROOM)
        packed = tally.hbm.accesses
        live = 0
        for length in lengths:
            live += count("q_outer", **dense, mask=KeyPadding(length)).hbm.accesses
        accesses = (16 * whole, live, document_stream(lengths, d, 64))
        padding = 1 - sum(lengths) / (16 * N)
        data["padding"].append((padding, [number / packed for number in accesses]))
    decode: dict[str, Any] = {"queries": 1, "keys": [4096] * 32, "blocks": (1, 64)}
    problem = serving.count("decode", **decode, d=d, workers=workers, M=ROOM).problem
    best = schedule_of(problem, "stream_k", workers, 1)
    schedules = [(0, best)]
    schedules += [(t, schedule_of(problem, "fixed", workers, t)) for t in range(1, 65)]
    for t, schedule in schedules:
        data["splits"].append((t, schedule.busiest / best.busiest, schedule.parts))
    return data


_ABOUT = "what serving moves: pages, a shared prefix, padding, splits"


@chart("serving", serving_data, _ABOUT, 8.9, panels=4, slide=10.6)
def plot_serving(data: Data, axes: AxesList) -> None:
    """Draw the four panels below each other."""
    pages, prefix, padding, splits = axes
    shares = [(waste or np.nan, share) for _, waste, share in data["pages"]]
    _lines(pages, data["pages"], ("rows kept and empty", "the table's bytes"), shares)
    pages.set_xscale("log", base=2)
    pages.set_yscale("log")
    ticks(pages.xaxis, FixedLocator([row[0] for row in data["pages"]]), "{x:g}")
    ticks(pages.yaxis, LogLocator(10), lambda y, _: f"{100 * y:g}%")
    pages.set_xlabel(f"rows of a page (n = 373 … 628, d = {data['d']}, fp16)")
    pages.set_ylabel("share of K and V")
    _lines(
        prefix,
        data["prefix"],
        ("B_r = 16", "B_r = 64", "B_r = 128"),
        [times for _, times in data["prefix"]],
    )
    for B_r, colour in zip((16, 64, 128), _COLOURS, strict=True):
        prefix.axhline(B_r, color=colour, linewidth=0.6, linestyle=":")
    prefix.axhline(1, color=GREY, linewidth=0.6)
    prefix.set_xscale("log", base=2)
    prefix.set_yscale("log", base=2)
    ticks(prefix.xaxis, FixedLocator([row[0] for row in data["prefix"][::2]]), "{x:,.0f}")
    ticks(prefix.yaxis, FixedLocator([1, 4, 16, 64, 128]), "{x:g}×")
    prefix.set_xlabel("keys of the prefix (128 sequences, suffixes of 128)")
    prefix.set_ylabel("fewer accesses")
    names = ("padded", "padded, live tiles", "one stream, document mask")
    _lines(padding, data["padding"], names, [times for _, times in data["padding"]])
    padding.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ticks(padding.yaxis, FixedLocator([1, 1.5, 2, 2.5]), "{x:g}×")
    padding.set_xlabel("rows that are padding (16 sequences, up to 512)")
    padding.set_ylabel("accesses over packed")
    best, *fixed = data["splits"]
    many = [row[2] for row in fixed], [row[1] for row in fixed]
    splits.plot(*many, ".", color=BLUE, label="fixed, t = 1 … 64", gid="fixed")
    splits.plot([best[2]], [best[1]], "D", color=ORANGE, label="Stream-K", gid="stream_k")
    for t, by in ((1, (5, -2)), (3, (-30, -3)), (64, (-22, -11))):
        splits.annotate(
            f"t = {t}",
            (fixed[t - 1][2], fixed[t - 1][1]),
            by,
            textcoords="offset points",
            fontsize=8,
        )
    splits.set_xscale("symlog", linthresh=64)
    ticks(splits.xaxis, FixedLocator([0, 64, 256, 1024]), "{x:,.0f}")
    splits.set_ylim(0.7, 1.1 * max(row[1] for row in fixed))
    splits.set_xlabel(f"parts written (32 problems of 64 tiles, {data['workers']} workers)")
    splits.set_ylabel("busiest worker")
    ticks(splits.yaxis, FixedLocator([1, 1.5, 2, 2.5, 3]), "{x:g}×")
    prefixes = "A prefix: B_r times at most"
    balance = "Splits: balance against parts"
    for panel, title in zip(
        axes, ("Pages: small ones waste least", prefixes, "Padding", balance), strict=True
    ):
        panel.set_title(title, x=title_x(panel, -0.2))
        panel.legend(loc=(0, 0.22) if panel is prefix else "best", frameon=False)
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(panel.get_xlabel().replace(" (", "\n("))


def _lines(
    panel: Axes, rows: Sequence[Any], names: Sequence[str], values: Sequence[Sequence[float]]
) -> None:
    for name, colour, line in zip(names, _COLOURS, zip(*values, strict=True), strict=False):
        panel.plot(
            [row[0] for row in rows],
            line,
            color=colour,
            marker="o",
            markersize=3,
            label=name,
            gid=name,
        )
