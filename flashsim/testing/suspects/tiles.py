"""The last blocks, and the blocks that the diagonal crosses."""

from __future__ import annotations

import numpy as np

from flashsim.testing.suspects.family import Changes, key_blocks, reads, tiles
from flashsim.testing.suspects.reading import Question, Reading


@reads("The last keys are dropped where N_k is not a multiple of {0}.", "jax-ml/jax#27224", over=key_blocks)
def tail_dropped(q: Question, r: Reading, block: int) -> Changes:
    N_k = r.k.shape[2]
    return {"allowed": r.allowed & (np.arange(N_k) < N_k // block * block)}


@reads("Where N_k is not a multiple of {0}, the zeros that fill up the last block of keys take part in the softmax{1}.",
       "jax-ml/jax#27224", "NVIDIA/cutlass#2428",
       over=lambda spec: [(b, where) for b in key_blocks(spec)
                          for where in ("", " if there is no mask", " unless masked")])  # fmt: skip
def tail_unmasked(q: Question, r: Reading, block: int, says: str) -> Changes:
    N_k, more = r.k.shape[2], -r.k.shape[2] % block
    if more == 0 or (says == " if there is no mask" and q.problem.mask is not None):
        return None
    k, v = (np.concatenate([a, np.zeros((*a.shape[:2], more, a.shape[3]))], axis=2) for a in (r.k, r.v))
    seen = np.ones((r.q.shape[2], more), bool)
    if says and q.problem.causal:
        seen = np.arange(N_k, N_k + more)[None, :] <= np.arange(r.q.shape[2])[:, None] + q.shift
    allowed = np.concatenate([r.allowed, np.broadcast_to(seen, (*r.allowed.shape[:3], more))], axis=3)
    Z = r.Z if isinstance(r.Z, float) else np.concatenate([r.Z, np.ones((*r.Z.shape[:3], more))], axis=3)
    return {"k": k, "v": v, "allowed": allowed, "Z": Z}


@reads("Only the last block of {0} keys is masked.", "ROCm/rocMLIR#2165", "triton-lang/triton#8853", over=key_blocks)
def last_block_masked(q: Question, r: Reading, block: int) -> Changes:
    N_k = r.k.shape[2]
    return {"allowed": r.allowed | (np.arange(N_k) < (N_k - 1) // block * block)}


@reads("In tiles of {0} queries and {1} keys, the causal mask is applied to the last tile of a row of tiles only, though "
       "the diagonal crosses several.", "ROCm/rocMLIR#2165", "triton-lang/triton#8853", over=tiles)  # fmt: skip
def diagonal_in_last_tile(q: Question, r: Reading, B_r: int, B_c: int) -> Changes:
    if not q.problem.causal:
        return None
    N_q, N_k = r.allowed.shape[2:]
    ends = np.minimum(N_k, (np.arange(N_q) // B_r + 1) * B_r + q.shift)[:, None]  # of each row's loop over keys
    ends = np.minimum(ends, np.minimum(N_q, (np.arange(N_q) // B_r + 1) * B_r)[:, None] + q.shift)
    before = np.arange(N_k)[None, :] < (ends - 1) // B_c * B_c
    return {"allowed": r.allowed | (before & q.problem.but(causal=False).allowed)}


@reads("In tiles of {0} queries and {1} keys, the causal loop over keys ends where the first row of a tile ends.",
       "ROCm/rocMLIR#2165", over=tiles)  # fmt: skip
def loop_ends_at_first_row(q: Question, r: Reading, B_r: int, B_c: int) -> Changes:
    if not q.problem.causal:
        return None
    N_q, N_k = r.allowed.shape[2:]
    ends = np.minimum(N_k, np.arange(N_q) // B_r * B_r + 1 + q.shift)[:, None]
    return {"allowed": r.allowed & (np.arange(N_k)[None, :] < -(-ends // B_c) * B_c)}
