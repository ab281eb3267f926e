"""8 bits: rates, errors, and where the range of P̃ may lie."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from flashsim import gpu
from flashsim.gpu import hopper_fp8
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import Setting, arrays
from flashsim.gpu.kernel import Options
from flashsim.reference import attention
from hopper_races.calls import Calls, captured, normal, off, peers, race, replayed

OFFSETS = (4, 8, 6, 2, 0)  # of P̃ in 8 bits: log₂ of it where a score is the maximum; of 2^8


def eight_bits() -> Iterator[dict[str, Any]]:
    """Yield cases as `backward`, forward, and relative errors: the kernel's, beside that of
    rounding its inputs to e4m3.
    """
    for N in (1024, 4096, 16_384):
        for causal in (False, True):
            setting = Setting(N, 128, causal)
            q, k, v = arrays(setting, 3)
            q8, k8, v8 = map(gpu.to_fp8, (q, k, v))
            calls = {"hopper": captured(q, k, v, kernel="hopper", causal=causal)}
            for way, values in (
                ("", v8),
                (", keys of V contiguous", gpu.to_fp8(v, keys_contiguous=True)),
            ):
                calls[f"hopper_fp8{way}"] = captured(q8, k8, values, causal=causal)
            ms = race({**calls, **peers(q, k, v, causal=causal)})
            tflops = {
                name: round(setting.flops / duration / 1e9, 1) for name, duration in ms.items()
            }
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
    # standard deviation of scores: where it is large, maxima grow in tile after tile
    for spread in (1, 2, 9):
        wider = (*((X * spread**0.5).astype(X.dtype) for X in (q, k)), v)
        both = {"hopper": wider, "hopper_fp8": tuple(map(gpu.to_fp8, wider))}
        ms = race(
            {name: captured(*options, kernel=name, causal=True) for name, options in both.items()}
        )
        tflops = {name: round(setting.flops / duration / 1e9, 1) for name, duration in ms.items()}
        yield {
            "case": "fp8 by spread",
            "N": 4096,
            "d": 128,
            "causal": True,
            "spread": spread,
            "ms": ms,
            "tflops": tflops,
        }
    inputs = [normal(1, 4, 2048, 128) for _ in range(3)]
    rounded = [gpu.to_fp8(x) for x in inputs]
    exact, expected = (
        attention(*(x.get().astype(np.float64) for x in arrays)) for arrays in (inputs, rounded)
    )
    result = {"hopper": (inputs, exact), "hopper_fp8": (rounded, expected)}
    errors = {
        name: off(gpu.forward(*options, kernel=name).get(), of)
        for name, (options, of) in result.items()
    }
    yield {"case": "fp8 errors", "N": 2048, "d": 128, "of inputs": off(expected, exact), **errors}


def shifts() -> Iterator[dict[str, Any]]:
    """Yield, by distribution, where P̃'s range may lie: by "OFFSET, LIMIT", relative errors at N =
    2048, TFLOP/s at 1024, 4096.

    Errors are from exact attention of the rounded numbers; "of inputs" is what rounding changes.
    """
    usual = hopper_fp8.OFFSET
    for distribution, causal in product(("normal", "captured", "wide"), (False, True)):
        result: dict[str, dict[str, float]] = {}
        exact = expected = None
        for N in (2048, 1024, 4096):
            setting = Setting(
                N, 128, causal, H=12, B=0 if N != 2048 else 1, distribution=distribution
            )
            inputs = arrays(setting, 3)
            rounded, (q, *_) = [gpu.to_fp8(x) for x in inputs], inputs
            if N == 2048:
                exact, expected = (in_float64(of, causal) for of in (inputs, rounded))
            calls: Calls = {}
            for offset in OFFSETS:
                hopper_fp8.OFFSET, o = offset, import_cupy().empty_like(q)
                q8, k8, v8 = rounded
                call = partial(hopper_fp8.forward, q8, k8, v8, o, None, Options(128**-0.5, causal))
                name = f"{offset},{8 - offset}"
                if N == 2048:
                    call()
                    result.setdefault("errors", {})[name] = off(o.get(), expected)
                else:
                    calls[name] = replayed(call)
            hopper_fp8.OFFSET = usual
            if calls:
                ms = race(calls)
                result[f"tflops, N = {N}"] = {
                    name: round(setting.flops / of / 1e9, 1) for name, of in ms.items()
                }
        sizes = {"distribution": distribution, "causal": causal, "d": 128, "H": 12}
        yield {"case": "fp8 shift", **sizes, "of inputs": off(expected, exact), **result}


def in_float64(inputs: Any, causal: bool) -> Any:
    """Return exact attention of arrays on the GPU, as an array of float64 in the CPU's memory."""
    cupy = import_cupy()
    q, k, v = (cupy.asarray(x.get().astype(np.float64)) for x in inputs)
    S = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        S = cupy.where(cupy.tri(S.shape[-1], dtype=bool), S, -np.inf)
    P = cupy.exp(S - S.max(-1, keepdims=True))
    return (P @ v / P.sum(-1, keepdims=True)).get()
