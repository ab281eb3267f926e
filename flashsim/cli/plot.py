"""`flashsim plot`: a figure as PNG, SVG, and its data as JSON; with --all, those of the
documentation.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashsim.attention.inputs import DEFAULT_DTYPE, REFERENCE_D, REFERENCE_N, float_dtype
from flashsim.cli.outputs import FIGURE, figure_stem, finish, progress
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FLAG, NAMES, SIZINGS, by_name, flag_of
from flashsim.cli.values import elements, whole
from flashsim.hardware.machines import MACHINES
from flashsim.support.exporting import csv_cell
from flashsim.support.files import command_line, name_of, write_whole

if TYPE_CHECKING:
    from flashsim.plots import Chart

EXAMPLES = (
    "flashsim plot blocks\n"
    "flashsim plot blocks --N 4096 --d 128 --M 228KB -o out/blocks\n"
    "flashsim plot blocks --backward --csv blocks.csv\n"
    "flashsim plot theorem2 --wide\n"
    "flashsim plot arrays --causal --heads 8 --kv-heads 2\n"
    "flashsim plot arrays --sizing paper\n"
    "flashsim plot cache_size --algorithm mine.py:attention\n"
    "flashsim plot approximate --k 64\n"
    "flashsim plot roofline --machine H200 --N 4096 --d 128 --dtype bfloat16\n"
    "flashsim plot --all -o figures"
)

KEPT = "mixtures, features, or keys of a window, that approximations have"
HELP = {
    "algorithms": f"draw these beside the figure's own: {NAMES}. Default: only its own",
    "N": (
        f"sequence length. Default: {REFERENCE_N}; for sparsity, theorem2 and theorem5 16384, for "
        "fusing 65536"
    ),
    "N_q": "number of queries, if not that of the keys",
    "d": f"head dimension. Default: {REFERENCE_D}; for fusing 1024",
    "d_v": "width of V, if not d",
    "k": f"{KEPT}. Default: the paper's, N/8, at most 256",
    "dtype": (
        f"type of Q, K, V. Default: {DEFAULT_DTYPE}; for roofline one of 16 bits, which tensor "
        "cores take"
    ),
    "blocks": "these block sizes; M is enforced",
    "sizing": f"{SIZINGS}; the picture says so. Default: fit",
    "machine": f"{', '.join(MACHINES)}; or yours, FILE.json or FILE.toml. Default: A100-40GB",
    "M": "SRAM size. Default: 100KB",
    "causal": "a causal mask",
    "backward": "both passes. Default: forward alone",
    "heads": "query heads; the counts add up. Default: 1",
    "kv_heads": "KV heads; query heads that share one run as one problem",
}
"""The options that figures take, by name."""
SETTINGS: dict[str, dict[str, Any]] = {
    "algorithms": {"nargs": "+"},
    "d": {"required": False},
    "k": {"type": whole()},
    "machine": {"metavar": "NAME"},
    "backward": {"action": "store_const", "const": True, "default": None},
    **{name: {"default": None} for name in ("dtype", "sizing", "causal")},
}
"""How these options differ from those of `flashsim.cli.shared`."""
FORMER_NAMES = {
    "accesses_by_array": "arrays",
    "figure_2_left": "traffic",
    "figure_2_middle": "blocks",
    "figure_2_right": "sparsity",
    "figure_3_right": "memory",
    "theorem_2": "theorem2",
    "theorem_5": "theorem5",
}
"""Figures by the former names of their files, which are still read."""


def add_options(parser: Parser) -> None:
    from flashsim.plots import FIGURES

    width = max(map(len, FIGURES))
    lines = [f"  {name:{width}}  {chart.about}\n" for name, chart in FIGURES.items()]
    parser.notes = f"figures:\n{''.join(lines)}\n"
    which = parser.add_mutually_exclusive_group()
    figure: dict[str, Any] = {"nargs": "?", "type": _figure, "choices": list(FIGURES)}
    figure_help = "one of those below, or a file of one, as figures/blocks.png"
    parser.add("figure", group=which, **figure, metavar="FIGURE", help=figure_help)
    every = "every figure, as the documentation has it; it takes some minutes"
    parser.add("--all", group=which, **FLAG, help=every)
    for name, what in HELP.items():
        settings = SETTINGS.get(name, {})
        parser.add(_flag(name), dest=name, **settings, help=f"for {_takers(name)}: {what}")
    parser.add("--wide", **FLAG, help="16:9, for slides")
    where = (
        "save STEM.png, .svg, .json; with --all, STEM is a folder. Default: flashsim-FIGURE, or "
        "flashsim-figures"
    )
    parser.add("--output", help=where)
    table = (
        f"for {_with_tables()}: write the numbers as CSV; -: to stdout, and print nothing else "
        "there"
    )
    parser.add("--csv", metavar="FILE", help=table)
    parser.add("--json", "--quiet")


def _figure(text: str) -> str:
    path = Path(text)
    name = path.stem if path.suffix in FIGURE else path.name
    return FORMER_NAMES.get(name, name)


def _flag(name: str) -> str:
    return "--algorithm" if name == "algorithms" else flag_of(name)


def _takers(name: str) -> str:
    """Return the figures that take an option."""
    from flashsim.plots import FIGURES

    return ", ".join(figure for figure, chart in FIGURES.items() if name in chart.takes)


def _with_tables() -> str:
    """Return the figures whose numbers can be written as CSV."""
    from flashsim.plots import FIGURES

    return ", ".join(name for name, chart in FIGURES.items() if chart.rows)


def run(options: argparse.Namespace) -> int:
    from flashsim.plots import FIGURES

    arguments = {
        name: value for name, value in by_name(options, *HELP).items() if value is not None
    }
    _check_combinations(options, arguments)
    if options.all:
        return _all(options)
    chart = FIGURES[options.figure]
    if "M" in arguments:
        default = chart.takes.get("dtype", DEFAULT_DTYPE)
        dtype = float_dtype(arguments.get("dtype", default))
        arguments["M"] = elements(arguments["M"], dtype.itemsize)
    stem = figure_stem(options, options.output, f"flashsim-{options.figure}")
    data, files = _draw(chart, arguments, stem, options, options.command_line)
    if chart.rows is not None and options.csv is not None:
        files += _write_csv(chart.rows(data), options.csv)
    silent = options.csv == "-"
    finish(options, data, lambda: None if silent else print(f"Saved {', '.join(map(str, files))}"))
    return 0


def _check_combinations(options: argparse.Namespace, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for options that the figure does not take, or that --all does not."""
    from flashsim.plots import FIGURES

    if options.all:
        flags = [*map(_flag, arguments)]
        for name in ("json", "csv"):
            if vars(options)[name] is not None:
                flags.append(f"--{name}")
        if flags:
            raise ValueError(f"{flags[0]} is for one figure; name it in place of --all")
        return
    if options.figure is None:
        raise ValueError(
            f"the following arguments are required: FIGURE, one of {', '.join(FIGURES)}; or --all"
        )
    chart = FIGURES[options.figure]
    for name in arguments:
        if name not in chart.takes:
            flags = [_flag(option) for option in HELP if option in chart.takes]
            raise ValueError(
                f"{_flag(name)} is for {_takers(name)}; {options.figure} does not take it; it "
                f"takes {', '.join(flags) or 'no options'}"
            )
    if options.csv is not None and chart.rows is None:
        raise ValueError(f"--csv is for {_with_tables()}; {options.figure} does not take it")
    if options.csv == "-" == options.json:
        raise ValueError("--csv - and --json - both want stdout; give one of them a file")


def _write_csv(rows: Sequence[Mapping[str, Any]], target: str) -> list[Path]:
    """Write rows as CSV to a file, which is returned, or to stdout for "-"."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(map(csv_cell, row.values()) for row in rows)
    if target == "-":
        sys.stdout.write(text.getvalue())
        return []
    return [write_whole(target, text.getvalue())]


def _all(options: argparse.Namespace) -> int:
    """Draw every figure into a folder."""
    from flashsim.plots import FIGURES

    folder = options.output or Path("flashsim-figures")
    for name, chart in FIGURES.items():
        stem = figure_stem(options, folder / name, "")
        words = ["flashsim", "plot", name]
        for option, value in chart.docs_arguments.items():
            words += [_flag(option), str(value)]
        if options.wide:
            words.append("--wide")
        words += ["-o", name_of(stem)]
        _, files = _draw(chart, chart.docs_arguments, stem, options, command_line(words))
        print(f"Saved {', '.join(map(str, files))}", flush=True)
    return 0


def _draw(
    chart: Chart,
    arguments: Mapping[str, Any],
    stem: Path,
    options: argparse.Namespace,
    command: str,
) -> tuple[dict[str, Any], list[Path]]:
    from flashsim.plots import save

    with progress(options) as update:
        observer = {"on_done": update} if chart.reports_progress else {}
        data = chart.data(**arguments, **observer)
        return data, save(chart.draw(data, wide=options.wide), stem, data, command)
