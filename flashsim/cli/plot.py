"""`flashsim plot`: a figure as PNG, SVG, and its data as JSON."""

from __future__ import annotations

import argparse
from typing import Any

from flashsim.cli.outputs import figure_stem, finish, progress
from flashsim.cli.shared import NAMES, add
from flashsim.cli.values import elements, whole
from flashsim.inputs import DEFAULT_DTYPE, float_dtype
from flashsim.machines import MACHINES

SUMMARY = "Draw a figure: PNG, SVG, and its data as JSON."
EXAMPLES = (
    "flashsim plot blocks\n"
    "flashsim plot blocks --N 4096 --d 128 --M 228KB -o out/blocks\n"
    "flashsim plot theorem2 --wide\n"
    "flashsim plot cache_size --algorithm mine.py:attention\n"
    "flashsim plot approximate --k 64\n"
    "flashsim plot roofline --machine H200 --N 4096 --d 128 --dtype bfloat16"
)

LETTERS = ("N", "N_q", "d", "d_v", "k", "dtype", "machine", "M", "blocks")
OPTIONS = {**{name: f"--{name.replace('_', '-')}" for name in LETTERS}, "algorithms": "--algorithm"}
"""How what a figure takes is spelt here."""


def add_options(parser: Any) -> None:
    from flashsim.plots import FIGURES

    def of(option: str) -> str:
        return f"for {', '.join(name for name, chart in FIGURES.items() if option in chart.takes)}"

    parser.add_argument("figure", choices=list(FIGURES), metavar="FIGURE", help="one of those below")
    width = max(map(len, FIGURES))
    listed = "".join(f"  {name:{width}}  {chart.what}\n" for name, chart in FIGURES.items())
    parser.epilog = f"figures:\n{listed}\n{parser.epilog}"
    add(parser, "--algorithm", nargs="+", help=f"{of('algorithms')}: draw these too: {NAMES}")
    add(
        parser,
        "--N",
        help=f"{of('N')}: sequence length. Default: 1024; for sparsity, theorem2 and theorem5 16384, for fusing 65536",
    )
    add(parser, "--N-q", help=f"{of('N_q')}: number of queries, where it differs from the keys'")
    add(parser, "--d", required=False, help=f"{of('d')}: head dimension. Default: 64; for fusing 1024")
    add(parser, "--d-v", help=f"{of('d_v')}: width of V, where it differs from d")
    what = "mixtures, features, or keys of a window, that approximations have"
    parser.add_argument("--k", type=whole(), help=f"{of('k')}: {what}. Default: the paper's, N/8, at most 256")
    add(parser, "--dtype", default=None, help=f"{of('dtype')}. Default: {DEFAULT_DTYPE}")
    add(parser, "--blocks", help=f"{of('blocks')}: these block sizes instead of line 1's; M enforced")
    parser.add_argument(
        "--machine",
        choices=list(MACHINES),
        metavar="NAME",
        help=f"for roofline: {', '.join(MACHINES)}. Default: A100-40GB",
    )
    add(parser, "--M", help=f"{of('M')}: SRAM size. Default: 100KB")
    parser.add_argument("--wide", action="store_true", help="16:9, for slides")
    add(parser, "--output", help="save STEM.png, .svg, .json. Default: flashsim-FIGURE")
    add(parser, "--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim import plots

    options.flags = [OPTIONS[name] for name in plots.FIGURES[options.figure].takes if name in OPTIONS]
    arguments = _arguments(options)
    stem = figure_stem(options, f"flashsim-{options.figure}")
    chart = plots.FIGURES[options.figure]
    with progress(options) as told:
        if chart.says_progress:
            arguments["on_done"] = told
        data = chart.data(**arguments)
        saved = plots.save(chart.draw(data, wide=options.wide), stem, data, options.command_line)
    finish(options, data, lambda: print(f"Saved {', '.join(map(str, saved))}"))
    return 0


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    from flashsim.plots import FIGURES

    takes = FIGURES[options.figure].takes
    asked = {name: getattr(options, option[2:].replace("-", "_")) for name, option in OPTIONS.items()}
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in takes:
            figures = ", ".join(figure for figure, chart in FIGURES.items() if name in chart.takes)
            raise ValueError(f"{OPTIONS[name]} is for {figures}; {options.figure} does not take it")
    if "M" in given:
        given["M"] = elements(given["M"], float_dtype(given.get("dtype", takes["dtype"])).itemsize)
    return given
