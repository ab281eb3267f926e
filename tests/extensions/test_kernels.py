"""Kernel products: their numbers, within derived bounds; what they cost, within Theorem 2's
constants; the tie to attention.
"""

import math
import re
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import reference, theory
from flashsim.cli import main
from flashsim.extensions import kernels
from flashsim.extensions.parts.kernel_functions import PROFILES, Own, along, distances
from flashsim.learn.examples import kernel_product
from flashsim.memory.shape_only import ShapeOnly
from flashsim.memory.sram import Lifespan
from tests.helpers.counting import moved

Array = np.ndarray[Any, Any]
ORDERS = [*kernels.ORDERS]
KERNELS = [*PROFILES]


def clouds(
    seed: int = 0,
    N: int = 7,
    n: int = 9,
    d: int = 3,
    e: int = 2,
    dtype: str = "float64",
    offset: float = 0.0,
) -> tuple[Array, Array, Array]:
    """X, Z and V, in which a few points coincide, and a few weights are 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, d)) + offset
    Z = rng.normal(size=(n, d)) + offset
    Z[: min(N, n) // 2] = X[: min(N, n) // 2]
    V = rng.exponential(size=(n, e))
    V[rng.random(n) < 0.2] = 0
    return X.astype(dtype), Z.astype(dtype), V.astype(dtype)


# --------------------------------------------------------------------------------------------------
# numbers


@pytest.mark.parametrize("order", ORDERS)
@given(data=st.data())
def test_numbers_are_the_naive_ones_within_their_bounds(order: str, data: st.DataObject) -> None:
    N = data.draw(st.integers(1, 12))
    n = data.draw(st.integers(1, 12))
    d = data.draw(st.integers(1, 12))
    e = data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64"]))
    seed = data.draw(st.integers(0, 99))
    offset = data.draw(st.sampled_from([0.0, 100.0]))
    X, Z, V = clouds(seed, N, n, d, e, dtype, offset)
    sigmas = [1.0, 30.0] if dtype == "float16" else [1e-3, 1.0, 30.0]
    how: dict[str, Any] = {
        "kernel": data.draw(st.sampled_from(KERNELS)),
        "sigma": data.draw(st.sampled_from(sigmas)),
    }
    B_r = data.draw(st.integers(1, 12))
    B_c = data.draw(st.integers(1, 12))
    blocks = B_r, B_c
    run = kernels.product(X, Z, V, order=order, blocks=blocks, **how)
    how_stored: dict[str, Any] = {"blocks": -(-n // B_c), "stored": dtype} | how
    want = reference.kernel_product(X, Z, V, **how)
    bound = reference.kernel_product_bounds(X, Z, V, order=order, **how_stored)
    assert_within(run.Y, want, bound)
    normal = np.random.default_rng(1).normal(size=run.Y.shape)
    dY = normal.astype(dtype)
    back = kernels.gradient(run, dY, blocks=blocks)
    want = reference.kernel_gradient(X, Z, V, dY, **how)
    bound = reference.kernel_gradient_bounds(X, Z, V, dY, **how_stored)
    assert_within(back.dX, want, bound)


def assert_within(result: Array, want: Array, bound: Array) -> None:
    """Each element is within its bound of what is wanted."""
    assert np.isfinite(bound).all()
    assert (np.abs(result.astype(float) - want) <= bound).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_bounds_hold_where_numbers_are_tiny_or_huge(kernel: str) -> None:
    """Squares of distances overflow; products of dY and V vanish, and are divided by a tiny
    sigma.
    """
    rng = np.random.default_rng(0)
    for size, sigma, weight, slope in (
        (1e-10, 1e-10, 1e-20, 1e-25),
        (1e-10, 1e-10, 1, 1e-43),
        (1e25, 1.0, 1, 1),
    ):
        X = size * rng.normal(size=(5, 2)).astype(np.float32)
        Z = size * rng.normal(size=(6, 2)).astype(np.float32)
        V = np.full((6, 1), weight, np.float32)
        dY = np.full(5, 1.23 * slope, np.float32)
        how: dict[str, Any] = {"kernel": kernel, "sigma": sigma}
        run = kernels.product(X, Z, V[:, 0], blocks=(2, 2), **how)
        want = reference.kernel_product(X, Z, V, **how)
        bound = reference.kernel_product_bounds(X, Z, V, blocks=3, stored="float32", **how)
        assert_within(run.Y[:, None], want, bound)
        bound = reference.kernel_gradient_bounds(X, Z, V, dY, blocks=3, stored="float32", **how)
        dX = kernels.gradient(run, dY, blocks=(2, 2)).dX
        assert_within(dX, reference.kernel_gradient(X, Z, V, dY, **how), bound)


def test_bounds_are_not_far_from_what_happens() -> None:
    X, Z, V = clouds(N=60, n=200, dtype="float32")
    for kernel in KERNELS:
        run = kernels.product(X, Z, V, kernel=kernel, blocks=(20, 50))
        bound = reference.kernel_product_bounds(X, Z, V, kernel=kernel, blocks=4, stored="float32")
        error = np.abs(run.Y - reference.kernel_product(X, Z, V, kernel=kernel))
        assert 1e-3 < (error / bound).max() < 1
        assert (bound / np.abs(run.Y)).max() < 1e-3


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_bounds_of_a_single_pair_are_those_derived(kernel: str, order: str) -> None:
    """One point each, d = e = 1, Z in two blocks: the terms of the module's text, one by one."""
    x = 0.75
    z = -1.0
    v = 3.0
    dy = -2.0
    sigma = 0.5
    u = 2.0**-24
    tiny = 2.0**-149
    s = 1.75 / 0.5
    log_k = {
        "gaussian": -s * s / 2,
        "laplace": -s,
        "cauchy": -math.log1p(s * s),
    }[kernel]
    slope = {
        "gaussian": s,
        "laplace": 1.0,
        "cauchy": 2 * s / (1 + s * s),
    }[kernel]
    rho = 5 * u
    exps = 4 * u
    quotient = s * s / (1 + s * s)
    delta = {
        "gaussian": s * s * (rho + u) + exps,
        "laplace": s * rho + exps,
        "cauchy": (2 * rho + 2 * u) * quotient - 4 * u * log_k + 2 * exps,
    }[kernel]
    stores = {"x_outer": 1, "z_outer": 3, "materialised": 1}[order]
    stored_K = 1 if order == "materialised" else 0
    k = math.exp(log_k)
    more = math.exp(log_k + 2 * delta)
    off = more - k + k * (1 + 2 * 2 + 8 + stores + stored_K) * u
    steps = (1 + stored_K) * tiny * (v + 1) + stores * tiny
    how: dict[str, Any] = {
        "kernel": kernel,
        "sigma": sigma,
        "blocks": 2,
        "stored": "float32",
    }
    bound = reference.kernel_product_bounds([[x]], [[z]], [[v]], order=order, **how)
    assert bound == pytest.approx(2 * (off * v + steps), rel=1e-9)
    times = 3 if kernel == "cauchy" else 1
    pair = (more - k) * times + k * ((1 + 2 + 4 + 16 + 1 + 4) * u + u)
    product = abs(dy) * v
    steps = tiny * ((1 + product) * (1 + slope) / sigma + 1) + tiny
    bound = reference.kernel_gradient_bounds([[x]], [[z]], [[v]], [[dy]], **how)
    want = product * slope * pair / sigma + steps
    assert bound == pytest.approx(2 * want, rel=1e-9)


ORACLES: tuple[tuple[Any, tuple[Array, ...]], ...] = (  # and what they take besides X, Z and V: dY
    (reference.kernel_product, ()),
    (reference.kernel_product_bounds, ()),
    (reference.kernel_gradient, (np.ones((7, 2)),)),
    (reference.kernel_gradient_bounds, (np.ones((7, 2)),)),
)


def test_defaults_of_the_oracle_are_those_of_its_docstrings() -> None:
    X, Z, V = clouds()
    how: dict[str, Any] = {"kernel": "gaussian", "sigma": 1.0}
    for function, more in ORACLES:
        by_default = function(X, Z, V, *more)
        assert np.array_equal(by_default, function(X, Z, V, *more, **how))


def test_operations_of_directions() -> None:
    """A difference, a quotient, a product and a sum, for each pair and each coordinate."""

    class Counter:
        other = 0
        lifespan = Lifespan()

        def count_flops(self, *, matmul: int = 0, other: int = 0) -> None:
            self.other += matmul + other

    counter = Counter()
    X = cast("Any", ShapeOnly((2, 5), counter))
    Z = cast("Any", ShapeOnly((3, 5), counter))
    W = cast("Any", ShapeOnly((2, 3), counter))
    assert along(W, W, X, Z).shape == (2, 5)
    assert counter.other == 4 * 2 * 3 * 5
    counter.other = 0
    own = Own(max, 1.0, max)
    assert own.pull(W, X, Z).shape == (2, 5)  # a gradient of one's own, a product and a sum
    assert counter.other == 3 * 2 * 3 * 5


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_oracles_gradient_is_the_slope_of_its_product(kernel: str) -> None:
    X, Z, V = clouds(e=1)
    Z += 0.1  # no pair at distance 0
    how: dict[str, Any] = {"kernel": kernel, "sigma": 1.5}
    dY = np.linspace(-1, 1, len(X))[:, None]
    step = 1e-6
    want = np.empty_like(X)
    for i, c in np.ndindex(X.shape):
        there = X.copy()
        here = X.copy()
        there[i, c] += step
        here[i, c] -= step
        above = reference.kernel_product(there, Z, V, **how)
        below = reference.kernel_product(here, Z, V, **how)
        want[i, c] = (dY * (above - below)).sum() / (2 * step)
    gradient = reference.kernel_gradient(X, Z, V, dY, **how)
    assert np.abs(gradient - want).max() < 1e-8


def test_any_function_is_a_kernel() -> None:
    X, Z, V = clouds(e=1)

    def f(x: Array, z: Array) -> Array:
        squares = ((x - z) ** 2).sum(axis=-1)
        return np.asarray(np.exp(-squares / 2))

    def df(x: Array, z: Array) -> Array:
        return (z - x) * f(x, z)[..., None]

    named = kernels.product(X, Z, V)
    own = kernels.product(X, Z, V, kernel=f)
    dY = np.ones_like(named.Y)
    assert np.allclose(own.Y, named.Y, rtol=1e-14, atol=0)
    assert np.allclose(
        kernels.gradient(own, dY, derivative=df).dX,
        kernels.gradient(named, dY).dX,
        rtol=0,
        atol=1e-13,
    )
    assert own.hbm == named.hbm


def test_lists_a_flat_column_and_points_on_a_line_are_taken_and_not_modified() -> None:
    inputs = X, Z, V = clouds(e=1)
    before = [a.copy() for a in inputs]
    flat = kernels.product(X, Z, V[:, 0])
    column = kernels.product(X, Z, V)
    assert flat.Y.shape == (7,)
    assert column.Y.shape == (7, 1)
    dX = kernels.gradient(column, column.Y).dX
    assert np.array_equal(kernels.gradient(flat, flat.Y).dX, dX)
    for operand, copy in zip(inputs, before, strict=True):
        assert np.array_equal(operand, copy)
    X[:] = 0  # nor does the gradient see what becomes of them
    assert np.array_equal(kernels.gradient(column, column.Y).dX, dX)
    run = kernels.product([0, 1, 3], [0.0, 2.0], [1, 2])
    assert run.Y.dtype == np.float64
    assert pytest.approx([1.2707, 1.8196, 1.2242], abs=1e-4) == run.Y
    of_float32 = kernels.product(np.ones(2, np.float32), [0, 1], [1, 2])
    assert of_float32.Y.dtype == np.float32
    assert kernels.gradient(run, [0, 0, 0]).dX.shape == (3, 1)


def test_far_from_the_origin_squares_cancel_and_differences_do_not() -> None:
    X, Z, V = clouds(N=40, n=50, dtype="float32", offset=1e4)
    want = reference.kernel_product(X, Z, V)
    squares_of_X = (X**2).sum(1)[:, None]
    squares_of_Z = (Z**2).sum(1)[None]
    squares = squares_of_X + squares_of_Z - 2 * (X @ Z.T)
    error = np.abs(np.exp(-squares / 2) @ V - want)
    assert error.max() > 0.5 * np.abs(want).max()
    bound = reference.kernel_product_bounds(X, Z, V, blocks=5, stored="float32")
    run = kernels.product(X, Z, V, blocks=(10, 10))
    assert (np.abs(run.Y - want) <= bound).all()
    assert (bound < 1e-4 * np.abs(want).max()).all()


def test_the_worked_example_shows_what_cancels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "kernel_product"]) == 0
    output = capsys.readouterr().out
    run = kernel_product.compute()
    assert all(f"{each.squares:.1e}" in output for each in run.far)
    near, *_, far = run.far
    assert max(near.squares, near.differences, far.differences) < 1e-5
    assert far.squares > 10


@pytest.mark.parametrize("size", [1e-170, 1e170])
def test_distances_neither_overflow_nor_vanish_on_the_way(size: float) -> None:
    X = np.array([[3 * size, 0]])
    Z = np.array([[0, 4 * size]])
    assert distances(X, Z) == pytest.approx(5 * size, rel=1e-15)
    run = kernels.product(X, Z, np.ones(1), kernel="laplace", sigma=size)
    assert pytest.approx(np.exp(-5), rel=1e-14) == run.Y
    dX = kernels.gradient(run, np.ones(1)).dX
    direction = np.array([[-0.6, 0.8]])
    assert dX == pytest.approx(np.exp(-5) * direction / size, rel=1e-14)


# --------------------------------------------------------------------------------------------------
# tie to attention


@pytest.mark.parametrize("order", ORDERS)
def test_attention_is_a_kernel_product_with_one_more_column(order: str) -> None:
    Q = np.random.default_rng(0).normal(size=(11, 4))
    K = np.random.default_rng(1).normal(size=(11, 4))
    V = np.random.default_rng(2).normal(size=(11, 4))

    def weight(q: Array, k: Array) -> Array:
        score = (q * k).sum(axis=-1) / 2
        return np.asarray(np.exp(score))

    how: dict[str, Any] = {"order": order, "blocks": (3, 4)}
    V_and_ones = np.hstack([V, np.ones((11, 1))])
    run = kernels.product(Q, K, V_and_ones, kernel=weight, **how)
    sums = run.Y[:, -1:]
    want = reference.attention(Q, K, V)
    bound = reference.error_bound(Q, K, V, steps=3)
    assert (np.abs(run.Y[:, :-1] / sums - want) <= bound).all()
    attention = flashsim.forward("q_outer", Q, K, V, blocks=(3, 4), M=1000)
    assert attention.lse is not None
    assert np.allclose(np.log(sums[:, 0]), attention.lse, rtol=0, atol=1e-14)
    if order == "x_outer":  # the accesses too: it has one more column of V and O, and no L
        one_more = flashsim.count("q_outer", N=11, d=4, d_v=5, blocks=(3, 4), M=1000)
        assert run.hbm.accesses == one_more.hbm.accesses - one_more.hbm.by_array["L"].accesses


# --------------------------------------------------------------------------------------------------
# counts


@pytest.mark.parametrize("order", ORDERS)
@given(data=st.data())
def test_theorem_2_carries_over_with_its_constants(order: str, data: st.DataObject) -> None:
    d = data.draw(st.integers(1, 40))
    e = data.draw(st.integers(1, 40))
    w = d + e
    N = data.draw(st.integers(40, 10**6))
    n = data.draw(st.integers(40, 10**6))
    least = max(2 * w, w * w if order == "materialised" else 0, max(d, e))
    most = w * min(N, n)
    if least > most:
        return
    M = data.draw(st.integers(least, most))
    exact = kernels.exact(N=N, n=n, d=d, e=e, M=M, order=order, sizing="paper")
    bound = (
        N * n + (N + n) * w
        if order == "materialised"
        else theory.kernel_product_bound(N, n, d, e, M)
    )
    low, high = getattr(theory, f"kernel_{order}_constants")()
    assert low * bound <= exact.hbm.accesses <= high * bound


def test_a_million_points_in_three_dimensions_move_1600_times_fewer() -> None:
    how: dict[str, Any] = {
        "N": 10**6,
        "d": 3,
        "M": 25_600,
        "sizing": "paper",
    }
    fused = kernels.count(**how)
    naive = kernels.count(**how, order="materialised")
    assert naive.hbm.accesses / fused.hbm.accesses == pytest.approx(1600, rel=0.01)
    assert fused.hbm.extra == 0
    assert naive.hbm.extra == 10**12
    assert fused.hbm == kernels.exact(**how).hbm
    assert naive.hbm == kernels.exact(**how, order="materialised").hbm


def test_counts_by_hand() -> None:
    """N = 5, n = 4, d = 2, e = 1 in blocks of 2 × 3: T_r = 3, T_c = 2."""
    traffic = {}
    for order in ORDERS:
        tally = kernels.count(N=5, n=4, d=2, blocks=(2, 3), order=order)
        traffic[order] = moved(tally)
    assert traffic == {
        "x_outer": {
            "X": (10, 0),
            "Z": (24, 0),
            "V": (12, 0),
            "Y": (0, 5),
        },
        "z_outer": {
            "X": (20, 0),
            "Z": (8, 0),
            "V": (4, 0),
            "Y": (10, 15),
        },
        "materialised": {
            "X": (10, 0),
            "Z": (24, 0),
            "V": (12, 0),
            "Y": (0, 5),
            "K": (20, 20),
        },
    }


# --------------------------------------------------------------------------------------------------
# bad input


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"kernel": "gauss"},
            "unknown kernel 'gauss'; known: 'gaussian', 'laplace', 'cauchy', or a function f(x, z)",
        ),
        ({"sigma": 0}, "sigma is 0; expected a number from 2.23e-308 to 1.8e+308"),
        ({"sigma": float("nan")}, "sigma is nan; expected a number from 2.23e-308"),
        ({"sigma": float("inf")}, "sigma is inf; expected a number from 2.23e-308"),
        ({"order": "y"}, "order is 'y'; expected 'x_outer' or 'z_outer' or 'materialised'"),
        ({"kernel": max, "sigma": 2}, "sigma is 2; expected none, as the kernel is a function"),
        (
            {"kernel": lambda x, z: 1.0},
            "kernel returned shape (); expected (7, 3), a value for each pair of rows that it got",
        ),
        (
            {"kernel": lambda x, z: (x * z).sum(-1) * np.nan},
            "kernel returned float64, at most nan; expected finite real numbers",
        ),
        (
            {"kernel": lambda x, z: (x * z).sum(-1) * 1j},
            "kernel returned complex128; expected real numbers",
        ),
        ({"Z": np.ones((9, 2))}, "Z has shape (9, 2); expected (n, d) with d = 3, as X has"),
        ({"V": np.ones((8, 2))}, "V has shape (8, 2); expected (n, e) with n = 9, as Z has"),
        ({"V": np.full((9, 2), 1e308)}, "Y overflows float64, which ends at 1.8e+308"),
        ({"V": np.full((9, 2), -1e308)}, "Y overflows float64, which ends at 1.8e+308"),
        (
            {
                "X": np.full((7, 3), 9e307),
                "Z": np.full((9, 3), -9e307),
                "sigma": 1e308,
            },
            "X and Z are too far apart",
        ),
        ({"sigma": 1e-307, "X": np.full((7, 3), 1e3)}, "X and Z are too far apart"),
        (
            {"sigma": 1e-310},
            "sigma is 1e-310; expected a number from 2.23e-308 to 1.8e+308, as float64 holds it",
        ),
        (
            {"kernel": max, "sigma": np.ones(2)},
            "sigma is array([1., 1.]); expected none, as the kernel is a function",
        ),
        ({"M": 3}, "M = 3 elements is too small for 'kernel_x_outer' even with blocks of one row"),
        ({"blocks": (0, 1)}, "blocks, B_r, is 0; expected at least 1"),
    ],
)
def test_bad_input_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    X, Z, V = clouds()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        kernels.product(**{"X": X, "Z": Z, "V": V, **wrong})


def test_sigma_and_distances_must_be_numbers_of_the_chip_s_type() -> None:
    X, Z, V = clouds(dtype="float32")
    message = r"^sigma is .*; expected a number from 1\.18e-38 to 3\.4e\+38, as float32 holds"
    for sigma in (1e-50, 1e-40, 1e39):
        with pytest.raises(ValueError, match=message):
            kernels.product(X, Z, V, sigma=sigma)
    # in float64 their distance is a number
    X = np.full((3, 1), 2e38, np.float32)
    Z = -X
    with pytest.raises(
        ValueError, match=r"X and Z are too far apart: .* 4e\+38, and float32 ends at 3.4e\+38"
    ):
        kernels.product(X, Z, np.ones((3, 1), np.float32))


def inner_product(x: Array, z: Array) -> Any:
    return (x * z).sum(-1)


def test_bad_input_of_a_gradient_is_refused_by_name() -> None:
    X, Z, V = clouds()
    run = kernels.product(X, Z, V)
    own = kernels.product(X, Z, V, kernel=inner_product)
    for arguments, message in (
        ((run, np.ones(7)), r"dY has shape \(7,\); expected that of Y, \(7, 2\)"),
        ((own, run.Y), "derivative is None; expected a function ∂f/∂x"),
        (
            (kernels.gradient(run, run.Y), run.Y),
            "run is Result.*; expected what flashsim.kernels.product returned",
        ),
        ((3, run.Y), "run is 3; expected"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            kernels.gradient(*arguments)
    with pytest.raises(ValueError, match="derivative is 3; expected a function"):
        kernels.gradient(own, own.Y, derivative=3)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"derivative is .*; expected none, as 'gaussian' has its own"
    ):
        kernels.gradient(run, run.Y, derivative=lambda x, z: x)
    with pytest.raises(
        ValueError, match="order is 'z_outer'; expected 'x_outer', the gradient's only one"
    ):
        kernels.count(N=5, d=2, order="z_outer", direction="backward")


def test_what_does_not_fit_the_type_that_it_is_stored_in_is_refused() -> None:
    X, Z, V = clouds(e=1, dtype="float16")

    def large(x: Array, z: Array) -> Any:
        return inner_product(x, z) * 0 + 1e5

    run = kernels.product(X, Z, V / 100, kernel=large)
    assert np.isfinite(run.Y).all()
    message = (
        r"kernel returned float32, at most 1e\+05; expected finite real numbers up to 6.55e\+04"
    )
    with pytest.raises(ValueError, match=message):
        kernels.product(X, Z, V / 100, order="materialised", kernel=large)


# --------------------------------------------------------------------------------------------------
# PyKeOps


def test_numbers_are_keops() -> None:
    keops = pytest.importorskip(
        "pykeops.numpy",
        reason="PyKeOps is not installed: pip install pykeops (it needs a C++ compiler)",
    )
    X, Z, V = clouds(N=30, n=40)
    x = keops.LazyTensor(X[:, None, :])
    z = keops.LazyTensor(Z[None, :, :])
    squares = ((x - z) ** 2).sum(-1)
    named = {
        "gaussian": (-squares / 2).exp(),
        "laplace": (-squares.sqrt()).exp(),
        "cauchy": 1 / (1 + squares),
    }
    for kernel, k in named.items():
        run = kernels.product(X, Z, V, kernel=kernel)
        assert np.allclose(k @ V, run.Y, rtol=1e-13, atol=0)
