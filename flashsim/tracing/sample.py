"""Random operands of runs that are looked at: what `flashsim step` and the gallery's lessons
trace.
"""

import numpy as np

from flashsim.attention.inputs import Array


def operands(n: int, d: int, n_k: int | None = None, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return Q (n, d), K and V (n_k, d), in float32; scores have standard deviation 2, so that
    maxima move.
    """
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((rows, d), np.float32) for rows in (n, n_k or n, n_k or n))
    return 2 * Q, K, V


def gradient(n: int, d: int, seed: int = 0) -> Array:
    """Return dO (n, d), in float32."""
    return np.random.default_rng([seed, 1]).standard_normal((n, d), np.float32)
