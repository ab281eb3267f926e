// The online softmax of a warpgroup's 64 rows, in registers: what the forward kernels on wgmma share.
#pragma once

#include "hopper.cuh"

constexpr int LAZY = 8;               // log₂ of how far P̃ may exceed 1
constexpr float EXACT = 16777216.0f;  // from here on, m c has no fraction

// What a thread knows of its two rows: m, near the maximum so far; m c, as it is subtracted; ℓ, of this lane's columns alone.
struct Rows {
    float m[2], shift[2], l[2];
    bool exact;  // in some row of the warp |m c| is so large that S c − m c would round to anything: S − m is taken first

    __device__ void init() {
        m[0] = m[1] = -INFINITY, shift[0] = shift[1] = l[0] = l[1] = 0.0f, exact = false;
    }
};

// S becomes P̃ = 2^(c (S − m) + offset), and ℓ grows. Where some row's maximum has grown, if lazy by a factor above 2^limit, all
// rows of the warp get their new m, and ℓ is multiplied by α, as O is to be. Returns whether this was so.
template <int B_c, bool lazy, int limit = LAZY, int offset = 0>
__device__ __forceinline__ bool softmax(float (&S)[B_c / 8][4], Rows& rows, float (&alpha)[2], float c) {
    float most[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        most[r] = S[0][2 * r];
        float other = S[0][2 * r + 1];  // two chains: they are latency
#pragma unroll
        for (int t = 1; t < B_c / 8; ++t) most[r] = fmaxf(most[r], S[t][2 * r]), other = fmaxf(other, S[t][2 * r + 1]);
        most[r] = fmaxf(most[r], other);
    }
    const float most_growth = lazy ? limit : 0;
    const bool grown = __any_sync(~0u, (most[0] - rows.m[0]) * c > most_growth || (most[1] - rows.m[1]) * c > most_growth);
    if (grown) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float m = fmaxf(rows.m[r], most[r]);
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
            alpha[r] = exp_2((rows.m[r] - finite(m)) * c);
            rows.m[r] = m;
            rows.shift[r] = finite(m) * c - offset;
            rows.l[r] *= alpha[r];
        }
        rows.exact = __any_sync(~0u, fmaxf(fabsf(rows.shift[0]), fabsf(rows.shift[1])) >= EXACT);
        if (rows.exact) rows.shift[0] = rows.shift[1] = -offset;
    }
    if (rows.exact) {
#pragma unroll
        for (int t = 0; t < B_c / 8; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) S[t][e] -= finite(rows.m[e / 2]);
    }
#pragma unroll
    for (int t = 0; t < B_c / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            S[t][e] = exp_2(fmaf(S[t][e], c, -rows.shift[e / 2]));
            rows.l[e / 2] += S[t][e];
        }
    return grown;
}

template <int d> __device__ inline void rescale(float (&O)[d / 8][4], const float (&alpha)[2]) {
#pragma unroll
    for (int t = 0; t < d / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) O[t][e] *= alpha[e / 2];
}
