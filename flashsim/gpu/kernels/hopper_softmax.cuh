// The online softmax of a warpgroup's 64 rows, in registers: what the forward kernels on wgmma share.
#pragma once

#include "hopper.cuh"

constexpr int LAZY = 8;               // log₂ of how far P̃ may exceed 1
constexpr float EXACT = 16777216.0f;  // from here on, m c has no fraction
constexpr float MOST = 32768.0f;      // of a sum of P̃: fp16 ends at 65504
#define NONE __int_as_float(0x7fffffff)  // NaN, and what is made of it: no shift

// What a thread knows of its two rows: m, near the maximum so far; m c, as it is subtracted; ℓ, of this lane's columns alone.
struct Rows {
    float m[2], shift[2], l[2];

    __device__ void init() {
        m[0] = m[1] = -INFINITY, shift[0] = shift[1] = NONE, l[0] = l[1] = 0.0f;
    }
    // Whether in some row of the warp m is −∞, or |m c| so large that S c − m c would round to anything: S − m is taken first.
    __device__ bool exact() const { return shift[0] != shift[0]; }
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
        const float largest = fmaxf(fabsf(rows.shift[0]), fabsf(rows.shift[1])), least = fminf(rows.m[0], rows.m[1]);
        if (__any_sync(~0u, largest >= EXACT || least == -INFINITY)) rows.shift[0] = rows.shift[1] = NONE;
    }
    float shift[2] = {rows.shift[0], rows.shift[1]};
    if (rows.exact()) {
        shift[0] = shift[1] = -offset;
#pragma unroll
        for (int t = 0; t < B_c / 8; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) S[t][e] -= finite(rows.m[e / 2]);
    }
#pragma unroll
    for (int t = 0; t < B_c / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            S[t][e] = exp_2(fmaf(S[t][e], c, -shift[e / 2]));
            rows.l[e / 2] += S[t][e];
        }
    return grown;
}

// P = P̃, rounded to T, with m as it is; S stays, and ℓ grows. Returns false, with ℓ as it was, where some row of the warp has no
// m yet, or may need another: where sums are so large that P might not hold some P̃. So no maximum has to be found.
template <typename T, int B_c>
__device__ __forceinline__ bool softmax_as_before(Word (&P)[B_c / 16][4], const float (&S)[B_c / 8][4], Rows& rows, float c) {
    float sum[2] = {};
#pragma unroll
    for (int t = 0; t < B_c / 8; ++t)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float two[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                two[e] = exp_2(fmaf(S[t][2 * r + e], c, -rows.shift[r]));
                sum[r] += two[e];
            }
            P[t / 2][t % 2 * 2 + r] = pack<T>(two[0], two[1]);
        }
    if (__any_sync(~0u, !(sum[0] <= MOST && sum[1] <= MOST))) return false;  // NaN, too
    rows.l[0] += sum[0], rows.l[1] += sum[1];
    return true;
}

template <int d> __device__ inline void rescale(float (&O)[d / 8][4], const float (&alpha)[2]) {
#pragma unroll
    for (int t = 0; t < d / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) O[t][e] *= alpha[e / 2];
}
