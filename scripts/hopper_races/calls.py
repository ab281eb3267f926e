"""What takes part in a race, how it is called, and its time."""

import statistics
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from flashsim import gpu
from flashsim.gpu.benchmark import TURN_MS, interleaved
from flashsim.gpu.compiling import import_cupy

Calls = dict[str, Callable[[], Any]]
ROUNDS = 9
PEERS = ("torch_cudnn", "fa3", "fa4")


def off(result: Any, expected: Any) -> float:
    """Return ‖found − wanted‖ / ‖wanted‖."""
    return float(np.linalg.norm(result.astype(np.float64) - expected) / np.linalg.norm(expected))


def copying() -> tuple[int, Calls]:
    """Return how many bytes a copy of 1 GB reads and writes, and its call."""
    cupy = import_cupy()
    large = normal(1, 1, 2**22, 128)
    other = cupy.empty_like(large)
    return 2 * large.nbytes, {"copy": lambda: cupy.copyto(other, large)}


def normal(*shape: int, dtype: str = "float16") -> Any:
    """Return random numbers, others each time."""
    cupy = import_cupy()
    return cupy.random.standard_normal(shape, dtype=cupy.float32).astype(dtype)


def tensor(array: Any) -> Any:
    """Return an array of CuPy's, of any 16-bit type, as a tensor of PyTorch's in the same
    memory.
    """
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
    return torch.from_dlpack(array)


def captured(*arrays: Any, **options: Any) -> Callable[[], Any]:
    """Return a call of `gpu.forward` as a graph to replay."""
    return replayed(partial(gpu.forward, *arrays, **options))


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


def peers(
    q: Any,
    k: Any,
    v: Any,
    window: tuple[int, int] | None = None,
    causal: bool = False,
    names: Collection[str] = PEERS,
) -> Calls:
    """Return the calls of peers, as graphs, of those in `names`; none without PyTorch, or of a peer
    that fails.

    These are cuDNN's, without a window, FlashAttention-4's, and FlashAttention-3's, which may cut
    keys into parts.
    """
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention
    except ImportError:
        return {}
    tensors = [tensor(X) for X in (q, k, v)]
    theirs = [X.transpose(1, 2).contiguous() for X in tensors]
    within: dict[str, Any] = {"window_size": window} if window else {}
    calls: Calls = {}

    def cudnn() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(*tensors, is_causal=causal, enable_gqa=True)

    if not window:
        calls["torch_cudnn"] = cudnn
    with suppress(ImportError):
        import flash_attn_interface

        calls["fa3"] = partial(
            flash_attn_interface.flash_attn_func, *theirs, causal=causal, num_splits=0, **within
        )
    with suppress(ImportError):
        from flash_attn.cute import flash_attn_func

        calls["fa4"] = partial(flash_attn_func, *theirs, causal=causal, **within)
    calls = {name: call for name, call in calls.items() if name in names}
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


def race(calls: Calls, turn_ms: float = TURN_MS) -> dict[str, float]:
    """Return the median ms of each, in turns of so many ms."""
    times = interleaved(calls, ROUNDS, turn_ms=turn_ms)
    return {name: round(statistics.median(measured), 5) for name, measured in times.items()}
