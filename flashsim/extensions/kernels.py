"""Kernel products: Y_i = Σ_j k(x_i, z_j) v_j, with the matrix K = k(X, Z) in HBM or never formed
(the paper's Appendix D.2).

    # run.Y, run.hbm, run.sram
    run = flashsim.kernels.product(X, Z, V, kernel="gaussian", sigma=0.5)
    back = flashsim.kernels.gradient(run, dY)                                   # back.dX
    # cost, by shapes alone
    flashsim.kernels.count(N=10**6, d=3, M=25_600)
    flashsim.kernels.exact(N=10**6, d=3, M=25_600)                              # cost, by formula

k is "gaussian", e^{−s²/2}, "laplace", e^{−s}, or "cauchy", 1/(1 + s²), of s = ‖x − z‖/σ, or any
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flashsim.attention.arguments import (
    check_array,
    check_choice,
    check_number,
    is_one_of,
    short_repr,
)
from flashsim.attention.inputs import Array, chip_dtype, largest, smallest_normal
from flashsim.attention.options import check_how
from flashsim.extensions.parts.kernel_functions import PROFILES, KernelFunction, Own, Radial
from flashsim.extensions.programs import programs
from flashsim.memory.sram import Observer
from flashsim.simulate.matrices import check_operands, count_program, run_program
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size
from flashsim.theory.closed_form import Exact
from flashsim.theory.matrices import exact_program

ORDERS = ("x_outer", "z_outer", "materialised")
HOW = ("M", "blocks", "sizing", "enforce", "dtype")
"""What `count` and `exact` take besides lengths."""


def product(
    X: Any,
    Z: Any,
    V: Any,
    *,
    kernel: str | Callable[[Any, Any], Any] = "gaussian",
    sigma: float = 1.0,
    order: str = "x_outer",
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return the kernel product Y (N, e) of X (N, d), Z (n, d), V (n, e) as `run.Y`, with what it
    cost.

    kernel  a name; or f(x, z) of arrays (…, d) that broadcast, returning k, (…)
    sigma   the named kernels' width
    order   "x_outer": Y_i stays on chip; "z_outer": Y is added up in HBM; "materialised": K is
            written to HBM and read
    M, blocks, sizing, enforce, observers  as in `flashsim.forward`, but that sizing is "fit" by
                                           default

    X and Z may be (N,) and (n,), points on a line, and V (n,): Y then is (N,). Arrays are of one
    type; 16-bit ones are computed on in float32.

    Raises ValueError for arguments that make no sense, and for inputs so large that a result would
    overflow; SramOverflow.
    """
    name = program_name(order)
    operands = {"X": X, "Z": Z, "V": V}
    flat = check_array("V", V).ndim == 1
    arrays, _, stored = check_operands(programs()[name], operands)
    chip = chip_dtype(stored)
    k = _kernel(kernel, sigma, chip, largest(stored if order == "materialised" else chip))
    if isinstance(k, Radial):
        _check_distances(arrays, k, chip)
    run = run_program(
        programs()[name],
        operands,
        M=M,
        blocks=blocks,
        sizing=sizing,
        enforce=enforce,
        options={"k": k},
        observers=observers,
    )
    return replace(run, arrays={"Y": run.Y[:, 0]}) if flat and run.Y.ndim == 2 else run


def gradient(
    run: Result,
    dY: Any,
    *,
    derivative: Callable[[Any, Any], Any] | None = None,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return the gradient to X of what `product` returned, dX (N, d), as `.dX`, for the gradient
    dY, of Y's shape and X's type.

    derivative  ∂f/∂x, (…, d), of a kernel function f of one's own: needed there, and only there
    M           by default the product's

    A pair at distance 0 has no part: there the named kernels are flat, or, as "laplace", have no
    derivative.
    """
    name = run.algorithm if isinstance(run, Result) else ""
    if name not in [program_name(order) for order in ORDERS]:
        raise ValueError(
            f"run is {short_repr(run)}; expected what flashsim.kernels.product returned"
        )
    plan = run.plan
    k: Any = plan.options["k"]
    if isinstance(k, Own) != (derivative is not None):
        message = (
            "a function ∂f/∂x, as the kernel is a function"
            if isinstance(k, Own)
            else f"none, as {k.name!r} has its own"
        )
        raise ValueError(f"derivative is {short_repr(derivative)}; expected {message}")
    if isinstance(k, Own):
        if not callable(derivative):
            raise ValueError(f"derivative is {short_repr(derivative)}; expected a function")
        k = replace(k, gradient=derivative)
    if (shape := check_array("dY", dY).shape) != run.Y.shape:
        raise ValueError(f"dY has shape {shape}; expected that of Y, {run.Y.shape}")
    return run_program(
        programs()["kernel_gradient"],
        {**plan.arrays, "dY": dY},
        M=plan.M if M is None else M,
        blocks=blocks,
        sizing=sizing,
        enforce=enforce,
        options={"k": k},
        observers=observers,
    )


def count(
    *,
    N: int,
    n: int | None = None,
    d: int,
    e: int = 1,
    order: str = "x_outer",
    direction: str = "forward",
    **how: Any,
) -> Result:
    """Count what a product moves, on lengths alone; or, "backward", its gradient, which has one
    order. n is N by default.

    The rest is `flashsim.simulate.matrices.count_program`'s: M, blocks, sizing, enforce, dtype,
    observers.
    """
    check_how(count, how, (*HOW, "observers"))
    name, sizes = _plan_arguments(order, direction, N, n, d, e)
    return count_program(programs()[name], sizes, options={"k": Radial("gaussian")}, **how)


def exact(
    *,
    N: int,
    n: int | None = None,
    d: int,
    e: int = 1,
    order: str = "x_outer",
    direction: str = "forward",
    **how: Any,
) -> Exact:
    """Return the same by formula, with which `count` agrees by `==`."""
    check_how(exact, how, HOW)
    name, sizes = _plan_arguments(order, direction, N, n, d, e)
    return exact_program(name, sizes, **how)


def program_name(order: Any) -> str:
    """Return which program computes a product in an order. Raises ValueError for other words."""
    return f"kernel_{check_choice('order', order, ORDERS)}"


def _plan_arguments(
    order: Any, direction: Any, N: Any, n: Any, d: Any, e: Any
) -> tuple[str, Mapping[str, Any]]:
    name = program_name(order)
    if check_choice("direction", direction, ("forward", "backward")) == "backward":
        if order != "x_outer":
            raise ValueError(f"order is {order!r}; expected 'x_outer', the gradient's only one")
        name = "kernel_gradient"
    return name, {"N": N, "d": d, "n": N if n is None else n, "e": e}


def _kernel(kernel: Any, sigma: Any, chip: np.dtype[Any], limit: float) -> KernelFunction:
    if is_one_of(kernel, PROFILES):
        least, most = smallest_normal(chip), largest(chip)
        expected = f"a number from {least:.3g} to {most:.3g}, as {chip} holds it"
        return Radial(kernel, check_number("sigma", sigma, expected, lambda s: least <= s <= most))
    if isinstance(kernel, str) or not callable(kernel):
        raise ValueError(
            f"unknown kernel {short_repr(kernel)}; known: {', '.join(map(repr, PROFILES))}, or a "
            "function f(x, z)"
        )
    if not isinstance(sigma, int | float) or sigma != 1:
        raise ValueError(
            f"sigma is {short_repr(sigma)}; expected none, as the kernel is a function"
        )
    return Own(kernel, limit)


def _check_distances(arrays: Mapping[str, Array], k: Radial, chip: np.dtype[Any]) -> None:
    """Refuse clouds so far apart that a distance would overflow the chip's type."""
    X = arrays["X"].astype(float)
    Z = arrays["Z"].astype(float)
    with np.errstate(over="ignore"):
        reach = np.hypot.reduce(np.maximum(X.max(0) - Z.min(0), Z.max(0) - X.min(0)), keepdims=True)
        most = {"‖x − z‖": reach, "‖x − z‖/σ": reach / k.sigma}
    for what, (size,) in most.items():
        if not size < largest(chip) / 4:
            raise ValueError(
                f"X and Z are too far apart: {what} could reach {size:.3g}, and {chip} ends at "
                f"{largest(chip):.3g}. "
                f"Take {'X and Z closer' if what == '‖x − z‖' else 'a larger sigma'}, or a wider "
                "dtype"
            )
