"""Time on Hopper what `flashsim bench` does not, beside cuDNN and FlashAttention where PyTorch has them.

Decoding, sliding windows, block-sparse attention; the backward pass, deterministic or not, and with dropout; 8 bits; d = 256.

python scripts/bench_hopper_cases.py                    # on a machine with a GPU: figures/gpu_hopper_cases.json
python scripts/bench_hopper_cases.py --only backward -o figures/gpu_hopper_backward.json

All take turns in one run; what is kept are medians of 9 rounds of 30 ms. A forward call is replayed as a graph, as programs
that decode do it: what is timed is the GPU. Rates are of bytes that must move: K and V in decoding, Q, K, V, O with a window.
Of the backward pass they are TFLOP/s, of five products; of 8 bits and d = 256, of two.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import flashsim
from flashsim import gpu
from flashsim.gpu import hopper_backward, hopper_fp8
from flashsim.gpu.benchmark import interleaved
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import Setting, arrays, contestants
from flashsim.gpu.kernel import Options
from flashsim.gpu.machine import machine
from flashsim.masks import patterns
from flashsim.reference import attention
from flashsim.support.entry import run_script
from flashsim.support.files import check_target, write_whole

Calls = dict[str, Callable[[], Any]]
DECODED = [
    (32, 8192, 1),
    (32, 8192, 8),
    (8, 8192, 1),
    (8, 8192, 8),
    (1, 131_072, 1),
    (1, 131_072, 8),
]  # sequences, KV, queries
BACKWARD = [1024, 4096, 16_384]  # N
WINDOWS = [(127, 0), (64, 63), (255, 0)]
BACKWARD_WINDOWS = [(127, 0), (255, 256), (1023, 0)]
SHARES = (1.0, 0.5, 0.25)  # of the tiles of block masks that are live
OFFSETS = (4, 8, 6, 2, 0)  # of P̃ in 8 bits: log₂ of it where a score is the maximum; of 2^8
ROUNDS = 9


def main() -> int:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/gpu_hopper_cases.json"))
    parser.add_argument("--only", choices=CASES, nargs="+", default=["decode", "window", "block-sparse"], help="cases")
    parser.add_argument("--commit", help="of the sources, for the record")
    options = parser.parse_args()
    check_target(options.output)
    record: dict[str, Any] = {
        "command": shlex.join(["python", "scripts/bench_hopper_cases.py", *sys.argv[1:]]),
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "results": [],
    }
    for case in (case for name in options.only for case in CASES[name]()):
        print(json.dumps(case), flush=True)
        record["results"].append(case)
        write_whole(options.output, json.dumps(record, indent=1) + "\n")
    return 0


def decoding() -> Iterator[dict[str, Any]]:
    """Yield each case: its name, what must move, and everybody's ms."""
    copied, copy = copying()
    for B, N_k, N_q in DECODED:
        q, k, v = normal(B, 64, N_q, 128), normal(B, 8, N_k, 128), normal(B, 8, N_k, 128)
        ms = race({**copy, "hopper_decode": captured(q, k, v), **peers(q, k, v)})
        assert gpu.plan(q, k, v).kernel == "hopper_decode"
        sizes = {"sequences": B, "N_k": N_k, "N_q": N_q, "H_q": 64, "H_kv": 8, "d": 128}
        yield {"case": "decode", **sizes, "bytes": k.nbytes + v.nbytes, "copied": copied, "ms": ms}


def windows() -> Iterator[dict[str, Any]]:
    """Yield cases as `decoding`."""
    copied, copy = copying()
    q, k, v = (normal(2, 128, 8192, 64) for _ in range(3))
    sizes = {"N": 8192, "heads": 256, "d": 64, "bytes": 4 * q.nbytes, "copied": copied}
    for window in WINDOWS:
        mask = flashsim.SlidingWindow(*window)
        ms = race({**copy, "hopper": captured(q, k, v, mask=mask), **peers(q, k, v, window)})
        yield {"case": "window", "window": window, **sizes, "ms": ms}


def block_sparse() -> Iterator[dict[str, Any]]:
    """Yield cases: the part of tiles that is live, and ms."""
    for d, H in ((64, 32), (128, 16)):
        q, k, v = (normal(1, H, 16_384, d) for _ in range(3))
        tables = {s: np.random.default_rng(0).random((128, 128)) < s for s in (0.5, 0.25, 0.125, 0.0625)}
        shares = {f"s = {s}": table for s, table in tables.items()} | {"butterfly": patterns.butterfly(128, 128)}
        ms = race({"dense": captured(q, k, v), **{s: captured(q, k, v, block_mask=t) for s, t in shares.items()}})
        live = {"dense": 1.0, **{s: float(table.mean()) for s, table in shares.items()}}
        yield {"case": "block-sparse", "N": 16_384, "heads": H, "d": d, "live": live, "ms": ms}


def backward() -> Iterator[dict[str, Any]]:
    """Yield cases: sizes, everybody's ms, and TFLOP/s. Dropout last, where FlashAttention-4 and cuDNN do not take part."""
    settings = [
        Setting(N, d, causal, "backward", H=2048 // d, dropout_p=p)
        for p, lengths in ((0.0, BACKWARD), (0.1, [2048]))
        for d in (128, 64)
        for N in lengths
        for causal in (False, True)
    ]
    for setting in settings:
        names = ["torch_flash"] if setting.dropout_p else ["torch_flash", "torch_cudnn", "fa4"]
        calls: Calls = {name: make() for name, make in contestants(setting, ["tensor_core", *names])}
        q, k, v, do = arrays(setting, 4)
        asked: dict[str, Any] = {"causal": setting.causal, "dropout_p": setting.dropout_p, "seed": 1}
        o, lse = gpu.forward(q, k, v, return_lse=True, kernel="hopper", **asked)
        options = Options(setting.d**-0.5, **asked)
        dq, dk, dv = (import_cupy().empty_like(x) for x in (q, k, v))
        for name, given in (("hopper", options), ("hopper deterministic", replace(options, deterministic=True))):
            calls[name] = partial(hopper_backward.backward, q, k, v, o, lse, do, dq, dk, dv, given)
        ms = race(calls)
        tflops = {name: round(setting.flops / taken / 1e9, 1) for name, taken in ms.items()}
        sizes = {key: getattr(setting, key) for key in ("N", "d", "causal", "dropout_p", "H")}
        yield {"case": "backward", **sizes, "B": setting.batch, "ms": ms, "tflops": tflops}


def masked_backward() -> Iterator[dict[str, Any]]:
    """Yield cases of windows, beside the scalar rung, and of block masks beside no mask: ms of the backward pass."""
    N = 8192
    for d, H in ((64, 64), (128, 32)):
        q, k, v, do = (normal(1, H, N, d) for _ in range(4))
        sizes = {"N": N, "heads": H, "d": d}
        for window in BACKWARD_WINDOWS:
            mask = flashsim.SlidingWindow(*window)
            o, lse = gpu.forward(q, k, v, return_lse=True, mask=mask)
            given = q, k, v, o, lse, do
            calls: Calls = {
                name: partial(gpu.backward, *given, mask=mask, kernel=name) for name in ("hopper", "algorithm_2")
            }
            yield {
                "case": "window, backward",
                "window": window,
                **sizes,
                "ms": race(calls | fa4_gradients(q, k, v, window)),
            }
        tables: dict[str, Any] = {"dense": None}
        tables |= {f"s = {s}": np.random.default_rng(0).random((64, 64)) < s for s in SHARES}
        calls = {}
        for name, table in tables.items():
            o, lse = gpu.forward(q, k, v, return_lse=True, block_mask=table)
            calls[name] = replayed(partial(gpu.backward, q, k, v, o, lse, do, block_mask=table, kernel="hopper"))
        live = {name: 1.0 if table is None else float(table.mean()) for name, table in tables.items()}
        yield {"case": "block-sparse, backward", **sizes, "live": live, "ms": race(calls)}


def array_masks() -> Iterator[dict[str, Any]]:
    """Yield cases of masks that are arrays, forward and backward: ms, beside a scalar rung's, no mask, and PyTorch's."""
    N, B = 4096, 4
    masks = {"(N, N), half": (1, 1, N, N), "(B, H, N, N), half": (B, None, N, N), "(B, 1, 1, N), padding": (B, 1, 1, N)}
    for (d, H), direction in product(((64, 32), (128, 16)), ("forward", "backward")):
        q, k, v, do = (normal(B, H, N, d) for _ in range(4))
        for name, (batch, heads, *rest) in masks.items():
            shape = batch, heads or H, *rest
            cupy = import_cupy()
            mask = cupy.random.random(shape, dtype="float32") < 0.5
            if "padding" in name:
                mask = cupy.arange(N) < cupy.asarray([N, N - 100, N // 2, N // 4])[:, None, None, None]
            calls: Calls = {}
            for called, given, kernel in (
                ("hopper", mask, "hopper"),
                ("scalar", mask, "q_outer" if direction == "forward" else "algorithm_2"),
                ("hopper, no mask", None, "hopper"),
            ):
                if direction == "forward":
                    calls[called] = partial(gpu.forward, q, k, v, mask=given, kernel=kernel)
                else:
                    o, lse = gpu.forward(q, k, v, mask=given, return_lse=True)
                    calls[called] = partial(gpu.backward, q, k, v, o, lse, do, mask=given, kernel=kernel)
                if called != "scalar":
                    calls[called] = replayed(calls[called])
            ms = race(calls | torch_masked(q, k, v, mask, direction))
            sizes = {"N": N, "d": d, "B": B, "H": H, "direction": direction}
            rate = Setting(N, d, direction=direction, H=H, B=B).flops / 1e9
            tflops = {name: round(rate / taken, 1) for name, taken in ms.items()}
            yield {"case": "array mask", "mask": name, **sizes, "ms": ms, "tflops": tflops}


def torch_masked(q: Any, k: Any, v: Any, mask: Any, direction: str) -> Calls:
    """Return the calls of PyTorch's backends that take a mask; none without PyTorch, or that fails."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention
    except ImportError:
        return {}
    theirs = [torch.from_dlpack(X).requires_grad_(direction == "backward") for X in (q, k, v)]
    attend = torch.from_dlpack(mask)
    calls: Calls = {}
    for name, backend in (("torch_efficient", "EFFICIENT_ATTENTION"), ("torch_cudnn", "CUDNN_ATTENTION")):

        def attention(backend: Any) -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*theirs, attn_mask=attend)

        try:
            calls[name] = partial(attention, getattr(SDPBackend, backend))
            o = calls[name]()
            if direction == "backward":
                calls[name] = partial(torch.autograd.grad, o, theirs, torch.randn_like(o), retain_graph=True)
                calls[name]()
        except Exception as error:  # a contestant that cannot do this must not end the run
            calls.pop(name, None)
            print(f"{name}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
    return calls


def fa4_gradients(q: Any, k: Any, v: Any, window: tuple[int, int]) -> Calls:
    """Return the call of FlashAttention-4's backward pass in a window; none without it."""
    try:
        import torch
        from flash_attn.cute import flash_attn_func
    except ImportError:
        return {}
    theirs = [torch.from_dlpack(X).transpose(1, 2).contiguous().requires_grad_() for X in (q, k, v)]
    found = flash_attn_func(*theirs, window_size=window)
    o = found[0] if isinstance(found, tuple) else found
    return {"fa4": partial(torch.autograd.grad, o, theirs, torch.randn_like(o), retain_graph=True)}


def eight_bits() -> Iterator[dict[str, Any]]:
    """Yield cases as `backward`, forward, and relative errors: the kernel's, beside that of rounding its inputs to e4m3."""
    for N in (1024, 4096, 16_384):
        for causal in (False, True):
            setting = Setting(N, 128, causal)
            q, k, v = arrays(setting, 3)
            q8, k8, v8 = map(gpu.to_fp8, (q, k, v))
            calls = {"hopper": captured(q, k, v, kernel="hopper", causal=causal)}
            for way, values in (("", v8), (", keys of V contiguous", gpu.to_fp8(v, keys_contiguous=True))):
                calls[f"hopper_fp8{way}"] = captured(q8, k8, values, causal=causal)
            ms = race({**calls, **peers(q, k, v, causal=causal)})
            tflops = {name: round(setting.flops / taken / 1e9, 1) for name, taken in ms.items()}
            yield {
                "case": "fp8",
                "N": N,
                "d": 128,
                "causal": causal,
                "B": setting.batch,
                "H": 16,
                "ms": ms,
                "tflops": tflops,
            }
    setting = Setting(4096, 128, True)
    q, k, v = arrays(setting, 3)
    for spread in (1, 2, 9):  # standard deviation of scores: where it is large, maxima grow in tile after tile
        wider = (*((X * spread**0.5).astype(X.dtype) for X in (q, k)), v)
        both = {"hopper": wider, "hopper_fp8": tuple(map(gpu.to_fp8, wider))}
        ms = race({name: captured(*asked, kernel=name, causal=True) for name, asked in both.items()})
        tflops = {name: round(setting.flops / taken / 1e9, 1) for name, taken in ms.items()}
        yield {
            "case": "fp8 by spread",
            "N": 4096,
            "d": 128,
            "causal": True,
            "spread": spread,
            "ms": ms,
            "tflops": tflops,
        }
    given = [normal(1, 4, 2048, 128) for _ in range(3)]
    rounded = [gpu.to_fp8(x) for x in given]
    exact, wanted = (attention(*(x.get().astype(np.float64) for x in arrays)) for arrays in (given, rounded))
    found = {"hopper": (given, exact), "hopper_fp8": (rounded, wanted)}
    errors = {name: off(gpu.forward(*asked, kernel=name).get(), of) for name, (asked, of) in found.items()}
    yield {"case": "fp8 errors", "N": 2048, "d": 128, "of inputs": off(wanted, exact), **errors}


def shifts() -> Iterator[dict[str, Any]]:
    """Yield, by distribution, where P̃'s range may lie: by "OFFSET, LIMIT", relative errors at N = 2048, TFLOP/s at 1024, 4096.

    Errors are from exact attention of the rounded numbers; "of inputs" is what rounding changes.
    """
    usual = hopper_fp8.OFFSET
    for distribution, causal in product(("normal", "captured", "wide"), (False, True)):
        found: dict[str, dict[str, float]] = {}
        exact = wanted = None
        for N in (2048, 1024, 4096):
            setting = Setting(N, 128, causal, H=12, B=0 if N != 2048 else 1, distribution=distribution)
            given = arrays(setting, 3)
            rounded, (q, *_) = [gpu.to_fp8(x) for x in given], given
            if N == 2048:
                exact, wanted = (in_float64(of, causal) for of in (given, rounded))
            calls: Calls = {}
            for offset in OFFSETS:
                hopper_fp8.OFFSET, o = offset, import_cupy().empty_like(q)
                q8, k8, v8 = rounded
                call = partial(hopper_fp8.forward, q8, k8, v8, o, None, Options(128**-0.5, causal))
                name = f"{offset},{8 - offset}"
                if N == 2048:
                    call()
                    found.setdefault("errors", {})[name] = off(o.get(), wanted)
                else:
                    calls[name] = replayed(call)
            hopper_fp8.OFFSET = usual
            if calls:
                ms = race(calls)
                found[f"tflops, N = {N}"] = {name: round(setting.flops / of / 1e9, 1) for name, of in ms.items()}
        sizes = {"distribution": distribution, "causal": causal, "d": 128, "H": 12}
        yield {"case": "fp8 shift", **sizes, "of inputs": off(wanted, exact), **found}


def in_float64(given: Any, causal: bool) -> Any:
    """Return exact attention of arrays on the GPU, as an array of float64 in the CPU's memory."""
    cupy = import_cupy()
    q, k, v = (cupy.asarray(x.get().astype(np.float64)) for x in given)
    S = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        S = cupy.where(cupy.tri(S.shape[-1], dtype=bool), S, -np.inf)
    P = cupy.exp(S - S.max(-1, keepdims=True))
    return (P @ v / P.sum(-1, keepdims=True)).get()


def heads_of_256() -> Iterator[dict[str, Any]]:
    """Yield cases as `eight_bits`, of d = 256: H d = 2048, B N = 16384."""
    for N in (512, 1024, 2048, 4096, 16_384):
        for causal in (False, True):
            setting = Setting(N, 256, causal, H=8)
            q, k, v = arrays(setting, 3)
            ms = race({"hopper": captured(q, k, v, kernel="hopper", causal=causal), **peers(q, k, v, causal=causal)})
            tflops = {name: round(setting.flops / taken / 1e9, 1) for name, taken in ms.items()}
            sizes = {"N": N, "d": 256, "causal": causal, "B": setting.batch, "H": 8}
            yield {"case": "heads256", **sizes, "ms": ms, "tflops": tflops}


MHZ = r"""extern "C" __global__ void mhz(long long* found) {
    const auto ns = [] { long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; };
    const long long start = ns(), cycles = clock64();
    while (clock64() - cycles < 400000);
    found[0] = (clock64() - cycles) * 1000 / (ns() - start);
}"""


def clocks() -> Iterator[dict[str, Any]]:
    """Yield 8 bits beside 16: rested, for 30 ms after a pause of 150, and sustained, the second half of 600 ms; ms and MHz.

    A rested GPU runs at its highest clock. A busy one is held to its power, so that who draws more is slower.
    """
    cupy = import_cupy()
    mhz, found = cupy.RawKernel(MHZ, "mhz"), cupy.zeros(1, "int64")
    setting = Setting(4096, 128)
    q, k, v = arrays(setting, 3)
    given = {"hopper": (q, k, v), "hopper_fp8": tuple(map(gpu.to_fp8, (q, k, v)))}
    calls = {name: captured(*asked, kernel=name) for name, asked in given.items()}
    for way, pause, long in (("rested", 0.15, 30), ("sustained", 0.0, 600)):
        taken: dict[str, list[tuple[float, int]]] = {name: [] for name in calls}
        for name, call in list(calls.items()) * 5:
            launches = max(2, int(long / (0.75 if name == "hopper" else 0.55)))
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            cupy.cuda.Device().synchronize()
            time.sleep(pause)
            untimed = 0 if pause else launches // 2
            for n in range(launches):
                if n == untimed:
                    start.record()
                call()
            end.record()
            mhz((1,), (1,), (found,))
            clock = int(found[0])  # waits for all
            taken[name].append((cupy.cuda.get_elapsed_time(start, end) / (launches - untimed), clock))
        ms, clocks = (
            {name: round(statistics.median(x[n] for x in of), 4) for name, of in taken.items()} for n in (0, 1)
        )
        yield {"case": "clocks", "way": way, "N": 4096, "d": 128, "causal": False, "ms": ms, "MHz": clocks}


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
    found = {}
    for name, call in calls.items():
        for launches in (100, 3000):
            start = time.perf_counter()
            for _ in range(launches):
                call()
            found[name] = round((time.perf_counter() - start) / launches * 1e6, 1)
            import_cupy().cuda.Device().synchronize()
    yield {"case": "host", "us": found}


def off(found: Any, wanted: Any) -> float:
    """Return ‖found − wanted‖ / ‖wanted‖."""
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted))


def copying() -> tuple[int, Calls]:
    """Return how many bytes a copy of 1 GB reads and writes, and its call."""
    cupy = import_cupy()
    large = normal(1, 1, 2**22, 128)
    other = cupy.empty_like(large)
    return 2 * large.nbytes, {"copy": lambda: cupy.copyto(other, large)}


def normal(*shape: int) -> Any:
    """Return float16 random numbers, others each time."""
    cupy = import_cupy()
    return cupy.random.standard_normal(shape, dtype=cupy.float32).astype("float16")


def captured(*arrays: Any, **asked: Any) -> Callable[[], Any]:
    """Return a call of `gpu.forward` as a graph to replay."""
    return replayed(partial(gpu.forward, *arrays, **asked))


def replayed(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call as a graph to replay."""
    cupy = import_cupy()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        call()  # compiles, and fills the pool of memory
        stream.synchronize()
        stream.begin_capture()
        kept = call()
        graph = stream.end_capture()
    return lambda: graph.launch(cupy.cuda.get_current_stream()) or kept


def peers(q: Any, k: Any, v: Any, window: tuple[int, int] | None = None, causal: bool = False) -> Calls:
    """Return cuDNN's call, without a window, and FlashAttention-4's, as graphs; none without PyTorch, or that fails."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention
    except ImportError:
        return {}
    tensors = [torch.from_dlpack(X) for X in (q, k, v)]

    def cudnn() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(*tensors, is_causal=causal, enable_gqa=True)

    calls: Calls = {} if window else {"torch_cudnn": cudnn}
    try:
        from flash_attn.cute import flash_attn_func

        theirs = [X.transpose(1, 2).contiguous() for X in tensors]
        calls["fa4"] = lambda: flash_attn_func(*theirs, causal=causal, **({"window_size": window} if window else {}))
    except ImportError:
        pass
    graphs: Calls = {}
    for name, call in calls.items():
        try:
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            graphs[name] = graph.replay
        except Exception as error:  # a contestant that cannot do this must not end the run
            print(f"{name}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
    return graphs


def race(calls: Calls) -> dict[str, float]:
    """Return the median ms of each."""
    return {name: round(statistics.median(times), 5) for name, times in interleaved(calls, ROUNDS).items()}


CASES: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "decode": decoding,
    "window": windows,
    "block-sparse": block_sparse,
    "backward": backward,
    "masked-backward": masked_backward,
    "array-mask": array_masks,
    "fp8": eight_bits,
    "fp8-shift": shifts,
    "heads256": heads_of_256,
    "clocks": clocks,
    "host": host,
}


if __name__ == "__main__":
    run_script(main)
