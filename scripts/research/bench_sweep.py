"""Measure a sweep against a loop of `flashsim.count` over the same points, in one process: the
ratio of their CPU times.

# 10,000 points of each sweep, 500 of each loop
python scripts/research/bench_sweep.py
python scripts/research/bench_sweep.py --points 2000 --json sweep.json
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flashsim
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole

CASES: dict[str, dict[str, Any]] = {
    "flash": {"algorithms": "flash", "sizing": "paper"},
    "flash, sizing fit": {"algorithms": "flash", "sizing": "fit"},
    'block_sparse, causal, "live"': {
        "algorithms": "block_sparse",
        "causal": True,
        "block_mask": "live",
    },
    "standard": {"algorithms": "standard"},
}
LOOPED = 500
D = 64


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time that a call takes, the best of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def measure(points: int) -> list[dict[str, Any]]:
    """Return, for each case, the seconds of a sweep, and of a loop over some of its points as if
    over all; and their ratio.
    """
    rows = []
    for name, case in CASES.items():
        lengths = range(512, 512 + points)
        some = lengths[:: max(points // LOOPED, 1)]
        options = {key: value for key, value in case.items() if key != "algorithms"}

        def loop(what: str = case["algorithms"], options: Any = options, some: Any = some) -> None:
            for N in some:
                flashsim.count(what, N=N, d=D, **options)

        swept = seconds(lambda case=case, lengths=lengths: flashsim.sweep(N=lengths, d=D, **case))  # type: ignore[misc]
        looped = seconds(loop) * points / len(some)
        rows.append(
            {
                "case": name,
                "points": points,
                "sweep_s": swept,
                "loop_s": looped,
                "ratio": looped / swept,
            }
        )
    return rows


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=10_000, help="of each sweep. Default: 10,000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    options = parser.parse_args()
    rows = measure(options.points)
    print(f"{'CPU seconds':32}{'points':>8}{'sweep':>8}{'loop':>8}{'loop ÷ sweep':>14}")
    for row in rows:
        print(
            f"{row['case']:32}{row['points']:>8,}{row['sweep_s']:>8.2f}{row['loop_s']:>8.2f}{row['ratio']:>14.1f}"
        )
    if options.json:
        write_whole(options.json, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
