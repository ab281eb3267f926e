"""Traces that tests play."""

from collections.abc import Callable
from typing import Any

import numpy as np

import flashsim
from flashsim import Fixed
from flashsim.algorithms import Algorithm
from flashsim.tracing import Trace


def recorded(
    name: str | Algorithm = "flash",
    n: int = 12,
    d: int = 4,
    blocks: tuple[int, int] = (3, 4),
    **options: Any,
) -> Trace:
    rng = np.random.default_rng(0)
    Q, K, V = 2 * rng.standard_normal((3, n, d)).astype(np.float32)
    sizing = Fixed(*blocks, enforced=False)
    room: dict[str, Any] = {"sizing": sizing, "M": 4 * d * max(blocks)}
    return flashsim.trace(name, Q, K, V, **room, **options)


def recorded_backward(
    name: str | Algorithm = "flash", n: int = 12, d: int = 4, **options: Any
) -> Trace:
    rng = np.random.default_rng(1)
    dO = rng.standard_normal((n, d)).astype(np.float32)
    return recorded(name, n, d, dO=dO, **options)


RECORDED: dict[str, Callable[..., Trace]] = {"forward": recorded, "backward": recorded_backward}
