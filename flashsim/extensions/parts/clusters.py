"""What attention within clusters of rows shares: which places a cluster has in a round's order,
and which pairs of rows meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.algorithms.blocks import ceil_div
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.memory.hbm import Tile
from flashsim.memory.shape_only import ShapeOnly

Array = NDArray[Any]


def places(i: int, C: int, N: int) -> range:
    """Return the places of cluster i, counted from 0, in an order of N rows."""
    return range(i * C, min((i + 1) * C, N))


def shared_out(S: Tile, home_i: Tile, home_j: Tile, a: int) -> Tile:
    """Return S_xy − log(in how many rounds x and y meet) where they meet in round a, −∞ elsewhere.

    They meet in a round if y's home in it is x's, or the one before.
    """
    if isinstance(S, ShapeOnly):
        return S.made(S.shape, other=(4 * home_i.shape[1] + 3) * S.size)
    back = home_i.astype(np.int64)[:, None, :] - home_j.astype(np.int64)[None, :, :]
    meet = (back == 0) | (back == 1)
    times = np.log(np.maximum(meet.sum(axis=2), 1)).astype(S.dtype)
    result: Tile = np.where(meet[:, :, a], S - times, S.dtype.type(-np.inf))
    return result


def sorted_rows(keys: Array) -> Array:
    """Return each round's rows in the order of their keys, (h, N); of equal keys the earlier row
    first.
    """
    return np.argsort(keys, axis=1, kind="stable").astype(np.uint32)


def homes(buckets: Array, C: int) -> tuple[Array, Array]:
    """Return each round's rows sorted by bucket, (h, N), and each row's home in each round, (N, h),
    for clusters of C rows.

    A home is a bucket within a cluster. They are numbered along the order, one on where the same
    bucket goes on in the next cluster, two on where another bucket begins: so rows of one bucket,
    in one cluster or in neighbours, differ by at most 1.
    """
    order = sorted_rows(buckets)
    h, N = order.shape
    along = np.take_along_axis(buckets, order.astype(np.int64), axis=1)
    steps = np.zeros((h, N), np.int64)
    steps[:, C::C] = 1
    steps[:, 1:][along[:, 1:] != along[:, :-1]] = 2
    home = np.empty((N, h), np.uint32)
    for a in range(h):
        home[order[a], a] = np.cumsum(steps[a])
    return order, home


def example_buckets(
    rng: np.random.Generator, sizes: Sizes, blocks: Sizes
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return buckets to try Reformer with, sorted, and a τ."""
    buckets = rng.integers(0, 1 + ceil_div(sizes.N, 2 * blocks.C), size=(sizes.h, sizes.N))
    order, home = homes(buckets, blocks.C)
    return {"order": order, "home": home}, {"tau": float(rng.uniform(0.1, 1))}


def example_orders(
    rng: np.random.Generator, sizes: Sizes, blocks: Sizes
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two orders to try SMYRF with, and a τ."""
    orders = {
        name: sorted_rows(rng.normal(size=(sizes.h, sizes.N))) for name in ("order_Q", "order_K")
    }
    return orders, {"tau": float(rng.uniform(0.1, 1))}


CLUSTERED: dict[str, Any] = {
    "returns": {"O": Kind("N", "e")},
    "extras": {"O_parts": Kind("h·N", "e"), "L_parts": Kind("h·N", "1", "chip")},
    "blocks": {"C": "N"},
    "across": ("K", "V"),
    "words": ("queries", "keys"),
}
"""What the records of Reformer and SMYRF share."""
