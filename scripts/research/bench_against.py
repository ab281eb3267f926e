"""Time the kernels of this checkout beside those of an older one, by turns on one GPU: is any
slower than it was?

    git archive --prefix=before/ COMMIT flashsim | tar x -C /tmp
    python scripts/research/bench_against.py /tmp/before --before COMMIT \\
        --commit "$(git rev-parse HEAD)"

Three processes take turns of 30 ms, in another order each round: this checkout ("now"), the older
one ("before"), and this one once more ("again"). Ratios are of turns of one round. before ÷ now,
for which "now" is the mean of both, is how many times as fast kernels are now; again ÷ now is what
a build differs by from itself. All are started anew some times, as processes differ. Exit status 1
if a row's median of before ÷ now is below 0.97.
"""

import argparse
import datetime
import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from flashsim.gpu.benchmark import TURN_MS
from flashsim.gpu.contestants import settings
from flashsim.gpu.machine import machine
from flashsim.support.entry import run_script
from flashsim.support.files import check_target, write_whole
from flashsim.support.tables import print_table

HERE = Path(__file__).resolve()
LEAST = 0.97
FIELDS = ("N", "d", "causal", "direction")  # of Setting in all checkouts
Ask = Any  # a function: from a line's value to the answer's


def main() -> int:
    """Measure, write the record, and print a table; return 1 if a kernel has become slower."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the older checkout, in which flashsim/ is")
    parser.add_argument(
        "--before", required=True, help="the older checkout's commit, for the record"
    )
    parser.add_argument("--commit", required=True, help="this one's")
    parser.add_argument(
        "--only", nargs="+", default=["hopper", "tensor_core"], metavar="NAME", help="kernels"
    )
    parser.add_argument("--N", nargs="+", type=int, default=[1024, 4096, 16_384])
    parser.add_argument("--d", nargs="+", type=int, default=[128, 64])
    parser.add_argument(
        "--starts", type=int, default=6, help="how often the processes are started. Default: 6"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each start. Default: 3")
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/gpu_bench_against.json"))
    options = parser.parse_args()
    check_target(options.output)
    arguments = [
        {key: asdict(setting)[key] for key in FIELDS} for setting in settings(options.N, options.d)
    ]
    rows = [(name, setting) for setting in arguments for name in options.only]
    folders = {"now": HERE.parents[2], "before": options.folder.resolve(), "again": HERE.parents[2]}
    duration: list[list[dict[str, float]]] = [[] for _ in rows]
    for start in range(options.starts):
        with ExitStack() as stack:
            builds = {
                who: stack.enter_context(process(folder, rows)) for who, folder in folders.items()
            }
            for who, ask in builds.items():
                if not Path(result := ask(None)).is_relative_to(folders[who]):
                    raise ValueError(f"{result} was imported; expected a file in {folders[who]}")
            for row, rounds in enumerate(duration):
                rounds += measure(row, builds, options.rounds, random.Random(start))
    results = [
        {"kernel": name, **setting, **summary(rounds)}
        for (name, setting), rounds in zip(rows, duration, strict=True)
    ]
    record = {
        "command": shlex.join(["python", "scripts/research/bench_against.py", *sys.argv[1:]]),
        "commit": options.commit,
        "before": options.before,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "results": results,
    }
    write_whole(options.output, json.dumps(record, indent=1) + "\n")
    ratios = ("before ÷ now", "again ÷ now")
    output = [
        [
            *map(r.get, ("kernel", *FIELDS)),
            *(" ".join(f"{x:.3f}" for x in r[ratio]) for ratio in ratios),
        ]
        for r in results
    ]
    print_table(("kernel", *FIELDS, *(f"{ratio}: quartiles =" for ratio in ratios)), output)
    return int(min(r["before ÷ now"][1] for r in results) < LEAST)


@contextmanager
def process(folder: Path, rows: Any) -> Iterator[Ask]:
    """Start bench_turns.py with a checkout's flashsim; yield what asks it, and end it."""
    command = [sys.executable, str(HERE.with_name("bench_turns.py"))]
    env = os.environ | {"PYTHONPATH": str(folder)}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        lines = started.stdin
        answers = started.stdout
        print(json.dumps(rows), file=lines)

        def ask(what: Any) -> Any:
            """Return the answer to a line; the first one, which says that it has begun, comes
            unasked.
            """
            if what is not None:
                print(json.dumps(what), file=lines)
            if not (line := answers.readline()):
                raise ValueError(
                    f"the process with {folder}'s flashsim has ended: status {started.wait()}"
                )
            return json.loads(line)

        try:
            yield ask
        finally:
            started.kill()


def measure(
    row: int, builds: Mapping[str, Ask], rounds: int, order: random.Random
) -> Iterator[dict[str, float]]:
    """Yield each round's ms of each build."""
    launches = max(1, int(TURN_MS / min(ask([row, 5]) for ask in builds.values())))
    for _ in range(rounds):
        yield {who: builds[who]([row, launches]) for who in order.sample(list(builds), len(builds))}


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians of ms, and each ratio's quartiles: lower, median, upper."""
    ms = {f"{who}, ms": median(of[who] for of in rounds) for who in ("now", "before", "again")}
    faster = [2 * of["before"] / (of["now"] + of["again"]) for of in rounds]
    return ms | {
        "before ÷ now": quantiles(faster, n=4),
        "again ÷ now": quantiles([of["again"] / of["now"] for of in rounds], n=4),
    }


if __name__ == "__main__":
    run_script(main)
