"""The oracle and its error bound are themselves checked, against exactly rounded sums."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given

from flashsim.reference import attention, attention_with_statistics, error_bound

from .cases import Array, Case, cases


def slowly(Q: Array, K: Array, V: Array, scale: float) -> tuple[Array, Array, Array]:
    """Softmax attention, one element at a time, with `math.fsum`."""
    O, l, m = np.zeros((len(Q), V.shape[1])), np.zeros(len(Q)), np.zeros(len(Q))
    for i, q in enumerate(Q):
        s = [scale * math.fsum(float(a) * float(b) for a, b in zip(q, k, strict=True)) for k in K]
        m[i] = max(s)
        p = [math.exp(x - m[i]) for x in s]
        l[i] = math.fsum(p)
        for c in range(V.shape[1]):
            O[i, c] = math.fsum(p_j * float(v) for p_j, v in zip(p, V[:, c], strict=True)) / l[i]
    return O, l, m


@given(case=cases(max_n=8, dtypes=("float64",)))
def test_reference_agrees_with_a_slow_one(case: Case) -> None:
    Q, K, V = case.inputs()
    scale = 1 / math.sqrt(case.d)
    O, l, m = slowly(Q, K, V, scale)
    got = attention_with_statistics(Q, K, V)
    assert (np.abs(got.O - O) <= error_bound(Q, K, V)).all()
    reach = np.abs(m) + 1
    assert (np.abs(got.m - m) <= 1e-13 * np.maximum(reach, scale * (np.abs(Q) @ np.abs(K).T).max(axis=1))).all()
    assert got.l.shape == l.shape


def test_reference_survives_scores_that_overflow_exp() -> None:
    Q, K, V = np.full((1, 1), 1000.0), np.array([[1.0], [0.999], [-1.0]]), np.array([[1.0], [2.0], [3.0]])
    want = (1 + 2 * math.exp(-1)) / (1 + math.exp(-1))
    assert math.isclose(attention(Q, K, V, scale=1.0)[0, 0], want, rel_tol=1e-12)


def test_reference_takes_leading_axes_and_a_dtype() -> None:
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(2, 3, 5, 4)), rng.normal(size=(2, 3, 7, 4)), rng.normal(size=(2, 3, 7, 6))
    O = attention(Q, K, V)
    assert O.shape == (2, 3, 5, 6)
    assert np.allclose(O[1, 2], attention(Q[1, 2], K[1, 2], V[1, 2]), rtol=0, atol=1e-15)
    assert attention(Q, K, V, dtype=np.float32).dtype == np.float32


def test_bound_is_no_blank_cheque() -> None:
    """On Gaussian data the bound is a few hundred roundoffs, not a tolerance that hides bugs."""
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(64, 16)).astype(np.float32) for _ in range(3))
    assert error_bound(Q, K, V, steps=4).max() < 1e-3
    assert error_bound(*(a.astype(np.float64) for a in (Q, K, V)), steps=4).max() < 1e-12
