# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: allow-subclassing-any
# (Triton reads the annotations of kernels, and PyTorch and Triton are not installed everywhere.)
"""FlashAttention in Triton, forward and backward, for `flashsim count`: a kernel to count, and to
change.

    flashsim count flashsim.profiling.triton_example:attention --N 256 --d 64 --causal

One program computes a block of B_r queries and walks over the keys; backward, one kernel walks over
queries for dK and dV, and one over keys for dQ, as in the paper "FlashAttention-2".
"""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    Q,
    K,
    V,
    O,
    L,
    scale,
    N_q,
    N_k,
    group,
    causal: tl.constexpr,
    d: tl.constexpr,
    B_r: tl.constexpr,
    B_c: tl.constexpr,
):
    """O and L of one block of queries."""
    head = tl.program_id(1)
    i = tl.program_id(0) * B_r + tl.arange(0, B_r)
    columns = tl.arange(0, d)
    queries = head * N_q * d + i[:, None] * d + columns
    keys = head // group * N_k * d
    Q_i = tl.load(Q + queries, mask=i[:, None] < N_q, other=0.0)
    m_i = tl.full((B_r,), float("-inf"), tl.float32)
    l_i = tl.zeros((B_r,), tl.float32)
    O_i = tl.zeros((B_r, d), tl.float32)
    end = N_k
    if causal:  # no key after the last that the block's last query attends to
        end = tl.minimum(N_k, (tl.program_id(0) + 1) * B_r + N_k - N_q)
    for start in range(0, end, B_c):
        j = start + tl.arange(0, B_c)
        tile = keys + j[:, None] * d + columns
        K_j = tl.load(K + tile, mask=j[:, None] < N_k, other=0.0)
        S_ij = tl.dot(Q_i, tl.trans(K_j)) * scale
        allowed = j[None, :] < N_k
        if causal:
            allowed &= j[None, :] <= i[:, None] + N_k - N_q
        S_ij = tl.where(allowed, S_ij, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(S_ij, 1))
        P_ij = tl.exp(S_ij - m_new[:, None])
        factor = tl.exp(m_i - m_new)
        l_i = factor * l_i + tl.sum(P_ij, 1)
        V_j = tl.load(V + tile, mask=j[:, None] < N_k, other=0.0)
        O_i = factor[:, None] * O_i + tl.dot(P_ij.to(V_j.dtype), V_j)
        m_i = m_new
    O_i = O_i / l_i[:, None]
    tl.store(O + queries, O_i.to(O.dtype.element_ty), mask=i[:, None] < N_q)
    tl.store(L + head * N_q + i, m_i + tl.log(l_i), mask=i < N_q)


@triton.jit
def rowsum_kernel(O, dO, D, N_q, d: tl.constexpr, B_r: tl.constexpr):
    """D = rowsum(dO ∘ O)."""
    head = tl.program_id(1)
    i = tl.program_id(0) * B_r + tl.arange(0, B_r)
    queries = head * N_q * d + i[:, None] * d + tl.arange(0, d)
    O_i = tl.load(O + queries, mask=i[:, None] < N_q, other=0.0)
    dO_i = tl.load(dO + queries, mask=i[:, None] < N_q, other=0.0)
    D_i = tl.sum(O_i.to(tl.float32) * dO_i.to(tl.float32), 1)
    tl.store(D + head * N_q + i, D_i, mask=i < N_q)


@triton.jit
def keys_kernel(
    Q,
    K,
    V,
    dO,
    L,
    D,
    dK,
    dV,
    scale,
    N_q,
    N_k,
    causal: tl.constexpr,
    d: tl.constexpr,
    B_r: tl.constexpr,
    B_c: tl.constexpr,
):
    """dK and dV of one block of keys."""
    head = tl.program_id(1)
    j = tl.program_id(0) * B_c + tl.arange(0, B_c)
    columns = tl.arange(0, d)
    keys = head * N_k * d + j[:, None] * d + columns
    K_j = tl.load(K + keys, mask=j[:, None] < N_k, other=0.0)
    V_j = tl.load(V + keys, mask=j[:, None] < N_k, other=0.0)
    dK_j = tl.zeros((B_c, d), tl.float32)
    dV_j = tl.zeros((B_c, d), tl.float32)
    first = 0
    if causal:  # no query before the first that attends to one of the block's keys
        first = tl.maximum(tl.program_id(0) * B_c - (N_k - N_q), 0) // B_r * B_r
    for start in range(first, N_q, B_r):
        i = start + tl.arange(0, B_r)
        tile = head * N_q * d + i[:, None] * d + columns
        Q_i = tl.load(Q + tile, mask=i[:, None] < N_q, other=0.0)
        dO_i = tl.load(dO + tile, mask=i[:, None] < N_q, other=0.0)
        L_i = tl.load(L + head * N_q + i, mask=i < N_q, other=0.0)
        D_i = tl.load(D + head * N_q + i, mask=i < N_q, other=0.0)
        S_ij = tl.dot(Q_i, tl.trans(K_j)) * scale
        allowed = (i[:, None] < N_q) & (j[None, :] < N_k)
        if causal:
            allowed &= j[None, :] <= i[:, None] + N_k - N_q
        P_ij = tl.where(allowed, tl.exp(S_ij - L_i[:, None]), 0.0)
        dV_j += tl.dot(tl.trans(P_ij.to(dO_i.dtype)), dO_i)
        dP_ij = tl.dot(dO_i, tl.trans(V_j))
        dS_ij = P_ij * (dP_ij - D_i[:, None])
        dK_j += tl.dot(tl.trans(dS_ij.to(Q_i.dtype)), Q_i)
    tl.store(dK + keys, (dK_j * scale).to(dK.dtype.element_ty), mask=j[:, None] < N_k)
    tl.store(dV + keys, dV_j.to(dV.dtype.element_ty), mask=j[:, None] < N_k)


@triton.jit
def queries_kernel(
    Q,
    K,
    V,
    dO,
    L,
    D,
    dQ,
    scale,
    N_q,
    N_k,
    causal: tl.constexpr,
    d: tl.constexpr,
    B_r: tl.constexpr,
    B_c: tl.constexpr,
):
    """dQ of one block of queries."""
    head = tl.program_id(1)
    i = tl.program_id(0) * B_r + tl.arange(0, B_r)
    columns = tl.arange(0, d)
    queries = head * N_q * d + i[:, None] * d + columns
    Q_i = tl.load(Q + queries, mask=i[:, None] < N_q, other=0.0)
    dO_i = tl.load(dO + queries, mask=i[:, None] < N_q, other=0.0)
    L_i = tl.load(L + head * N_q + i, mask=i < N_q, other=0.0)
    D_i = tl.load(D + head * N_q + i, mask=i < N_q, other=0.0)
    dQ_i = tl.zeros((B_r, d), tl.float32)
    end = N_k
    if causal:
        end = tl.minimum(N_k, (tl.program_id(0) + 1) * B_r + N_k - N_q)
    for start in range(0, end, B_c):
        j = start + tl.arange(0, B_c)
        tile = head * N_k * d + j[:, None] * d + columns
        K_j = tl.load(K + tile, mask=j[:, None] < N_k, other=0.0)
        V_j = tl.load(V + tile, mask=j[:, None] < N_k, other=0.0)
        S_ij = tl.dot(Q_i, tl.trans(K_j)) * scale
        allowed = (i[:, None] < N_q) & (j[None, :] < N_k)
        if causal:
            allowed &= j[None, :] <= i[:, None] + N_k - N_q
        P_ij = tl.where(allowed, tl.exp(S_ij - L_i[:, None]), 0.0)
        dP_ij = tl.dot(dO_i, tl.trans(V_j))
        dS_ij = P_ij * (dP_ij - D_i[:, None])
        dQ_i += tl.dot(dS_ij.to(K_j.dtype), K_j)
    tl.store(dQ + queries, (dQ_i * scale).to(dQ.dtype.element_ty), mask=i[:, None] < N_q)


class Attention(torch.autograd.Function):
    """softmax(scale · QKᵀ) V of contiguous tensors (B, H, N, d), with its gradient."""

    @staticmethod
    def forward(context, q, k, v, causal, scale, B_r, B_c):
        """Return O."""
        batch, heads, N_q, d = q.shape
        o = torch.empty_like(q)
        L = torch.empty((batch, heads, N_q), dtype=torch.float32, device=q.device)
        grid = (triton.cdiv(N_q, B_r), batch * heads)
        sizes = {"causal": causal, "d": d, "B_r": B_r, "B_c": B_c}
        group = heads // k.shape[1]
        forward_kernel[grid](q, k, v, o, L, scale, N_q, k.shape[2], group, **sizes)
        context.save_for_backward(q, k, v, o, L)
        context.scale = scale
        context.sizes = sizes
        return o

    @staticmethod
    def backward(context, do):
        """Return dQ, dK and dV."""
        q, k, v, o, L = context.saved_tensors
        batch, heads, N_q, d = q.shape
        N_k = k.shape[2]
        if k.shape[1] != heads:
            raise ValueError("the backward pass has no shared KV heads")
        do = do.contiguous()
        dq = torch.empty_like(q)
        dk = torch.empty_like(k)
        dv = torch.empty_like(v)
        D = torch.empty_like(L)
        B_r = context.sizes["B_r"]
        B_c = context.sizes["B_c"]
        by_queries = (triton.cdiv(N_q, B_r), batch * heads)
        by_keys = (triton.cdiv(N_k, B_c), batch * heads)
        rest = (context.scale, N_q, N_k)
        rowsum_kernel[by_queries](o, do, D, N_q, d=d, B_r=B_r)
        keys_kernel[by_keys](q, k, v, do, L, D, dk, dv, *rest, **context.sizes)
        queries_kernel[by_queries](q, k, v, do, L, D, dq, *rest, **context.sizes)
        return dq, dk, dv, None, None, None, None


def attention(q, k, v, causal=False, scale=None, B_r=64, B_c=64):
    """Return O of q (B, H, N_q, d) and k, v (B, H_kv, N_k, d); d is a power of 2."""
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    return Attention.apply(q, k, v, causal, scale, B_r, B_c)
