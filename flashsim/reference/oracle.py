"""The oracle: naive attention and its gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashsim.attention.arguments import check_array, check_number, check_p, check_real, check_scale
from flashsim.attention.inputs import Array, check_attention, float_dtype, largest


class Attention(NamedTuple):
    """O (..., N_q, d_v) and the softmax statistics l, m (..., N_q)."""

    O: Array
    l: Array
    m: Array


class Three(NamedTuple):
    """dQ, dK, dV, or a bound for each, shaped as Q, K, V."""

    dQ: Array
    dK: Array
    dV: Array


def attention(
    Q: Any,
    K: Any,
    V: Any,
    *,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    keep: Any = None,
    dropout_p: float = 0.0,
) -> Array:
    """Return dropout(softmax(MASK(S))) V, (..., N_q, d_v), computed in `dtype`. `scale=None` is
    1/√d.

    S is scale · QKᵀ + bias, or softcap · tanh(scale · QKᵀ / softcap) + bias. `sink` is the score of
    a key whose value is 0, which no mask forbids; it broadcasts to the leading axes. `mask`, `keep`
    and `bias` are arrays; of a run, `run.plan.attended(head)` is the array of its mask.
    """
    return attention_with_statistics(
        Q,
        K,
        V,
        scale=scale,
        dtype=dtype,
        mask=mask,
        bias=bias,
        softcap=softcap,
        sink=sink,
        keep=keep,
        dropout_p=dropout_p,
    ).O


def attention_with_statistics(
    Q: Any,
    K: Any,
    V: Any,
    *,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    keep: Any = None,
    dropout_p: float = 0.0,
) -> Attention:
    """Return O with l = Σ exp(S − m), dropped or not, and m = max S of each row, for masked S as
    in `attention`, and its sink.
    """
    check_p(dropout_p)
    stored = float_dtype(dtype)
    Q, K, V = (
        a.astype(stored) for a in check_attention(Q=Q, K=K, V=V, mask=mask, keep=keep, bias=bias)
    )
    P, l, m, _ = softmax(Q, K, tau_of(scale, Q), mask, bias, softcap, sink)
    P_dropped = P if keep is None else P * Z_of(keep, dropout_p, P.dtype)
    return Attention(_weighted(P_dropped, V) / np.where(l == 0, 1, l), l[..., 0], m[..., 0])


def gradients(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    *,
    scale: float | None = None,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    keep: Any = None,
    dropout_p: float = 0.0,
) -> Three:
    """Return dQ, dK, dV of Σ dO ∘ attention(Q, K, V), in float64. P, not the dropped P, enters
    dS.
    """
    return _gradients(
        Q,
        K,
        V,
        dO,
        scale=scale,
        mask=mask,
        bias=bias,
        softcap=softcap,
        sink=sink,
        keep=keep,
        dropout_p=dropout_p,
    )[0]


def bias_gradient(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    *,
    bias: Any,
    scale: float | None = None,
    mask: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    keep: Any = None,
    dropout_p: float = 0.0,
) -> Array:
    """Return the gradient of `bias`, of its shape: dS, summed over the axes that it was
    broadcast along.
    """
    operands = {
        "scale": scale,
        "mask": mask,
        "bias": bias,
        "softcap": softcap,
        "keep": keep,
        "dropout_p": dropout_p,
    }
    return summed_to(_gradients(Q, K, V, dO, **operands, sink=sink)[1], np.shape(bias))


def sink_gradient(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    *,
    sink: Any,
    scale: float | None = None,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    keep: Any = None,
    dropout_p: float = 0.0,
) -> Array:
    """Return the gradient of each head's sink, over the leading axes: −Σ_i P_sink,i D_i, D =
    rowsum(dO ∘ O).
    """
    operands = {
        "scale": scale,
        "mask": mask,
        "bias": bias,
        "softcap": softcap,
        "keep": keep,
        "dropout_p": dropout_p,
    }
    O, l, m = attention_with_statistics(Q, K, V, **operands, sink=sink)
    P_sink = np.exp(column_of(sink)[..., 0] - np.where(m == -np.inf, 0, m)) / np.where(l == 0, 1, l)
    return np.asarray(-(P_sink * (check_array("dO", dO) * O).sum(axis=-1)).sum(axis=-1))


def summed_to(a: Array, shape: tuple[int, ...]) -> Array:
    """Return an array summed over the axes along which one of that shape was broadcast."""
    a = a.sum(axis=tuple(range(a.ndim - len(shape))))
    return np.asarray(
        a.sum(axis=tuple(axis for axis, n in enumerate(shape) if n == 1), keepdims=True)
    )


def _gradients(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    *,
    scale: float | None,
    mask: Any,
    bias: Any,
    softcap: float | None,
    sink: Any,
    keep: Any,
    dropout_p: float,
) -> tuple[Three, Array]:
    check_p(dropout_p)
    operands = check_attention(Q=Q, K=K, V=V, dO=dO, mask=mask, keep=keep, bias=bias)
    Q, K, V, dO = (a.astype(np.float64) for a in operands)
    tau = tau_of(scale, Q)
    P, l, _, slope = softmax(Q, K, tau, mask, bias, softcap, sink)
    P = P / np.where(l == 0, 1, l)
    Z: Any = 1.0 if keep is None else Z_of(keep, dropout_p, P.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        dP = np.where(P == 0, 0.0, (dO @ V.swapaxes(-1, -2)) * Z)  # P = 0: masked, or too small
        D = (P * dP).sum(axis=-1, keepdims=True)
        dS = np.where(P == 0, 0.0, P * (dP - D))
        uncapped = np.where(P == 0, 0.0, dS * slope)
        dS_T = uncapped.swapaxes(-1, -2)
        P_dropped_T = (P * Z).swapaxes(-1, -2)
        gradients = Three(
            tau * _weighted(uncapped, K), tau * _weighted(dS_T, Q), _weighted(P_dropped_T, dO)
        )
    for gradient in gradients:
        _refuse_overflow("gradients", gradient, Q, K, V, dO)
    return gradients, dS


def tau_of(scale: float | None, Q: Array) -> Array:
    """Return the scale, 1/√d where it is None, in Q's dtype."""
    with np.errstate(over="ignore"):  # whose scores overflow then
        return np.asarray(check_scale(scale, Q.shape[-1]), Q.dtype)


def softmax(
    Q: Array,
    K: Array,
    tau: Array,
    mask: Any,
    bias: Any = None,
    softcap: float | None = None,
    sink: Any = None,
) -> tuple[Array, Array, Array, Any]:
    """Return exp(S − m), not yet divided, with its row sums l and row maxima m as columns, and the
    cap's slope, 1 without.

    l and m are of the sink, too.

    Raises ValueError for finite Q and K whose scores overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        S = (tau * Q) @ K.swapaxes(-1, -2)
        _refuse_overflow("scores", S, Q, K)
        slope: Any = 1.0
        if (cap := check_softcap(softcap)) is not None:
            S, slope = cap * np.tanh(S / cap), np.cosh(S / cap) ** -2
        if bias is not None:
            S = S + np.asarray(bias).astype(S.dtype)
        if mask is not None:
            S = np.where(mask, S, np.asarray(-np.inf, S.dtype))
        s = np.asarray(-np.inf, S.dtype) if sink is None else column_of(sink).astype(S.dtype)
        m = np.maximum(S.max(axis=-1, keepdims=True), s)
        top = np.where(m == -np.inf, 0, m)
        P = np.exp(S - top)
        l = P.sum(axis=-1, keepdims=True) + np.exp(s - top)
    return P, l, m, slope


def column_of(sink: Any) -> Array:
    """Return logits of heads as columns, (..., 1, 1)."""
    return check_real("sink", sink).astype(np.float64)[..., None, None]


def check_softcap(softcap: Any) -> float | None:
    """Return the cap, a number above 0, or None. Raises ValueError."""
    if softcap is None:
        return None
    return check_number(
        "softcap", softcap, "a number above 0, or None", lambda cap: 0 < cap < np.inf
    )


def _refuse_overflow(what: str, result: Array, *operands: Array) -> None:
    """Raise ValueError where finite arrays gave one that is not."""
    if not np.isfinite(result).all() and all(np.isfinite(a).all() for a in operands):
        end = largest(result.dtype)
        raise ValueError(
            f"{what} overflow {result.dtype}, which ends at {end:.3g}; expected inputs scaled down"
        )


def Z_of(keep: Any, dropout_p: float, dtype: DTypeLike) -> Array:
    """Return what weights are multiplied by: 1/(1 − p) where they are kept, else 0."""
    return np.where(keep, 1 / (1 - dropout_p), 0.0).astype(dtype)


def _weighted(W: Array, X: Array) -> Array:
    """Return W @ X, where a weight of 0 lets nothing through, not even NaN or ∞ in X."""
    bad = ~np.isfinite(X)
    if not bad.any():
        return np.asarray(W @ X)
    result = W @ np.where(bad, 0, X)
    for k in np.flatnonzero(bad.any(axis=(*range(X.ndim - 2), -1))):
        weights = W[..., k, None]
        values = np.where(bad, X, 0)[..., k, None, :]
        with np.errstate(invalid="ignore"):
            result = result + np.where(weights != 0, weights * values, 0)
    return np.asarray(result)
