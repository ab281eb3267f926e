"""Check that correct attentions pass the test kit: those of this package, plain NumPy ones, and
PyTorch's, JAX's and Triton's.

    # a table on stdout, everything in a file
    python scripts/kit_conformance.py --json figures/kit_conformance.json
    # with --json: the file's others are kept
    python scripts/kit_conformance.py --only flash torch_sdpa --examples 200

A kit that finds bugs must also find none where there are none. Each attention of
tests/helpers/implementations.py is checked with `flashsim.testing.check_attention` against what it
declares, in a process of its own with every library on one thread. Interpreters are slow, and are
given a tenth of the examples. Those whose package is missing are left out, and named.

"Worst" is the largest error as a part of its budget, over the checks that are to pass: above 1 a
check would fail. Checks that an attention is known to fail are listed with how many of their cases
did; why is in the file.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from flashsim.cli.values import seed, whole  # noqa: E402
from flashsim.support.entry import run_script  # noqa: E402
from flashsim.support.files import check_target, read_record, write_whole  # noqa: E402
from tests.helpers.implementations import IMPLEMENTATIONS  # noqa: E402

Record = dict[str, Any]

# NPROC: XLA
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NPROC"), "1"
)
ONE_THREAD["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
ON_CPU = {"JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1"}
STEP = 20  # examples from one report of progress to the next
PACKAGES = ("flashsim", "numpy", "hypothesis", "ml_dtypes", "torch", "jax", "jaxlib", "triton")
stderr = Console(stderr=True)


def versions() -> dict[str, str]:
    """Return Python's version and those of the packages that are installed."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            result[package] = importlib.metadata.version(package)
    if "flashsim" not in result:  # run from a checkout
        import flashsim

        result["flashsim"] = flashsim.__version__
    return result


def version_of(name: str) -> str:
    """Return what an attention comes from, and its version."""
    own = "numpy" if name.startswith("numpy_") else "flashsim"
    package = (*IMPLEMENTATIONS[name].packages, own)[0]
    return f"{package} {versions().get(package, '?')}"


def examples_for(name: str, examples: int) -> int:
    """Return how many examples an attention is given."""
    return max(1, round(examples * IMPLEMENTATIONS[name].share))


# --------------------------------------------------------------------------------------------------
# one of them


def work(name: str, examples: int, seed: int) -> None:
    """Check one attention; print lines of JSON: {"done": n} now and then, and what was found at
    the end.
    """

    def report_progress(done: int, _: int) -> None:
        if done % STEP == 0:
            print(json.dumps({"done": done}), flush=True)

    subject = IMPLEMENTATIONS[name].build()
    start = time.perf_counter()
    report = subject.check(max_examples=examples, seed=seed, progress=report_progress)
    result = {
        "seconds": round(time.perf_counter() - start, 1),
        "tried": sum(tally.tried for tally in report.tallies.values()),
        "worst": report.worst if report.worst < float("inf") else "inf",
        "unexpected_passes": report.unexpected_passes,
    }
    print(json.dumps(result | report.as_json()), flush=True)


def in_process(name: str, examples: int, seed: int, progress: Progress, task: TaskID) -> Record:
    """Run `work` in a fresh process; return what it found, or {"unchecked": why}."""
    about = {"implementation": IMPLEMENTATIONS[name].about, "version": version_of(name)}
    if missing := IMPLEMENTATIONS[name].missing:
        progress.update(task, visible=False)
        return about | {"unchecked": missing}
    progress.reset(task)
    command = [
        sys.executable,
        __file__,
        "--worker",
        name,
        "--examples",
        str(examples),
        "--seed",
        str(seed),
    ]
    with subprocess.Popen(
        command,
        env=os.environ | ONE_THREAD | ON_CPU,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last: Record = {}
        for line in process.stdout:
            last = json.loads(line)
            progress.update(task, completed=last.get("done", examples))
        complaints = process.stderr.read().strip().splitlines()
    if process.returncode != 0 or "checks" not in last:
        return about | {
            "unchecked": "failed: " + (complaints or [f"status {process.returncode}"])[-1]
        }
    progress.console.print(
        f"{name}: {verdict(last)}, {last['examples']} examples, {last['seconds']:.0f} s"
    )
    return about | last


# --------------------------------------------------------------------------------------------------
# the table


def verdict(record: Record) -> str:
    """Return how an attention fared, in a few words."""
    if "unchecked" in record:
        return str(record["unchecked"])
    if record["failures"]:
        return "FAILS " + ", ".join(failure["check"] for failure in record["failures"])
    if record["unexpected_passes"]:
        return "passes, even " + ", ".join(record["unexpected_passes"])
    return "passes"


def expected(record: Record) -> str:
    """Return the checks that were expected to fail, with how many of their cases did."""
    checks = record.get("checks", {})
    return "\n".join(
        f"{name}: {checks[name]['failed']} of {checks[name]['cases']}"
        for name in record.get("expected_failures", ())
    )


def table(records: dict[str, Record]) -> Table:
    """Return the records as a table."""
    made = Table(
        title="Correct attentions under flashsim.testing",
        caption="worst: error ÷ budget, over checks to pass",
    )
    for heading, justify in (
        ("name", "left"),
        ("implementation", "left"),
        ("version", "left"),
        ("examples", "right"),
        ("checks", "right"),
        ("tried", "right"),
        ("worst", "right"),
        ("expected failures", "left"),
        ("seconds", "right"),
        ("verdict", "left"),
    ):
        made.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for name, r in records.items():
        text = verdict(r)
        numbers = [""] * 4
        if "checks" in r:
            applied = sum(check["cases"] > 0 for check in r["checks"].values())
            numbers = [
                f"{r['examples']:,}",
                str(applied),
                f"{r['tried']:,}",
                f"{float(r['worst']):.2f}",
            ]
        seconds = f"{r['seconds']:.0f}" if "seconds" in r else ""
        colour = (
            "green"
            if text == "passes"
            else "red"
            if text.startswith(("FAILS", "failed"))
            else "yellow"
        )
        made.add_row(
            name,
            r["implementation"],
            r["version"],
            *numbers,
            expected(r),
            seconds,
            Text(text, colour),
        )
    return made


def surroundings() -> Record:
    """Return what the results depend on: machine, versions, date, command."""
    cpuinfo = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    )
    model = re.search(r"model name\s*: (.*)", cpuinfo)
    return {
        "command": shlex.join(["python", "scripts/kit_conformance.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": (
            f"{model[1] if model else platform.processor()}, {os.cpu_count()} CPUs, "
            f"{platform.platform()}"
        ),
        "versions": versions(),
        "environment": ONE_THREAD | ON_CPU,
    }


def parse_arguments() -> argparse.Namespace:
    """Return the command line; the help text says what each option does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--examples", type=whole(), default=2000, metavar="N", help="cases for each (default: 2000)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of the cases drawn (default: 0)")
    parser.add_argument(
        "--only", nargs="+", choices=IMPLEMENTATIONS, metavar="NAME", help="check these alone"
    )
    parser.add_argument(
        "--jobs", type=whole(), default=1, metavar="N", help="processes side by side (default: 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Print the table; exit with status 1 if an attention fails. Or, as a worker, check one."""
    args = parse_arguments()
    if args.worker:
        work(args.worker, args.examples, args.seed)
        return
    if args.json:
        check_target(args.json)
    old = args.only and args.json and args.json.exists()
    earlier = read_record(args.json, "fewer_examples", "implementations", "examples") if old else {}
    names = args.only or list(IMPLEMENTATIONS)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr) as progress, ThreadPoolExecutor(args.jobs) as threads:
        inputs = {name: examples_for(name, args.examples) for name in names}
        tasks = {name: progress.add_task(name, total=inputs[name], start=False) for name in names}
        futures = {
            name: threads.submit(in_process, name, inputs[name], args.seed, progress, tasks[name])
            for name in names
        }
        records = {name: future.result() for name, future in futures.items()}
    Console(width=None if sys.stdout.isatty() else 190).print(table(records))
    if args.json:
        fewer = {name: n for name, n in inputs.items() if n != args.examples}
        if earlier:
            fewer = earlier["fewer_examples"] | fewer
            records = earlier["implementations"] | {
                name: r | {"rerun": surroundings()} for name, r in records.items()
            }
            args.examples = earlier["examples"]
            about = {
                name: earlier[name]
                for name in ("command", "date", "machine", "versions", "environment")
            }
        else:
            about = surroundings()
        record = about | {
            "examples": args.examples,
            "fewer_examples": fewer,
            "implementations": records,
        }
        write_whole(args.json, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        stderr.print(f"wrote {args.json}")
    if any(verdict(record).startswith(("FAILS", "failed")) for record in records.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    run_script(main)
