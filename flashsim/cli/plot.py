"""`flashsim plot`: a figure as PNG, SVG, and its data as JSON; with --all, those of the documentation."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashsim.cli.outputs import FIGURE, figure_stem, finish, progress
from flashsim.cli.shared import FLAG, NAMES, SIZINGS, add
from flashsim.cli.values import elements, whole
from flashsim.hardware.machines import MACHINES
from flashsim.problem.inputs import DEFAULT_DTYPE, REFERENCE_D, REFERENCE_N, float_dtype
from flashsim.support.files import command_line, name_of

if TYPE_CHECKING:
    from flashsim.plots import Chart

SUMMARY = "Draw a figure: PNG, SVG, and its data as JSON."
EXAMPLES = (
    "flashsim plot blocks\n"
    "flashsim plot blocks --N 4096 --d 128 --M 228KB -o out/blocks\n"
    "flashsim plot theorem2 --wide\n"
    "flashsim plot arrays --causal --heads 8 --kv-heads 2\n"
    "flashsim plot arrays --sizing paper\n"
    "flashsim plot cache_size --algorithm mine.py:attention\n"
    "flashsim plot approximate --k 64\n"
    "flashsim plot roofline --machine H200 --N 4096 --d 128 --dtype bfloat16\n"
    "flashsim plot --all -o figures"
)

KEPT = "mixtures, features, or keys of a window, that approximations have"
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "algorithms": (
        "--algorithm",
        {"nargs": "+", "help": f"draw these beside the figure's own: {NAMES}. Default: only its own"},
    ),
    "N": (
        "--N",
        {
            "help": f"sequence length. Default: {REFERENCE_N}; for sparsity, theorem2 and theorem5 16384, for fusing 65536"
        },
    ),
    "N_q": ("--N-q", {"help": "number of queries, if not that of the keys"}),
    "d": ("--d", {"required": False, "help": f"head dimension. Default: {REFERENCE_D}; for fusing 1024"}),
    "d_v": ("--d-v", {"help": "width of V, if not d"}),
    "k": ("--k", {"type": whole(), "help": f"{KEPT}. Default: the paper's, N/8, at most 256"}),
    "dtype": ("--dtype", {"default": None, "help": f"type of Q, K, V. Default: {DEFAULT_DTYPE}"}),
    "blocks": ("--blocks", {"help": "these block sizes instead; M enforced"}),
    "sizing": ("--sizing", {"default": None, "help": f"{SIZINGS}; the picture says so. Default: fit"}),
    "machine": (
        "--machine",
        {"metavar": "NAME", "help": f"{', '.join(MACHINES)}; or yours, FILE.json or FILE.toml. Default: A100-40GB"},
    ),
    "M": ("--M", {"help": "SRAM size. Default: 100KB"}),
    "causal": ("--causal", {"default": None, "help": "a causal mask"}),
    "heads": ("--heads", {"help": "query heads; the counts add up. Default: 1"}),
    "kv_heads": ("--kv-heads", {"help": "KV heads; query heads that share one run as one problem"}),
}
"""What figures take, by name: how that is spelt here, and its settings, but for those of `flashsim.cli.shared`."""
OLD = {
    "accesses_by_array": "arrays",
    "figure_2_left": "traffic",
    "figure_2_middle": "blocks",
    "figure_2_right": "sparsity",
    "figure_3_right": "memory",
    "theorem_2": "theorem2",
    "theorem_5": "theorem5",
}
"""What files of figures were once called; still read, as a number in the paper is."""


def add_options(parser: Any) -> None:
    from flashsim.plots import FIGURES

    what = parser.add_mutually_exclusive_group()
    named = "one of those below, or a file of one, as figures/blocks.png"
    what.add_argument("figure", nargs="?", type=_figure, choices=list(FIGURES), metavar="FIGURE", help=named)
    add(what, "--all", **FLAG, help="every figure, as the documentation has it; it takes some minutes")
    width = max(map(len, FIGURES))
    listed = "".join(f"  {name:{width}}  {chart.what}\n" for name, chart in FIGURES.items())
    parser.epilog = f"figures:\n{listed}\n{parser.epilog}"
    for name, (option, settings) in OPTIONS.items():
        add(parser, option, **{**settings, "help": f"for {_takers(name)}: {settings['help']}"})
    add(parser, "--wide", **FLAG, help="16:9, for slides")
    where = "save STEM.png, .svg, .json; with --all, STEM is a folder. Default: flashsim-FIGURE, or flashsim-figures"
    add(parser, "--output", help=where)
    add(parser, "--json", "--quiet")


def _figure(text: str) -> str:
    """Read a figure's name, or the name of a file that has it."""
    path = Path(text)
    name = path.stem if path.suffix in FIGURE else path.name
    return OLD.get(name, name)


def _takers(name: str) -> str:
    from flashsim.plots import FIGURES

    return ", ".join(figure for figure, chart in FIGURES.items() if name in chart.takes)


def run(options: argparse.Namespace) -> int:
    from flashsim.plots import FIGURES

    arguments = {name: getattr(options, flag[2:].replace("-", "_")) for name, (flag, _) in OPTIONS.items()}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if options.all:
        return _all(options, arguments)
    if options.figure is None:
        raise ValueError(f"the following arguments are required: FIGURE, one of {', '.join(FIGURES)}; or --all")
    chart = FIGURES[options.figure]
    for name in arguments:
        if name not in chart.takes:
            raise ValueError(f"{OPTIONS[name][0]} is for {_takers(name)}; {options.figure} does not take it")
    if "M" in arguments:
        arguments["M"] = elements(arguments["M"], float_dtype(arguments.get("dtype", chart.takes["dtype"])).itemsize)
    stem = figure_stem(options, f"flashsim-{options.figure}")
    data, saved = _draw(chart, arguments, stem, options, options.command_line)
    finish(options, data, lambda: print(f"Saved {', '.join(map(str, saved))}"))
    return 0


def _all(options: argparse.Namespace, arguments: dict[str, Any]) -> int:
    """Draw every figure into a folder, each with the command that draws it alone. Raises ValueError for options of one."""
    from flashsim.plots import FIGURES

    one = [OPTIONS[name][0] for name in arguments] + ["--json"] * (options.json is not None)
    if one:
        raise ValueError(f"{one[0]} is for one figure; name it in place of --all")
    folder = options.output or Path("flashsim-figures")
    for name, chart in FIGURES.items():
        options.output = folder / name
        stem = figure_stem(options, "")
        given = [word for option, value in chart.shown.items() for word in (OPTIONS[option][0], str(value))]
        words = ["flashsim", "plot", name, *given, *["--wide"] * options.wide, "-o", name_of(stem)]
        _, saved = _draw(chart, chart.shown, stem, options, command_line(words))
        print(f"Saved {', '.join(map(str, saved))}", flush=True)
    return 0


def _draw(
    chart: Chart, arguments: Mapping[str, Any], stem: Path, options: argparse.Namespace, command: str
) -> tuple[dict[str, Any], list[Path]]:
    """Return the figure's data, and the files in which it was saved."""
    from flashsim.plots import save

    with progress(options) as told:
        watched = {"on_done": told} if chart.says_progress else {}
        data = chart.data(**arguments, **watched)
        return data, save(chart.draw(data, wide=options.wide), stem, data, command)
