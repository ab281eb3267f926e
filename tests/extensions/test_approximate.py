"""What Figure 3 compares with: each method's numbers within derived bounds of its own formula,
its counts, and planted bugs.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsim import reference
from flashsim.extensions import approximate
from flashsim.reference import of_bound
from tests.helpers.cases import operands, refused

Array = np.ndarray[Any, Any]


def mixtures(
    k: int,
    N: int,
    seed: int = 0,
    dtype: str = "float64",
) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed + 1000)
    normal = rng.normal(size=(2, k, N)).astype(dtype)
    root = dtype_of(dtype)(max(k, 1) ** 0.5)
    E, F = normal / root
    return E, F


def dtype_of(dtype: str) -> Any:
    return np.dtype(dtype).type


sizes = {
    "N": st.integers(1, 40),
    "d": st.integers(1, 9),
    "e": st.integers(1, 9),
    "k": st.integers(1, 20),
    "blocks": st.tuples(*[st.integers(1, 25)] * 4),
    "seed": st.integers(0, 99),
    "dtype": st.sampled_from(["float16", "float32", "float64"]),
    "scale": st.sampled_from([None, 0.0, 0.7, -0.3]),
}


@given(**sizes)
def test_linformers_numbers_are_its_formulas_within_their_bound(
    N: int,
    d: int,
    e: int,
    k: int,
    blocks: tuple[int, int, int, int],
    seed: int,
    dtype: str,
    scale: float | None,
) -> None:
    shape = {"N": N, "d": d, "e": e, "k": k}
    inputs = *operands(N, d, e, seed, dtype), *mixtures(k, N, seed, dtype)
    run = approximate.linformer(*inputs, scale=scale, blocks=blocks)
    parts = -(-N // blocks[1]), -(-k // blocks[3])
    bound = reference.linformer_bounds(*inputs, scale=scale, blocks=parts, stored=dtype)
    want = reference.linformer(*inputs, scale=scale)
    assert of_bound(run.O, want.O, bound.O) <= 1
    assert of_bound(run.L, want.L, bound.L) <= 1
    exact = approximate.exact("linformer", **shape, blocks=blocks, dtype=dtype)
    assert run.hbm == exact.hbm


@pytest.mark.parametrize("phi", approximate.PHI)
@given(**{**sizes, "scale": st.sampled_from([None, 0.0, 0.7])})
def test_performers_numbers_are_its_formulas_within_their_bound(
    phi: str,
    N: int,
    d: int,
    e: int,
    k: int,
    blocks: tuple[int, int, int, int],
    seed: int,
    dtype: str,
    scale: float | None,
) -> None:
    shape = {"N": N, "d": d, "e": e, "k": k}
    W = approximate.features(k, d, seed=seed, dtype=dtype)
    inputs = *operands(N, d, e, seed, dtype), W
    run = approximate.performer(*inputs, scale=scale, phi=phi, blocks=blocks)
    parts = -(-N // blocks[1]), -(-k // blocks[3])
    bound = reference.performer_bounds(*inputs, scale=scale, phi=phi, blocks=parts, stored=dtype)
    want = reference.performer(*inputs, scale=scale)
    assert of_bound(run.O, want, bound) <= 1
    exact = approximate.exact(approximate.PHI[phi], **shape, blocks=blocks, dtype=dtype)
    assert run.hbm == exact.hbm


def test_linformers_bound_holds_where_products_vanish() -> None:
    """F V sums 40 products below the smallest float32 of full precision."""
    Q, K, V = operands(40, 3, 2, dtype="float32")
    E, F = mixtures(1, 40, dtype="float32")
    V[:] = 1.3e-44
    F[:] = 0.4
    run = approximate.linformer(Q, K, V, E, F, blocks=(4, 4, 1, 1))
    want = reference.linformer(Q, K, V, E, F)
    bound = reference.linformer_bounds(Q, K, V, E, F, blocks=(10, 1), stored="float32")
    assert (abs(run.O - want.O) <= bound.O).all()


def test_performer_is_the_quotient_of_its_paper() -> None:
    Q, K, V = operands(9, 4, 3)
    W = approximate.features(6, 4, seed=1)

    def phi(X: Array) -> Array:
        x = X / 4**0.25
        squares = (x * x).sum(1, keepdims=True)
        features: Array = np.exp(x @ W.T - squares / 2)
        return features

    weights = phi(Q) @ phi(K).T
    quotient = weights @ V / weights.sum(1, keepdims=True)
    assert reference.performer(Q, K, V, W) == pytest.approx(quotient)
    run = approximate.performer(Q, K, V, W, blocks=(2, 3, 4, 3))
    assert pytest.approx(quotient) == run.O


def test_performer_overflows_nowhere_where_features_would() -> None:
    Q, K, V = (40 * x for x in operands(9, 4, 3))  # e^{1600 · 4}, and log φ(K) below −1000
    W = approximate.features(6, 4, seed=1)
    bound = reference.performer_bounds(Q, K, V, W)
    run = approximate.performer(Q, K, V, W)
    want = reference.performer(Q, K, V, W)
    assert of_bound(run.O, want, bound) <= 1


def test_with_many_features_it_is_attention() -> None:
    Q, K, V = (x / 2 for x in operands(6, 4, 3))
    want = reference.attention(Q, K, V)

    def error(k: int) -> float:
        W = approximate.features(k, 4)
        run = approximate.performer(Q, K, V, W, M=10**6)
        return float(abs(run.O - want).max())

    assert error(8) > 0.02
    assert error(5_000) < 0.02


def test_features_are_orthogonal_normal_and_repeatable() -> None:
    W = approximate.features(10, 4, seed=3)
    assert (approximate.features(10, 4, seed=3) == W).all()
    for block in (W[:4], W[4:8], W[8:]):
        products = block @ block.T
        assert abs(products - np.diag(np.diagonal(products))).max() < 1e-12
    many = approximate.features(20_000, 4)
    assert abs(many.mean(0)).max() < 0.03
    assert abs(np.cov(many.T) - np.eye(4)).max() < 0.05


def test_linformer_whose_mixtures_are_the_keys_is_attention() -> None:
    Q, K, V = operands(7, 4, 3)
    I = np.eye(7)
    run = approximate.linformer(Q, K, V, I, I, blocks=(2, 3, 2, 3))
    whole = reference.attention_with_statistics(Q, K, V)
    assert pytest.approx(whole.O) == run.O
    assert pytest.approx(np.log(whole.l) + whole.m) == run.L


def test_each_method_is_linear_in_N() -> None:
    how: dict[str, Any] = {"d": 16, "k": 32, "M": 4096, "blocks": (32, 8, 32, 16)}
    for method in approximate.METHODS:
        once, twice, thrice = (
            approximate.count(method, N=N, **how).hbm.accesses for N in (2048, 4096, 6144)
        )
        assert thrice - twice == twice - once


def test_scores_that_are_all_below_the_range_are_refused() -> None:
    Q, K, V = operands(5, 2, 3, dtype="float32")
    E, F = mixtures(4, 5, dtype="float32")
    W = approximate.features(4, 2, dtype="float32")
    for phi in approximate.PHI:
        with pytest.raises(ValueError, match="O overflows float32"):
            approximate.performer(Q, K * np.float32(1e25), V, W, phi=phi)
    one = np.ones((5, 2), np.float32)
    huge = np.float32(1e30)
    with pytest.raises(ValueError, match="O overflows float32"):
        approximate.linformer(one * huge, one * -huge, V, abs(E), F)
    K[:3] *= np.float32(1e25)  # these keys, which come first, weigh nothing
    run = approximate.performer(Q, K, V, W, blocks=(5, 1, 4, 4))
    weighty = (Q, K[3:], V[3:], W)
    want = reference.performer(*weighty)
    bound = reference.performer_bounds(*weighty, blocks=(5, 1), stored="float32")
    assert of_bound(run.O, want, bound) <= 1


def test_bad_input_is_named() -> None:
    Q, K, V = operands(5, 2, 3)
    E, F = mixtures(4, 5)
    W = E[:, :2]
    huge = np.full((4, 4), 1e30, np.float32)
    for wrong, match in (
        ({"blocks": 3}, "blocks is 3"),
        ({"blocks": (1, 1, 0, 1)}, "B_e, is 0"),
        ({"M": 3}, "M = 3 elements is too small"),
        ({"scale": float("nan")}, "scale"),
        ({"sizing": "none"}, "sizing"),
    ):
        with pytest.raises(ValueError, match=match):
            approximate.linformer(Q, K, V, E, F, **wrong)
    refused(
        (
            r"E has shape \(4, 4\); expected \(k, N\) with N = 5, as Q has",
            lambda: approximate.linformer(Q, K, V, E[:, :4], F),
        ),
        (
            r"F has shape \(3, 5\); expected \(k, N\) with k = 4, as E has",
            lambda: approximate.linformer(Q, K, V, E, F[:3]),
        ),
        (
            r"scale is -1.0; expected at least 0",
            lambda: approximate.performer(Q, K, V, W, scale=-1),
        ),
        (
            r"W has shape \(4, 3\); expected \(k, d\) with d = 2, as Q has",
            lambda: approximate.performer(Q, K, V, E[:, :3]),
        ),
        ("phi", lambda: approximate.performer(Q, K, V, W, phi="stored")),
        ("seed is -1", lambda: approximate.features(3, 2, seed=-1)),
        ("method", lambda: approximate.count("longformer", N=4, d=2, k=2)),
        ("k is 0", lambda: approximate.count("linformer", N=4, d=2, k=0)),
        (
            "O overflows float32",
            lambda: approximate.linformer(huge, huge, huge, huge, huge),
        ),
    )


def averaged(
    s: float, delta: float, v: float, E_v: float, blocks: int, n: int = 1
) -> tuple[float, float]:
    """How far the average of n equal values is off, and its log-sum-exp: the module's text, in
    float32, C = 2.
    """
    R = math.expm1(2 * (delta + 8 * U * abs(s))) + 2 * (n + 8 * blocks + 8) * U
    E_O = R * abs(v) + (1 + R) * E_v
    E_O += n * TINY * (1 + abs(v) + E_v)
    E_sum = (n + 3 * blocks + 8) * U + 4 * U * abs(s)
    E_L = delta + 2 * (E_sum + U * abs(s + math.log(n))) + TINY
    return stored(v, E_O), E_L


def stored(x: float, off: float) -> float:
    return off + 2 * U * (abs(x) + off) + TINY


U = 2.0**-24
TINY = 2.0**-149


@pytest.mark.parametrize("e", [0.0, 0.5])
def test_linformer_s_bounds_of_one_element_are_those_derived(e: float) -> None:
    q = 0.75
    k = -1.25
    v = 2.0
    f = e * 3
    tau = 0.5
    E_K = stored(e * k, 2 * (1 + 2 + 3) * U * abs(e * k) + TINY)
    E_V = stored(f * v, 2 * (1 + 2 + 3) * U * abs(f * v) + TINY)
    E_S = E_K + 2 * 5 * U * (abs(e * k) + E_K)
    want = averaged(tau * q * e * k, tau * q * E_S, f * v, E_V, 3)
    inputs = [[[x]] for x in (q, k, v, e, f)]
    bounds = reference.linformer_bounds(*inputs, scale=tau, blocks=(2, 3), stored="float32")
    assert [bounds.O.item(), bounds.L.item()] == pytest.approx(want, rel=1e-9, abs=0)


@pytest.mark.parametrize("phi", ["on_chip", "in_hbm"])
def test_performer_s_bounds_of_one_element_are_those_derived(phi: str) -> None:
    q = 0.75
    k = -1.25
    v = 2.0
    w = 0.625
    c = 0.5
    many = 2 * 9 * U
    g = c * w * k - (c * k) ** 2 / 2
    x = c * q * w
    E_G = many * (abs(c * w * k) + (c * k) ** 2)
    E_Q = many * abs(x)
    if phi == "in_hbm":
        E_G = stored(g, E_G)
        E_Q = stored(x, E_Q)
    E_S, E_A = averaged(g, E_G, v, 0.0, 2)
    E_S_O = E_Q + 4 * U * abs(g) + E_A
    want, _ = averaged(x + g, E_S_O, v, E_S, 3)
    how: dict[str, Any] = {
        "scale": c * c,
        "blocks": (2, 3),
        "stored": "float32",
        "phi": phi,
    }
    bound = reference.performer_bounds([[q]], [[k]], [[v]], [[w]], **how)
    assert bound.item() == pytest.approx(want, rel=1e-9, abs=0)


def test_reformer_s_bounds_of_one_element_are_those_derived() -> None:
    """It meets itself in two rounds, under a bias of −log 2 in each; O and L of both are the
    same.
    """
    q = 0.75
    k = -1.25
    v = 2.0
    tau = 0.5
    s = tau * q * k
    bias = -math.log(2)
    E_S = 2 * 5 * U * abs(s) + 2 * U * (abs(s) + 3 * abs(bias))
    E_O, E_L = averaged(s + bias, E_S, v, 0.0, 2)
    want, _ = averaged(s + bias, E_L, v, E_O, 2, n=2)
    how: dict[str, Any] = {"C": 1, "scale": tau, "stored": "float32"}
    bound = reference.reformer_bounds([[q]], [[k]], [[v]], [[0], [0]], **how)
    assert bound.item() == pytest.approx(want, rel=1e-9, abs=0)


def test_the_papers_k_is_an_eighth_of_N_and_at_most_256() -> None:
    by_hand = {
        1: 1,
        15: 1,
        16: 2,
        2047: 255,
        2048: 256,
        10**6: 256,
    }
    for N, k in by_hand.items():
        assert approximate.compressed(N) == k
    with pytest.raises(ValueError, match="N is 0"):
        approximate.compressed(0)
