"""Why a kernel product computes distances from differences, x − z: from squares, they cancel.

In flashsim: flashsim.kernels.product, whose order "x_outer" is
flashsim/extensions/programs/kernel_x_outer.py: line 8 is k(x, z). The distances are those of
flashsim/extensions/parts/kernel_functions.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.extensions.parts.kernel_functions import distances
from flashsim.learn.examples.text import number, paragraph, scientific, table

OFFSETS = (0.0, 1e2, 1e3, 1e4)


@dataclass(frozen=True)
class Far:
    """Both clouds moved by `offset`, in float32: the largest error of ‖x − z‖², by differences
    and by squares.
    """

    offset: float
    differences: float
    squares: float


@dataclass(frozen=True)
class KernelProduct:
    """The clouds, moved away."""

    far: tuple[Far, ...]


def error_at(offset: float) -> Far:
    """Compare squared distances of 20 points and 20 others, random in three dimensions, with
    those in float64.
    """
    x = _cloud(0, offset)
    z = _cloud(1, offset)
    exact = distances(x.astype(np.float64), z.astype(np.float64)) ** 2
    by_differences = distances(x, z) ** 2
    by_squares = (x**2).sum(axis=1)[:, None] + (z**2).sum(axis=1) - 2 * (x @ z.T)
    return Far(
        offset,
        differences=float(np.abs(by_differences - exact).max()),
        squares=float(np.abs(by_squares - exact).max()),
    )


def _cloud(seed: int, offset: float) -> Array:
    points = np.random.default_rng(seed).normal(size=(20, 3)) + offset
    return points.astype(np.float32)


def compute() -> KernelProduct:
    """Move the clouds away, step by step."""
    return KernelProduct(tuple(map(error_at, OFFSETS)))


def lines(run: KernelProduct) -> Iterator[str]:
    """Yield the errors as text."""
    yield "The distances of a kernel product, by differences and by squares"
    yield from paragraph(
        "‖x‖² + ‖z‖² − 2x·z is ‖x − z‖² on paper, and one matrix product; but where both clouds "
        "lie far from the origin it "
        "is a small difference of large squares. Errors of ‖x − z‖² in float32, at most:"
    )
    yield ""
    rows = [("both clouds moved by", "by differences", "by squares")]
    for far in run.far:
        differences = scientific(far.differences, 1)
        squares = scientific(far.squares, 1)
        rows.append((number(far.offset), differences, squares))
    yield from table(rows)
    yield from paragraph(
        "The product itself, tile by tile, is a lesson: flashsim lessons kernel_product --open"
    )
