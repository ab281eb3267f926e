// What both kernels for few queries share: the problem, where rows are, loads of what is read once, and the parts of a row.
#pragma once

#include "hopper_softmax.cuh"

struct Strides {
    Offset batch, head, row;
};

struct Problem {
    Strides Q;
    Offset tiles;                   // T; paged, the parts of all heads
    const Word *table, *lengths;    // paged: (sequences, width), (sequences,)
    int width, pages, page;         // pages in the pool, and rows of a page
    int N_q, N_k, H_kv, group, heads;  // KV heads of a batch entry, and of all
    int rows, T_c, causal, wants_L;    // rows = group · N_q; paged, T_c is the parts of a head
    float c, sign;                     // as in hopper.cu
};

// A block's first tile, and the block that has a tile.
__device__ inline Offset first_tile(const Problem& p, int block, int blocks) { return p.tiles * block / blocks; }
__device__ inline int block_of(const Problem& p, Offset tile, int blocks) { return int(((tile + 1) * blocks - 1) / p.tiles); }

// Where row r of a KV head is in a contiguous array (B, H, N_q, …).
__device__ inline Offset place(const Problem& p, int head, int r) {
    return (Offset(head) * p.group + r % p.group) * p.N_q + r / p.group;
}

// As `load`, for data that is not read again: the L2 evicts it first.
__device__ inline void load_once(Word tile, const TensorMap& X, int row, int head, int batch, Barrier there, Total policy) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
        "%2, %4, %5}], [%6], %7;" ::"r"(tile),
        "l"(&X), "r"(0), "r"(row), "r"(head), "r"(batch), "r"(there.at), "l"(policy)
        : "memory");
}

// The state of a row after some of its parts. A lane has d/32 of its columns.
//
//     m = max_s m_s,   ℓ = Σ_s 2^(c (m_s − m)) ℓ_s,   O = diag(ℓ)⁻¹ Σ_s 2^(c (m_s − m)) O_s
template <int d> struct Part {
    float m = -INFINITY, l = 0.0f, O[d / 32] = {};

    __device__ void add(float m_s, float l_s, const float (&O_s)[d / 32], float c) {
        const float m_new = fmaxf(m, m_s);
        const float alpha = exp_2((m - finite(m_new)) * c), weight = exp_2((m_s - finite(m_new)) * c);
        m = m_new, l = alpha * l + weight * l_s;
#pragma unroll
        for (int x = 0; x < d / 32; ++x) O[x] = alpha * O[x] + weight * O_s[x];
    }
    // The row of O and L at `at`.
    template <typename T>
    __device__ void write(T* to, float* L, Offset at, const Problem& p, Tally& O_writes, Tally& L_writes) const {
        const int lane = threadIdx.x % 32;
        const float factor = 1.0f / nonzero(l);
#pragma unroll
        for (int x = 0; x < d / 64; ++x)
            reinterpret_cast<Word*>(to + at * d)[lane + 32 * x] = pack<T>(O[2 * x] * factor, O[2 * x + 1] * factor);
        O_writes.add(1, d / 32);
        if (p.wants_L && lane == 0) {
            L[at] = l == 0.0f ? -INFINITY : m * p.c * 0.693147180559945f + logf(l);
            L_writes.add(1, 1);
        }
    }
};

// In a cluster of blocks: this block's number, a barrier for all, and the address of another one's shared memory.
__device__ inline Word rank() {
    Word found;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(found));
    return found;
}
__device__ inline void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline Word in_block(Word at, Word block) {
    Word found;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(at), "r"(block));
    return found;
}
__device__ inline float2 load_from(Word at) {
    float2 found;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(found.x), "=f"(found.y) : "r"(at));
    return found;
}
