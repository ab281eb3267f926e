"""Regimes: kinds of queries and keys on which kernels go wrong. With them kinds of values, masks,
biases, sinks and slopes. Each is made from its name and a seed.

Uniform or Gaussian numbers hardly exercise a softmax: all weights are similar, the maximum hardly
changes, and most bugs hide below the tolerance. In these regimes the weights peak, the maximum
rises or falls along the keys, scores are all negative, tie, or reach ±5·10⁴. "real" is a window of
the sample that flashsim contains.
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
Shape = tuple[int, int, int, int]  # (B, H_q, N_q, N_k)
MaskMaker = Callable[[Rng, Shape, tuple[int, int]], Array]
BiasMaker = Callable[[Rng, Shape], Array]

# -------------------------------------------- q (B, H_q, N_q, d) and k (B, H_kv, N_k, d) in float64


def _level(q: Array) -> Array:
    """Return queries near 1: at the default scale, their score with a key is about the sum of the
    key's entries divided by √d.
    """
    return np.ones_like(q) + 0.1 * q


def _negative(rng: Rng, q: Array, k: Array) -> Pair:
    """Return q and k whose scores are all far below 0: a running maximum that starts at 0, or a
    mask of −10⁴ or −10⁵, would be larger.
    """
    depths_and_sizes = ((3.0, 1.0), (120.0, 1.0), (2e5, 8.0), (2e5, 8.0))
    depth, size = depths_and_sizes[int(rng.integers(4))]
    return size * _level(q), k - depth / size / math.sqrt(q.shape[-1])


def _rising(rng: Rng, q: Array, k: Array) -> Pair:
    """Return q and k whose scores rise along the keys: every block of keys has a new maximum."""
    return _level(q), k / 2 + _slope_along_keys(rng, q, k)


def _falling(rng: Rng, q: Array, k: Array) -> Pair:
    """Return q and k whose scores fall along the keys: the first block has the maximum."""
    return _level(q), k / 2 - _slope_along_keys(rng, q, k)


def _slope_along_keys(rng: Rng, q: Array, k: Array) -> Array:
    steepness = float(rng.choice([8.0, 30.0, 120.0])) / math.sqrt(q.shape[-1])
    return np.asarray(steepness * np.linspace(0, 1, k.shape[-2])[:, None])


def _outliers(rng: Rng, q: Array, k: Array) -> Pair:
    """Return k with a few entries 30 times as large, and q and k with one channel 4 times as
    large, as in real activations.
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
    """Return windows of the sample's heads, repeated where they are too short or too narrow."""
    Q, K = _sample()
    kv_heads = rng.integers(K.shape[0], size=k.shape[:2])

    def window(source: Array, like: Array) -> Array:
        group = like.shape[1] // kv_heads.shape[1]
        heads = np.repeat(kv_heads, group, axis=1)
        start = int(rng.integers(source.shape[1]))
        rows = (start + np.arange(like.shape[2])) % source.shape[1]
        columns = np.arange(like.shape[3]) % source.shape[2]
        return source[heads][:, :, rows][..., columns]

    return window(Q, q), window(K, k)


def _gaussian(rng: Rng, q: Array, k: Array) -> Pair:
    return q, k


def _integers(rng: Rng, q: Array, k: Array) -> Pair:
    """Return small integers: they are exact in every dtype, so that only the kernel rounds."""
    return np.clip(np.round(2 * q), -4, 4), np.clip(np.round(2 * k), -4, 4)


def _peaky(rng: Rng, q: Array, k: Array) -> Pair:
    """Return q and k whose weights are nearly one-hot."""
    return 6 * q, 6 * k


def _constant(rng: Rng, q: Array, k: Array) -> Pair:
    """Return keys that are all equal, so that the weights are uniform."""
    return q, np.broadcast_to(k[..., :1, :], k.shape).copy()


def _ties(rng: Rng, q: Array, k: Array) -> Pair:
    """Return q and k with few distinct scores, so that several keys have the maximum."""
    return np.sign(q), np.round(k)


def _massive(rng: Rng, q: Array, k: Array) -> Pair:
    """Return q and k with scores of ±5·10⁴: unless the maximum is subtracted, their exponentials
    are ∞ or 0.
    """
    return np.sign(q) / math.sqrt(q.shape[-1]), np.sign(k) * 5e4


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
    """Return V: Gaussian, and at times around 3 instead of 0, so that weights that do not sum to 1
    change O. In the regime "outliers" some elements are 100 times as large.
    """
    v = rng.normal(size=shape) + float(rng.choice([0.0, 3.0]))
    if regime != "outliers":
        return v
    return v * np.where(rng.random(shape) < 0.05, 100, 1)


# ---------------------------------------- masks, broadcastable to (B, H_q, N_q, N_k), True = attend


def _lengths(rng: Rng, B: int, N_k: int) -> Array:
    """Return a length for each sequence, (B, 1, 1, 1). One in eight is 0."""
    is_zero = rng.random(B) < 0.125
    lengths = rng.integers(min(N_k, 1), N_k + 1, size=B)
    return np.where(is_zero, 0, lengths).reshape(B, 1, 1, 1)


def _holes(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    """Some keys are masked for all queries."""
    return np.asarray(rng.random((1, 1, 1, shape[-1])) < 0.6)


def _padding_right(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    B, _, _, N_k = shape
    return np.asarray(np.arange(N_k) < _lengths(rng, B, N_k))


def _padding_left(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    B, _, _, N_k = shape
    return np.asarray(np.arange(N_k) >= N_k - _lengths(rng, B, N_k))


def _dense(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    """Each pair of a query and a key by itself. Sequences, or heads, may share the mask."""
    B, H_q, N_q, N_k = shape
    shares = rng.random(2) < 0.5
    if shares[0]:
        B = 1
    if shares[1]:
        H_q = 1
    return np.asarray(rng.random((B, H_q, N_q, N_k)) < 0.6)


def _rows(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    """Some queries attend to all keys, the others to none."""
    return np.asarray(rng.random((shape[0], 1, shape[2], 1)) < 0.6)


def _few(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    """About one key a row, and many rows without any."""
    return np.asarray(rng.random(shape) < 1 / max(shape[-1], 2))


def _starts(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    """Rows lose their first keys: whole blocks of them, or all but the last few."""
    _, _, N_q, N_k = shape
    return np.asarray(np.arange(N_k) >= rng.integers(N_k + 1, size=(1, 1, N_q, 1)))


def _first_block(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    """The first block of keys is masked for all queries, or all keys but one if it has them all."""
    N_k = shape[-1]
    first = min(block[1], max(N_k - 1, 0))
    return np.asarray(np.arange(N_k)[None, None, None] >= first)


def _band(rng: Rng, shape: Shape, block: tuple[int, int]) -> Array:
    """A window of keys around the diagonal that ends at the bottom right."""
    left, right = (int(n) for n in rng.integers(0, 6, size=2))
    offset = _distance_from_diagonal(shape)
    return np.asarray((offset >= -left) & (offset <= right))[None, None]


def _distance_from_diagonal(shape: Shape) -> Array:
    """Return how many keys after the diagonal that ends at the bottom right, (N_q, N_k)."""
    _, _, N_q, N_k = shape
    return np.asarray(np.arange(N_k)[None, :] - np.arange(N_q)[:, None] - (N_k - N_q))


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


# --------------------------------- biases, broadcastable to (B, H_q, N_q, N_k), added to the scores


def _dense_bias(rng: Rng, shape: Shape) -> Array:
    return rng.normal(size=shape)


def _alibi_bias(rng: Rng, shape: Shape) -> Array:
    """A slope for each head, down from the diagonal that ends at the bottom right."""
    slopes = 2.0 ** -np.arange(1, shape[1] + 1)
    distance = np.abs(_distance_from_diagonal(shape))
    return np.asarray(-slopes[:, None, None] * distance)[None]


def _bias_of_keys(rng: Rng, shape: Shape) -> Array:
    """A number for each key, which all queries and heads share."""
    return rng.normal(size=(shape[0], 1, 1, shape[3]))


def _large_bias(rng: Rng, shape: Shape) -> Array:
    """So large that the bias alone decides which keys have weight."""
    return np.asarray(60 * rng.normal(size=(1, shape[1], *shape[2:])))


BIASES: dict[str, BiasMaker] = {
    "dense": _dense_bias,
    "alibi": _alibi_bias,
    "keys": _bias_of_keys,
    "large": _large_bias,
}

# ----------------------------------------------------------- sinks, soft caps and slopes of heads

SINKS = {
    "none": -math.inf,
    "lowest": -800.0,
    "low": -3.0,
    "zero": 0.0,
    "high": 50.0,
    "highest": 800.0,
}
# a kernel that masks before it caps shows the most with a small cap
SOFT_CAPS = (0.5, 5.0, 50.0, 1e4)


def sinks(rng: Rng, H_q: int, first: str) -> Array:
    """Return a sink for each head, (H_q,). `first` is the name of the first head's."""
    others = rng.choice(list(SINKS.values()), H_q - 1)
    return np.array([SINKS[first], *others], np.float32)


def slopes(rng: Rng, H_q: int) -> Array:
    """Return ALiBi's slopes, (H_q,), powers of two, all different."""
    return np.asarray(2.0 ** (1 - rng.permutation(H_q)), np.float32)


def in_8_bits(
    rng: Rng, a: Array, dtype: np.dtype[Any], scales: str | None, block: int
) -> tuple[Array, Array | None]:
    """Return an array (B, H, N, d) in 8 bits, and its scales: (B, H), or (B, H, ⌈N / block⌉) if
    `scales` is "block". Without scales, large elements are clipped.

    A scale brings its rows to within ±224, and is then multiplied by a random power of two, so that
    scales differ from 1, and from each other.
    """
    if scales is None:
        end = largest(dtype)
        return np.clip(a, -end, end).astype(dtype), None
    N = a.shape[2]
    groups = 1
    group_of_row = np.zeros(N, int)
    if scales == "block":
        groups = -(-N // block)
        group_of_row = np.arange(N) // block
    maxima = []
    for group in range(groups):
        rows = a[:, :, group_of_row == group]
        maxima.append(np.abs(rows).max(axis=(2, 3), initial=2.0**-20))
    maximum = np.stack(maxima, axis=-1)
    powers = 2.0 ** rng.integers(0, 5, size=maximum.shape)
    scale = np.asarray(powers * maximum / 224, np.float32)
    quantized = (a / scale[:, :, group_of_row, None]).astype(dtype)
    return quantized, scale if scales == "block" else scale[..., 0]
