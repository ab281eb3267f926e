"""The paper's notation, as NumPy spells it.

ℓ and m are columns, (N, 1) in HBM and (B_r, 1) on chip: so diag(ℓ_i) X is `l_i * X`,
and S_ij − m̃_ij reads as printed. Block indices count from 0: `K[j]` with j = 0 is the
paper's K_1.

Masks bring −∞ into the scores, of which the paper says nothing, and real kernels have
returned NaN there. Four functions keep it out, and change no number where all is
finite: `finite` and `nonzero`, so that a row in which every key so far is masked keeps
ℓ = 0 and O = 0; `product` and `gated`, so that a weight of 0 lets nothing through, not
even 0·NaN.

Rounding is the other thing the paper leaves out. Where S is computed again, as in every
backward pass but Algorithm 3, tiles of another shape may round it to more than the m or
L that was kept, by up to 2(d + 4)·u·Σ|τ||q||k|, and e^{S − m} would have no bound:
`at_most_0` keeps P ≤ 1.
"""

from __future__ import annotations

import numpy as np

from flashsim.memory.hbm import Tile
from flashsim.memory.shape_only import ShapeOnly

exp = np.exp
logaddexp = np.logaddexp
maximum = np.maximum


def rowmax(X: Tile) -> Tile:
    """Return the largest entry of each row, as a column."""
    return X.max(axis=1, keepdims=True)  # type: ignore[no-any-return]


def rowsum(X: Tile) -> Tile:
    """Return the sum of each row, as a column."""
    return X.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


def finite(m: Tile) -> Tile:
    """Return m with 0 for −∞, as what is subtracted from scores: then e^{−∞ − m} is 0,
    where −∞ − (−∞) would be NaN.
    """
    if isinstance(m, ShapeOnly) or m.min() > -np.inf:
        return m
    return np.where(m == -np.inf, m.dtype.type(0), m)


def logsumexp(X: Tile) -> Tile:
    """Return the logarithm of each row's sum of exponentials, as a column; −∞ for a
    row of −∞.
    """
    top = finite(rowmax(X))
    with np.errstate(divide="ignore"):
        return top + np.log(rowsum(exp(X - top)))


def log(l: Tile) -> Tile:
    """Return log ℓ; −∞ for a row with no key, whose ℓ is 0."""
    with np.errstate(divide="ignore"):
        return np.log(l)


def nonzero(l: Tile) -> Tile:
    """Return ℓ with 1 for 0, as what is divided by: a row with no key yet has O = 0
    / 1.
    """
    if isinstance(l, ShapeOnly) or l.min() > 0:
        return l
    return np.where(l == 0, l.dtype.type(1), l)


def at_most_0(X: Tile) -> Tile:
    """Return X with 0 for what is above, as the exponent of a weight, which is at most
    1: e^{S − m}, e^{S − L}.

    Exact exponents are at most 0, so this only ever brings a rounded one closer, and
    changes none where S is rounded as m was.
    """
    if isinstance(X, ShapeOnly) or X.max() <= 0:
        return X
    result: Tile = np.minimum(X, X.dtype.type(0))
    return result


def product(weights: Tile, X: Tile) -> Tile:
    """Return the matrix product weights @ X. Rows of X under a weight of 0 have no part
    in it, even where they hold NaN or ∞.
    """
    result: Tile = weights @ X
    if isinstance(X, ShapeOnly) or np.isfinite(result).all():
        return result
    bad = ~np.isfinite(X).all(axis=1)
    result = weights[:, ~bad] @ X[~bad]
    for k in np.flatnonzero(bad):
        result = result + np.where(
            weights[:, k : k + 1] != 0, weights[:, k : k + 1] * X[k], 0
        )
    return result


def gated(P: Tile, X: Tile) -> Tile:
    """Return P ∘ X, and 0 where P is 0, even where X is NaN or ∞."""
    result: Tile = P * X
    if isinstance(X, ShapeOnly) or np.isfinite(result).all():
        return result
    return np.where(P == 0, P.dtype.type(0), result)
