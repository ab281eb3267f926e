"""`flashsim bench`: this project's GPU kernels, unfused attention and PyTorch's backends, timed
in one run.
"""

import argparse
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from flashsim.attention.arguments import DIRECTIONS
from flashsim.cli.outputs import finish, progress
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FLAG
from flashsim.cli.values import whole
from flashsim.gpu.contestants import DISTRIBUTIONS, NAMES
from flashsim.support.tables import print_table, print_words

EXAMPLES = (
    "flashsim bench --quick\n"
    "flashsim bench --N 1024 4096 16384 --d 128\n"
    "flashsim bench --only tensor_core torch_flash --N 4096 --d 64 128 --json bench.json\n"
    "flashsim bench --only hopper torch_cudnn fa3 fa4 --dtype float16 bfloat16 --d 64 128 --heads "
    "32 16 --direction forward\n"
    "flashsim bench --N 4096 --d 128 --direction forward --distribution wide captured\n"
    "flashsim bench --N 1024 --d 64 --dropout 0.1 --causal yes\n"
    "flashsim bench --only standard hopper hopper_window hopper_butterfly torch_flash --d 64 "
    "--causal no --direction forward\n"
    "flashsim bench --ladder --json ladder.json"
)
LADDERS = 4096


@dataclass(frozen=True)
class Range:
    """The range of a benchmark, where the options do not give it."""

    N: Sequence[int]
    d: Sequence[int]
    distribution: Sequence[str] | None
    rounds: int
    turn_ms: int


FULL = Range(
    N=[128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
    d=[64, 128],
    distribution=None,
    rounds=7,
    turn_ms=30,
)
QUICK = Range(
    N=[1024, 4096],
    d=[128],
    distribution=["normal"],
    rounds=3,
    turn_ms=8,
)
CAUSAL = {
    "no": [False],
    "yes": [True],
    "both": [False, True],
}
BAR = 50  # characters of the longest


def add_options(parser: Parser) -> None:
    what = (
        "what each idea gains: every rung's time, rate and traffic, forward, on one problem; with "
        "ncu on the PATH"
    )
    parser.add("--ladder", **FLAG, help=what)
    lengths = " ".join(map(str, QUICK.N))
    quick = (
        f"a quick look, in a minute: --N {lengths}, --d 128, normal numbers, 3 rounds; with bars "
        "at its end"
    )
    parser.add("--quick", **FLAG, help=quick)
    parser.add(
        "--N",
        nargs="+",
        help=f"sequence lengths. Default: 128 … 65536; with --ladder, {LADDERS}",
    )
    parser.add(
        "--d",
        nargs="+",
        required=False,
        help="head dimensions. Default: 64 128; with --ladder, 128",
    )
    ways = ["no", "yes", "both"]
    masked = "with a causal mask, without it, or both. Default: both"
    parser.add("--causal", action="store", choices=ways, default="both", help=masked)
    both = "which pass. Default: both"
    parser.add("--direction", choices=[*DIRECTIONS, "both"], default="both", help=both)
    listed = "; ".join(f"{name} ({what})" for name, what in DISTRIBUTIONS.items())
    inputs = (
        f"the distribution of forward's inputs: {listed}. Default: all; for backward, and with "
        "--ladder, normal"
    )
    parser.add("--distribution", nargs="+", choices=DISTRIBUTIONS, metavar="NAME", help=inputs)
    parser.add("--dropout")
    why = "not float32 as elsewhere: the fast kernels are for matrix units of 16 bits"
    dtypes = ["float16", "bfloat16", "float32"]
    types = f"types of the inputs; with --ladder, one. Default: float16, {why}"
    parser.add(
        "--dtype",
        nargs="+",
        choices=dtypes,
        default=["float16"],
        metavar="TYPE",
        help=types,
    )
    parser.add(
        "--batch",
        type=whole(0),
        default=0,
        metavar="B",
        help="sequences at once. Default: for 16,384 tokens",
    )
    parser.add(
        "--heads",
        nargs="+",
        default=[16],
        help="query heads, or a number for each --d. Default: 16",
    )
    only = (
        f"time only these: {', '.join(NAMES)}. Default: all except hopper_window (256 keys) and "
        "hopper_butterfly"
    )
    only += "; and fa4's backward pass, which may not return"
    parser.add("--only", nargs="+", choices=NAMES, default=[], metavar="NAME", help=only)
    parser.add(
        "--rounds",
        type=whole(),
        help="how often each is timed; the median is shown. Default: 7",
    )
    parser.add(
        "--turn",
        type=whole(),
        metavar="MS",
        help="how long a turn lasts, if a call is shorter. Default: 30",
    )
    parser.add("--commit", help="commit of the sources, stored with the numbers")
    parser.add("--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim.gpu.benchmark import benchmark
    from flashsim.gpu.contestants import absent, settings
    from flashsim.gpu.machine import machine

    if options.ladder:
        return _climb(options)
    default = QUICK if options.quick else FULL
    dims = options.d or default.d
    if len(options.heads) not in (1, len(dims)):
        raise ValueError(
            f"--heads is {options.heads}; expected one number, or one for each of --d {dims}"
        )
    causal = CAUSAL[options.causal]
    directions = DIRECTIONS if options.direction == "both" else [options.direction]
    others = {"B": options.batch, "dropout_p": options.dropout_p}
    distributions = options.distribution or default.distribution
    problems = []
    for N in options.N or default.N:
        for d, H in zip(dims, cycle(options.heads), strict=False):
            for dtype in options.dtype:
                for one in settings([N], [d], causal, directions, H=H, dtype=dtype, **others):
                    inputs = DISTRIBUTIONS if one.direction == "forward" else ["normal"]
                    for distribution in distributions or inputs:
                        problems.append(replace(one, distribution=distribution))
    this_machine = machine()
    with progress(options) as update:
        results = benchmark(
            problems,
            names=options.only,
            rounds=options.rounds or default.rounds,
            turn_ms=options.turn or default.turn_ms,
            on_setting=update,
        )
    record = {
        **_provenance(options),
        "machine": this_machine,
        "absent": absent(options.only),
        "results": results,
    }
    finish(options, record, lambda: print_results(record, bars=options.quick))
    return 0


def _provenance(options: argparse.Namespace) -> dict[str, Any]:
    """Return the command, the commit of the sources, and the date."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "command": options.command_line,
        **({"commit": options.commit} if options.commit else {}),
        "date": date,
    }


def _climb(options: argparse.Namespace) -> int:
    from flashsim.gpu.contestants import Setting
    from flashsim.gpu.machine import machine
    from flashsim.gpu.steps import climb

    _check_ladder(options)
    setting = Setting(
        options.N[0] if options.N else LADDERS,
        options.d[0] if options.d else 128,
        options.causal == "yes",
        dtype=options.dtype[0],
        B=options.batch,
        H=options.heads[0],
        distribution=options.distribution[0] if options.distribution else "normal",
    )
    this_machine = machine()
    with progress(options) as update:
        steps = climb(
            setting,
            rounds=options.rounds or FULL.rounds,
            on_step=lambda what: update(what=what),
        )
    record = {**_provenance(options), "machine": this_machine, **steps}
    finish(options, record, lambda: print_ladder(record))
    return 0


def _check_ladder(options: argparse.Namespace) -> None:
    """Raise ValueError for options that --ladder does not go with."""
    excluded = {
        "--N": len(options.N or ()) > 1,
        "--d": len(options.d or ()) > 1,
        "--heads": len(options.heads) > 1,
        "--only": options.only,
        "--distribution": len(options.distribution or ()) > 1,
        "--direction backward": options.direction == "backward",
        "--dropout": options.dropout_p,
        "--dtype": len(options.dtype) > 1,
    }
    for name, is_there in excluded.items():
        if is_there:
            raise ValueError(
                f"--ladder is one problem, forward, of all rungs: {name} asks for something else"
            )


def print_ladder(record: Mapping[str, Any]) -> None:
    """Print a row for each step: its time and rate, elements simulated and counted, and bytes
    that the hardware saw.
    """
    setting = record["setting"]
    print_words(
        f"{record['machine']['gpu']}; forward, {_sizes(setting)}, B = {setting['B']}, H = "
        f"{setting['H']}, {setting['dtype']}; medians. Traffic, reads and writes: elements "
        "simulated, and counted by the kernel; bytes between L2 and multiprocessors, and of DRAM"
    )
    print()
    headings = ("step", "ms", "TFLOP/s", "elements", "counted", "L2 GB", "DRAM GB")
    print_table(headings, map(_ladder_row, record["steps"]))


def _ladder_row(step: Mapping[str, Any]) -> tuple[Any, ...]:
    simulated = _total(step, "simulated")
    counted = _total(step, "counted")
    same = counted is not None and counted == simulated
    l2 = None
    dram = None
    hardware = step.get("seen")
    if hardware:
        l2 = (hardware["l2_reads"] + hardware["l2_writes"]) / 1e9
        dram = (hardware["dram_reads"] + hardware["dram_writes"]) / 1e9
    return (
        step["name"],
        step["failed"] or f"{step['median']:.3f}",
        None if step["failed"] else f"{step['tflops']:.1f}",
        simulated,
        "==" if same else counted,
        _rounded(l2, 3),
        _rounded(dram, 3),
    )


def _total(step: Mapping[str, Any], key: str) -> int | None:
    """Return the sum of a step's elements; None where there are none."""
    if key not in step:
        return None
    total: int = sum(step[key].values())
    return total


def _sizes(setting: Mapping[str, Any]) -> str:
    """Return N, d and the mask of a setting in words."""
    causal = ", causal" if setting["causal"] else ""
    return f"N = {setting['N']:,}, d = {setting['d']}{causal}"


def _row_name(result: Mapping[str, Any]) -> str:
    """Return a setting as a row's name: dtype and distribution only where they are not float16
    and normal.
    """
    name = f"{result['direction']:<8} N {result['N']:>6,} d {result['d']:>3}"
    if result["causal"]:
        name += " causal"
    if result["dtype"] != "float16":
        name += f" {result['dtype']}"
    distribution = result.get("distribution", "normal")  # old records have none
    if distribution != "normal":
        name += f" {distribution}"
    return name


def _rounded(number: float | None, digits: int) -> str | None:
    return None if number is None else f"{number:.{digits}f}"


def _ratio(number: float | None, other: float | None, digits: int) -> str | None:
    return _rounded(number / other, digits) if number and other else None


def print_results(record: Mapping[str, Any], *, bars: bool = False) -> None:
    """Print TFLOP/s, a row for each setting, our fastest kernel's ratios, power and clock; the
    kernels that are absent, and those that failed.
    """
    machine = record["machine"]
    print(
        f"{machine['gpu']}, CuPy {machine['cupy']}, PyTorch {machine['torch']}; TFLOP/s, medians; "
        "backward counts 2.5 × forward\n"
    )
    timings = [timing for result in record["results"] for timing in result["timings"]]
    names = list(dict.fromkeys(timing["name"] for timing in timings))
    ratios = ("ours ÷ FA-2", "÷ the best other", "× standard", "× PyTorch unfused")
    rows = [_result_row(result, names) for result in record["results"]]
    print_table(("setting", *names, *ratios, "our W", "our MHz"), rows)
    if record.get("absent"):
        print("absent: " + "; ".join(f"{name}: {why}" for name, why in record["absent"].items()))
    failures = {(timing["name"], timing["failed"]) for timing in timings if timing["failed"]}
    for name, why in sorted(failures):
        print(f"{name} failed: {why}")
    if bars:
        for result in record["results"]:
            _print_bars(result)


def _result_row(result: Mapping[str, Any], names: Sequence[str]) -> tuple[str | None, ...]:
    """Return the row of a setting: each kernel's rate, and our fastest one's ratios, power and
    clock.
    """
    from flashsim.gpu.contestants import PEERS
    from flashsim.gpu.rungs import ladder

    by_name = {timing["name"]: timing for timing in result["timings"]}
    rates = {
        name: None if timing["failed"] else timing["tflops"] for name, timing in by_name.items()
    }
    fastest = next((name for name in reversed(ladder()) if rates.get(name)), "")
    our_rate = rates.get(fastest)
    our_timing = by_name.get(fastest, {})
    best_other = max(filter(None, map(rates.get, PEERS)), default=None)
    return (
        _row_name(result),
        *(_rounded(rates.get(name), 1) for name in names),
        _ratio(our_rate, rates.get("torch_flash"), 2),
        _ratio(our_rate, best_other, 2),
        _ratio(our_rate, rates.get("standard"), 1),
        _ratio(our_rate, rates.get("torch_unfused"), 1),
        _rounded(our_timing.get("watts"), 0),
        _rounded(our_timing.get("mhz"), 0),
    )


def _print_bars(result: Mapping[str, Any]) -> None:
    """Print the rates of a setting as bars."""
    rates = {
        timing["name"]: timing["tflops"] for timing in result["timings"] if not timing["failed"]
    }
    print(f"\n{result['direction']}, {_sizes(result)}: TFLOP/s")
    for name, rate in rates.items():
        bar = "█" * max(1, round(BAR * rate / max(rates.values())))
        print(f"{name:<14}{bar} {rate:.0f}")
