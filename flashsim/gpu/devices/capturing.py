"""Calls of kernels and messages as one CUDA graph: the host launches the graph once, and not each
kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from flashsim.devices.engines import Nccl
from flashsim.memory.device import LinkError


class Captured:
    """A call as a CUDA graph, captured after two calls that warm up. `result` is what the call
    returned; each run of the graph fills it again.

    All processes capture it, and run it, in the same order. Messages are counted only when it is
    captured.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        torch = import_module("torch")
        own = torch.cuda.Stream()
        own.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(own):
            for _ in range(2):
                call()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # other threads, such as the one that watches over NCCL, may go on with what a capture
        # forbids
        with torch.cuda.graph(self._graph, stream=own, capture_error_mode="thread_local"):
            self.result = call()
        Nccl.graphs.add(self._graph)

    def __call__(self) -> Any:
        """Run it on the current stream. Raises LinkError once NCCL was ended, as a process had."""
        if self._graph not in Nccl.graphs:
            raise LinkError("the graph is gone: NCCL was ended after a process did not answer")
        self._graph.replay()
        return self.result
