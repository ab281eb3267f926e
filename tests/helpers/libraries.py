"""What libraries document of the functions that `wrap` has conventions of, in NumPy: correct,
and called as theirs are.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array


def attention(
    q: Array,
    k: Array,
    v: Array,
    p: int,
    causal: Any,
    window: Any,
    scale: Any,
    softcap: Any = 0.0,
    slopes: Any = None,
    mask: Any = True,
    added: Any = 0.0,
) -> tuple[Array, Array]:
    """Return O (H_q, N_q, d_v) and its natural log-sum-exp of one sequence (H, N, d), whose
    first query is at position p.
    """
    g = len(q) // len(k)
    k = np.repeat(k, g, axis=0).astype(np.float32)
    v = np.repeat(v, g, axis=0).astype(np.float32)
    tau = np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    S = q.astype(np.float32) @ k.swapaxes(1, 2) * tau
    if softcap:
        cap = np.float32(softcap)
        S = cap * np.tanh(S / cap)
    N_q, N_k = S.shape[1:]
    apart = np.arange(N_q)[:, None] + p - np.arange(N_k)
    left, right = (side if side >= 0 else apart.size + abs(p) for side in window)
    if causal:
        right = 0
    S = S + added
    if slopes is not None:
        S = S - slopes[:, None, None] * np.abs(apart)
    in_window = (apart <= left) & (-apart <= right)
    S = np.where(in_window & mask, S, -np.inf)
    top = S.max(axis=-1, initial=-np.inf)
    finite_top = np.where(top == -np.inf, 0, top)
    P = np.exp(S - finite_top[..., None])
    l = P.sum(axis=-1)
    O = P @ v / np.where(l == 0, 1, l)[..., None]
    with np.errstate(divide="ignore"):
        lse = np.where(l, top + np.log(l), -np.inf)
    return O.astype(q.dtype), lse


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: Any = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    return_attn_probs: bool = False,
) -> Any:
    O = np.zeros((*q.shape[:2], v.shape[2]), q.dtype)
    lse = np.full((q.shape[1], len(q)), -np.inf, np.float32)
    sequences = zip(pairwise(cu_seqlens_q), pairwise(cu_seqlens_k), strict=True)
    for (a, b), (c, e) in sequences:
        assert (b - a <= max_seqlen_q) & (e - c <= max_seqlen_k)
        p = (e - c) - (b - a)
        h = q[a:b].swapaxes(0, 1)
        K = k[c:e].swapaxes(0, 1)
        V = v[c:e].swapaxes(0, 1)
        o, lse[:, a:b] = attention(
            h, K, V, p, causal, window_size, softmax_scale, softcap, alibi_slopes
        )
        O[a:b] = o.swapaxes(0, 1)
    return (O, lse, None) if return_attn_probs else O


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cache_seqlens: Any,
    block_table: Any,
    return_softmax_lse: bool,
    **how: Any,
) -> Any:
    B, N = q.shape[:2]
    ends = np.arange(B + 1) * N
    packed = q.reshape(B * N, *q.shape[2:])
    O, lse = vllm_flash_attn_varlen_func(
        packed, k_cache, v_cache, N, ends, 999, cache_seqlens, block_table, True, **how
    )
    lse = lse.reshape(-1, B, N).swapaxes(0, 1)
    return O.reshape(B, N, *O.shape[1:]), lse


def vllm_flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    max_seqlen_q: int,
    cu_seqlens_q: Any,
    max_seqlen_k: int,
    seqused_k: Any,
    block_table: Any,
    return_softmax_lse: bool,
    **how: Any,
) -> Any:
    page = k.shape[1]
    keys = []
    values = []
    for row, length in zip(block_table, seqused_k, strict=True):
        pages = row[: -(-length // page)]
        keys.append(k[pages].reshape(-1, *k.shape[2:])[:length])
        values.append(v[pages].reshape(-1, *v.shape[2:])[:length])
    ends = np.append(0, np.cumsum(seqused_k))
    return flash_attn_varlen_func(
        q,
        np.concatenate(keys),
        np.concatenate(values),
        cu_seqlens_q,
        ends,
        max_seqlen_q,
        max_seqlen_k,
        return_attn_probs=True,
        **how,
    )[:2]


def single_prefill(q: Any, k: Any, v: Any, how: Any) -> tuple[Array, Array]:
    """Return O (N, H, d_v), and its log-sum-exp (N, H) to base 2."""
    h = q.swapaxes(0, 1)
    K = k.swapaxes(0, 1)
    V = v.swapaxes(0, 1)
    causal, *rest = how
    O, lse = attention(h, K, V, len(k) - len(q), causal, (-1, -1), *rest)
    return O.swapaxes(0, 1), lse.T / np.log(np.float32(2))


class BatchPrefillWithPagedKVCacheWrapper:
    """FlashInfer's."""

    def __init__(self, kv_layout: str, single_prefill: Any = single_prefill) -> None:
        self.kv_layout = kv_layout
        self.single_prefill = single_prefill

    def plan(
        self,
        qo_indptr: Any,
        paged_kv_indptr: Any,
        paged_kv_indices: Any,
        paged_kv_last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: Any = None,
        logits_soft_cap: Any = None,
        q_data_type: Any = "float16",
    ) -> None:
        self.qo = qo_indptr
        self.indptr = paged_kv_indptr
        self.indices = paged_kv_indices
        self.shape = (page_size, num_kv_heads, head_dim_qk)
        self.how = (causal, sm_scale, logits_soft_cap)
        self.lengths = (
            page_size * np.maximum(np.diff(paged_kv_indptr) - 1, 0) + paged_kv_last_page_len
        )
        self.heads = num_qo_heads
        self.dtype = q_data_type

    def run(self, q: Any, paged_kv_cache: Any, *, return_lse: bool = False) -> Any:
        assert (q.shape[1], q.dtype) == (self.heads, self.dtype)
        cache = paged_kv_cache.swapaxes(2, 3) if self.kv_layout == "HND" else paged_kv_cache
        assert cache.shape[1:] == (2, *self.shape)
        O = np.zeros_like(q)
        lse = np.full(q.shape[:2], -np.inf, np.float32)
        for s, (a, b) in enumerate(pairwise(self.qo)):
            pages = cache[self.indices[self.indptr[s] : self.indptr[s + 1]]]
            rows = (-1, *self.shape[1:])
            k = pages[:, 0].reshape(rows)[: self.lengths[s]]
            v = pages[:, 1].reshape(rows)[: self.lengths[s]]
            O[a:b], lse[a:b] = self.single_prefill(q[a:b], k, v, self.how)
        return (O, lse) if return_lse else O


def onnx_attention(
    Q: Any,
    K: Any,
    V: Any,
    attn_mask: Any = None,
    *,
    is_causal: int = 0,
    scale: Any = None,
    softcap: float = 0.0,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> tuple[Array, ...]:
    window = (left_window_size, right_window_size)
    mask = np.ones(1, bool) if attn_mask is None else attn_mask
    allowed = mask
    added = np.zeros(1)
    if mask.dtype != bool:
        allowed = mask > -np.inf
        added = np.where(mask == -np.inf, 0, mask)
    p = 0
    shape = (*Q.shape[:3], K.shape[2])
    allowed = np.broadcast_to(allowed, shape)
    added = np.broadcast_to(added, shape)
    O = []
    for q, k, v, *masks in zip(Q, K, V, allowed, added, strict=True):
        o, _ = attention(q, k, v, p, is_causal, window, scale, softcap, None, *masks)
        O.append(o)
    return np.stack(O), K, V
