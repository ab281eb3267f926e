"""A mask of one's own, by `allows` alone: without a band."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.masks.rules import Head, Mask
from flashsim.attention.shapes import Shape

Masked = tuple[Mask, NDArray[np.bool_]]


class Dilated(Mask):
    """Every other key of the last nine."""

    def allows(
        self, rows: NDArray[Any], cols: NDArray[Any], shape: Shape, head: Head
    ) -> NDArray[np.bool_]:
        apart = rows[:, None] - cols[None, :]
        near = (apart >= 0) & (apart < 9)
        allowed: NDArray[np.bool_] = near & (apart % 2 == 0)
        return allowed


def mask(rng: np.random.Generator, N_q: int, N_k: int) -> Masked:
    def allows(i: int, j: int) -> bool:
        return 0 <= i - j < 9 and (i - j) % 2 == 0

    allowed = np.zeros((N_q, N_k), bool)
    for i in range(N_q):
        for j in range(N_k):
            allowed[i, j] = allows(i, j)
    return Dilated(), allowed
