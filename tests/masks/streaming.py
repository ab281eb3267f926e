"""Sink tokens and a window, of which either may hold all keys."""

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.masks.rules import Mask
from flashsim.attention.masks.streaming import Streaming

Masked = tuple[Mask, NDArray[np.bool_]]


def mask(rng: np.random.Generator, N_q: int, N_k: int) -> Masked:
    sinks = int(rng.integers(0, N_k + 2))
    window = int(rng.integers(1, N_k + 2))

    def allows(i: int, j: int) -> bool:
        position = i + N_k - N_q
        if j > position:
            return False
        return j < sinks or j > position - window

    allowed = np.zeros((N_q, N_k), bool)
    for i in range(N_q):
        for j in range(N_k):
            allowed[i, j] = allows(i, j)
    return Streaming(sinks, window), allowed
