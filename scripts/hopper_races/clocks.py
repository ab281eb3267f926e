"""What the GPU's clock does meanwhile, and what a call costs the host."""

import statistics
import time
from collections.abc import Iterator
from typing import Any

from flashsim import gpu
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import Setting, arrays
from hopper_races.calls import Calls, captured, normal

MHZ = r"""extern "C" __global__ void mhz(long long* found) {
    const auto ns = [] { long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; };
    const long long start = ns(), cycles = clock64();
    while (clock64() - cycles < 400000);
    found[0] = (clock64() - cycles) * 1000 / (ns() - start);
}"""


def clocks() -> Iterator[dict[str, Any]]:
    """Yield 8 bits beside 16: rested, for 30 ms after a pause of 150, and sustained, the second
    half of 600 ms; ms and MHz.

    A rested GPU runs at its highest clock. A busy one is held to its power, so that who draws more
    is slower.
    """
    cupy = import_cupy()
    mhz = cupy.RawKernel(MHZ, "mhz")
    result = cupy.zeros(1, "int64")
    setting = Setting(4096, 128)
    q, k, v = arrays(setting, 3)
    inputs = {"hopper": (q, k, v), "hopper_fp8": tuple(map(gpu.to_fp8, (q, k, v)))}
    calls = {name: captured(*options, kernel=name) for name, options in inputs.items()}
    for way, pause, long in (("rested", 0.15, 30), ("sustained", 0.0, 600)):
        duration: dict[str, list[tuple[float, int]]] = {name: [] for name in calls}
        for name, call in list(calls.items()) * 5:
            launches = max(2, int(long / (0.75 if name == "hopper" else 0.55)))
            start = cupy.cuda.Event()
            end = cupy.cuda.Event()
            cupy.cuda.Device().synchronize()
            time.sleep(pause)
            untimed = 0 if pause else launches // 2
            for n in range(launches):
                if n == untimed:
                    start.record()
                call()
            end.record()
            mhz((1,), (1,), (result,))
            clock = int(result[0])  # waits for all
            duration[name].append(
                (cupy.cuda.get_elapsed_time(start, end) / (launches - untimed), clock)
            )
        ms, clocks = (
            {name: round(statistics.median(x[n] for x in of), 4) for name, of in duration.items()}
            for n in (0, 1)
        )
        yield {
            "case": "clocks",
            "way": way,
            "N": 4096,
            "d": 128,
            "causal": False,
            "ms": ms,
            "MHz": clocks,
        }


def host() -> Iterator[dict[str, Any]]:
    """Yield the host's time of a call, of problems so small that the GPU waits for it, in µs."""
    q, k, v = (normal(1, 2, 128, 128) for _ in range(3))
    few, cache = normal(1, 8, 1, 128), normal(1, 2, 16_384, 128)
    o, lse = gpu.forward(q, k, v, return_lse=True)
    calls: Calls = {
        "hopper": lambda: gpu.forward(q, k, v),
        "hopper_decode": lambda: gpu.forward(few, cache, cache),
        "hopper, backward": lambda: gpu.backward(q, k, v, o, lse, o),
    }
    try:
        import torch
    except ImportError:
        pass
    else:
        tq, tk, tv, to, tlse = (torch.from_dlpack(x) for x in (q, k, v, o, lse))
        calls["hopper, of tensors"] = lambda: gpu.forward(tq, tk, tv)
        calls["hopper, backward, of tensors"] = lambda: gpu.backward(tq, tk, tv, to, tlse, to)
    result = {}
    for name, call in calls.items():
        for launches in (100, 3000):
            start = time.perf_counter()
            for _ in range(launches):
                call()
            result[name] = round((time.perf_counter() - start) / launches * 1e6, 1)
            import_cupy().cuda.Device().synchronize()
    yield {"case": "host", "us": result}
