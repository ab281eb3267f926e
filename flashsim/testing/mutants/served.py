"""Attention as kernels that serve compute it: on packed sequences, pages, latents and 8 bits.
Correct; bugs are planted in it.

`head` computes one head of one sequence, and a function loads its keys tile by tile. After a
sequence's end, a tile has what lies there: another sequence's rows, or a page's unused rows. Keys
are split into parts, which are merged; only the merge has the sink. Weights of 8 bits are scaled by
2⁸, and the maximum is raised only if they would saturate (FlashAttention-4): 2^(8 + 0.75) ≤ 448.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array, chip_dtype, largest

B_r = 8
B_c = 16
PART = 64
# of 8 bits, in powers of two
OFFSET = 8.0
THRESHOLD = 0.75
Load = Callable[[int], tuple[Array, Array]]


@np.errstate(all="ignore")
def forward(
    q: Array, k: Array, v: Array, *, scale: float | None = None, **options: Any
) -> tuple[Array, Array]:
    """Return O (B, H_q, N_q, d_v) and the natural log-sum-exp of each row."""
    B, H_q, N_q, d = q.shape
    H_kv, N_k, d_v = v.shape[1:]
    tau = 1 / math.sqrt(d) if scale is None else scale
    chip = chip_dtype(q.dtype)
    O = np.zeros((B, H_q, N_q, d_v), chip)
    lse = np.zeros((B, H_q, N_q), chip)
    for b, h in np.ndindex(B, H_q):
        n = h // (H_q // H_kv)
        load = tiles(k[b, n], v[b, n], 0, chip)
        head_options = of_head(options, h, descales(options, b, h, n))
        O[b, h], lse[b, h] = head(q[b, h], load, N_k, d_v, tau, **head_options)
    return O.astype(q.dtype if q.dtype.itemsize > 1 else np.float16), lse


@np.errstate(all="ignore")
def varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    scale: float | None = None,
    **options: Any,
) -> tuple[Array, Array]:
    """Return O (rows, H_q, d_v), and log-sum-exps (H_q, rows), of packed sequences."""
    rows, H_q, d = q.shape
    _, H_kv, d_v = v.shape
    chip = chip_dtype(q.dtype)
    tau = 1 / math.sqrt(d) if scale is None else scale
    O = np.zeros((rows, H_q, d_v), chip)
    lse = np.full((H_q, rows), np.nan, chip)
    for s, h in np.ndindex(len(cu_seqlens_q) - 1, H_q):
        n = h // (H_q // H_kv)
        q_rows = slice(*cu_seqlens_q[s : s + 2])
        k_rows = slice(*cu_seqlens_k[s : s + 2])
        N_k = int(k_rows.stop - k_rows.start)
        load = tiles(k[:, n], v[:, n], int(k_rows.start), chip)
        O[q_rows, h], lse[h, q_rows] = head(
            q[q_rows, h], load, N_k, d_v, tau, **of_head(options, h)
        )
    return O.astype(q.dtype), lse


@np.errstate(all="ignore")
def paged(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_table: Array,
    cache_seqlens: Array,
    *,
    scale: float | None = None,
    **options: Any,
) -> tuple[Array, Array]:
    """Return O (B, N_q, H_q, d_v), and log-sum-exps (B, H_q, N_q), of sequences whose pages hold
    B_c keys each.
    """
    B, N_q, H_q, d = q.shape
    H_kv, d_v = v_cache.shape[2:]
    chip = chip_dtype(q.dtype)
    tau = 1 / math.sqrt(d) if scale is None else scale
    O = np.zeros((B, N_q, H_q, d_v), chip)
    lse = np.zeros((B, H_q, N_q), chip)
    for s, h in np.ndindex(B, H_q):
        n = h // (H_q // H_kv)
        N_k = int(cache_seqlens[s])

        def load(j: int, s: int = s, n: int = n) -> tuple[Array, Array]:
            page = block_table[s, j]
            return k_cache[page, :, n].astype(chip), v_cache[page, :, n].astype(chip)

        O[s, :, h], lse[s, h] = head(q[s, :, h], load, N_k, d_v, tau, **of_head(options, h))
    return O.astype(q.dtype), lse


@np.errstate(all="ignore")
def mla(q: Array, latents: Array, width: int, scale: float, **options: Any) -> tuple[Array, Array]:
    """Return O (B, N_q, H_q, width), and log-sum-exps (B, H_q, N_q), of heads that share latents
    as keys and values.
    """
    B, N_q, H_q, _ = q.shape
    N_k = latents.shape[1]
    chip = chip_dtype(q.dtype)
    tau = scale
    O = np.zeros((B, N_q, H_q, width), chip)
    lse = np.zeros((B, H_q, N_q), chip)
    for b, h in np.ndindex(B, H_q):
        load = tiles(latents[b], latents[b][:, :width], 0, chip)
        O[b, :, h], lse[b, h] = head(q[b, :, h], load, N_k, width, tau, **of_head(options, h))
    return O.astype(q.dtype), lse


def of_head(
    options: dict[str, Any], h: int, scales: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a head's options."""
    slopes = options.get("alibi_slopes")
    sinks = options.get("sink")
    return {
        "causal": options.get("causal"),
        "window": options.get("window"),
        "softcap": options.get("softcap"),
        "slope": None if slopes is None else slopes[h],
        "sink": None if sinks is None else sinks[h],
        **(scales or {}),
    }


def descales(options: dict[str, Any], b: int, h: int, n: int) -> dict[str, Any]:
    """Return the factors of a head's q, k and v: numbers, or arrays for blocks of k and v."""
    if "q_descale" not in options:
        return {}
    return {
        "q_scale": options["q_descale"][b, h],
        "k_scale": options["k_descale"][b, n],
        "v_scale": options["v_descale"][b, n],
    }


def tiles(K: Array, V: Array, first: int, chip: np.dtype[Any]) -> Load:
    """Return a function that loads a tile of keys, from row `first` on, with zeros after the
    array's end.
    """

    def load(j: int) -> tuple[Array, Array]:
        tile = slice(first + j * B_c, first + (j + 1) * B_c)
        K_j = K[tile].astype(chip)
        V_j = V[tile].astype(chip)
        padding = ((0, B_c - len(K_j)), (0, 0))
        return np.pad(K_j, padding), np.pad(V_j, padding)

    return load


def head(
    Q: Array,
    load: Load,
    N_k: int,
    d_v: int,
    tau: float,
    *,
    causal: bool | None,
    window: tuple[int, int] | None,
    softcap: float | None,
    slope: float | None,
    sink: float | None,
    q_scale: Any = 1.0,
    k_scale: Any = 1.0,
    v_scale: Any = 1.0,
) -> tuple[Array, Array]:
    """Return O (N_q, d_v) and the log-sum-exp (N_q,) of one head of one sequence."""
    N_q = len(Q)
    chip = chip_dtype(Q.dtype)
    in_8_bits = Q.dtype.itemsize == 1
    Q_i = Q.astype(chip) * chip.type(tau)
    rows = np.arange(N_q)[:, None]
    if in_8_bits:
        Q_i = (
            Q_i * np.repeat(np.atleast_1d(q_scale), B_r)[:N_q, None]
            if np.ndim(q_scale)
            else Q_i * q_scale
        )
    position = rows + N_k - N_q
    outputs = [np.zeros((N_q, d_v), chip)]
    logs = [np.full(N_q, -np.inf, chip)]
    for start in range(0, N_k, PART):
        m = np.full(N_q, -np.inf, chip)
        l = np.zeros(N_q, chip)
        acc = np.zeros((N_q, d_v), chip)
        for j in range(start // B_c, -(-min(start + PART, N_k) // B_c)):
            K_j, V_j = load(j)
            keys = j * B_c + np.arange(B_c)
            ok = (keys < N_k) & np.ones((N_q, 1), bool)
            if causal:
                ok = ok & (keys <= position)
            if window is not None:
                left, right = window
                ok = (
                    ok
                    & ((left < 0) | (keys >= position - left))
                    & ((right < 0) | (keys <= position + right))
                )
            S = Q_i @ K_j.T
            if in_8_bits:
                S = S * (k_scale[j] if np.ndim(k_scale) else k_scale)
            if softcap is not None:
                S = chip.type(softcap) * np.tanh(S / chip.type(softcap))
            if slope is not None:
                S = S - chip.type(slope) * np.abs(position - keys).astype(chip)
            S = np.where(ok, S, -np.inf)
            V_j = np.where(np.any(ok, axis=0)[:, None], V_j, 0)  # 0 · NaN would be NaN
            m_max = np.maximum(m, S.max(axis=1))
            lazy = in_8_bits & ((m_max - m) * math.log2(math.e) <= THRESHOLD)
            m_new = np.where(lazy, m, m_max)
            finite_m = np.where(m_new == -np.inf, 0, m_new)
            P = np.exp(S - finite_m[:, None])
            alpha = np.exp(m - finite_m)
            l = l * alpha + P.sum(axis=1)
            if in_8_bits:
                P = (
                    np.minimum(P * 2**OFFSET, largest(Q.dtype)).astype(Q.dtype).astype(chip)
                    / 2**OFFSET
                )
                V_j = V_j * (v_scale[j] if np.ndim(v_scale) else v_scale)
            acc = acc * alpha[:, None] + P @ V_j
            m = m_new
        outputs.append(acc / np.where(l == 0, 1, l)[:, None])
        logs.append(m + np.log(l))
    return merged(np.stack(outputs), np.stack(logs), None if sink is None else chip.type(sink))


def merged(outputs: Array, logs: Array, sink: float | None) -> tuple[Array, Array]:
    """Return output and log-sum-exp of all parts and a sink together."""
    m = logs.max(axis=0)
    if sink is not None:
        m = np.maximum(m, sink)
    finite_m = np.where(m == -np.inf, 0, m)
    weights = np.exp(logs - finite_m)
    total = weights.sum(axis=0)
    if sink is not None:
        total = total + np.exp(sink - finite_m)
    O = (outputs * weights[..., None]).sum(axis=0) / np.where(total == 0, 1, total)[:, None]
    return O, m + np.log(total)


@np.errstate(all="ignore")
def backward(
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    *,
    causal: bool | None = None,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
) -> tuple[Array, ...]:
    """Return dq, dk, dv, and dsink if there is a sink."""
    options = {
        "causal": causal,
        "window": window,
        "scale": scale,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
    }
    O, lse = forward(q, k, v, **options, sink=sink)  # type: ignore[arg-type]
    (B, H_q, N_q, d), (_, H_kv, N_k, _), chip = q.shape, k.shape, chip_dtype(q.dtype)
    position = np.arange(N_q)[:, None] + N_k - N_q
    keys = np.arange(N_k)
    tau = chip.type(1 / math.sqrt(d) if scale is None else scale)
    ok = np.ones((N_q, N_k), bool)
    if causal:
        ok &= keys <= position
    if window is not None:
        left, right = window
        ok &= ((left < 0) | (keys >= position - left)) & ((right < 0) | (keys <= position + right))
    Q = q.astype(chip)
    dO = do.astype(chip)
    K, V = (np.repeat(a.astype(chip), H_q // H_kv, axis=1) for a in (k, v))
    S = tau * Q @ K.swapaxes(-1, -2)
    slope = chip.type(1)
    if softcap is not None:
        tanh = np.tanh(S / chip.type(softcap))
        S = chip.type(softcap) * tanh
        slope = 1 - tanh**2
    if alibi_slopes is not None:
        S = S - alibi_slopes.astype(chip)[None, :, None, None] * np.abs(position - keys).astype(
            chip
        )
    P = np.where(ok, np.exp(S - np.where(lse == -np.inf, np.inf, lse)[..., None]), 0)
    D = (dO * O.astype(chip)).sum(axis=-1, keepdims=True)
    dS = P * (dO @ V.swapaxes(-1, -2) - D) * slope
    dK, dV = (
        a.reshape(B, H_kv, H_q // H_kv, N_k, a.shape[-1]).sum(axis=2)
        for a in (tau * dS.swapaxes(-1, -2) @ Q, P.swapaxes(-1, -2) @ dO)
    )
    gradients = (tau * dS @ K).astype(q.dtype), dK.astype(q.dtype), dV.astype(q.dtype)
    if sink is None:
        return gradients
    p_sink = np.exp(sink.astype(chip)[None, :, None] - np.where(lse == -np.inf, 0, lse))
    return *gradients, -(p_sink * D[..., 0]).sum(axis=(0, 2))
