"""Sink tokens and a window, of which either may hold all keys."""

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.masks.rules import Mask
from flashsim.attention.masks.streaming import Streaming


def mask(rng: np.random.Generator, N_q: int, N_k: int) -> tuple[Mask, NDArray[np.bool_]]:
    sinks = int(rng.integers(0, N_k + 2))
    window = int(rng.integers(1, N_k + 2))
    allowed = [
        [(p := i + N_k - N_q) - j >= 0 and (j < sinks or j > p - window) for j in range(N_k)]
        for i in range(N_q)
    ]
    return Streaming(sinks, window), np.array(allowed)
