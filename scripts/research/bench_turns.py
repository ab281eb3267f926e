"""Time kernels of the flashsim that PYTHONPATH names, a turn for each line of stdin: a process of
bench_against.py.

The first line has all rows, [[kernel, fields of Setting], …], in JSON. Each other one, [row,
launches], asks for a launch's ms. What is imported here must be in old checkouts, too.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import flashsim
from flashsim.gpu.benchmark import benchmark
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import Setting, contestants


def main() -> None:
    """Compile side by side, say where flashsim is, and answer."""
    rows = [(name, Setting(**fields)) for name, fields in json.loads(sys.stdin.readline())]
    kinds = dict.fromkeys(
        replace(setting, N=min(setting.N for _, setting in rows)) for _, setting in rows
    )
    benchmark(list(kinds), names=[name for name, _ in rows], rounds=1, turn_ms=1)
    if hasattr(
        os, "sched_setaffinity"
    ):  # one core for all builds, which take turns: cores differ, and short rows wait for theirs
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(flashsim.__file__), flush=True)

    @lru_cache(maxsize=1)
    def call_of(row: int) -> Callable[[], Any]:
        name, setting = rows[row]
        ((_, make),) = contestants(setting, (name,))
        return make()

    for line in sys.stdin:
        row, launches = json.loads(line)
        print(json.dumps(timed(call_of(row), launches)), flush=True)


def timed(call: Callable[[], Any], launches: int) -> float:
    """Return the ms of a launch, of so many between two events, after one that does not count."""
    cupy = import_cupy()
    start = cupy.cuda.Event()
    end = cupy.cuda.Event()
    call()
    start.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / launches


if __name__ == "__main__":
    main()
