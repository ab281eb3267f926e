"""`flashsim plot`: a figure as PNG, SVG, and its data as JSON."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flashsim.cli.shared import (
    add_json,
    add_quiet,
    add_stem,
    check_outputs,
    elements,
    progress,
    size,
    stem_files,
    whole,
    write_json,
)
from flashsim.inputs import FLOATS, float_dtype
from flashsim.machines import MACHINES

SUMMARY = "Draw a figure: PNG, SVG, and its data as JSON."
EXAMPLES = (
    "flashsim plot blocks\n"
    "flashsim plot blocks --N 4096 --d 128 --M 228KB -o out/blocks\n"
    "flashsim plot theorem2\n"
    "flashsim plot roofline --machine H200 --N 4096 --d 128"
)
FIGURES = {  # as in flashsim.plots.FIGURES, which `--help` need not wait for
    "blocks": "Figure 2 (middle), accesses against block size",
    "theorem2": "accesses against N, d, M, log–log",
    "theorem5": "the same, backward",
    "traffic": "Figure 2 (left), GPT-2 medium's GB and GFLOPs",
    "sparsity": "Figure 2 (right), accesses against sparsity",
    "memory": "Figure 3 (right), extra memory against N",
    "arrays": "accesses by array, every algorithm",
    "appendix_b5": "FlashAttention and Rabe & Staats",
    "roofline": "FLOP/byte on an A100, and what binds",
    "l2": "DRAM traffic against the size of an L2",
    "pareto": "accesses against occupancy, every block size",
    "cache_size": "accesses against M, and what is optimal",
}
TAKES: dict[str, dict[str, Any]] = {  # the options that a figure takes, with their defaults
    "blocks": {"N": 1024, "d": 64, "dtype": "float16", "M": None},
    "roofline": {"N": 1024, "d": 64, "dtype": "float16", "machine": "A100-40GB"},
}


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument(
        "figure",
        choices=list(FIGURES),
        metavar="FIGURE",
        help="; ".join(f"{name}: {what}" for name, what in FIGURES.items()),
    )
    parser.add_argument("--N", type=whole(), help="for blocks and roofline: sequence length. Default: 1024")
    parser.add_argument("--d", type=whole(), help="for blocks and roofline: head dimension. Default: 64")
    parser.add_argument("--dtype", choices=FLOATS, help="for blocks and roofline. Default: float16")
    parser.add_argument(
        "--machine",
        choices=list(MACHINES),
        metavar="NAME",
        help=f"for roofline: {', '.join(MACHINES)}. Default: A100-40GB",
    )
    parser.add_argument("--M", type=size, metavar="SIZE", help="for blocks: SRAM size. Default: 100KB")
    add_stem(parser, "flashsim-FIGURE")
    add_json(parser)
    add_quiet(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return 0. Raises ValueError for an option that is not the figure's."""
    from flashsim import plots

    arguments = _arguments(options)
    stem = options.output or Path(f"flashsim-{options.figure}")
    check_outputs(options, *stem_files(stem))
    with progress(options) as bar:
        bar.add_task(f"plot {options.figure}", total=None)
        chart = plots.FIGURES[options.figure]
        data = chart.data(**arguments)
        saved = plots.save(chart.draw(data), stem, data, options.command_line)
    write_json(options.json, data)
    if options.json != "-":
        print(f"Saved {', '.join(map(str, saved))}")
    return 0


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    takes = TAKES.get(options.figure, {})
    for name in ("N", "d", "dtype", "machine", "M"):
        if name not in takes and getattr(options, name) is not None:
            figures = " and ".join(figure for figure, its in TAKES.items() if name in its)
            raise ValueError(f"--{name} is for {figures}; {options.figure} does not take it")
    given = {
        name: default if getattr(options, name) is None else getattr(options, name) for name, default in takes.items()
    }
    if "M" in given:
        given["M"] = elements(given["M"], float_dtype(given["dtype"]).itemsize)
    return given
