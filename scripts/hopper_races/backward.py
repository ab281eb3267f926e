"""Backward: deterministic or not, with dropout, under windows and block masks."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import flashsim
from flashsim import gpu
from flashsim.gpu import hopper
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import Setting, arrays, contestants
from flashsim.gpu.kernel import Options
from hopper_races.calls import Calls, normal, race, replayed

# N; and of d = 256
BACKWARD = [512, 1024, 2048, 4096, 16_384]
WIDE = [1024, 4096, 16_384]
BACKWARD_WINDOWS = [(127, 0), (255, 256), (1023, 0)]
SHARES = (1.0, 0.5, 0.25)  # of the tiles of block masks that are live


def backward() -> Iterator[dict[str, Any]]:
    """Yield cases: sizes, everybody's ms, and TFLOP/s. Dropout last, where FlashAttention-4 and
    cuDNN do not take part.
    """
    settings = [
        Setting(N, d, causal, "backward", H=2048 // d, dropout_p=p)
        for p, lengths in ((0.0, BACKWARD), (0.1, [2048]))
        for d in (128, 64)
        for N in lengths
        for causal in (False, True)
    ]
    for setting in settings:
        names = ["torch_flash"] if setting.dropout_p else ["torch_flash", "torch_cudnn", "fa4"]
        calls: Calls = {
            name: make() for name, make in contestants(setting, ["tensor_core", *names])
        }
        q, k, v, do = arrays(setting, 4)
        arguments: dict[str, Any] = {
            "causal": setting.causal,
            "dropout_p": setting.dropout_p,
            "seed": 1,
        }
        o, lse = gpu.forward(q, k, v, return_lse=True, kernel="hopper", **arguments)
        options = Options(setting.d**-0.5, **arguments)
        dq, dk, dv = (import_cupy().empty_like(x) for x in (q, k, v))
        for name, inputs in (
            ("hopper", options),
            ("hopper deterministic", replace(options, deterministic=True)),
        ):
            calls[name] = partial(hopper.backward, q, k, v, o, lse, do, dq, dk, dv, inputs)
        ms = race(calls)
        tflops = {name: round(setting.flops / duration / 1e9, 1) for name, duration in ms.items()}
        sizes = {key: getattr(setting, key) for key in ("N", "d", "causal", "dropout_p", "H")}
        yield {"case": "backward", **sizes, "B": setting.batch, "ms": ms, "tflops": tflops}


def backward_of_256() -> Iterator[dict[str, Any]]:
    """Yield cases as `backward`, of d = 256, beside `standard`, the only other rung that takes it,
    and peers that do.

    FlashAttention-4 takes no part: its compiler had not finished after 6 minutes, and cannot be
    interrupted.
    """
    for N in WIDE:
        for causal in (False, True):
            setting = Setting(N, 256, causal, "backward", H=8)
            calls = dict[str, Any]()
            for name, make in contestants(
                setting, ["hopper", *["standard"] * (N < 16_384), "torch_flash", "torch_cudnn"]
            ):
                try:
                    calls[name] = make()
                    calls[name]()
                except Exception as error:  # a peer that cannot do this must not end the run
                    calls.pop(name, None)
                    print(f"{name}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
            ms = race(calls)
            tflops = {
                name: round(setting.flops / duration / 1e9, 1) for name, duration in ms.items()
            }
            sizes = {"N": N, "d": 256, "causal": causal, "B": setting.batch, "H": 8}
            yield {"case": "heads256, backward", **sizes, "ms": ms, "tflops": tflops}


def masked_backward() -> Iterator[dict[str, Any]]:
    """Yield cases of windows, beside the scalar rung, and of block masks beside no mask: ms of
    the backward pass.
    """
    N = 8192
    for d, H in ((64, 64), (128, 32)):
        q, k, v, do = (normal(1, H, N, d) for _ in range(4))
        sizes = {"N": N, "heads": H, "d": d}
        for window in BACKWARD_WINDOWS:
            mask = flashsim.SlidingWindow(*window)
            o, lse = gpu.forward(q, k, v, return_lse=True, mask=mask)
            inputs = q, k, v, o, lse, do
            calls: Calls = {
                name: partial(gpu.backward, *inputs, mask=mask, kernel=name)
                for name in ("hopper", "algorithm_2")
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
            calls[name] = replayed(
                partial(gpu.backward, q, k, v, o, lse, do, block_mask=table, kernel="hopper")
            )
        live = {
            name: 1.0 if table is None else float(table.mean()) for name, table in tables.items()
        }
        yield {"case": "block-sparse, backward", **sizes, "live": live, "ms": race(calls)}


def fa4_gradients(q: Any, k: Any, v: Any, window: tuple[int, int]) -> Calls:
    """Return the call of FlashAttention-4's backward pass in a window; none without it."""
    try:
        import torch
        from flash_attn.cute import flash_attn_func
    except ImportError:
        return {}
    theirs = [torch.from_dlpack(X).transpose(1, 2).contiguous().requires_grad_() for X in (q, k, v)]
    result = flash_attn_func(*theirs, window_size=window)
    o = result[0] if isinstance(result, tuple) else result
    return {"fa4": partial(torch.autograd.grad, o, theirs, torch.randn_like(o), retain_graph=True)}
