"""What to test on: queries and keys in which attention goes wrong, values, and masks, each made
from a name and a seed.

Uniform or Gaussian numbers hardly exercise a softmax: all its weights are alike, its maximum hardly
moves, and most bugs hide below the tolerance. Here the weights peak, the maximum rises or falls
along the keys, scores are all negative, tie, or reach ±5·10⁴. "real" is a window of the bundled
sample.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array, largest
from flashsim.attention.qkv import load_sample

Rng = np.random.Generator
Pair = tuple[Array, Array]
Regime = Callable[[Rng, Array, Array], Pair]
MaskMaker = Callable[[Rng, tuple[int, int, int, int], tuple[int, int]], Array]
BiasMaker = Callable[[Rng, tuple[int, int, int, int]], Array]

# -------------------------------------------- q (B, H_q, N_q, d) and k (B, H_kv, N_k, d) in float64


def _level(q: Array) -> Array:
    """Queries whose score with a key is, at the default scale, about the sum of the key's
    entries over √d.
    """
    return np.ones_like(q) + 0.1 * q


def _negative(rng: Rng, q: Array, k: Array) -> Pair:
    """Scores far below 0, all of them: a maximum that starts at 0, or a mask of −10⁴ or −10⁵,
    would win.
    """
    depth, size = ((3.0, 1.0), (120.0, 1.0), (2e5, 8.0), (2e5, 8.0))[int(rng.integers(4))]
    return size * _level(q), k - depth / size / math.sqrt(q.shape[-1])


def _along(rng: Rng, q: Array, k: Array, sign: int) -> Pair:
    """Scores that rise along the keys, or, with −1, fall."""
    steepness = sign * float(rng.choice([8.0, 30.0, 120.0])) / math.sqrt(q.shape[-1])
    return _level(q), k / 2 + steepness * np.linspace(0, 1, k.shape[-2])[:, None]


def _outliers(rng: Rng, q: Array, k: Array) -> Pair:
    """A few entries of the keys 30 times as large, and one channel of both: what real
    activations do.
    """
    k = k * np.where(rng.random(k.shape) < 0.05, 30, 1)
    channel = int(rng.integers(k.shape[-1]))
    q = q.copy()
    k = k.copy()
    q[..., channel] *= 4
    k[..., channel] *= 4
    return q, k


@cache
def _sample() -> tuple[Array, Array]:
    sample = load_sample()
    return sample.Q.astype(np.float64), sample.K.astype(np.float64)


def _real(rng: Rng, q: Array, k: Array) -> Pair:
    """Heads and windows of the bundled sample, repeated where they are too short or narrow."""
    Q, K = _sample()
    own = rng.integers(K.shape[0], size=k.shape[:2])

    def window(source: Array, like: Array) -> Array:
        heads = np.repeat(own, like.shape[1] // own.shape[1], axis=1)
        start = int(rng.integers(source.shape[1]))
        rows = (start + np.arange(like.shape[2])) % source.shape[1]
        return source[heads][:, :, rows][..., np.arange(like.shape[3]) % source.shape[2]]

    return window(Q, q), window(K, k)


REGIMES: dict[str, Regime] = {
    "gaussian": lambda rng, q, k: (q, k),
    # small integers: exact in every dtype, so that only the kernel rounds
    "integers": lambda rng, q, k: (
        np.clip(np.round(2 * q), -4, 4),
        np.clip(np.round(2 * k), -4, 4),
    ),
    # nearly one-hot weights
    "peaky": lambda rng, q, k: (6 * q, 6 * k),
    "negative": _negative,
    # every block of keys has a new maximum
    "rising": lambda rng, q, k: _along(rng, q, k, 1),
    # the first block of keys has the maximum for good
    "falling": lambda rng, q, k: _along(rng, q, k, -1),
    # all keys are equal, so the weights are uniform
    "constant": lambda rng, q, k: (q, np.broadcast_to(k[..., :1, :], k.shape).copy()),
    # few distinct scores, so that the maximum is attained often
    "ties": lambda rng, q, k: (np.sign(q), np.round(k)),
    # scores of ±5·10⁴: an exponential without the maximum subtracted is ∞ or 0
    "massive": lambda rng, q, k: (np.sign(q) / math.sqrt(q.shape[-1]), np.sign(k) * 5e4),
    "outliers": _outliers,
    "real": _real,
}


def values(rng: Rng, shape: tuple[int, ...], regime: str) -> Array:
    """Return V: Gaussian, at times off centre, so that weights that do not sum to 1 show; with
    outliers in "outliers".
    """
    v = rng.normal(size=shape) + float(rng.choice([0.0, 3.0]))
    return v * np.where(rng.random(shape) < 0.05, 100, 1) if regime == "outliers" else v


# ---------------------------------------- masks, broadcastable to (B, H_q, N_q, N_k), True = attend


def _lengths(rng: Rng, B: int, N_k: int) -> Array:
    """One length a sequence, in (B, 1, 1, 1). One in eight is 0."""
    return np.where(rng.random(B) < 0.125, 0, rng.integers(min(N_k, 1), N_k + 1, size=B)).reshape(
        B, 1, 1, 1
    )


def _dense(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """Every element for itself; some axes may be shared."""
    B, H_q, N_q, N_k = shape
    shared = rng.random(2) < 0.5
    return np.asarray(rng.random((1 if shared[0] else B, 1 if shared[1] else H_q, N_q, N_k)) < 0.6)


def _band(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """A window of keys around the diagonal that ends at the bottom right."""
    _, _, N_q, N_k = shape
    left, right = (int(n) for n in rng.integers(0, 6, size=2))
    offset = np.arange(N_k)[None, :] - np.arange(N_q)[:, None] - (N_k - N_q)
    return np.asarray((offset >= -left) & (offset <= right))[None, None]


MASKS: dict[str, MaskMaker] = {
    # some keys are masked for all queries
    "holes": lambda rng, shape, block: rng.random((1, 1, 1, shape[-1])) < 0.6,
    "padding_right": lambda rng, shape, block: (
        np.arange(shape[-1]) < _lengths(rng, shape[0], shape[-1])
    ),
    "padding_left": lambda rng, shape, block: (
        np.arange(shape[-1]) >= shape[-1] - _lengths(rng, shape[0], shape[-1])
    ),
    "dense": _dense,
    # some queries see everything, the others nothing
    "rows": lambda rng, shape, block: rng.random((shape[0], 1, shape[2], 1)) < 0.6,
    # about one key a row, and many rows without any
    "few": lambda rng, shape, block: rng.random(shape) < 1 / max(shape[-1], 2),
    # rows lose their first keys: whole blocks of them, or all but the last few
    "starts": lambda rng, shape, block: (
        np.arange(shape[-1]) >= rng.integers(shape[-1] + 1, size=(1, 1, shape[2], 1))
    ),
    # the first block of keys is masked for all queries, or as much of it as leaves a key
    "first_block": lambda rng, shape, block: (
        np.arange(shape[-1])[None, None, None] >= min(block[1], max(shape[-1] - 1, 0))
    ),
    "band": _band,
}


# --------------------------------- biases, broadcastable to (B, H_q, N_q, N_k), added to the scores


def _alibi(rng: Rng, shape: tuple[int, int, int, int]) -> Array:
    """A slope for each head, down from the diagonal that ends at the bottom right."""
    _, H_q, N_q, N_k = shape
    apart = np.abs(np.arange(N_k)[None, :] - np.arange(N_q)[:, None] - (N_k - N_q))
    return np.asarray(-(2.0 ** -np.arange(1, H_q + 1))[:, None, None] * apart)[None]


BIASES: dict[str, BiasMaker] = {
    "dense": lambda rng, shape: rng.normal(size=shape),
    "alibi": _alibi,
    # one for each key, shared by all queries and heads
    "keys": lambda rng, shape: rng.normal(size=(shape[0], 1, 1, shape[3])),
    # so large that it decides alone
    "large": lambda rng, shape: 60 * rng.normal(size=(1, shape[1], *shape[2:])),
}

# ------------------------------------------------------ what else scores are made of, for each head

SINKS = {
    "none": -math.inf,
    "lowest": -800.0,
    "low": -3.0,
    "zero": 0.0,
    "high": 50.0,
    "highest": 800.0,
}
SOFT_CAPS = (0.5, 5.0, 50.0, 1e4)  # a small one lets much through of what is masked before it


def sinks(rng: Rng, H_q: int, first: str) -> Array:
    """Return a sink for each head, (H_q,); the first is the one of that name."""
    return np.array([SINKS[first], *rng.choice(list(SINKS.values()), H_q - 1)], np.float32)


def slopes(rng: Rng, H_q: int) -> Array:
    """Return ALiBi's slopes, (H_q,), powers of two, all different."""
    return np.asarray(2.0 ** (1 - rng.permutation(H_q)), np.float32)


def stored(
    rng: Rng, a: Array, dtype: np.dtype[Any], scales: str | None, block: int
) -> tuple[Array, Array | None]:
    """Return an array (B, H, N, d) in 8 bits, with its scales, (B, H) or (B, H, ⌈N / block⌉), or
    saturated without any.

    Each scale leaves its rows within ±224, and is moved by a power of two: they lie far from 1, and
    apart.
    """
    end = largest(dtype)
    if scales is None:
        return np.clip(a, -end, end).astype(dtype), None
    N = a.shape[2]
    groups = -(-N // block) if scales == "block" else 1
    rows = np.arange(N) // block if scales == "block" else np.zeros(N, int)
    most = np.stack(
        [
            np.abs(a[:, :, rows == group]).max(axis=(2, 3), initial=2.0**-20)
            for group in range(groups)
        ],
        axis=-1,
    )
    scale = np.asarray(2.0 ** rng.integers(0, 5, size=most.shape) * most / 224, np.float32)
    return (a / scale[:, :, rows, None]).astype(dtype), scale if scales == "block" else scale[
        ..., 0
    ]
