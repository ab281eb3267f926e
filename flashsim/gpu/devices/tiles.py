"""What one GPU computes of attention over several: a piece, its gradients, and the merging of
pieces. Tensors are PyTorch's.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from flashsim.gpu import api
from flashsim.gpu.compiling import load
from flashsim.gpu.kernel import Variant
from flashsim.gpu.launching import ELEMENTS, Launch

FILE = "merge_states.cu"
THREADS = 256
PAUSE = 8_000  # nanoseconds in which NCCL's kernel starts


def attend(q: Any, k: Any, v: Any, *, causal: bool, scale: float) -> tuple[Any, Any]:
    """Return O (H_q, n, d), and its log-sum-exp (H_q, n), of q (H_q, n, d), k and v (H_kv, m,
    d), by the fastest rung.
    """
    o, lse = api.forward(q[None], k[None], v[None], causal=causal, scale=scale, return_lse=True)
    return o[0], lse[0]


def gradients(
    q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, *, causal: bool, scale: float
) -> tuple[Any, Any, Any]:
    """Return dq, dk, dv of a piece, given o and lse of attention to all keys."""
    operands = (X[None] for X in (q, k, v, o, lse, do))
    dq, dk, dv = api.backward(*operands, causal=causal, scale=scale)
    return dq[0], dk[0], dv[0]


def merge(O: Any, L: Any, first: int, o: Any, lse: Any) -> None:
    """Merge o (H, n, d) with lse (H, n) into rows `first` … of O (H, N, d), which may be
    float32, and L (H, N).
    """
    heads, n, d = o.shape
    device = o.get_device()
    types = tuple(str(X.dtype).removeprefix("torch.") for X in (O, o))
    start = _merging(device, *types, heads, O.shape[1], n, first, d)
    start(_stream(device), *(X.data_ptr() for X in (O, L, o, lse)))


def pause(device: int) -> None:
    """Let messages start first: in a graph, a kernel that fills the GPU may else hold them up
    until it ends.
    """
    _pausing(device)(_stream(device))


def _stream(device: int) -> int:
    return int(import_module("torch").cuda.current_stream(device).cuda_stream)


@cache
def _pausing(device: int) -> Launch:
    return Launch(
        load(FILE, ("pause",), {"COUNT": 0})["pause"], 1, 1, 0, lambda: (np.int32(PAUSE),)
    )


@lru_cache(maxsize=1024)
def _merging(
    device: int, state: str, part: str, heads: int, N: int, n: int, first: int, d: int
) -> Launch:
    name = function(state, part)
    kernel = load(FILE, (name,), {"COUNT": 0})[name]
    sizes = [np.int32(size) for size in (heads, N, n, first, d)]
    grid = -(-heads * n * (d // 8) // THREADS)
    return Launch(kernel, grid, THREADS, 0, lambda *addresses: (*map(np.uint64, addresses), *sizes))


def function(state: str, part: str) -> str:
    """Return the kernel's name for a type of O and one of o."""
    return f"merge_states<{ELEMENTS[state]}, {ELEMENTS[part]}>"


VARIANTS = tuple(
    Variant(FILE, (("COUNT", 0),), (function(part, part), function("float32", part), "pause"))
    for part in ("float16", "bfloat16")
)
"""What the tests compile: sums of two parts are in the parts' type, of more in float32."""
