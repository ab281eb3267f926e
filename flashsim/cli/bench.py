"""`flashsim bench`: this project's GPU kernels, unfused attention and PyTorch's backends, timed in one run."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping
from typing import Any

from flashsim.cli.outputs import check_outputs, finish, progress
from flashsim.cli.shared import add
from flashsim.cli.values import dtype, whole
from flashsim.gpu.contestants import NAMES

SUMMARY = "Time the GPU kernels against unfused attention and PyTorch's backends, interleaved in one run (needs a GPU)."
EXAMPLES = (
    "flashsim bench --N 1024 4096 16384 --d 128\n"
    "flashsim bench --only tensor_core torch_flash --N 4096 --d 64 128 --json bench.json\n"
    "flashsim bench --only hopper torch_cudnn fa4 --d 64 128 --heads 32 16 --direction forward --rounds 9\n"
    "flashsim bench --N 1024 --d 64 --dropout 0.1 --causal yes\n"
    "flashsim bench --only standard hopper hopper_window hopper_butterfly torch_flash --d 64 --causal no --direction forward\n"
    "flashsim bench --ladder --json ladder.json"
)
LENGTHS, LADDERS = [2**e for e in range(7, 17)], 4096


def add_options(parser: Any) -> None:
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="what each idea buys: every rung's time, rate and traffic, forward, on one problem; with ncu on the PATH",
    )
    parser.add_argument(
        "--N", type=whole(), nargs="+", help=f"sequence lengths. Default: 128 … 65536; of the ladder, {LADDERS}"
    )
    parser.add_argument("--d", type=whole(), nargs="+", help="head dimensions. Default: 64 128; of the ladder, 128")
    parser.add_argument("--causal", choices=["no", "yes", "both"], default="both", help="a causal mask? Default: both")
    parser.add_argument(
        "--direction", choices=["forward", "backward", "both"], default="both", help="which pass. Default: both"
    )
    add(parser, "--dropout")
    parser.add_argument(
        "--dtype",
        type=dtype,
        choices=["float16", "bfloat16", "float32"],
        default="float16",
        help="of the inputs. Default: float16, not float32 as elsewhere: the fast kernels are for matrix units of 16 bits",
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
        help=f"time these alone: {', '.join(NAMES)}. Default: all but hopper_window (256 keys) and hopper_butterfly",
    )
    parser.add_argument("--rounds", type=whole(), default=7, help="time each so often; medians are told. Default: 7")
    parser.add_argument(
        "--turn",
        type=whole(),
        default=30,
        metavar="MS",
        help="how long a turn lasts, if a call is shorter. Default: 30",
    )
    parser.add_argument("--commit", help="of the sources, for the record")
    add(parser, "--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim.gpu.benchmark import benchmark
    from flashsim.gpu.contestants import settings
    from flashsim.gpu.machine import machine

    check_outputs(options)
    if options.ladder:
        return _climb(options)
    options.N, options.d = options.N or LENGTHS, options.d or [64, 128]
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
            names=options.only,
            rounds=options.rounds,
            turn_ms=options.turn,
            on_setting=lambda done, _, what: bar.update(task, completed=done, description=what),
        )
    record = {**_made(options), "machine": on, "results": results}
    finish(options, record, lambda: print_results(record))
    return 0


def _made(options: argparse.Namespace) -> dict[str, Any]:
    """Return how and when a record was made, and of which sources, if that was said."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"command": options.command_line, **({"commit": options.commit} if options.commit else {}), "date": date}


def _climb(options: argparse.Namespace) -> int:
    """Time the ladder on one problem, forward. Raises ValueError for options that ask for more."""
    from flashsim.gpu.contestants import Setting
    from flashsim.gpu.machine import machine
    from flashsim.gpu.steps import climb

    lengths, dims = options.N or [LADDERS], options.d or [128]
    more = {"--N": len(lengths) > 1, "--d": len(dims) > 1, "--heads": len(options.heads) > 1, "--only": options.only}
    more |= {"--direction backward": options.direction == "backward", "--dropout": options.dropout}
    for name, given in more.items():
        if given:
            raise ValueError(f"--ladder is one problem, forward, of all rungs: {name} asks for something else")
    causal = options.causal == "yes"
    setting = Setting(lengths[0], dims[0], causal, dtype=options.dtype, B=options.batch, H=options.heads[0])
    on = machine()
    with progress(options) as bar:
        task = bar.add_task("ladder", total=None)
        found = climb(setting, rounds=options.rounds, on_step=lambda what: bar.update(task, description=what))
    record = {**_made(options), "machine": on, **found}
    finish(options, record, lambda: print_ladder(record))
    return 0


def print_ladder(record: Mapping[str, Any]) -> None:
    """Print a row for each step: its time and rate, elements simulated and counted, and bytes that the hardware saw."""
    from flashsim.tables import console_for_tables, new_table, print_table, print_words

    console, setting, on = console_for_tables(), record["setting"], record["machine"]
    print_words(
        console,
        f"{on['gpu']}; forward, N = {setting['N']:,}, d = {setting['d']}{', causal' if setting['causal'] else ''}, "
        f"B = {setting['B']}, H = {setting['H']}, {setting['dtype']}; medians. Traffic, reads and writes: elements simulated, "
        "and counted by the kernel; bytes between L2 and multiprocessors, and of DRAM",
    )
    console.print()
    table = new_table("step", "ms", "TFLOP/s", "elements", "counted", "L2 GB", "DRAM GB")
    for step in record["steps"]:
        if step["failed"]:
            table.add_row(step["name"], step["failed"], *"–––––")
            continue
        elements = [sum(step[key].values()) if key in step else None for key in ("simulated", "counted")]
        seen = step.get("seen")
        table.add_row(
            step["name"],
            f"{step['median']:.3f}",
            f"{step['tflops']:.1f}",
            "–" if elements[0] is None else f"{elements[0]:,}",
            "–" if elements[1] is None else "==" if elements[0] == elements[1] else f"{elements[1]:,}",
            *(f"{(seen[f'{at}_reads'] + seen[f'{at}_writes']) / 1e9:.3f}" if seen else "–" for at in ("l2", "dram")),
        )
    print_table(console, table)


def print_results(record: Mapping[str, Any]) -> None:
    """Print TFLOP/s, a row for each setting, with our fastest kernel's ratios to PyTorch's and to unfused attention."""
    from flashsim.gpu.contestants import FA4, TORCH
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
