"""Attention and its gradients as in a textbook, with the whole matrix of scores. Correct; bugs
are planted in it.
"""

import math

import numpy as np

from flashsim.attention.inputs import Array, chip_dtype
from flashsim.testing.mutants.tiled import keep

__all__ = ["backward", "forward", "keep"]


@np.errstate(all="ignore")
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Array | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Return O, in the inputs' dtype, and the natural log-sum-exp of each row's scores."""
    Q, K, V = widened(q, k, v)
    ok = allowed(q, k, causal, mask)
    S = scores(Q, K, scale)
    S = np.where(ok, S, -np.inf)
    V = np.where(attended(ok), V, 0)  # 0 · NaN would be NaN
    m = S.max(axis=-1, keepdims=True, initial=-np.inf)
    finite_m = np.where(m == -np.inf, 0, m)  # −∞ − (−∞) would be NaN
    P = np.exp(S - finite_m)
    l = P.sum(axis=-1, keepdims=True)
    P = P / np.where(l == 0, 1, l)
    if dropout_p > 0:
        P = P * keep(P.shape, dropout_p, seed) / (1 - dropout_p)
    O = P @ V
    lse = (m + np.log(l))[..., 0]
    return O.astype(q.dtype), lse


@np.errstate(all="ignore")
def backward(
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Array | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
) -> tuple[Array, Array, Array]:
    """Return the gradients of Σ dO ∘ O with respect to q, k and v, in the inputs' dtype."""
    Q, K, V = widened(q, k, v)
    dO = do.astype(Q.dtype)
    ok = allowed(q, k, causal, mask)
    K = np.where(attended(ok), K, 0)
    V = np.where(attended(ok), V, 0)
    S = np.where(ok, scores(Q, K, scale), -np.inf)
    m = S.max(axis=-1, keepdims=True, initial=-np.inf)
    P = np.exp(S - np.where(m == -np.inf, 0, m))
    l = P.sum(axis=-1, keepdims=True)
    P = P / np.where(l == 0, 1, l)
    Z = np.ones_like(P)
    if dropout_p > 0:
        Z = keep(P.shape, dropout_p, seed) / P.dtype.type(1 - dropout_p)

    dV = np.swapaxes(P * Z, -1, -2) @ dO
    dP = dO @ np.swapaxes(V, -1, -2) * Z
    D = (P * dP).sum(axis=-1, keepdims=True)
    dS = P * (dP - D)
    tau = Q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    dQ = tau * (dS @ K)
    dK = tau * (np.swapaxes(dS, -1, -2) @ Q)
    dK = summed(dK, k.shape)
    dV = summed(dV, v.shape)
    return dQ.astype(q.dtype), dK.astype(q.dtype), dV.astype(q.dtype)


def widened(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return Q, K, V in the type for computing, with each head of K and V repeated for its group
    of query heads.
    """
    dtype = chip_dtype(q.dtype)
    group = q.shape[1] // k.shape[1]
    K = np.repeat(k.astype(dtype), group, axis=1)
    V = np.repeat(v.astype(dtype), group, axis=1)
    return q.astype(dtype), K, V


def summed(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Return the gradient of K or V, summed over the query heads that share a KV head."""
    B, H_kv, N_k, width = shape
    group = gradient.shape[1] // H_kv
    return np.asarray(gradient.reshape(B, H_kv, group, N_k, width).sum(axis=2))


def scores(Q: Array, K: Array, scale: float | None) -> Array:
    """Return τQKᵀ."""
    tau = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    return np.asarray((Q * Q.dtype.type(tau)) @ np.swapaxes(K, -1, -2))


def allowed(q: Array, k: Array, causal: bool, mask: Array | None) -> Array:
    """Return which keys each query attends to, boolean, (B, H_q, N_q, N_k)."""
    B, H_q, N_q, _ = q.shape
    N_k = k.shape[2]
    ok = np.ones((B, H_q, N_q, N_k), bool)
    if causal:
        ok &= np.arange(N_k)[None, :] <= np.arange(N_q)[:, None] + N_k - N_q
    if mask is not None:
        ok &= mask
    return ok


def attended(ok: Array) -> Array:
    """Return which keys some query of the head attends to, (B, H_q, N_k, 1)."""
    return np.asarray(np.any(ok, axis=2)[..., None])
