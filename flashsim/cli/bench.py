"""`flashsim bench`: this project's GPU kernels, unfused attention and PyTorch's backends, timed
in one run.
"""

import argparse
import datetime
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any

from flashsim.attention.arguments import DIRECTIONS
from flashsim.cli.outputs import finish, progress
from flashsim.cli.shared import FLAG, add
from flashsim.cli.values import whole
from flashsim.gpu.contestants import DISTRIBUTIONS, NAMES
from flashsim.support.tables import print_table, print_words

SUMMARY = (
    "Time the GPU kernels against unfused attention and PyTorch's backends, interleaved in one run "
    "(needs a GPU)."
)
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
USUAL: dict[str, Any] = {"N": [2**e for e in range(7, 17)], "d": [64, 128], "rounds": 7, "turn": 30}
QUICK: dict[str, Any] = {
    "N": [1024, 4096],
    "d": [128],
    "distribution": ["normal"],
    "rounds": 3,
    "turn": 8,
}
BAR = 50  # characters of the longest


def add_options(parser: Any) -> None:
    what = (
        "what each idea gains: every rung's time, rate and traffic, forward, on one problem; with "
        "ncu on the PATH"
    )
    add(parser, "--ladder", **FLAG, help=what)
    lengths = " ".join(map(str, QUICK["N"]))
    quick = (
        f"a quick look, in a minute: --N {lengths}, --d 128, normal numbers, 3 rounds; with bars "
        "at its end"
    )
    add(parser, "--quick", **FLAG, help=quick)
    add(
        parser,
        "--N",
        nargs="+",
        help=f"sequence lengths. Default: 128 … 65536; with --ladder, {LADDERS}",
    )
    add(
        parser,
        "--d",
        nargs="+",
        required=False,
        help="head dimensions. Default: 64 128; with --ladder, 128",
    )
    ways = ["no", "yes", "both"]
    masked = "with a causal mask, without it, or both. Default: both"
    add(parser, "--causal", action="store", choices=ways, default="both", help=masked)
    add(
        parser,
        "--direction",
        choices=[*DIRECTIONS, "both"],
        default="both",
        help="which pass. Default: both",
    )
    drawn = "; ".join(f"{name} ({what})" for name, what in DISTRIBUTIONS.items())
    drawn = (
        f"the distribution of forward's inputs: {drawn}. Default: all; for backward, and with "
        "--ladder, normal"
    )
    add(parser, "--distribution", nargs="+", choices=DISTRIBUTIONS, metavar="NAME", help=drawn)
    add(parser, "--dropout")
    why = "not float32 as elsewhere: the fast kernels are for matrix units of 16 bits"
    dtypes = ["float16", "bfloat16", "float32"]
    types = f"types of the inputs; with --ladder, one. Default: float16, {why}"
    add(
        parser,
        "--dtype",
        nargs="+",
        choices=dtypes,
        default=["float16"],
        metavar="TYPE",
        help=types,
    )
    add(
        parser,
        "--batch",
        type=whole(0),
        default=0,
        metavar="B",
        help="sequences at once. Default: for 16,384 tokens",
    )
    add(
        parser,
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
    add(parser, "--only", nargs="+", choices=NAMES, default=[], metavar="NAME", help=only)
    add(
        parser,
        "--rounds",
        type=whole(),
        help="how often each is timed; the median is shown. Default: 7",
    )
    add(
        parser,
        "--turn",
        type=whole(),
        metavar="MS",
        help="how long a turn lasts, if a call is shorter. Default: 30",
    )
    add(parser, "--commit", help="commit of the sources, stored with the numbers")
    add(parser, "--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim.gpu.benchmark import benchmark
    from flashsim.gpu.contestants import absent, settings
    from flashsim.gpu.machine import machine

    if options.ladder:
        return _climb(options)
    for name, value in (USUAL | (QUICK if options.quick else {})).items():
        setattr(options, name, getattr(options, name) or value)
    if len(options.heads) not in (1, len(options.d)):
        raise ValueError(
            f"--heads is {options.heads}; expected one number, or one for each of --d {options.d}"
        )
    causal = {"no": [False], "yes": [True], "both": [False, True]}[options.causal]
    directions = DIRECTIONS if options.direction == "both" else [options.direction]
    others = {"B": options.batch, "dropout_p": options.dropout_p}
    pairs = list(zip(options.d, cycle(options.heads), strict=False))
    asked = [
        replace(one, distribution=distribution)
        for N in options.N
        for d, H in pairs
        for dtype in options.dtype
        for one in settings([N], [d], causal, directions, H=H, dtype=dtype, **others)
        for distribution in options.distribution
        or (DISTRIBUTIONS if one.direction == "forward" else ["normal"])
    ]
    on = machine()
    with progress(options) as told:
        results = benchmark(
            asked, names=options.only, rounds=options.rounds, turn_ms=options.turn, on_setting=told
        )
    record = {**_made(options), "machine": on, "absent": absent(options.only), "results": results}
    finish(options, record, lambda: print_results(record, bars=options.quick))
    return 0


def _made(options: argparse.Namespace) -> dict[str, Any]:
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

    lengths = options.N or [LADDERS]
    dims = options.d or [128]
    rounds = options.rounds or USUAL["rounds"]
    drawn = options.distribution or ["normal"]
    backward = options.direction == "backward"
    more = {
        "--N": len(lengths) > 1,
        "--d": len(dims) > 1,
        "--heads": len(options.heads) > 1,
        "--only": options.only,
    }
    more |= {
        "--distribution": len(drawn) > 1,
        "--direction backward": backward,
        "--dropout": options.dropout_p,
    }
    more |= {"--dtype": len(options.dtype) > 1}
    for name, given in more.items():
        if given:
            raise ValueError(
                f"--ladder is one problem, forward, of all rungs: {name} asks for something else"
            )
    sizes = {
        "dtype": options.dtype[0],
        "B": options.batch,
        "H": options.heads[0],
        "distribution": drawn[0],
    }
    setting = Setting(lengths[0], dims[0], options.causal == "yes", **sizes)
    on = machine()
    with progress(options) as told:
        found = climb(setting, rounds=rounds, on_step=lambda what: told(what=what))
    record = {**_made(options), "machine": on, **found}
    finish(options, record, lambda: print_ladder(record))
    return 0


def print_ladder(record: Mapping[str, Any]) -> None:
    """Print a row for each step: its time and rate, elements simulated and counted, and bytes
    that the hardware saw.
    """
    setting = record["setting"]
    on = record["machine"]
    print_words(
        f"{on['gpu']}; forward, N = {setting['N']:,}, d = "
        f"{setting['d']}{', causal' if setting['causal'] else ''}, "
        f"B = {setting['B']}, H = {setting['H']}, {setting['dtype']}; medians. Traffic, reads and "
        "writes: elements simulated, "
        "and counted by the kernel; bytes between L2 and multiprocessors, and of DRAM"
    )
    print()
    rows: list[tuple[Any, ...]] = []
    for step in record["steps"]:
        simulated, counted = (
            sum(step[key].values()) if key in step else None for key in ("simulated", "counted")
        )
        counted = "==" if counted is not None and counted == simulated else counted
        seen = step.get("seen")
        sums = (
            (seen[f"{at}_reads"] + seen[f"{at}_writes"]) / 1e9 if seen else None
            for at in ("l2", "dram")
        )
        took = (
            step["failed"] or f"{step['median']:.3f}",
            None if step["failed"] else f"{step['tflops']:.1f}",
        )
        rows.append(
            (step["name"], *took, simulated, counted, *(_rounded(sum_, 3) for sum_ in sums))
        )
    print_table(("step", "ms", "TFLOP/s", "elements", "counted", "L2 GB", "DRAM GB"), rows)


def _drawn(result: Mapping[str, Any]) -> str:
    """Return a distribution in a row's name, if it is another than normal; old records have
    none.
    """
    distribution = result.get("distribution", "normal")
    return "" if distribution == "normal" else f" {distribution}"


def _typed(result: Mapping[str, Any]) -> str:
    """Return the inputs' type in a row's name, if it is another than float16."""
    return "" if result["dtype"] == "float16" else f" {result['dtype']}"


def _rounded(number: float | None, digits: int) -> str | None:
    return None if number is None else f"{number:.{digits}f}"


def print_results(record: Mapping[str, Any], *, bars: bool = False) -> None:
    """Print TFLOP/s, a row for each setting, our fastest kernel's ratios, power and clock; who
    was absent, and who failed.
    """
    from flashsim.gpu.contestants import PEERS
    from flashsim.gpu.rungs import ladder

    on = record["machine"]
    print(
        f"{on['gpu']}, CuPy {on['cupy']}, PyTorch {on['torch']}; TFLOP/s, medians; backward counts "
        "2.5 × forward\n"
    )
    names = list(dict.fromkeys(t["name"] for r in record["results"] for t in r["timings"]))
    rows = []
    for r in record["results"]:
        rate = {t["name"]: None if t["failed"] else t["tflops"] for t in r["timings"]}
        own = next((name for name in reversed(ladder()) if rate.get(name)), "")
        ours = rate.get(own)
        at: dict[str, Any] = next((t for t in r["timings"] if t["name"] == own), {})
        best = max(filter(None, map(rate.get, PEERS)), default=None)
        against = (
            (rate.get("torch_flash"), 2),
            (best, 2),
            (rate.get("standard"), 1),
            (rate.get("torch_unfused"), 1),
        )
        setting = (
            f"{r['direction']:<8} N {r['N']:>6,} d "
            f"{r['d']:>3}{' causal' if r['causal'] else ''}{_typed(r)}{_drawn(r)}"
        )
        shown = (_rounded(rate.get(name), 1) for name in names)
        ratios = (
            _rounded(ours / other if ours and other else None, digits) for other, digits in against
        )
        rows.append(
            (setting, *shown, *ratios, *(_rounded(at.get(what), 0) for what in ("watts", "mhz")))
        )
    compared = ("ours ÷ FA-2", "÷ the best other", "× standard", "× PyTorch unfused")
    print_table(("setting", *names, *compared, "our W", "our MHz"), rows)
    if record.get("absent"):
        print("absent: " + "; ".join(f"{name}: {why}" for name, why in record["absent"].items()))
    for name, why in sorted(
        {(t["name"], t["failed"]) for r in record["results"] for t in r["timings"] if t["failed"]}
    ):
        print(f"{name} failed: {why}")
    for r in record["results"] if bars else []:
        rates = {t["name"]: t["tflops"] for t in r["timings"] if not t["failed"]}
        print(
            f"\n{r['direction']}, N = {r['N']:,}, d = {r['d']}{', causal' if r['causal'] else ''}: "
            "TFLOP/s"
        )
        for name, rate in rates.items():
            print(f"{name:<14}{'█' * max(1, round(BAR * rate / max(rates.values())))} {rate:.0f}")
