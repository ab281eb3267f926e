"""Kernel products and their gradients in plain NumPy, and how far rounding may lead from them,
element by element.

The oracle forms all N × n × d differences, in float64; its own error is within the bounds given
here for chip=float64.

Bounds. u is the chip's unit roundoff, r = ‖x − z‖, s = r/σ. A difference of two numbers is off by u
relatively, each hypot and the division by σ by about u more: s by ρ = (2d + 3)u relatively. So log
k is off by

    δ = s²(ρ + u)  gaussian      sρ  laplace      (2ρ + 2u)·s²/(1 + s²) + 4u·(|log k| + 1)  cauchy

absolutely, and, exponentials included, k by e^{δ + 4u} − 1 relatively. Where clouds lie far from
the origin nothing changes: only differences enter. Sums of n terms in T blocks are off by (n + 2T +
8)u of the sum of their magnitudes; what is stored in another type, by its roundoff each time; what
vanishes, by the chip's smallest step, times what it is multiplied with. First-order terms are taken
`C` times, 2 by default, for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flashsim.attention.arguments import check_choice
from flashsim.attention.inputs import Array
from flashsim.reference.operands import (
    ResultsAndBounds,
    float_type,
    oracle,
    positive,
    roundoffs,
    whole_number,
)

KERNELS = ("gaussian", "laplace", "cauchy")
OPERANDS = {"X": ("N", "d"), "Z": ("n", "d"), "V": ("n", "e")}


@oracle(OPERANDS, sigma=positive)
def kernel_product(
    X: Any, Z: Any, V: Any, *, kernel: str = "gaussian", sigma: float = 1.0
) -> Array:
    """Return Y_i = Σ_j k(x_i, z_j) v_j, (N, e). Raises ValueError."""
    return np.asarray(np.exp(_log(kernel, _distances(X, Z) / sigma)) @ V)


@oracle(OPERANDS | {"dY": ("N", "e")}, sigma=positive)
def kernel_gradient(
    X: Any, Z: Any, V: Any, dY: Any, *, kernel: str = "gaussian", sigma: float = 1.0
) -> Array:
    """Return the gradient to X of the same, (N, d), for dY of its shape. A pair at distance 0
    has no part. Raises ValueError.
    """
    s = _distances(X, Z) / sigma
    along = _directions(X, Z)
    weights = (dY @ V.T) * np.exp(_log(kernel, s))
    return np.asarray(np.einsum("ij,ijc->ic", -weights * _steepness(kernel, s) / sigma, along))


@oracle(OPERANDS, sigma=positive, blocks=whole_number, stored=float_type, C=positive)
def kernel_product_bounds(
    X: Any,
    Z: Any,
    V: Any,
    *,
    kernel: str = "gaussian",
    sigma: float = 1.0,
    order: str = "x_outer",
    blocks: int = 1,
    stored: DTypeLike = "float64",
    C: float = 2.0,
) -> Array:
    """Return how far each element of Y may lie from exact arithmetic, (N, e).

    `blocks` is T_c, in how many blocks Z comes; `stored` the operands' type. "z_outer" rounds Y to
    it in each block, and "materialised" K, once.
    """
    rounded = {"x_outer": (1, 0), "z_outer": (blocks + 1, 0), "materialised": (1, 1)}
    stores, stored_K = rounded[check_choice("order", order, rounded)]
    (u, u_s, least, step), n = roundoffs(stored), len(V)
    log_k, delta = _rounded_log(kernel, X, Z, sigma, u)
    terms = (n + 2 * blocks + 8) * u
    k = np.exp(log_k)
    off = np.exp(log_k + C * delta) - k + k * (terms + stores * u_s + stored_K * u_s)
    steps = least + stored_K * step  # of what is too small for full precision
    return np.asarray(C * (off @ np.abs(V) + n * steps * (np.abs(V).max() + 1) + stores * step))


@oracle(
    OPERANDS | {"dY": ("N", "e")},
    sigma=positive,
    blocks=whole_number,
    stored=float_type,
    C=positive,
)
def kernel_gradient_bounds(
    X: Any,
    Z: Any,
    V: Any,
    dY: Any,
    *,
    kernel: str = "gaussian",
    sigma: float = 1.0,
    blocks: int = 1,
    stored: DTypeLike = "float64",
    C: float = 2.0,
) -> Array:
    """Return how far each element of dX may lie from exact arithmetic, (N, d).

    A pair adds |dY_i · v_j| times the slope of k, of which dY·v is off by (e + 2)u of |dY|·|v|, k
    as above, s by ρ, and the direction (x − z)/r by (2d + 4)u.
    """
    (u, u_s, least, step), (n, e), d = roundoffs(stored), V.shape, X.shape[1]
    log_k, delta = _rounded_log(kernel, X, Z, sigma, u)
    s = _distances(X, Z) / sigma
    along = np.abs(_directions(X, Z))
    weight = np.abs(dY) @ np.abs(V).T
    k = np.exp(log_k)
    more = np.exp(log_k + C * delta)
    slopes = _steepness(kernel, s)
    relative = (e + 2 + 4 * d + 16 + n + 2 * blocks) * u + u_s
    times = {"cauchy": 3}.get(kernel, 1)  # k, s and 1 + s² are each off in its slope
    pairs = weight * slopes * ((more - k) * times + k * relative) / sigma
    steps = n * least * ((1 + weight.max()) * (1 + slopes.max()) / sigma + 1) + step
    return np.asarray(C * (np.einsum("ij,ijc->ic", pairs, along) + steps))


def _distances(X: Array, Z: Array) -> Array:
    return np.asarray(np.sqrt(((X[:, None] - Z[None]) ** 2).sum(axis=-1)))


def _directions(X: Array, Z: Array) -> Array:
    between = X[:, None] - Z[None]
    r = _distances(X, Z)[..., None]
    return np.asarray(np.divide(between, r, out=np.zeros_like(between), where=r > 0))


def _log(kernel: str, s: Array) -> Array:
    """Return log k. No square overflows: where s² would, e^{−s²/2} is 0."""
    if check_choice("kernel", kernel, KERNELS) == "gaussian":
        return -(np.minimum(s, 1e154) ** 2) / 2
    with np.errstate(divide="ignore"):
        return -s if kernel == "laplace" else -np.logaddexp(0, 2 * np.log(s))


def _steepness(kernel: str, s: Array) -> Array:
    """Return −d log k/ds."""
    if kernel == "gaussian":
        return s
    return np.ones_like(s) if kernel == "laplace" else 2 * s / np.hypot(1, s) / np.hypot(1, s)


def _rounded_log(kernel: str, X: Any, Z: Any, sigma: float, u: float) -> tuple[Array, Array]:
    s = _distances(X, Z) / sigma
    log_k = _log(kernel, s)
    rho = (2 * X.shape[1] + 3) * u
    match kernel:
        case "gaussian":
            return log_k, -2 * log_k * (rho + u) + 4 * u
        case "laplace":
            return log_k, s * rho + 4 * u
        case _:
            return log_k, (2 * rho + 2 * u) * (s / np.hypot(1, s)) ** 2 - 4 * u * log_k + 8 * u


def _product(
    order: str, arguments: Mapping[str, Any], blocks: Mapping[str, int]
) -> ResultsAndBounds:
    operands = (arguments["X"], arguments["Z"], arguments["V"])
    k = arguments["k"]
    how: dict[str, Any] = {"kernel": k.name, "sigma": k.sigma}
    bound = kernel_product_bounds(
        *operands, **how, order=order, blocks=-(-len(operands[1]) // blocks["B_c"])
    )
    return {"Y": (kernel_product(*operands, **how), bound)}


def _gradient(arguments: Mapping[str, Any], blocks: Mapping[str, int]) -> ResultsAndBounds:
    operands = (arguments["X"], arguments["Z"], arguments["V"], arguments["dY"])
    k = arguments["k"]
    how: dict[str, Any] = {"kernel": k.name, "sigma": k.sigma}
    bound = kernel_gradient_bounds(*operands, **how, blocks=-(-len(operands[1]) // blocks["B_c"]))
    return {"dX": (kernel_gradient(*operands, **how), bound)}


NAIVE = {
    "kernel_x_outer": partial(_product, "x_outer"),
    "kernel_z_outer": partial(_product, "z_outer"),
    "kernel_materialised": partial(_product, "materialised"),
    "kernel_gradient": _gradient,
}
