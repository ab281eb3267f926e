"""Times of our kernels, unfused attention and PyTorch's backends, interleaved in one run.

    results = benchmark(settings(lengths=(1024, 4096), head_dims=(128,)))

The contestants of a setting (the kernels that are compared) take turns. In every round, each runs
for some milliseconds, at least one launch, between two CUDA events. The record has the median,
least and most over the rounds. Inputs are random numbers: with zeros, the GPU would draw less
power, and its clock would be higher. All contestants share one power limit, so one that follows a
kernel with a high power draw runs slower. Therefore the record also has power and clock at the end
of a turn. A time is that of the whole call, including Python's part if the GPU's work does not hide
it.

All our kernels are compiled beforehand, in parallel.
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
TURN_MS = 30.0
MOST_LAUNCHES = 1000
LEAST_ROUNDS = 3
MUCH = 2**30  # after a call that takes this many bytes, pools are emptied


@dataclass(frozen=True)
class Timing:
    """A contestant's time of one call in ms (median, least, most over the rounds), its TFLOP/s, and
    peak bytes beyond inputs.

    Watts and MHz are medians too, or None if they cannot be read.
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
    settings: Sequence[Setting],
    *,
    names: Sequence[str] = (),
    rounds: int = 7,
    turn_ms: float = TURN_MS,
    on_setting: OnSetting | None = None,
) -> list[dict[str, Any]]:
    """Return the times of all contestants for each setting, as plain data. If one fails, the record
    has the reason, and the others continue.

    `names` are of NAMES; if empty, all that the setting allows take part. Raises MissingGPU without
    a GPU.
    """
    if on_setting is not None:
        on_setting(0, len(settings), "compile")
    compile_first(_shortest(settings, names))
    results = []
    for done, setting in enumerate(settings):
        if on_setting is not None:
            on_setting(done, len(settings), str(setting))
        timings = [
            asdict(timing) for timing in race(setting, contestants(setting, names), rounds, turn_ms)
        ]
        results.append(
            {**asdict(setting), "B": setting.batch, "flops": setting.flops, "timings": timings}
        )
    return results


def _shortest(settings: Sequence[Setting], names: Sequence[str]) -> list[Callable[[], Call]]:
    """Return makers of calls that together need every kernel: for each of ours and each kind of
    setting, the shortest.
    """
    kinds: dict[tuple[str, Setting], Callable[[], Call]] = {}
    for setting in sorted(settings, key=lambda setting: setting.N):
        for name, make in contestants(setting, names):
            if name in ladder():
                kinds.setdefault((name, replace(setting, N=0, B=0)), make)
    return list(kinds.values())


def compile_first(makers: Iterable[Callable[[], Call]]) -> None:
    """Make and run each call in a thread of its own. NVRTC needs a second or more for a kernel,
    and compiles one per thread.
    """

    def called(make: Callable[[], Call]) -> None:
        with suppress(Exception):  # the benchmark reports the failure in the contestant's turn
            make()()

    cuda = import_cupy().cuda
    with ThreadPoolExecutor(
        initializer=cuda.runtime.setDevice, initargs=(current_device(),)
    ) as threads:
        list(threads.map(called, makers))
    cuda.runtime.deviceSynchronize()


def race(
    setting: Setting,
    makers: Iterable[tuple[str, Callable[[], Call]]],
    rounds: int,
    turn_ms: float = TURN_MS,
) -> Iterator[Timing]:
    """Yield each contestant's timing, first those that fail. `makers` has names, and functions that
    return a contestant's call.
    """
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
        except Exception as error:
            # a contestant that cannot do this setting must not end the benchmark
            failed[name] = _text(error)
        cupy.cuda.runtime.deviceSynchronize()
        if extra.get(name, MUCH) >= MUCH:  # otherwise later, since it takes 80 ms
            _free()
    sensors, readings = (
        Sensors(cupy.cuda.runtime.getDevice()),
        defaultdict[str, list[tuple[float, int]]](list),
    )

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
        watts, mhz = (
            (statistics.median(x) for x in zip(*readings[name], strict=True))
            if readings[name]
            else (None, None)
        )
        yield Timing(name, median, min(measured), max(measured), rate, extra[name], watts, mhz)
    del calls
    _free()


def interleaved(
    calls: Mapping[str, Call],
    rounds: int,
    failed: dict[str, str] | None = None,
    turn_ms: float = TURN_MS,
    look: Callable[[str], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Return the ms of each call, one number per round. In a turn, a call is launched as often as
    fits into `turn_ms`.

    Each round has its own random order, since a call that always followed one with a low power draw
    would always have a higher clock. One more round, the first, finds how many launches fit. It
    counts for a call if that is one launch. Before that, each call runs once without a clock: it
    may allocate memory from the driver, which can take longer than the call itself. A call that
    fails twice goes to `failed` with the reason, and the others continue. Without `failed`, the
    error is raised. `look` is called in each turn before the last launch, while the GPU is busy.
    """
    rounds = max(rounds, LEAST_ROUNDS)
    shuffled = random.Random(0)
    launches: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 + rounds):
        left = [name for name, measured in times.items() if len(measured) < rounds]
        for name in shuffled.sample(left, len(left)):
            try:
                known = name in launches
                if not known:
                    _tried_twice(_time, calls[name], 1)
                trial = _tried_twice(_time, calls[name], launches.get(name, 1), partial(look, name))
                if not known:
                    again = _time(calls[name], 10) if trial < turn_ms / 10 else trial
                    launches[name] = max(1, min(MOST_LAUNCHES, int(turn_ms / max(again, 1e-3))))
                if known or launches[name] == 1:
                    times[name].append(trial)
            except Exception as error:
                if failed is None:
                    raise
                failed[name] = _text(error)
                del times[name]
    return times


def _text(error: Exception) -> str:
    """Return an error as text. The error object would keep its frames' arrays in memory."""
    return f"{type(error).__name__}: {error}"[:300]


def _tried_twice(measure: Callable[..., Any], call: Call, *how: Any) -> Any:
    """Return a call's measurement. If it fails, free all pools and try again."""
    # when memory runs out, CuPy and PyTorch free their own pools, not each other's
    with suppress(Exception):
        return measure(call, *how)
    _free()  # only here, after the error has released its frames' arrays
    call()
    return measure(call, *how)


def _time(call: Call, launches: int, look: Callable[[], None] = lambda: None) -> float:
    """Return the ms per call of `launches` calls between two events. `look` is called before the
    last one.
    """
    cupy = import_cupy()
    start = cupy.cuda.Event()
    end = cupy.cuda.Event()
    start.record()
    for n in range(launches):
        if n == launches - 1:
            look()
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / launches


def _extra_bytes(call: Call) -> int:
    """Return the peak memory that a call allocates, in an empty CuPy pool and in PyTorch's."""
    cupy = import_cupy()
    torch = torch_if_there()
    if torch is not None:
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
    pool = cupy.cuda.MemoryPool()  # the usual pool may have room left from making the inputs
    with cupy.cuda.using_allocator(pool.malloc):
        result = call()
        cupy.cuda.runtime.deviceSynchronize()
    most = pool.total_bytes()
    if torch is not None:
        most += torch.cuda.max_memory_allocated() - allocated
    del result
    pool.free_all_blocks()  # now, not when the pool is garbage-collected
    return int(most)


def _free() -> None:
    gc.collect()  # pools and calls are in reference cycles
    import_cupy().get_default_memory_pool().free_all_blocks()
    torch = torch_if_there()
    if torch is not None:
        torch.cuda.empty_cache()
