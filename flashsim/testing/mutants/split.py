"""Attention with its keys split into parts that are merged, as in FlashDecoding. Correct; bugs are
planted in it.

Each part has its own output and log-sum-exp, as if there were no other keys. In the merge, its
output has the weight exp(lse of the part − lse of all). The backward pass is the unfused one.
"""

import math

import numpy as np

from flashsim.attention.inputs import Array, chip_dtype
from flashsim.testing.mutants.unfused import backward, keep

__all__ = ["backward", "forward", "keep"]

PART = 8


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
    B, H_q, N_q, d = q.shape
    H_kv, N_k, d_v = v.shape[1:]
    group = H_q // H_kv
    tau = 1 / math.sqrt(d) if scale is None else scale
    dtype = chip_dtype(q.dtype)
    Q = q.astype(dtype).reshape(B, H_kv, group, N_q, d) * dtype.type(tau)
    ok = (
        np.ones((B, H_q, N_q, N_k), bool)
        if mask is None
        else np.broadcast_to(mask, (B, H_q, N_q, N_k))
    )
    Z = np.ones((B, H_q, N_q, N_k), dtype)
    if dropout_p > 0:
        Z = keep(Z.shape, dropout_p, seed) / dtype.type(1 - dropout_p)

    outputs = [np.zeros((B, H_q, N_q, d_v), dtype)]
    logs = [np.full((B, H_q, N_q), -np.inf, dtype)]
    for start in range(0, N_k, PART):
        keys = np.arange(start, min(start + PART, N_k))
        K_p = k[:, :, keys].astype(dtype)
        V_p = v[:, :, keys].astype(dtype)
        ok_p = ok[..., keys]
        if causal:
            ok_p = ok_p & (keys <= np.arange(N_q)[:, None] + N_k - N_q)
        O_p, lse_p = one_part(Q, K_p, V_p, ok_p, Z[..., keys])
        outputs.append(O_p)
        logs.append(lse_p)
    O, lse = merged(np.stack(outputs), np.stack(logs))
    return O.astype(q.dtype), lse


def one_part(Q: Array, K: Array, V: Array, ok: Array, Z: Array) -> tuple[Array, Array]:
    """Return the output and log-sum-exp of one part of the keys: 0 and −∞ for a row that attends
    to none of them.
    """
    B, H_kv, group, N_q, _ = Q.shape
    ok = ok.reshape(B, H_kv, group, N_q, -1)
    Z = Z.reshape(B, H_kv, group, N_q, -1)
    S = np.einsum("bngid,bnjd->bngij", Q, K)
    S = np.where(ok, S, -np.inf)
    V = np.where(np.any(ok, axis=3)[..., None], V[:, :, None], 0)
    m = S.max(axis=-1, keepdims=True)
    P = np.exp(S - np.where(m == -np.inf, 0, m))
    l = P.sum(axis=-1, keepdims=True)
    O = (P * Z) @ V / np.where(l == 0, 1, l)
    lse = m + np.log(l)
    return O.reshape(B, H_kv * group, N_q, -1), lse.reshape(B, H_kv * group, N_q)


def merged(outputs: Array, logs: Array) -> tuple[Array, Array]:
    """Return output and log-sum-exp of all parts together. The arrays' first axis has the parts."""
    m = logs.max(axis=0)
    weights = np.exp(logs - np.where(m == -np.inf, 0, m))
    total = weights.sum(axis=0)
    lse = m + np.log(total)
    O = (outputs * weights[..., None]).sum(axis=0)
    O = O / np.where(total == 0, 1, total)[..., None]
    return O, lse
