"""What libraries document of functions that `wrap` has conventions of, in NumPy: correct, and of the same signatures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from flashsim.problem.inputs import Array


def attention(
    q: Array, k: Array, v: Array, allowed: Array, scale: float | None, softcap: float = 0.0, slopes: Any = None, p: int = 0,
    added: Any = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """Return O (H_q, N_q, d_v) and its natural log-sum-exp of one sequence (H, N, d), whose first query is at position p."""
    k, v = (np.repeat(a, len(q) // len(a), axis=0).astype(np.float32) for a in (k, v))
    S = q.astype(np.float32) @ k.swapaxes(1, 2) * np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    S = np.float32(softcap) * np.tanh(S / np.float32(softcap)) if softcap else S
    apart = np.abs(np.arange(S.shape[1])[:, None] + p - np.arange(S.shape[2]))
    S = S - (0 if slopes is None else slopes[:, None, None] * apart)
    S = np.where(allowed, S + added, -np.inf)
    top = S.max(axis=-1, initial=-np.inf)
    P = np.exp(S - np.where(top == -np.inf, 0, top)[..., None])
    total = P.sum(axis=-1)
    with np.errstate(divide="ignore"):
        return (P @ v / np.where(total == 0, 1, total)[..., None]).astype(q.dtype), np.where(
            total, top + np.log(total), -np.inf
        )


def within(N_q: int, N_k: int, p: int, causal: Any, window: Any = (-1, -1)) -> Array:
    """Return which keys each query may attend to, the first of which is at position p."""
    apart = np.arange(N_q)[:, None] + p - np.arange(N_k)
    left, right = (side if side >= 0 else N_q + N_k + abs(p) for side in window)
    return (apart <= left) & (-apart <= (0 if causal else right))


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
    softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Any = None,
) -> Any:  # fmt: skip
    O, lse = np.zeros((*q.shape[:2], v.shape[2]), q.dtype), np.full((q.shape[1], len(q)), -np.inf, np.float32)
    for (a, b), (c, e) in zip(pairwise(cu_seqlens_q), pairwise(cu_seqlens_k), strict=True):
        assert (b - a <= max_seqlen_q) & (e - c <= max_seqlen_k)
        p = (e - c) - (b - a)
        seen = within(b - a, e - c, p, causal, window_size)
        h, K, V = (x.swapaxes(0, 1) for x in (q[a:b], k[c:e], v[c:e]))
        o, lse[:, a:b] = attention(h, K, V, seen, softmax_scale, softcap, alibi_slopes, p)
        O[a:b] = o.swapaxes(0, 1)
    return (O, lse, None) if return_attn_probs else O


def flash_attn_with_kvcache(
    q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, rotary_cos: Any = None, rotary_sin: Any = None,
    cache_seqlens: Any = None, cache_batch_idx: Any = None, cache_leftpad: Any = None, block_table: Any = None,
    softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0,
    rotary_interleaved: bool = True, alibi_slopes: Any = None, num_splits: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    B, N = q.shape[:2]
    O, lse = vllm_flash_attn_varlen_func(
        q.reshape(B * N, *q.shape[2:]), k_cache, v_cache, N, np.arange(B + 1) * N, int(max(cache_seqlens)), None, cache_seqlens,
        softmax_scale, causal, window_size, softcap, alibi_slopes, block_table, True,
    )  # fmt: skip
    O, lse = O.reshape(B, N, *O.shape[1:]), lse.reshape(-1, B, N).swapaxes(0, 1)
    return (O, lse) if return_softmax_lse else O


def vllm_flash_attn_varlen_func(
    q: Any, k: Any, v: Any, max_seqlen_q: int, cu_seqlens_q: Any, max_seqlen_k: int, cu_seqlens_k: Any = None,
    seqused_k: Any = None, softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Any = None, block_table: Any = None, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    page = k.shape[1]
    used = [row[: -(-n // page)] for row, n in zip(block_table, seqused_k, strict=True)]
    keys, values = (
        np.concatenate([a[u].reshape(-1, *a.shape[2:])[:n] for u, n in zip(used, seqused_k, strict=True)])
        for a in (k, v)
    )
    ends = np.concatenate([[0], np.cumsum(seqused_k)])
    found = flash_attn_varlen_func(
        q, keys, values, cu_seqlens_q, ends, max_seqlen_q, max_seqlen_k, 0.0, softmax_scale, causal, window_size, softcap,
        alibi_slopes, False, True,
    )  # fmt: skip
    return found[:2] if return_softmax_lse else found[0]


def single_prefill(q: Any, k: Any, v: Any, causal: bool, sm_scale: Any, cap: Any) -> tuple[Array, Array]:
    """Return O (N, H, d_v), and its log-sum-exp (N, H) to base 2."""
    p = len(k) - len(q)
    h, K, V = (x.swapaxes(0, 1) for x in (q, k, v))
    O, lse = attention(h, K, V, within(len(q), len(k), p, causal), sm_scale, cap or 0.0, None, p)
    return O.swapaxes(0, 1), lse.T / np.log(np.float32(2))


class BatchPrefillWithPagedKVCacheWrapper:
    """FlashInfer's."""

    def __init__(self, float_workspace_buffer: Any, kv_layout: str = "NHD") -> None:
        self.kv_layout, self.single_prefill = kv_layout, single_prefill

    def plan(
        self, qo_indptr: Any, paged_kv_indptr: Any, paged_kv_indices: Any, paged_kv_last_page_len: Any, num_qo_heads: int,
        num_kv_heads: int, head_dim_qk: int, page_size: int, *, custom_mask: Any = None, causal: bool = False,
        sm_scale: Any = None, logits_soft_cap: Any = None, q_data_type: Any = "float16",
    ) -> None:  # fmt: skip
        self.qo, self.indptr, self.indices = qo_indptr, paged_kv_indptr, paged_kv_indices
        self.shape = (page_size, num_kv_heads, head_dim_qk)
        self.lengths = page_size * np.maximum(np.diff(paged_kv_indptr) - 1, 0) + paged_kv_last_page_len
        self.heads, self.how, self.dtype = num_qo_heads, (causal, sm_scale, logits_soft_cap), q_data_type

    def run(self, q: Any, paged_kv_cache: Any, *, return_lse: bool = False) -> Any:
        assert (q.shape[1], q.dtype) == (self.heads, self.dtype)
        cache = paged_kv_cache.swapaxes(2, 3) if self.kv_layout == "HND" else paged_kv_cache
        assert cache.shape[1:] == (2, *self.shape)
        O, lse = np.zeros_like(q), np.full(q.shape[:2], -np.inf, np.float32)
        for s, (a, b) in enumerate(pairwise(self.qo)):
            pages = cache[self.indices[self.indptr[s] : self.indptr[s + 1]]]
            k, v = (pages[:, i].reshape(-1, *self.shape[1:])[: self.lengths[s]] for i in (0, 1))
            O[a:b], lse[a:b] = self.single_prefill(q[a:b], k, v, *self.how)
        return (O, lse) if return_lse else O


def onnx_attention(
    Q: Any, K: Any, V: Any, attn_mask: Any = None, *, is_causal: int = 0, scale: float | None = None, softcap: float = 0.0,
    left_window_size: int = -1, right_window_size: int = -1,
) -> tuple[Array, ...]:  # fmt: skip
    N_q, N_k, p = Q.shape[2], K.shape[2], 0
    seen = np.broadcast_to(within(N_q, N_k, p, is_causal, (left_window_size, right_window_size)), (*Q.shape[:3], N_k))
    mask = np.ones(1, bool) if attn_mask is None else attn_mask
    added = np.broadcast_to(0 if mask.dtype == bool else np.where(mask == -np.inf, 0, mask), seen.shape)
    seen = seen & (mask if mask.dtype == bool else mask > -np.inf)
    each = [attention(Q[b], K[b], V[b], seen[b], scale, softcap, None, 0, added[b])[0] for b in range(len(Q))]
    return np.stack(each), K, V
