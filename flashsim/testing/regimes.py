"""What to test on: queries and keys in which attention goes wrong, values, and masks, each made from a name and a seed.

Uniform or Gaussian numbers hardly exercise a softmax: all its weights are alike, its maximum hardly moves, and most bugs
hide below the tolerance. Here the weights peak, the maximum rises or falls along the keys, scores are all negative, tie,
or reach ±5·10⁴. "real" is a window of the bundled sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from flashsim.inputs import Array
from flashsim.qkv import load_sample

Rng = np.random.Generator
Pair = tuple[Array, Array]
Regime = Callable[[Rng, Array, Array], Pair]
MaskMaker = Callable[[Rng, tuple[int, int, int, int], tuple[int, int]], Array]

# ------------------------------------------------------------------- q (B, H_q, N_q, d) and k (B, H_kv, N_k, d) in float64


def _gaussian(rng: Rng, q: Array, k: Array) -> Pair:
    return q, k


def _peaky(rng: Rng, q: Array, k: Array) -> Pair:
    """Nearly one-hot weights."""
    return 6 * q, 6 * k


def _level(q: Array) -> Array:
    """Queries whose score with a key is, at the default scale, about the sum of the key's entries over √d."""
    return np.ones_like(q) + 0.1 * q


def _negative(rng: Rng, q: Array, k: Array) -> Pair:
    """Scores far below 0, all of them: a maximum that starts at 0, or a mask of −10⁴ or −10⁵, would win."""
    depth, size = ((3.0, 1.0), (120.0, 1.0), (2e5, 8.0), (2e5, 8.0))[int(rng.integers(4))]
    return size * _level(q), k - depth / size / math.sqrt(q.shape[-1])


def _ramp(k: Array) -> Array:
    return np.linspace(0, 1, k.shape[-2])[:, None] + np.zeros_like(k)


def _rising(rng: Rng, q: Array, k: Array) -> Pair:
    """Every block of keys has a new maximum."""
    return _level(q), k / 2 + float(rng.choice([8.0, 30.0, 120.0])) / math.sqrt(q.shape[-1]) * _ramp(k)


def _falling(rng: Rng, q: Array, k: Array) -> Pair:
    """The first block of keys has the maximum for good."""
    return _level(q), k / 2 - float(rng.choice([8.0, 30.0, 120.0])) / math.sqrt(q.shape[-1]) * _ramp(k)


def _constant(rng: Rng, q: Array, k: Array) -> Pair:
    """All keys are equal, so the weights are uniform."""
    return q, np.broadcast_to(k[..., :1, :], k.shape).copy()


def _ties(rng: Rng, q: Array, k: Array) -> Pair:
    """Few distinct scores, so that the maximum is attained often."""
    return np.sign(q), np.round(k)


def _massive(rng: Rng, q: Array, k: Array) -> Pair:
    """Scores of ±5·10⁴: an exponential without the maximum subtracted is ∞ or 0."""
    return np.sign(q) / math.sqrt(q.shape[-1]), np.sign(k) * 5e4


def _integers(rng: Rng, q: Array, k: Array) -> Pair:
    """Small integers: exact in every dtype, so that only the kernel rounds."""
    return np.clip(np.round(2 * q), -4, 4), np.clip(np.round(2 * k), -4, 4)


def _outliers(rng: Rng, q: Array, k: Array) -> Pair:
    """A few entries of the keys 30 times as large, and one channel of both: what real activations do."""
    k = k * np.where(rng.random(k.shape) < 0.05, 30, 1)
    channel = int(rng.integers(k.shape[-1]))
    q, k = q.copy(), k.copy()
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
    "gaussian": _gaussian,
    "integers": _integers,
    "peaky": _peaky,
    "negative": _negative,
    "rising": _rising,
    "falling": _falling,
    "constant": _constant,
    "ties": _ties,
    "massive": _massive,
    "outliers": _outliers,
    "real": _real,
}


def values(rng: Rng, shape: tuple[int, ...], regime: str) -> Array:
    """Return V: Gaussian, at times off centre, so that weights that do not sum to 1 show; with outliers in "outliers"."""
    v = rng.normal(size=shape) + float(rng.choice([0.0, 3.0]))
    return v * np.where(rng.random(shape) < 0.05, 100, 1) if regime == "outliers" else v


# ----------------------------------------------------- masks, broadcastable to (B, H_q, N_q, N_k), True = attend


def _lengths(rng: Rng, B: int, N_k: int) -> Array:
    """One length a sequence, in (B, 1, 1, 1). One in eight is 0."""
    lengths = np.where(rng.random(B) < 0.125, 0, rng.integers(min(N_k, 1), N_k + 1, size=B))
    return lengths.reshape(B, 1, 1, 1)


def _padding_right(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    B, _, _, N_k = shape
    return np.asarray(np.arange(N_k) < _lengths(rng, B, N_k))


def _padding_left(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    B, _, _, N_k = shape
    return np.asarray(np.arange(N_k) >= N_k - _lengths(rng, B, N_k))


def _dense(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """Every element for itself; some axes may be shared."""
    B, H_q, N_q, N_k = shape
    shared = rng.random(2) < 0.5
    return np.asarray(rng.random((1 if shared[0] else B, 1 if shared[1] else H_q, N_q, N_k)) < 0.6)


def _few(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """About one key a row, and many rows without any."""
    return np.asarray(rng.random(shape) < 1 / max(shape[-1], 2))


def _starts(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """Rows lose their first keys: whole blocks of them, or all but the last few."""
    _, _, N_q, N_k = shape
    starts = rng.integers(0, N_k + 1, size=(1, 1, N_q, 1))
    return np.asarray(np.arange(N_k) >= starts)


def _first_block(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """The first block of keys is masked for all queries, or as much of it as leaves a key."""
    N_k = shape[-1]
    return np.asarray(np.arange(N_k) >= min(block[1], max(N_k - 1, 0)))[None, None, None]


def _holes(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """Some keys are masked for all queries."""
    return np.asarray(rng.random((1, 1, 1, shape[-1])) < 0.6)


def _rows(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """Some queries see everything, the others nothing."""
    B, _, N_q, _ = shape
    return np.asarray(rng.random((B, 1, N_q, 1)) < 0.6)


def _band(rng: Rng, shape: tuple[int, int, int, int], block: tuple[int, int]) -> Array:
    """A window of keys around the diagonal that ends at the bottom right."""
    _, _, N_q, N_k = shape
    left, right = (int(n) for n in rng.integers(0, 6, size=2))
    offset = np.arange(N_k)[None, :] - np.arange(N_q)[:, None] - (N_k - N_q)
    return np.asarray((offset >= -left) & (offset <= right))[None, None]


MASKS: dict[str, MaskMaker] = {
    "holes": _holes,
    "padding_right": _padding_right,
    "padding_left": _padding_left,
    "dense": _dense,
    "rows": _rows,
    "few": _few,
    "starts": _starts,
    "first_block": _first_block,
    "band": _band,
}
