"""Clocks: our kernels, unfused attention and PyTorch's backends, interleaved in one run.

    results = benchmark(settings(lengths=(1024, 4096), head_dims=(128,)))

Contestants of a setting take turns: in every round each runs as many launches as fill some milliseconds, between two CUDA
events; what is reported is the median over the rounds, with the least and the most. Inputs are normal random numbers, since
zeros would draw less power and clock higher. Times are of whole calls, Python included where the GPU does not hide it.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import Call, Setting, contestants, share
from flashsim.gpu.machine import torch_if_there

OnSetting = Callable[[int, int, str], None]
LAUNCHES_MS, MOST_LAUNCHES, LEAST_ROUNDS = 30.0, 1000, 3


@dataclass(frozen=True)
class Timing:
    """A contestant's time of one call in ms: median, least and most over the rounds; TFLOP/s; peak bytes beyond inputs."""

    name: str
    median: float = math.nan
    least: float = math.nan
    most: float = math.nan
    tflops: float = math.nan
    extra_bytes: int | None = None
    failed: str = ""


def benchmark(
    asked: Sequence[Setting], *, names: Sequence[str] = (), rounds: int = 7, on_setting: OnSetting | None = None
) -> list[dict[str, Any]]:
    """Return, by setting, what each contestant took, as plain data. A contestant that fails says why, and others go on.

    `names`: of NAMES; none: all that the setting allows. Raises MissingGPU without a GPU.
    """
    results = []
    for done, setting in enumerate(asked):
        if on_setting is not None:
            on_setting(done, len(asked), str(setting))
        timings = [asdict(timing) for timing in race(setting, contestants(setting, names), rounds)]
        results.append({**asdict(setting), "B": setting.batch, "flops": setting.flops, "timings": timings})
    return results


def race(setting: Setting, makers: Iterable[tuple[str, Callable[[], Call]]], rounds: int) -> Iterator[Timing]:
    """Yield what each contestant took: a name, and what makes its call. First come those that fail, with the reason."""
    cupy = import_cupy()
    calls: dict[str, Call] = {}
    extra: dict[str, int] = {}
    failed: dict[str, str] = {}
    for name, make in makers:
        try:
            call = make()
            call()
            extra[name] = _extra_bytes(call)
            calls[name] = call
        except Exception as error:  # a contestant that cannot do this setting must not end the benchmark
            failed[name] = _said(error)
        cupy.cuda.runtime.deviceSynchronize()
    times = interleaved(calls, rounds, failed)
    for name, reason in failed.items():
        yield Timing(name, failed=reason)
    for name, measured in times.items():
        median = statistics.median(measured)
        rate = setting.flops * share(name, setting) / median / 1e9
        yield Timing(name, median, min(measured), max(measured), rate, extra[name])
    del calls
    _free()


def interleaved(calls: Mapping[str, Call], rounds: int, failed: dict[str, str] | None = None) -> dict[str, list[float]]:
    """Return the ms of each call, a number a round: all take turns, each with as many launches as take 30 ms.

    Rounds have orders of their own: who comes after one that draws little power would clock higher each time. One that fails
    twice goes to `failed`, with the reason, and the others go on; without `failed` the error is raised.
    """
    launches: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    shuffled = random.Random(0)
    for _ in range(1 + max(rounds, LEAST_ROUNDS)):
        for name in shuffled.sample(list(times), len(times)):
            try:
                taken = _turn(calls[name], launches.get(name, 2))
            except Exception as error:
                if failed is None:
                    raise
                failed[name] = _said(error)
                del times[name]
            else:
                if name in launches:
                    times[name].append(taken)
                else:  # the first round is to find how many
                    launches[name] = max(1, min(MOST_LAUNCHES, int(LAUNCHES_MS / max(taken, 1e-3))))
    return times


def _said(error: Exception) -> str:
    """Return an error in words: itself, it would keep its frames' arrays."""
    return f"{type(error).__name__}: {error}"[:300]


def _turn(call: Call, launches: int) -> float:
    """Return the ms of one call, of so many; where what others keep in their pools is in the way, of a second try."""
    try:
        return _time(call, launches)
    except Exception:  # CuPy and PyTorch free their own pools when memory ends, and not each other's
        _free()
        call()
        return _time(call, launches)


def _time(call: Call, launches: int) -> float:
    """Return the ms of one call, of so many between two events."""
    cupy = import_cupy()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / launches


def _extra_bytes(call: Call) -> int:
    """Return the most memory a call allocates beyond what was there: in a pool of CuPy's that starts empty, and in PyTorch's."""
    cupy, torch = import_cupy(), torch_if_there()
    _free()
    if torch is not None:
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
    pool = cupy.cuda.MemoryPool()  # the usual one may have room in what the inputs left
    with cupy.cuda.using_allocator(pool.malloc):
        result = call()
        cupy.cuda.runtime.deviceSynchronize()
    most = pool.total_bytes()
    if torch is not None:
        most += torch.cuda.max_memory_allocated() - allocated
    del result
    return int(most)


def _free() -> None:
    gc.collect()
    import_cupy().get_default_memory_pool().free_all_blocks()
    torch = torch_if_there()
    if torch is not None:
        torch.cuda.empty_cache()
