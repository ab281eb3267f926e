"""Attention and its gradients as FlashAttention-2 computes them, one (B_r, B_c) tile at a time.
Correct; bugs are planted in it.

T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithms 1 and 2. As on a GPU, inputs are flat memory that is read by offsets. A tile always has
its full size, with zeros after the matrix's end, and only tiles on a boundary are masked. B_r ≠
B_c, so that mixing them up is a bug that shows.
"""

import math
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array, chip_dtype
from flashsim.attention.masks.dropout import keep_mask

B_r = 8
B_c = 4


def keep(shape: tuple[int, ...], dropout_p: float, seed: int) -> Array:
    """Return which weights are kept, boolean, for a shape (B, H_q, N_q, N_k)."""
    B, H, N_q, N_k = shape
    dropout_mask = np.ones(shape, bool)
    if dropout_p > 0 and dropout_mask.size > 0:
        for b, h in np.ndindex(B, H):
            dropout_mask[b, h] = keep_mask(seed, dropout_p, N_q, N_k, head=b * H + h)
    return dropout_mask


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
    shift = N_k - N_q  # causal: query i attends to keys j ≤ i + shift
    dtype = chip_dtype(q.dtype)
    Q = np.ascontiguousarray(q).reshape(-1)
    K = np.ascontiguousarray(k).reshape(-1)
    V = np.ascontiguousarray(v).reshape(-1)
    dropout_mask = keep((B, H_q, N_q, N_k), dropout_p, seed) if dropout_p > 0 else None
    masks = None if mask is None else np.broadcast_to(mask, (B, H_q, N_q, N_k))

    O = np.zeros((B, H_q, N_q, d_v), q.dtype)
    lse = np.full((B, H_q, N_q), -np.inf, dtype)
    for b, h in np.ndindex(B, H_q):
        n = h // group
        for i in range(-(-N_q // B_r)):
            top = i * B_r
            rows = min(B_r, N_q - i * B_r)
            Q_i = load(Q, (b * H_q + h) * N_q + top, rows, d, B_r, dtype) * dtype.type(tau)
            m = np.full(B_r, -np.inf, dtype)
            l = np.zeros(B_r, dtype)
            acc = np.zeros((B_r, d_v), dtype)
            end = N_k
            if causal:
                end = min(N_k, top + rows + shift)  # no row of this tile attends to a later key
            for j in range(-(-end // B_c)):
                left = j * B_c
                cols = min(B_c, N_k - j * B_c)
                K_j = load(K, (b * H_kv + n) * N_k + left, cols, d, B_c, dtype)
                V_j = load(V, (b * H_kv + n) * N_k + left, cols, d_v, B_c, dtype)
                S = Q_i @ K_j.T
                ok = allowed(i, j, N_k, causal, shift, None if masks is None else masks[b, h])
                if ok is not None:
                    S = np.where(ok, S, -np.inf)
                    V_j = np.where(np.any(ok, axis=0)[:, None], V_j, 0)  # 0 · NaN would be NaN
                m_new = np.maximum(m, S.max(axis=1))
                finite_m = np.where(m_new == -np.inf, 0, m_new)  # −∞ − (−∞) would be NaN
                P = np.exp(S - finite_m[:, None])
                alpha = np.exp(m - finite_m)
                l = l * alpha + P.sum(axis=1)
                if dropout_mask is not None:
                    P = P * cut(dropout_mask[b, h], top, left) / (1 - dropout_p)
                acc = acc * alpha[:, None] + P @ V_j
                m = m_new
            O_i = acc / np.where(l == 0, 1, l)[:, None]
            lse_i = m + np.log(l)
            O[b, h, top : top + rows] = O_i[:rows]
            lse[b, h, top : top + rows] = lse_i[:rows]
    return O, lse


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
    B, H_q, N_q, d = q.shape
    H_kv, N_k, d_v = v.shape[1:]
    group = H_q // H_kv
    O, lse = forward(q, k, v, causal=causal, scale=scale, mask=mask, dropout_p=dropout_p, seed=seed)
    tau = scale if scale is not None else 1 / math.sqrt(d)
    shift = N_k - N_q  # as in the forward pass
    dtype = chip_dtype(q.dtype)
    Q = np.ascontiguousarray(q).reshape(-1)
    K = np.ascontiguousarray(k).reshape(-1)
    V = np.ascontiguousarray(v).reshape(-1)
    dO = np.ascontiguousarray(do).reshape(-1)
    dropout_mask = None if dropout_p == 0 else keep((B, H_q, N_q, N_k), dropout_p, seed)
    masks = np.broadcast_to(mask, (B, H_q, N_q, N_k)) if mask is not None else None

    D = (dO.reshape(O.shape).astype(dtype) * O.astype(dtype)).sum(axis=-1)
    L = np.where(lse == -np.inf, np.inf, lse)  # so that P = 0 in an empty row
    dQ = np.zeros((B, H_q, N_q, d), dtype)
    dK = np.zeros((B, H_kv, N_k, d), dtype)
    dV = np.zeros((B, H_kv, N_k, d_v), dtype)
    for b, h in np.ndindex(B, H_q):
        n = h // group
        for j in range(-(-N_k // B_c)):
            left = j * B_c
            cols = min(B_c, N_k - j * B_c)
            K_tile = load(K, (b * H_kv + n) * N_k + left, cols, d, B_c, dtype)
            V_tile = load(V, (b * H_kv + n) * N_k + left, cols, d_v, B_c, dtype)
            dK_j = np.zeros((B_c, d), dtype)
            dV_j = np.zeros((B_c, d_v), dtype)
            # no earlier tile of rows attends to these keys
            begin = max(0, left - shift) // B_r if causal else 0
            for i in range(begin, -(-N_q // B_r)):
                top = i * B_r
                rows = min(B_r, N_q - i * B_r)
                Q_i = load(Q, (b * H_q + h) * N_q + top, rows, d, B_r, dtype)
                dO_i = load(dO, (b * H_q + h) * N_q + top, rows, d_v, B_r, dtype)
                L_i = np.full(B_r, np.inf, dtype)  # P = 0 in the rows that fill up the tile
                L_i[:rows] = L[b, h, top : top + rows]
                D_i = np.zeros(B_r, dtype)
                D_i[:rows] = D[b, h, top : top + rows]
                ok = allowed(i, j, N_k, causal, shift, masks[b, h] if masks is not None else None)
                K_j = K_tile
                V_j = V_tile
                if ok is not None:
                    alive = np.any(ok, axis=0)[:, None]
                    K_j = np.where(alive, K_tile, 0)
                    V_j = np.where(alive, V_tile, 0)
                S = Q_i * dtype.type(tau) @ K_j.T
                if ok is not None:
                    S = np.where(ok, S, -np.inf)
                P = np.exp(S - L_i[:, None])
                Z = np.ones((B_r, B_c), dtype)
                if dropout_mask is not None:
                    Z = cut(dropout_mask[b, h], top, left) / dtype.type(1 - dropout_p)
                dV_j += (P * Z).T @ dO_i
                dP = dO_i @ V_j.T * Z
                dS = P * (dP - D_i[:, None])
                dQ_i = dS @ K_j * dtype.type(tau)
                dQ[b, h, top : top + rows] += dQ_i[:rows]
                dK_j += dS.T @ Q_i * dtype.type(tau)
            dK[b, n, left : left + cols] += dK_j[:cols]  # the heads of a group share it
            dV[b, n, left : left + cols] += dV_j[:cols]
    return dQ.astype(q.dtype), dK.astype(q.dtype), dV.astype(q.dtype)


def load(memory: Array, row: int, rows: int, width: int, size: int, dtype: np.dtype[Any]) -> Array:
    """Return a tile of `size` rows: `rows` rows of flat memory from row `row` on, then zeros.

    The offset counts elements. Kernels that keep it in 32 bits fail from 2³¹ on; here such a bug is
    scaled down to 16 bits.
    """
    offset = row * width
    tile = np.zeros((size, width), dtype)
    tile[:rows] = memory[offset : offset + rows * width].reshape(rows, width)
    return tile


def allowed(i: int, j: int, N_k: int, causal: bool, shift: int, mask: Array | None) -> Array | None:
    """Return which keys of tile j the rows of tile i attend to, (B_r, B_c), or None if they
    attend to all.
    """
    top = i * B_r
    left = j * B_c
    ragged = left + B_c > N_k
    diagonal = causal and left + B_c - 1 > top + shift
    if not ragged and not diagonal and mask is None:
        return None
    rows = np.arange(top, top + B_r)[:, None]
    cols = np.arange(left, left + B_c)[None, :]
    ok = np.ones((B_r, B_c), bool)
    if ragged:
        ok &= cols < N_k
    if diagonal:
        ok &= cols <= rows + shift
    if mask is not None:
        ok &= cut(mask, top, left)
    return ok


def cut(whole: Array, top: int, left: int) -> Array:
    """Return the (B_r, B_c) tile of a boolean matrix that begins at (top, left); it is False
    after the matrix's ends.
    """
    tile = np.zeros((B_r, B_c), bool)
    part = whole[top : top + B_r, left : left + B_c]
    tile[: part.shape[0], : part.shape[1]] = part
    return tile
