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
    k, v = (np.repeat(a, len(q) // len(a), axis=0).astype(np.float32) for a in (k, v))
    S = (
        q.astype(np.float32)
        @ k.swapaxes(1, 2)
        * np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    )
    S = np.float32(softcap) * np.tanh(S / np.float32(softcap)) if softcap else S
    apart = np.arange(S.shape[1])[:, None] + p - np.arange(S.shape[2])
    left, right = (side if side >= 0 else apart.size + abs(p) for side in window)
    S = S + added - (0 if slopes is None else slopes[:, None, None] * np.abs(apart))
    S = np.where((apart <= left) & (-apart <= (0 if causal else right)) & mask, S, -np.inf)
    top = S.max(axis=-1, initial=-np.inf)
    P = np.exp(S - np.where(top == -np.inf, 0, top)[..., None])
    l = P.sum(axis=-1)
    with np.errstate(divide="ignore"):
        return (P @ v / np.where(l == 0, 1, l)[..., None]).astype(q.dtype), np.where(
            l, top + np.log(l), -np.inf
        )


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
    for (a, b), (c, e) in zip(pairwise(cu_seqlens_q), pairwise(cu_seqlens_k), strict=True):
        assert (b - a <= max_seqlen_q) & (e - c <= max_seqlen_k)
        p = (e - c) - (b - a)
        h, K, V = (x.swapaxes(0, 1) for x in (q[a:b], k[c:e], v[c:e]))
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
    return O.reshape(B, N, *O.shape[1:]), lse.reshape(-1, B, N).swapaxes(0, 1)


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
    of = [(row[: -(-n // k.shape[1])], n) for row, n in zip(block_table, seqused_k, strict=True)]
    keys, values = (
        np.concatenate([a[u].reshape(-1, *a.shape[2:])[:n] for u, n in of]) for a in (k, v)
    )
    ends = np.append(0, np.cumsum(seqused_k))
    return flash_attn_varlen_func(
        q,
        keys,
        values,
        cu_seqlens_q,
        ends,
        max_seqlen_q,
        max_seqlen_k,
        return_attn_probs=True,
        **how,
    )[:2]


def single_prefill(q: Any, k: Any, v: Any, how: Any) -> tuple[Array, Array]:
    """Return O (N, H, d_v), and its log-sum-exp (N, H) to base 2."""
    h, K, V = (x.swapaxes(0, 1) for x in (q, k, v))
    O, lse = attention(h, K, V, len(k) - len(q), how[0], (-1, -1), *how[1:])
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
            k, v = (pages[:, i].reshape(-1, *self.shape[1:])[: self.lengths[s]] for i in (0, 1))
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
    events, added = (
        (mask, np.zeros(1))
        if mask.dtype == bool
        else (mask > -np.inf, np.where(mask == -np.inf, 0, mask))
    )
    p = 0
    shape = (*Q.shape[:3], K.shape[2])
    each = zip(Q, K, V, *(np.broadcast_to(a, shape) for a in (events, added)), strict=True)
    O = [
        attention(q, k, v, p, is_causal, window, scale, softcap, None, *masks)[0]
        for q, k, v, *masks in each
    ]
    return np.stack(O), K, V
