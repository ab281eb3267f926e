"""A kernel product, tile by tile: Y_i = Σ_j k(x_i, z_j) v_j, with a Gaussian k; and why its distances are of differences.

In flashsim: flashsim.kernels.product, whose order "x_outer" is flashsim/beyond/programs/kernel_x_outer.py: line 8 is k(x, z),
line 9 adds to Y. The distances are those of flashsim/beyond/parts/kernel_functions.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashsim.beyond.parts.kernel_functions import distances
from flashsim.learn.examples.text import number, paragraph, scientific, table, vector
from flashsim.problem.inputs import Array

X, Z, V = (0.0, 1.0, 3.0), (0.0, 2.0), (1.0, 2.0)
OFFSETS = (0.0, 1e2, 1e3, 1e4)


@dataclass(frozen=True, eq=False)
class Tile:
    """One pair: x and z, their kernel's value, what it adds, and Y before and after."""

    i: int
    j: int
    x: float
    z: float
    k: float
    v: float
    before: float
    Y: float


@dataclass(frozen=True, eq=False)
class Far:
    """Both clouds moved by `offset`, in float32: the largest error of ‖x − z‖², by differences and by squares."""

    offset: float
    differences: float
    squares: float


@dataclass(frozen=True, eq=False)
class KernelProduct:
    """The tiles of x against z, the product, and the clouds moved away."""

    tiles: tuple[Tile, ...]
    Y: Array
    far: tuple[Far, ...]


def far(offset: float) -> Far:
    """Compare squared distances of 20 points and 20 others, random in three dimensions, with those in float64."""
    x, z = ((np.random.default_rng(seed).normal(size=(20, 3)) + offset).astype(np.float32) for seed in (0, 1))
    exact = distances(x.astype(np.float64), z.astype(np.float64)) ** 2
    squares = (x**2).sum(axis=1)[:, None] + (z**2).sum(axis=1) - 2 * (x @ z.T)
    errors = (np.abs(found - exact).max() for found in (distances(x, z) ** 2, squares))
    return Far(offset, *map(float, errors))


def compute() -> KernelProduct:
    """Run the example, with blocks of one row, rows of x outermost."""
    tiles = []
    for i, x in enumerate(X):
        Y = 0.0
        for j, (z, v) in enumerate(zip(Z, V, strict=True)):
            k = float(np.exp(-((x - z) ** 2) / 2))
            tiles.append(Tile(i, j, x, z, k, v, Y, Y + k * v))
            Y = tiles[-1].Y
    return KernelProduct(
        tuple(tiles), np.array([tile.Y for tile in tiles[len(Z) - 1 :: len(Z)]]), tuple(map(far, OFFSETS))
    )


def lines(run: KernelProduct) -> Iterator[str]:
    """Yield the steps as text."""
    yield f"Kernel product of x = {vector(X)}, z = {vector(Z)}, v = {vector(V)}"
    yield from paragraph(
        "Y_i = Σ_j k(x_i, z_j) v_j with k(x, z) = exp(−(x − z)²/2). Rows of x are the outer loop: Y_i stays on chip until it is "
        "done. It is attention's inner loop without a softmax: nothing is rescaled."
    )
    for tile in run.tiles:
        if tile.j == 0:
            yield f"\nRow {tile.i}: x = {number(tile.x)}, Y = 0"
        yield (
            f"  k({number(tile.x)}, {number(tile.z)}) = exp(−{number((tile.x - tile.z) ** 2)}/2) = {number(tile.k)};  "
            f"Y = {number(tile.before)} + {number(tile.k)} · {number(tile.v)} = {number(tile.Y)}"
        )
    yield from paragraph(
        "Distances are of differences, x − z. ‖x‖² + ‖z‖² − 2x·z is the same on paper, and one matrix product; but where both "
        "clouds lie far from the origin it is a small difference of large squares. Errors of ‖x − z‖² in float32, at most:"
    )
    yield ""
    yield from table(
        [
            ("both clouds moved by", "by differences", "by squares"),
            *((number(each.offset), scientific(each.differences, 1), scientific(each.squares, 1)) for each in run.far),
        ]
    )
