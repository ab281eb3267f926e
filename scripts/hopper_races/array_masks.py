"""Masks that are arrays, forward and backward."""

import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from flashsim import gpu
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import Setting
from hopper_races.calls import Calls, normal, race, replayed


def array_masks() -> Iterator[dict[str, Any]]:
    """Yield cases of masks that are arrays, forward and backward: ms, beside a scalar rung's, no
    mask, and PyTorch's.
    """
    N = 4096
    B = 4
    masks = {
        "(N, N), half": (1, 1, N, N),
        "(B, H, N, N), half": (B, None, N, N),
        "(B, 1, 1, N), padding": (B, 1, 1, N),
    }
    for (d, H), direction in product(((64, 32), (128, 16)), ("forward", "backward")):
        q, k, v, do = (normal(B, H, N, d) for _ in range(4))
        for name, (batch, heads, *rest) in masks.items():
            shape = batch, heads or H, *rest
            cupy = import_cupy()
            mask = cupy.random.random(shape, dtype="float32") < 0.5
            if "padding" in name:
                mask = (
                    cupy.arange(N) < cupy.asarray([N, N - 100, N // 2, N // 4])[:, None, None, None]
                )
            calls: Calls = {}
            for called, inputs, kernel in (
                ("hopper", mask, "hopper"),
                ("scalar", mask, "q_outer" if direction == "forward" else "algorithm_2"),
                ("hopper, no mask", None, "hopper"),
            ):
                if direction == "forward":
                    calls[called] = partial(gpu.forward, q, k, v, mask=inputs, kernel=kernel)
                else:
                    o, lse = gpu.forward(q, k, v, mask=inputs, return_lse=True)
                    calls[called] = partial(
                        gpu.backward, q, k, v, o, lse, do, mask=inputs, kernel=kernel
                    )
                if called != "scalar":
                    calls[called] = replayed(calls[called])
            ms = race(calls | torch_masked(q, k, v, mask, direction))
            sizes = {"N": N, "d": d, "B": B, "H": H, "direction": direction}
            rate = Setting(N, d, direction=direction, H=H, B=B).flops / 1e9
            tflops = {name: round(rate / duration, 1) for name, duration in ms.items()}
            yield {"case": "array mask", "mask": name, **sizes, "ms": ms, "tflops": tflops}


def torch_masked(q: Any, k: Any, v: Any, mask: Any, direction: str) -> Calls:
    """Return the calls of PyTorch's backends that take a mask; none without PyTorch, or that
    fails.
    """
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention
    except ImportError:
        return {}
    theirs = [torch.from_dlpack(X).requires_grad_(direction == "backward") for X in (q, k, v)]
    attend = torch.from_dlpack(mask)
    calls: Calls = {}
    for name, backend in (
        ("torch_efficient", "EFFICIENT_ATTENTION"),
        ("torch_cudnn", "CUDNN_ATTENTION"),
    ):

        def attention(backend: Any) -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*theirs, attn_mask=attend)

        try:
            calls[name] = partial(attention, getattr(SDPBackend, backend))
            o = calls[name]()
            if direction == "backward":
                calls[name] = partial(
                    torch.autograd.grad, o, theirs, torch.randn_like(o), retain_graph=True
                )
                calls[name]()
        except Exception as error:  # a contestant that cannot do this must not end the run
            calls.pop(name, None)
            print(f"{name}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
    return calls
