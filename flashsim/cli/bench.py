"""`flashsim bench`: this project's GPU kernels, unfused attention and PyTorch's backends, timed in one run."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping
from typing import Any

from flashsim.cli.outputs import check_outputs, finish, progress
from flashsim.cli.shared import add
from flashsim.cli.values import whole
from flashsim.gpu.benchmark import NAMES

SUMMARY = "Time the GPU kernels against unfused attention and PyTorch's backends, interleaved in one run (needs a GPU)."
EXAMPLES = (
    "flashsim bench --N 1024 4096 16384 --d 128\n"
    "flashsim bench --only tensor_core torch_flash --N 4096 --d 64 128 --json bench.json\n"
    "flashsim bench --only hopper torch_cudnn fa4 --d 64 128 --heads 32 16 --direction forward --rounds 9\n"
    "flashsim bench --N 1024 --d 64 --dropout 0.1 --causal yes"
)
LENGTHS = [2**e for e in range(7, 17)]


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("--N", type=whole(), nargs="+", default=LENGTHS, help="sequence lengths. Default: 128 … 65536")
    parser.add_argument("--d", type=whole(), nargs="+", default=[64, 128], help="head dimensions. Default: 64 128")
    parser.add_argument("--causal", choices=["no", "yes", "both"], default="both", help="a causal mask? Default: both")
    parser.add_argument(
        "--direction", choices=["forward", "backward", "both"], default="both", help="which pass. Default: both"
    )
    add(parser, "--dropout")
    parser.add_argument(
        "--dtype", choices=["float16", "bfloat16", "float32"], default="float16", help="of the inputs. Default: float16"
    )
    parser.add_argument(
        "--batch", type=whole(0), default=0, metavar="B", help="sequences at once. Default: for 16,384 tokens"
    )
    parser.add_argument(
        "--heads",
        type=whole(),
        nargs="+",
        default=[16],
        metavar="H",
        help="query heads, or a number for each --d. Default: 16",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        default=[],
        metavar="NAME",
        help=f"time these alone: {', '.join(NAMES)}. Default: all",
    )
    parser.add_argument("--rounds", type=whole(), default=7, help="time each so often; medians are told. Default: 7")
    add(parser, "--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    """Run the command and return 0. Raises ValueError where --json cannot be written, and MissingGPU where there is none."""
    from flashsim.gpu.benchmark import benchmark, machine, settings

    check_outputs(options)
    if len(options.heads) not in (1, len(options.d)):
        raise ValueError(f"--heads is {options.heads}; expected one number, or one for each of --d {options.d}")
    causal = {"no": [False], "yes": [True], "both": [False, True]}[options.causal]
    directions = ["forward", "backward"] if options.direction == "both" else [options.direction]
    others = {"dtype": options.dtype, "B": options.batch, "dropout_p": options.dropout}
    heads = dict(zip(options.d, options.heads * (len(options.d) if len(options.heads) == 1 else 1), strict=True))
    asked = [
        setting
        for N in options.N
        for d in options.d
        for setting in settings([N], [d], causal, directions, H=heads[d], **others)
    ]
    on = machine()
    with progress(options) as bar:
        task = bar.add_task("bench", total=len(asked))
        results = benchmark(
            asked,
            contestants=options.only,
            rounds=options.rounds,
            on_setting=lambda done, _, what: bar.update(task, completed=done, description=what),
        )
    record = {
        "command": options.command_line,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": on,
        "results": results,
    }
    finish(options, record, lambda: print_results(record))
    return 0


def print_results(record: Mapping[str, Any]) -> None:
    """Print TFLOP/s, a row for each setting, with our fastest kernel's ratios to PyTorch's and to unfused attention."""
    from flashsim.gpu.benchmark import FA4, TORCH
    from flashsim.gpu.rungs import ladder
    from flashsim.tables import console_for_tables, new_table, print_table

    console = console_for_tables()
    on = record["machine"]
    console.print(
        f"{on['gpu']}, CuPy {on['cupy']}, PyTorch {on['torch']}; TFLOP/s, medians; backward counts 2.5 × forward\n"
    )
    names = list(dict.fromkeys(t["name"] for r in record["results"] for t in r["timings"]))
    table = new_table("setting", *names, "ours ÷ FA-2", "÷ the best other", "× standard", "× PyTorch unfused")
    for r in record["results"]:
        found = {t["name"]: t for t in r["timings"]}
        rate = {name: None if t["failed"] else t["tflops"] for name, t in found.items()}
        ours = next((rate[name] for name in reversed(ladder()) if rate.get(name)), None)
        flash, *unfused = (rate.get(n) for n in ("torch_flash", "standard", "torch_unfused"))
        others = [found[name]["tflops"] for name in (*TORCH, FA4) if rate.get(name)]
        table.add_row(
            f"{r['direction']:<8} N {r['N']:>6,} d {r['d']:>3}{' causal' if r['causal'] else ''}",
            *("–" if rate.get(name) is None else f"{rate[name]:.1f}" for name in names),
            f"{ours / flash:.2f}" if ours and flash else "–",
            f"{ours / max(others):.2f}" if ours and others else "–",
            *(f"{ours / other:.1f}" if ours and other else "–" for other in unfused),
        )
    print_table(console, table)
    failed = {(t["name"], t["failed"]) for r in record["results"] for t in r["timings"] if t["failed"]}
    for name, why in sorted(failed):
        console.print(f"{name} failed: {why}")
