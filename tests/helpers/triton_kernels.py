# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# Triton reads the annotations of kernels.
"""Attention in Triton, right and with one thing that moves without need: each is a kernel of a few
lines, for tests of counting. Import it with TRITON_INTERPRET=1.
"""

import math
from typing import Any

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
    skip: tl.constexpr,
    d: tl.constexpr,
    B_r: tl.constexpr,
    B_c: tl.constexpr,
):
    """FlashAttention's forward pass: one program for each head and block of queries."""
    head = tl.program_id(1)
    i = tl.program_id(0) * B_r + tl.arange(0, B_r)
    columns = tl.arange(0, d)
    kv = (head // group) * N_k * d
    q = tl.load(Q + head * N_q * d + i[:, None] * d + columns, mask=i[:, None] < N_q, other=0.0)
    m = tl.full((B_r,), float("-inf"), tl.float32)
    l = tl.zeros((B_r,), tl.float32)
    o = tl.zeros((B_r, d), tl.float32)
    end = N_k
    if skip:
        end = tl.minimum(N_k, (tl.program_id(0) + 1) * B_r + N_k - N_q)
    for start in range(0, end, B_c):
        j = start + tl.arange(0, B_c)
        k = tl.load(K + kv + j[:, None] * d + columns, mask=j[:, None] < N_k, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        allowed = j[None, :] < N_k
        if causal:
            allowed &= j[None, :] <= i[:, None] + N_k - N_q
        s = tl.where(allowed, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        shrink = tl.exp(m - m_new)
        l = shrink * l + tl.sum(p, 1)
        v = tl.load(V + kv + j[:, None] * d + columns, mask=j[:, None] < N_k, other=0.0)
        o = shrink[:, None] * o + tl.dot(p.to(v.dtype), v)
        m = m_new
    here = i[:, None] < N_q
    tl.store(O + head * N_q * d + i[:, None] * d + columns, o / l[:, None], mask=here)
    tl.store(L + head * N_q + i, m + tl.log(l), mask=i < N_q)


def attention(
    q: Any,
    k: Any,
    v: Any,
    causal: bool = False,
    skip: bool = True,
    B_r: int = 16,
    B_c: int = 16,
    output_dtype: Any = None,
) -> Any:
    """Return O of tensors (B, H, N, d). `skip`: leave out tiles that the causal mask empties."""
    batch, heads, N_q, d = q.shape
    o = torch.empty_like(q, dtype=output_dtype)
    L = torch.empty((batch, heads, N_q))
    grid = (triton.cdiv(N_q, B_r), batch * heads)
    group = heads // k.shape[1]
    forward_kernel[grid](
        q,
        k,
        v,
        o,
        L,
        1 / math.sqrt(d),
        N_q,
        k.shape[2],
        group,
        causal=causal,
        skip=causal and skip,
        d=d,
        B_r=B_r,
        B_c=B_c,
    )
    return o
