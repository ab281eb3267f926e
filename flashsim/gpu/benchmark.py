"""Clocks: our kernels, unfused attention and PyTorch's backends, interleaved in one run.

    results = benchmark(settings(lengths=(1024, 4096), head_dims=(128,)))

Contestants of a setting take turns: in every round each runs as many launches as fill some milliseconds, one at least,
between two CUDA events; what is reported is the median over the rounds, with the least and the most. Inputs are of a
distribution, never zeros, which would draw less power and clock higher. All share one limit of power: who comes after one that
drew much runs slower; what power and clock were at the end of a turn stands beside its rate. Times are of whole calls, Python
included where the GPU does not hide it.

All our kernels are compiled before, side by side.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from flashsim.gpu.compiling import current_device, import_cupy
from flashsim.gpu.contestants import Call, Setting, contestants, share
from flashsim.gpu.machine import torch_if_there
from flashsim.gpu.rungs import ladder
from flashsim.gpu.sensors import Sensors

OnSetting = Callable[[int, int, str], None]
TURN_MS, MOST_LAUNCHES, LEAST_ROUNDS = 30.0, 1000, 3
MUCH = 2**30  # bytes that a call takes, and leaves in pools


@dataclass(frozen=True)
class Timing:
    """A contestant's time of one call in ms: median, least and most over the rounds; TFLOP/s; peak bytes beyond inputs.

    Watts and MHz are medians too, or None where they cannot be read.
    """

    name: str
    median: float = math.nan
    least: float = math.nan
    most: float = math.nan
    tflops: float = math.nan
    extra_bytes: int | None = None
    watts: float | None = None
    mhz: float | None = None
    failed: str = ""


def benchmark(
    asked: Sequence[Setting], *, names: Sequence[str] = (), rounds: int = 7, turn_ms: float = TURN_MS,
    on_setting: OnSetting | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return, by setting, what each contestant took, as plain data. A contestant that fails says why, and others go on.

    `names`: of NAMES; none: all that the setting allows. Raises MissingGPU without a GPU.
    """
    if on_setting is not None:
        on_setting(0, len(asked), "compile")
    compile_first(_shortest(asked, names))
    results = []
    for done, setting in enumerate(asked):
        if on_setting is not None:
            on_setting(done, len(asked), str(setting))
        timings = [asdict(timing) for timing in race(setting, contestants(setting, names), rounds, turn_ms)]
        results.append({**asdict(setting), "B": setting.batch, "flops": setting.flops, "timings": timings})
    return results


def _shortest(asked: Sequence[Setting], names: Sequence[str]) -> list[Callable[[], Call]]:
    """Return what makes the calls of our contestants, each of its shortest setting of a kind: they need all kernels there are."""
    kinds: dict[tuple[str, Setting], Callable[[], Call]] = {}
    for setting in sorted(asked, key=lambda setting: setting.N):
        for name, make in contestants(setting, names):
            if name in ladder():
                kinds.setdefault((name, replace(setting, N=0, B=0)), make)
    return list(kinds.values())


def compile_first(makers: Iterable[Callable[[], Call]]) -> None:
    """Make and run each call in a thread of its own: NVRTC compiles one kernel a thread, and takes a second or more for each."""

    def called(make: Callable[[], Call]) -> None:
        with suppress(Exception):  # who fails says so in its turn
            make()()

    cuda = import_cupy().cuda
    with ThreadPoolExecutor(initializer=cuda.runtime.setDevice, initargs=(current_device(),)) as threads:
        list(threads.map(called, makers))
    cuda.runtime.deviceSynchronize()


def race(
    setting: Setting, makers: Iterable[tuple[str, Callable[[], Call]]], rounds: int, turn_ms: float = TURN_MS
) -> Iterator[Timing]:
    """Yield what each contestant took: a name, and what makes its call. First come those that fail, with the reason."""
    cupy = import_cupy()
    calls: dict[str, Call] = {}
    extra: dict[str, int] = {}
    failed: dict[str, str] = {}
    for name, make in makers:
        try:
            call = make()
            _tried_twice(_time, call, 1)
            extra[name] = _tried_twice(_extra_bytes, call)
            calls[name] = call
        except Exception as error:  # a contestant that cannot do this setting must not end the benchmark
            failed[name] = _said(error)
        cupy.cuda.runtime.deviceSynchronize()
        if extra.get(name, MUCH) >= MUCH:  # else left for later: it takes 80 ms
            _free()
    sensors, readings = Sensors(cupy.cuda.runtime.getDevice()), defaultdict[str, list[tuple[float, int]]](list)

    def look(name: str) -> None:
        reading = sensors.read()
        if reading is not None:
            readings[name].append(reading)

    times = interleaved(calls, rounds, failed, turn_ms, look)
    for name, reason in failed.items():
        yield Timing(name, failed=reason)
    for name, measured in times.items():
        median = statistics.median(measured)
        rate = setting.flops * share(name, setting) / median / 1e9
        watts, mhz = (statistics.median(x) for x in zip(*readings[name], strict=True)) if readings[name] else (None, None)
        yield Timing(name, median, min(measured), max(measured), rate, extra[name], watts, mhz)
    del calls
    _free()


def interleaved(
    calls: Mapping[str, Call], rounds: int, failed: dict[str, str] | None = None, turn_ms: float = TURN_MS,
    look: Callable[[str], None] = lambda _: None,
) -> dict[str, list[float]]:  # fmt: skip
    """Return the ms of each call, a number a round: all take turns, each with as many launches as take `turn_ms`.

    Rounds have orders of their own: who comes after one that draws little power would clock higher each time. There is one
    round more, to find how many launches; it counts for those of which it is one. In it a first call is not timed: where pools
    are empty it asks the driver for memory, which may take longer than the call. One that fails twice goes to `failed`, with
    the reason, and the others go on; without `failed` the error is raised. `look` is called in each turn, while the last of its
    launches run.
    """
    rounds, shuffled = max(rounds, LEAST_ROUNDS), random.Random(0)
    launches: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 + rounds):
        left = [name for name, measured in times.items() if len(measured) < rounds]
        for name in shuffled.sample(left, len(left)):
            try:
                known = name in launches
                if not known:
                    _tried_twice(_time, calls[name], 1)
                taken = _tried_twice(_time, calls[name], launches.get(name, 1), partial(look, name))
                if not known:
                    again = _time(calls[name], 10) if taken < turn_ms / 10 else taken
                    launches[name] = max(1, min(MOST_LAUNCHES, int(turn_ms / max(again, 1e-3))))
                if known or launches[name] == 1:
                    times[name].append(taken)
            except Exception as error:
                if failed is None:
                    raise
                failed[name] = _said(error)
                del times[name]
    return times


def _said(error: Exception) -> str:
    """Return an error in words: itself, it would keep its frames' arrays."""
    return f"{type(error).__name__}: {error}"[:300]


def _tried_twice(measure: Callable[..., Any], call: Call, *how: Any) -> Any:
    """Return what is measured of a call; where what others keep in their pools is in the way, at a second try."""
    with suppress(Exception):  # CuPy and PyTorch free their own pools when memory ends, and not each other's
        return measure(call, *how)
    _free()  # here, where no error keeps its frames' arrays any more
    call()
    return measure(call, *how)


def _time(call: Call, launches: int, look: Callable[[], None] = lambda: None) -> float:
    """Return the ms of one call, of so many between two events; `look` is called while the GPU is at the last ones."""
    cupy = import_cupy()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for n in range(launches):
        if n == launches - 1:
            look()
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / launches


def _extra_bytes(call: Call) -> int:
    """Return the most memory a call allocates beyond what was there: in a pool of CuPy's that starts empty, and in PyTorch's."""
    cupy, torch = import_cupy(), torch_if_there()
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
    pool.free_all_blocks()  # now, not when it is collected
    return int(most)


def _free() -> None:
    gc.collect()  # pools and calls are in circles
    import_cupy().get_default_memory_pool().free_all_blocks()
    torch = torch_if_there()
    if torch is not None:
        torch.cuda.empty_cache()
