"""`flashsim plot`: a figure as PNG, SVG, and its data as JSON."""

from __future__ import annotations

import argparse
from typing import Any

from flashsim.cli.outputs import figure_stem, finish, progress
from flashsim.cli.shared import FLAG, NAMES, add
from flashsim.cli.values import elements, whole
from flashsim.hardware.machines import MACHINES
from flashsim.problem.inputs import DEFAULT_DTYPE, float_dtype

SUMMARY = "Draw a figure: PNG, SVG, and its data as JSON."
EXAMPLES = (
    "flashsim plot blocks\n"
    "flashsim plot blocks --N 4096 --d 128 --M 228KB -o out/blocks\n"
    "flashsim plot theorem2 --wide\n"
    "flashsim plot cache_size --algorithm mine.py:attention\n"
    "flashsim plot approximate --k 64\n"
    "flashsim plot roofline --machine H200 --N 4096 --d 128 --dtype bfloat16"
)

KEPT = "mixtures, features, or keys of a window, that approximations have"
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "algorithms": ("--algorithm", {"nargs": "+", "help": f"draw these too: {NAMES}"}),
    "N": (
        "--N",
        {"help": "sequence length. Default: 1024; for sparsity, theorem2 and theorem5 16384, for fusing 65536"},
    ),
    "N_q": ("--N-q", {"help": "number of queries, where it differs from the keys'"}),
    "d": ("--d", {"required": False, "help": "head dimension. Default: 64; for fusing 1024"}),
    "d_v": ("--d-v", {"help": "width of V, where it differs from d"}),
    "k": ("--k", {"type": whole(), "help": f"{KEPT}. Default: the paper's, N/8, at most 256"}),
    "dtype": ("--dtype", {"default": None, "help": f"of Q, K, V. Default: {DEFAULT_DTYPE}"}),
    "blocks": ("--blocks", {"help": "these block sizes instead of line 1's; M enforced"}),
    "machine": (
        "--machine",
        {"choices": MACHINES, "metavar": "NAME", "help": f"{', '.join(MACHINES)}. Default: A100-40GB"},
    ),
    "M": ("--M", {"help": "SRAM size. Default: 100KB"}),
}
"""What figures take, by name: how that is spelt here, and its settings, but for those of `flashsim.cli.shared`."""


def add_options(parser: Any) -> None:
    from flashsim.plots import FIGURES

    parser.add_argument("figure", choices=list(FIGURES), metavar="FIGURE", help="one of those below")
    width = max(map(len, FIGURES))
    listed = "".join(f"  {name:{width}}  {chart.what}\n" for name, chart in FIGURES.items())
    parser.epilog = f"figures:\n{listed}\n{parser.epilog}"
    for name, (option, settings) in OPTIONS.items():
        add(parser, option, **{**settings, "help": f"for {_takers(name)}: {settings['help']}"})
    add(parser, "--wide", **FLAG, help="16:9, for slides")
    add(parser, "--output", help="save STEM.png, .svg, .json. Default: flashsim-FIGURE")
    add(parser, "--json", "--quiet")


def _takers(name: str) -> str:
    from flashsim.plots import FIGURES

    return ", ".join(figure for figure, chart in FIGURES.items() if name in chart.takes)


def run(options: argparse.Namespace) -> int:
    from flashsim import plots

    chart = plots.FIGURES[options.figure]
    takes = chart.takes
    options.flags = [flag for name, (flag, _) in OPTIONS.items() if name in takes]
    arguments = {name: getattr(options, flag[2:].replace("-", "_")) for name, (flag, _) in OPTIONS.items()}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    for name in arguments:
        if name not in takes:
            raise ValueError(f"{OPTIONS[name][0]} is for {_takers(name)}; {options.figure} does not take it")
    if "M" in arguments:
        arguments["M"] = elements(arguments["M"], float_dtype(arguments.get("dtype", takes["dtype"])).itemsize)
    stem = figure_stem(options, f"flashsim-{options.figure}")
    with progress(options) as told:
        if chart.says_progress:
            arguments["on_done"] = told
        data = chart.data(**arguments)
        saved = plots.save(chart.draw(data, wide=options.wide), stem, data, options.command_line)
    finish(options, data, lambda: print(f"Saved {', '.join(map(str, saved))}"))
    return 0
