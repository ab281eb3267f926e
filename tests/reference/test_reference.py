"""The oracle and its bounds are themselves checked: against exactly rounded sums, complex steps
and differences.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsim import SlidingWindow
from flashsim.reference import (
    attention,
    attention_with_statistics,
    error_bound,
    gradient_bounds,
    gradients,
    score_reach,
)
from tests.helpers.cases import Arguments, Array, Case, cases, full_cases, of_bound


def slowly(Q: Array, K: Array, V: Array, scale: float) -> tuple[Array, Array, Array]:
    """Softmax attention, one element at a time, with `math.fsum`."""
    O = np.zeros((len(Q), V.shape[1]))
    l = np.zeros(len(Q))
    m = np.zeros(len(Q))
    for i, q in enumerate(Q):
        scores = [scale * exact_dot(q, k) for k in K]
        m[i] = max(scores)
        weights = [math.exp(score - m[i]) for score in scores]
        l[i] = math.fsum(weights)
        for c in range(V.shape[1]):
            O[i, c] = exact_dot(weights, V[:, c]) / l[i]
    return O, l, m


def exact_dot(a: Iterable[float], b: Iterable[float]) -> float:
    """Return Σ a·b, rounded once but for the products."""
    products = [float(x) * float(y) for x, y in zip(a, b, strict=True)]
    return math.fsum(products)


@given(case=cases(max_n=8, dtypes=("float64",)))
def test_reference_agrees_with_a_slow_one(case: Case) -> None:
    Q, K, V = case.inputs()
    scale = 1 / math.sqrt(case.d)
    O, l, m = slowly(Q, K, V, scale)
    result = attention_with_statistics(Q, K, V)
    bound = error_bound(Q, K, V)
    assert of_bound(result.O, O, bound) <= 1
    roundoff = 2.0**-53
    reach = score_reach(Q, K, scale=scale)[:, 0]
    of_scores = 2 * (case.d + 4) * roundoff * reach
    of_sums = 2 * (case.N_k + 8) * roundoff
    assert of_bound(result.m, m, of_scores) <= 1
    relative = 2 * np.expm1(2 * of_scores) + of_sums
    assert of_bound(result.l, l, relative * l) <= 1


def test_reference_survives_scores_that_overflow_exp() -> None:
    Q = np.full((1, 1), 1000.0)
    K = np.array([[1.0], [0.999], [-1.0]])
    V = np.array([[1.0], [2.0], [3.0]])
    small = math.exp(-1)
    want = (1 + 2 * small) / (1 + small)
    O = attention(Q, K, V, scale=1.0)
    assert math.isclose(O[0, 0], want, rel_tol=1e-12)


def test_reference_takes_leading_axes_and_a_dtype() -> None:
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 3, 5, 4))
    K = rng.normal(size=(2, 3, 7, 4))
    V = rng.normal(size=(2, 3, 7, 6))
    O = attention(Q, K, V)
    assert O.shape == (2, 3, 5, 6)
    head = Q[1, 2], K[1, 2], V[1, 2]
    assert of_bound(O[1, 2], attention(*head), error_bound(*head)) <= 1
    assert attention(Q, K, V, dtype=np.float32).dtype == np.float32


def test_bound_is_no_blank_cheque() -> None:
    """On Gaussian data the bound is a few hundred roundoffs, not a tolerance that hides bugs."""
    rng = np.random.default_rng(0)
    single = rng.normal(size=(3, 64, 16)).astype(np.float32)
    double = single.astype(np.float64)
    assert error_bound(*single, steps=4).max() < 1e-3
    assert error_bound(*double, steps=4).max() < 1e-12


def in_words(case: Case) -> tuple[Array, Array, Array]:
    """Masked, dropped attention, one element at a time: a masked key is left out, not given a
    weight of 0.
    """
    Q, K, V = case.inputs()
    scale = 1 / math.sqrt(case.d)
    allowed = case.oracle["mask"]
    keep = case.oracle["keep"]
    O = np.zeros((case.N_q, case.d_v))
    l = np.zeros(case.N_q)
    m = np.full(case.N_q, -np.inf)
    for i in range(case.N_q):
        keys = [j for j in range(case.N_k) if allowed is None or allowed[i, j]]
        if not keys:
            continue
        Q_i = Q[i : i + 1]
        O_i, l[i : i + 1], m[i : i + 1] = slowly(Q_i, K[keys], V[keys], scale)
        if keep is None:
            O[i] = O_i[0]
            continue
        kept = [j for j in keys if keep[i, j]]
        if kept:
            O_kept, l_kept, m_kept = slowly(Q_i, K[kept], V[kept], scale)
            weight = l_kept[0] * math.exp(m_kept[0] - m[i])
            share = weight / l[i]
            O[i] = O_kept[0] * share / (1 - case.dropout_p)
    return O, l, m


@given(case=full_cases(max_n=8, dtypes=("float64",)))
def test_reference_leaves_out_what_is_masked_and_drops_what_is_dropped(case: Case) -> None:
    O, l, m = in_words(case)
    Q, K, V = case.inputs()
    result = attention_with_statistics(Q, K, V, **case.oracle)
    bound = error_bound(Q, K, V, steps=2, **case.oracle)
    assert of_bound(result.O, O, bound) <= 1
    assert np.array_equal(np.isneginf(result.m), np.isneginf(m))
    assert np.array_equal(result.l == 0, l == 0)


def complex_attention(Q: Array, K: Array, V: Array, oracle: dict[str, Any]) -> Array:
    """Softmax attention is analytic, so it takes complex numbers; the maximum subtracted stays
    real, and cancels.
    """
    S = Q @ K.T / math.sqrt(Q.shape[1])
    mask = True if oracle["mask"] is None else oracle["mask"]
    allowed = np.broadcast_to(mask, S.shape)
    scores = np.where(allowed, S.real, -np.inf)
    top = scores.max(axis=1, keepdims=True)
    finite_top = np.where(np.isneginf(top), 0, top)
    exponents = np.where(allowed, S - finite_top, 0)
    P = np.where(allowed, np.exp(exponents), 0)
    l = P.sum(axis=1, keepdims=True)
    Z = 1.0 if oracle["keep"] is None else oracle["keep"] / (1 - oracle["dropout_p"])
    weights = P * Z / np.where(l == 0, 1, l)
    return np.asarray(weights @ V)


@given(case=full_cases(max_n=6, dtypes=("float64",)))
def test_gradients_are_those_that_complex_steps_find(case: Case) -> None:
    """f(x + ih) = f(x) + ih·f′(x) + O(h²): with h = 10⁻²⁰⁰ the imaginary part is the derivative, to
    rounding.

    Within twice the derived bounds, which both computations keep to; no tolerance of our own.
    """
    Q, K, V = case.inputs()
    dO = case.dO()
    h = 1e-200
    want = [np.zeros_like(a) for a in (Q, K, V)]
    for position, slopes in enumerate(want):
        for index in np.ndindex(slopes.shape):
            inputs = [a.astype(complex) for a in (Q, K, V)]
            inputs[position][index] += 1j * h
            O = complex_attention(inputs[0], inputs[1], inputs[2], case.oracle)
            slopes[index] = (dO * O.imag).sum() / h
    result = gradients(Q, K, V, dO, **case.oracle)
    bounds = gradient_bounds(Q, K, V, dO, steps=2, **case.oracle)
    for gradient, slopes, bound in zip(result, want, bounds, strict=True):
        assert of_bound(gradient, slopes, 2 * bound) <= 1


@given(case=full_cases(max_n=8, dtypes=("float64",)), spot=st.integers(0, 10**6))
def test_gradients_are_slopes(case: Case, spot: int) -> None:
    """Central differences at a spot, on inputs of size 1, where 10⁻⁵ is small: error h²·f‴/6 +
    2⁻⁵²·f/h ≲ 10⁻⁹·f.
    """
    rng = np.random.default_rng(case.seed)
    Q = rng.normal(size=(case.N_q, case.d))
    K = rng.normal(size=(case.N_k, case.d))
    V = rng.normal(size=(case.N_k, case.d_v))
    arrays = [Q, K, V]
    dO = case.dO()
    h = 1e-5
    position = spot % 3
    flat = spot // 3 % arrays[position].size
    ends = []
    for sign in (1, -1):
        inputs = [a.copy() for a in arrays]
        inputs[position].flat[flat] += sign * h
        O = attention(inputs[0], inputs[1], inputs[2], **case.oracle)
        ends.append(float((dO * O).sum()))
    slope = (ends[0] - ends[1]) / (2 * h)
    gradient = gradients(Q, K, V, dO, **case.oracle)[position]
    result = gradient.flat[flat]
    largest = max(np.abs(a).max() for a in arrays)
    size = np.abs(dO).sum() * largest**3 / (1 - case.dropout_p)
    assert abs(slope - result) <= 1e-8 * size


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@given(
    case=cases(
        max_n=10,
        dtypes=("float64",),
        masks=("padding", "dense, few", "causal", "none"),
        dropouts=(0.0, 0.3),
    )
)
def test_the_reference_never_reads_what_is_masked(poison: float, case: Case) -> None:
    """Poison in keys that nobody attends to, and in queries without a key, changes no bit of
    anything but their own.
    """
    Q, K, V = case.inputs()
    dO = case.dO()
    oracle = case.oracle
    allowed = oracle["mask"]
    if allowed is None:
        allowed = np.ones((case.N_q, case.N_k), bool)
    dead = ~allowed.any(axis=0)
    idle = ~allowed.any(axis=1)
    clean = [*attention_with_statistics(Q, K, V, **oracle)]
    clean += gradients(Q, K, V, dO, **oracle)
    K[dead] = poison
    V[dead] = poison
    Q[idle] = poison
    dO[idle] = poison
    poisoned = [*attention_with_statistics(Q, K, V, **oracle)]
    poisoned += gradients(Q, K, V, dO, **oracle)
    for result, want in zip(poisoned, clean, strict=True):
        assert np.array_equal(result, want)


def test_the_reference_lets_nan_reach_those_who_attend() -> None:
    Q = np.ones((2, 2))
    K = np.ones((3, 2))
    V = np.arange(6.0).reshape(3, 2)
    V[2, 0] = np.nan
    mask = np.array([[True, True, False], [True, True, True]])
    O = attention(Q, K, V, mask=mask)
    assert O[0].tolist() == [1.0, 2.0]
    assert np.isnan(O[1, 0])
    assert O[1, 1] == 3.0


def test_a_rule_is_no_array_of_booleans() -> None:
    Q = K = V = np.ones((4, 2))
    with pytest.raises(
        ValueError,
        match=r"^mask is SlidingWindow\(2, 0\); expected booleans, True = attend: the oracle takes "
        r"arrays, and run\.plan\.attended\(head\) is that of a run; bias, softcap and sink are its "
        r"other arguments$",
    ):
        attention(Q, K, V, mask=SlidingWindow(2, 0))
    with pytest.raises(
        ValueError, match=r"^mask has dtype float64; expected booleans, True = attend$"
    ):
        attention(Q, K, V, mask=np.zeros((4, 4)))


def test_masks_and_dropout_broadcast_over_heads() -> None:
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 3, 5, 4))
    K = rng.normal(size=(2, 3, 7, 4))
    V = rng.normal(size=(2, 3, 7, 6))
    dO = rng.normal(size=(2, 3, 5, 6))
    mask = rng.random((3, 1, 7)) < 0.6
    keep = rng.random((2, 1, 5, 7)) < 0.6
    options: Arguments = {"mask": mask, "keep": keep, "dropout_p": 0.4}
    O = attention(Q, K, V, **options)
    result = gradients(Q, K, V, dO, **options)
    bounds = gradient_bounds(Q, K, V, dO, **options)
    bound = error_bound(Q, K, V, **options)
    for b, h in np.ndindex(2, 3):
        one: Arguments = {"mask": mask[h], "keep": keep[b, 0], "dropout_p": 0.4}
        alone = Q[b, h], K[b, h], V[b, h]
        want = attention(*alone, **one)
        assert of_bound(O[b, h], want, bound[b, h]) <= 1
        for part, want, most, alone_most in zip(
            result,
            gradients(*alone, dO[b, h], **one),
            bounds,
            gradient_bounds(*alone, dO[b, h], **one),
            strict=True,
        ):
            assert of_bound(part[b, h], want, most[b, h]) <= 1
            assert np.allclose(most[b, h], alone_most, rtol=1e-12, atol=0)


def test_finite_input_is_never_nan_but_refused() -> None:
    q = np.random.default_rng(0).standard_normal((5, 3))
    for scale, dtype in ((1e308, "float64"), (1e300, "float32"), (1e5, "float16")):
        with pytest.raises(
            ValueError, match=rf"scores overflow {dtype}, which ends at .*scaled down"
        ):
            attention(q, q, q, scale=scale, dtype=dtype)
    with pytest.raises(ValueError, match="scores overflow float64"):
        gradients(q, q, q, q, scale=1e308)
    with pytest.raises(ValueError, match=r"gradients overflow float64"):
        gradients(q, q, 1e200 * q, 1e200 * q)
    with np.errstate(all="raise"):
        assert np.isnan(attention(q, q * np.inf, q)).all()  # as it came
