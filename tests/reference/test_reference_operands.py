"""What the oracles beyond attention are given: refused by name where it does not fit, and
results that float64 does not hold.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from flashsim import reference

rng = np.random.default_rng(0)
X = rng.normal(size=(7, 3))
Z = rng.normal(size=(5, 3))
V = rng.normal(size=(5, 2))
Q = rng.normal(size=(7, 3))
K = rng.normal(size=(7, 3))
W = rng.normal(size=(4, 3))
E = rng.normal(size=(4, 7))
values = rng.normal(size=(7, 2))
HIDDEN = rng.normal(size=(3, 8))
OUT = rng.normal(size=(8, 2))
buckets = np.arange(14).reshape(2, 7) % 3
KERNELS = (reference.kernel_product, reference.kernel_product_bounds)
GRADIENTS = (reference.kernel_gradient, reference.kernel_gradient_bounds)
MLP = (reference.sparse_mlp, reference.sparse_mlp_bounds)
LINFORMER = (reference.linformer, reference.linformer_bounds)
PERFORMER = (reference.performer, reference.performer_bounds)
REFORMER = (reference.reformer, reference.reformer_bounds)
SMYRF = (reference.smyrf, reference.smyrf_bounds)

GIVEN: list[tuple[tuple[Callable[..., Any], ...], dict[str, Any]]] = [
    (KERNELS, {"X": X, "Z": Z, "V": V}),
    (GRADIENTS, {"X": X, "Z": Z, "V": V, "dY": values}),
    (MLP, {"X": X, "W1": HIDDEN, "W2": OUT}),
    (LINFORMER, {"Q": Q, "K": K, "V": values, "E": E, "F": E}),
    (PERFORMER, {"Q": Q, "K": K, "V": values, "W": W}),
    (REFORMER, {"Q": Q, "K": K, "V": values, "buckets": buckets, "C": 3}),
    (SMYRF, {"Q": Q, "K": K, "V": values, "hashes_Q": buckets, "hashes_K": buckets, "C": 3}),
]
EACH = [
    pytest.param(function, given, id=function.__name__)
    for functions, given in GIVEN
    for function in functions
]


HOW = ("stored", "blocks", "sigma", "scale", "phi", "order", "kernel", "C", "factor")


def numbers(result: Any) -> np.ndarray[Any, Any]:
    arrays = result if isinstance(result, tuple) else (result,)
    return np.concatenate([np.ravel(array) for array in arrays])


@pytest.mark.parametrize(("function", "inputs"), EACH)
def test_what_is_none_is_refused_by_name(
    function: Callable[..., Any], inputs: dict[str, Any]
) -> None:
    assert np.isfinite(numbers(function(**inputs))).all()
    for name in inputs.keys() - {"C"}:
        shapes = [np.zeros(shape) for shape in ((2, 2, 2), (0, 3), (9, 9))]
        not_real = (inputs[name] * np.nan, inputs[name] * 1j)
        for wrong in ("x", *shapes, *not_real):
            with pytest.raises(
                ValueError, match=rf"^{name} (has|is|holds) |^\w+ has shape .* as {name} has"
            ):
                function(**{**inputs, name: wrong})
    for how in HOW:
        if how in (function.__kwdefaults__ or {}) or how in inputs:
            with pytest.raises(ValueError, match=f"^{how}.*none such"):
                function(**{**inputs, how: "none such"})


@pytest.mark.parametrize("size", [1e100, 1e200, 1e300])
@pytest.mark.parametrize(("function", "inputs"), EACH)
def test_finite_operands_never_make_nan(
    function: Callable[..., Any], inputs: dict[str, Any], size: float
) -> None:
    grown = {
        name: x * size if np.ndim(x) and np.asarray(x).dtype == float else x
        for name, x in inputs.items()
    }
    with suppress(ValueError):
        assert np.isfinite(numbers(function(**grown))).all()


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            reference.kernel_product,
            {"X": X, "Z": Z, "V": V, "sigma": 0.0},
            "sigma is 0.0; expected a finite number above 0",
        ),
        (
            reference.performer,
            {"Q": Q, "K": K, "V": values, "W": W, "scale": -1.0},
            "scale is -1.0; expected a finite number of",
        ),
        (
            reference.sparse_mlp,
            {"X": X, "W1": HIDDEN, "W2": OUT, "keep1": np.ones((4, 8), bool)},
            "keep1 has shape (4, 8)",
        ),
        (
            reference.sparse_mlp,
            {"X": X, "W1": HIDDEN, "W2": OUT, "keep2": np.ones((8, 2))},
            "keep2 has dtype float64",
        ),
        (
            reference.smyrf,
            {**GIVEN[-1][1], "hashes_K": buckets[:1]},
            "hashes_Q has 2 rounds, hashes_K 1; expected as many",
        ),
    ],
)
def test_what_else_does_not_fit_is_named(
    function: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=f"^{pattern}"):
        function(**arguments)


def test_one_column_may_be_flat_and_lists_are_taken() -> None:
    product = reference.kernel_product([0.0, 1.0], [0.0], [1.0])
    assert product.tolist() == [[1.0], [np.exp(-0.5)]]
