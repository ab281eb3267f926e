"""Cut cross-entropy: its numbers within derived bounds, no logit in HBM, and the bugs that real kernels had."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsim.beyond import cross_entropy
from flashsim.beyond.parts.labels import NONE, at_label, minus_label
from flashsim.reference.logits import cross_entropy as naive
from flashsim.reference.logits import cross_entropy_bounds

from .cases import refused

Array = np.ndarray[Any, Any]


def operands(N: int, v: int, d: int, seed: int = 0, dtype: str = "float64", scale: float = 1.0) -> tuple[Array, ...]:
    """X, E, labels with some −100, and g."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(N) < 0.2, -100, rng.integers(0, v, size=N))
    X, E, g = (scale * rng.normal(size=(N, d)), rng.normal(size=(v, d)), rng.normal(size=N))
    return X.astype(dtype), E.astype(dtype), y, g.astype(dtype)


@given(
    N=st.integers(1, 20), v=st.integers(1, 30), d=st.integers(1, 6), blocks=st.tuples(st.integers(1, 20), st.integers(1, 30)),
    seed=st.integers(0, 99), dtype=st.sampled_from(["float16", "float32", "float64"]), scale=st.sampled_from([0.0, 1.0, 30.0]),
)  # fmt: skip
def test_numbers_are_the_naive_ones_within_their_bounds(
    N: int, v: int, d: int, blocks: tuple[int, int], seed: int, dtype: str, scale: float
) -> None:
    X, E, y, g = operands(N, v, d, seed, dtype, scale)
    want = naive(X, E, y, g)
    bound = cross_entropy_bounds(X, E, y, g, blocks=max(-(-N // blocks[0]), -(-v // blocks[1])), stored=dtype)
    run = cross_entropy.loss(X, E, y, ignore=-100, blocks=blocks, M=10**6)
    for name in ("loss", "L"):
        assert (abs(getattr(run, name) - getattr(want, name)) <= getattr(bound, name)).all(), name
    for to in ("X", "E"):
        back = cross_entropy.gradient(run, g, to=to, blocks=blocks)
        assert (abs(back.arrays[f"d{to}"] - getattr(want, f"d{to}")) <= getattr(bound, f"d{to}")).all(), to
        assert back.hbm == cross_entropy.exact(N=N, v=v, d=d, of=to, blocks=blocks, dtype=dtype).hbm
    assert run.hbm == cross_entropy.exact(N=N, v=v, d=d, blocks=blocks, dtype=dtype).hbm


@pytest.mark.parametrize("sizes", [(1, 1e-42, 1), (1e-42, 1, 1), (1, 1, 1e-42)])
def test_bounds_of_gradients_hold_where_products_vanish(sizes: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(17)
    shapes: tuple[tuple[int, ...], ...] = (9, 3), (25, 3), (9,)
    X, E, g = ((c * rng.normal(size=shape)).astype(np.float32) for c, shape in zip(sizes, shapes, strict=True))
    y = rng.integers(0, 25, 9)
    bound, run = cross_entropy_bounds(X, E, y, g, blocks=25, stored="float32"), cross_entropy.loss(X, E, y)
    for to in ("X", "E"):
        got = cross_entropy.gradient(run=run, g=g, to=to, blocks=(3, 1)).arrays[f"d{to}"]
        assert (abs(got - getattr(naive(X, E, y, g), f"d{to}")) <= getattr(bound, f"d{to}")).all()


def test_the_oracle_s_gradients_are_slopes_of_its_loss() -> None:
    X, E, y, g = operands(6, 5, 3)
    for name, size in (("dX", X.shape), ("dE", E.shape)):
        way = np.random.default_rng(1).normal(size=size)
        dX, dE = (way, 0 * E) if name == "dX" else (0 * X, way)
        there, back = ((g * naive(X + h * dX, E + h * dE, y).loss).sum() for h in (1e-6, -1e-6))
        assert (there - back) / 2e-6 == pytest.approx((getattr(naive(X, E, y, g), name) * way).sum(), rel=1e-6)


@pytest.mark.parametrize("to", ["X", "E"])
def test_large_logits_rounded_otherwise_than_the_loss_s_have_no_weight_above_1(to: str) -> None:
    """Logits of 10¹⁰ in float32, summed over d in other tiles, are hundreds apart: e^{S − L} would be ∞."""
    X, E = (np.random.default_rng(0).normal(scale=1e4, size=(2, 9, 64))).astype(np.float32)
    run = cross_entropy.loss(X, E, np.arange(9), blocks=(9, 9))
    found = cross_entropy.gradient(run, np.ones(9, np.float32), to=to, blocks=(1, 1))
    assert abs(found.arrays[f"d{to}"]).max() < 9 * max(abs(X).max(), abs(E).max())


def test_no_logit_is_in_hbm() -> None:
    tally = cross_entropy.count(N=8192, v=256_000, d=2304, M=10**6)
    assert tally.hbm.extra == 0
    assert sum(a.size * a.itemsize for a in tally.hbm.by_array.values() if a.role == "output") == 2 * 8192 * 4  # 65 KB
    assert 8192 * 256_000 * 4 > 8.3e9  # what they would be


def test_rows_left_out_have_no_part() -> None:
    X, E, y, g = operands(9, 7, 3)
    run = cross_entropy.loss(X, E, y, ignore=-100)
    out = y == -100
    assert out.any()
    assert not run.loss[out].any()
    assert not cross_entropy.gradient(run, g).dX[out].any()
    keep = cross_entropy.loss(X[~out], E, y[~out])
    assert cross_entropy.gradient(run, g, to="E").dE == pytest.approx(cross_entropy.gradient(keep, g[~out], to="E").dE)


def test_what_is_at_a_label() -> None:
    S, y = np.arange(6.0).reshape(2, 3), np.array([[4], [NONE]], np.uint32)
    assert at_label(S, y, 3).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert minus_label(S, y, 3).tolist() == [[0, 0, 2], [0, 0, 0]]


def test_bad_input_is_named() -> None:
    X, E, y, g = operands(5, 4, 2)
    for wrong, match in (
        ([0, 1, 4, 0, 0], "y holds 4; expected labels from 0 to v − 1 = 3; rows to be left out"),
        ([0, 1, -100, 0, 0], "y holds -100"),
        ([0.0] * 5, "y has shape"),
        ([[0, 1]] * 5, "y has shape"),
        ([0, 1], "y has shape"),
    ):
        with pytest.raises(ValueError, match=match):
            cross_entropy.loss(X, E, wrong)
    run = cross_entropy.loss(X, E, y, ignore=-100)
    refused(
        ("ignore is", lambda: cross_entropy.loss(X, E, y, ignore="none")),  # type: ignore[arg-type]
        ("g has shape", lambda: cross_entropy.gradient(run, g[:3])),
        ("to", lambda: cross_entropy.gradient(run, g, to="Y")),
        ("run is 'run'", lambda: cross_entropy.gradient("run", g)),  # type: ignore[arg-type]
        ("too small", lambda: cross_entropy.loss(X, E, y, ignore=-100, M=3)),
        (r"E has shape \(\); expected \(v, d\)", lambda: cross_entropy.loss(X, 3.0, y, ignore=-100)),
        (r"E has shape \(3,\); expected \(v, d\)", lambda: cross_entropy.loss(X, [0, 1, 2], y, ignore=-100)),
        (r"E has shape \(0,\); expected \(v, d\)", lambda: cross_entropy.loss(X, [], y, ignore=-100)),
        ("loss overflows .* Scale X and E down", lambda: cross_entropy.loss(1e200 * X, 1e200 * E, y, ignore=-100)),
    )


def test_without_weights_each_row_counts_once() -> None:
    X, E, y, _ = operands(5, 7, 3, 0, "float64", 1.0)
    for function in (naive, cross_entropy_bounds):
        for found, want in zip(function(X, E, y), function(X, E, y, 1.0), strict=True):
            assert np.array_equal(found, want)
