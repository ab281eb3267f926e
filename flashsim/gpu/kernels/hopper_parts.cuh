// What both kernels for few queries share: the problem, where rows are, loads of what is read once, and the parts of a row.
#pragma once

#include "hopper_softmax.cuh"

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

// As `load` and `Ring::load`, for data that is not read again: the L2 evicts it first.
__device__ inline Total evict_first() {
    Total policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ inline void load_once(Word to, const TensorMap& X, int row, int half, int head, int batch, Barrier there, Total policy) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
        "%4, %5, %6}], [%7], %8;" ::"r"(to),
        "l"(&X), "r"(0), "r"(row), "r"(half), "r"(head), "r"(batch), "r"(there.at), "l"(policy)
        : "memory");
}
template <int stages, int bytes>
__device__ inline void load_once(const Ring<stages, bytes>& ring, Word n, const TensorMap& X, int row, int head, int batch,
                                 Total policy) {
    ring.wait_free(n);
    ring.there(n).arrive_and_expect(bytes);
    load_once(ring.tile(n), X, row, 0, head, batch, ring.there(n), policy);
}

// What is written: O and L, or parts of heads. `totals` count it.
template <typename T> struct Results {
    T* O;
    float *L, *O_parts, *l_parts, *m_parts;
    Total* totals;
};

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
    // Merge the parts of row `r` that the cluster's blocks show in their shared memory at `ring`.
    template <int cluster> __device__ void gather(Word ring, int r, float c);
    // Store it as a part, at row `at` of all parts' rows.
    template <typename T> __device__ void leave(const Results<T>& to, Offset at) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int x = 0; x < d / 64; ++x)
            __stcg(reinterpret_cast<float2*>(to.O_parts + at * d) + lane + 32 * x, make_float2(O[2 * x], O[2 * x + 1]));
        Tally(to.totals + 11).add(1, d / 32);
        if (lane == 0) to.l_parts[at] = l, to.m_parts[at] = m;
        Tally(to.totals + 13).add(lane == 0, 1), Tally(to.totals + 15).add(lane == 0, 1);
    }
    // The row of O and L at `at`.
    template <typename T> __device__ void write(const Results<T>& to, Offset at, const Problem& p) const {
        const int lane = threadIdx.x % 32;
        const float factor = 1.0f / nonzero(l);
#pragma unroll
        for (int x = 0; x < d / 64; ++x)
            reinterpret_cast<Word*>(to.O + at * d)[lane + 32 * x] = pack<T>(O[2 * x] * factor, O[2 * x + 1] * factor);
        Tally(to.totals + 7).add(1, d / 32);
        if (p.wants_L && lane == 0) {
            to.L[at] = l == 0.0f ? -INFINITY : m * p.c * 0.693147180559945f + logf(l);
            Tally(to.totals + 9).add(1, 1);
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

// Bytes of a row of (O_i, ℓ_i, m_i) that a block shows in its shared memory, padded against bank conflicts.
template <int d> constexpr int SHOWN = (d + 8) * 4;

template <int d> template <int cluster> __device__ void Part<d>::gather(Word ring, int r, float c) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < cluster; ++s) {
        const Word from = in_block(ring + r * SHOWN<d>, s);
        float O_s[d / 32];
#pragma unroll
        for (int x = 0; x < d / 64; ++x) {
            const float2 two = load_from(from + (lane + 32 * x) * 8);
            O_s[2 * x] = two.x, O_s[2 * x + 1] = two.y;
        }
        const float2 l_m = load_from(from + d * 4);
        add(l_m.y, l_m.x, O_s, c);
    }
}

// 2^(shift − m c): what O_i and ℓ_i of a part are multiplied by, as m c was rounded when P̃ was computed.
__device__ __forceinline__ float rounding(const Rows& rows, int r, float c) {
    return rows.exact() ? 1.0f : exp_2(fmaf(-finite(rows.m[r]), c, rows.shift[r]));
}

// Write a thread's part of a row where the cluster's other blocks can read it.
template <int d>
__device__ __forceinline__ void show(char* to, const float (&O)[d / 8][4], const Rows& rows, int r, float c) {
    const int quad = threadIdx.x % 4;
    const float factor = rounding(rows, r, c);
#pragma unroll
    for (int t = 0; t < d / 8; ++t)
        *reinterpret_cast<float2*>(to + t * 32 + quad * 8) = make_float2(O[t][2 * r] * factor, O[t][2 * r + 1] * factor);
    if (quad == 0) *reinterpret_cast<float2*>(to + d * 4) = make_float2(rows.l[r] * factor, rows.m[r]);
}

// Merge a head's rows `top` to before `end`, of which the cluster's blocks show their parts at `ring`, to O and L if that is all
// of the head, or else to one part. This warp is the `warp`-th of `warps` in its block; the warps of all blocks take turns by rows.
template <int d, int cluster, typename T>
__device__ __forceinline__ void merge_shown(Word ring, const Problem& p, const Results<T>& to, int head, int top, int end,
                                            Offset part, bool all, int warp, int warps) {
#pragma unroll 1
    for (int r = top + rank() * warps + warp; r < end; r += cluster * warps) {
        Part<d> row;
        row.template gather<cluster>(ring, r - top, p.c);
        all ? row.write(to, place(p, head, r), p) : row.leave(to, part * p.rows + r);
    }
}
