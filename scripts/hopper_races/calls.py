"""What takes part in a race, how it is called, and its time."""

import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flashsim import gpu
from flashsim.gpu.benchmark import interleaved
from flashsim.gpu.compiling import import_cupy

Calls = dict[str, Callable[[], Any]]
ROUNDS = 9


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
