"""Kernel functions k(x, z) on tiles: the named ones, which are radial, and any other.

    k(X_i, Z_j)            K_ij, one element-wise pass: distances by differences, a column after
                           another
    k.pull(G_ij, X_i, Z_j) Σ_j G_ij ∂k(x_i, z_j)/∂x_i, (rows of X, d)

Distances are r = ‖x − z‖, by hypot: no square overflows or vanishes on the way, and nothing
cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.algorithms.blocks import ceil_div, paper_rows
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.memory.hbm import Tile
from flashsim.memory.shape_only import ShapeOnly


@dataclass(frozen=True)
class Profile:
    """A radial kernel as functions of s = ‖x − z‖/σ: k, and how steeply it falls, −k′."""

    k: Callable[[Tile], Tile]
    slope: Callable[[Tile], Tile]


def twice_over(h: Tile, x: Any) -> Tile:
    """Return x/h², where h² may overflow."""
    result: Tile = x / h / h
    return result


PROFILES: Mapping[str, Profile] = {
    "gaussian": Profile(lambda s: np.exp(-0.5 * s * s), lambda s: s * np.exp(-0.5 * s * s)),
    "laplace": Profile(lambda s: np.exp(-s), lambda s: np.exp(-s)),
    "cauchy": Profile(
        lambda s: twice_over(np.hypot(1.0, s), 1.0),
        lambda s: twice_over(np.hypot(1.0, s), twice_over(np.hypot(1.0, s), 2.0 * s)),
    ),
}
"""By name: e^{−s²/2}, e^{−s}, 1/(1 + s²)."""


@dataclass(frozen=True)
class Radial:
    """A kernel of `PROFILES`, of width σ."""

    name: str
    sigma: float = 1.0

    def __str__(self) -> str:
        return f"{self.name}, σ = {self.sigma:g}"

    def __call__(self, X: Tile, Z: Tile) -> Tile:
        return PROFILES[self.name].k(distances(X, Z) / self.sigma)

    def pull(self, G: Tile, X: Tile, Z: Tile) -> Tile:
        r = distances(X, Z)
        return along(-G * PROFILES[self.name].slope(r / self.sigma) / self.sigma, r, X, Z)


@dataclass(frozen=True)
class Own:
    """A function of the user's own, f(x, z) of arrays (…, d) that broadcast.

    `gradient` is ∂f/∂x of the same arrays, (…, d), and `limit` the largest value that the run can
    hold. Without numbers neither is called, and each value counts as one operation.
    """

    f: Callable[[Any, Any], Any]
    limit: float
    gradient: Callable[[Any, Any], Any] | None = None

    def __str__(self) -> str:
        return str(getattr(self.f, "__name__", self.f))

    def __call__(self, X: Tile, Z: Tile) -> Tile:
        """Return f(x, z). Raises ValueError where that is not an array of finite numbers, one
        for each pair.
        """
        shape = X.shape[0], Z.shape[0]
        if isinstance(X, ShapeOnly):
            return X.made(shape, other=shape[0] * shape[1])
        return _checked("kernel", self.f(X[:, None, :], Z[None, :, :]), shape, X, self.limit)

    def pull(self, G: Tile, X: Tile, Z: Tile) -> Tile:
        """Return Σ_j G_ij ∂f/∂x_i. Raises ValueError as above."""
        assert self.gradient is not None
        shape = X.shape[0], Z.shape[0], X.shape[1]
        if isinstance(X, ShapeOnly):
            return X.made(X.shape, other=3 * shape[0] * shape[1] * shape[2])
        slopes = _checked(
            "derivative", self.gradient(X[:, None, :], Z[None, :, :]), shape, X, self.limit
        )
        result: Tile = (G[:, :, None] * slopes).sum(axis=1)
        return result


KernelFunction = Radial | Own
"""What programs are given."""


def _checked(what: str, result: Any, shape: tuple[int, ...], like: Tile, limit: float) -> Tile:
    values = np.asarray(result)
    if values.shape != shape:
        raise ValueError(
            f"{what} returned shape {values.shape}; expected {shape}, a value for each pair of "
            "rows that it got"
        )
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{what} returned {values.dtype}; expected real numbers")
    most = np.abs(values.astype(np.float64)).max()
    if not most <= limit:
        raise ValueError(
            f"{what} returned {values.dtype}, at most {most:.3g}; expected finite real numbers up "
            f"to {limit:.3g}"
        )
    return values.astype(like.dtype)


def distances(X: Tile, Z: Tile) -> Tile:
    """Return ‖x − z‖ for each row of X and each of Z."""
    shape = (X.shape[0], Z.shape[0])
    d = X.shape[1]
    if isinstance(X, ShapeOnly):
        return X.made(shape, other=2 * d * shape[0] * shape[1])
    r: Tile = np.abs(X[:, :1] - Z[:, :1].T)
    for c in range(1, d):
        r = np.hypot(r, X[:, c : c + 1] - Z[:, c : c + 1].T)
    return r


def along(W: Tile, r: Tile, X: Tile, Z: Tile) -> Tile:
    """Return Σ_j W_ij (x_i − z_j)/r_ij, (rows of X, d), in which a pair at distance 0 has no
    part.
    """
    if isinstance(X, ShapeOnly):
        return X.made(X.shape, other=4 * X.shape[1] * r.size)
    result: Tile = np.empty_like(X)
    for c in range(X.shape[1]):
        x_minus_z = X[:, c : c + 1] - Z[:, c : c + 1].T
        result[:, c] = (W * np.divide(x_minus_z, r, out=np.zeros_like(r), where=r > 0)).sum(axis=1)
    return result


def kernel_rows(M: int, p: Sizes) -> int:
    """Return ⌈M/2w⌉, w = d + e. ValueError below M = max(d, e)."""
    return paper_rows(M, p.d, p.e)


def x_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c) where X is stationary, w/2 rows of Z a block: K_ij then takes M/4."""
    return rows, min(rows, ceil_div(p.d + p.e, 2))


def z_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c) where Z is stationary."""
    return min(rows, ceil_div(p.d + p.e, 2)), rows


def example(
    rng: np.random.Generator, sizes: Sizes, blocks: Sizes
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a kernel function to try a program with."""
    name = (*PROFILES,)[int(rng.integers(len(PROFILES)))]
    return {}, {"k": Radial(name, float(rng.uniform(0.5, 3)))}


PRODUCT: dict[str, Any] = {
    "source": "Dao et al. 2022, Appendix D.2",
    "operands": {"X": Kind("N", "d"), "Z": Kind("n", "d"), "V": Kind("n", "e")},
    "returns": {"Y": Kind("N", "e")},
    "blocks": {"B_r": "N", "B_c": "n"},
    "rows": kernel_rows,
    "words": ("rows of X", "rows of Z"),
    "example": example,
}
"""What the records of kernel products share."""
