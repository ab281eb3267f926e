// The online softmax of a warpgroup's 64 rows, in registers. All forward kernels on wgmma share it.
#pragma once

#include "hopper.cuh"

struct RowBlock {  // the i-th of query head h of batch entry b; none if i < 0
    int i, h, b;
};

// The n-th row block. Sections of heads come one after the other; in each, the blocks of all heads that see the most keys come
// first.
template <bool longest = true, typename Problem> __device__ inline RowBlock in_order(const Problem& p, int n) {
    const int whole = p.section * p.T_r, first = n / whole * p.section, within = n % whole;
    const int heads = min(p.section, p.row_blocks / p.T_r - first), head = first + within % heads;
    return {longest ? p.T_r - 1 - within / heads : within / heads, head % p.H, head / p.H};
}

constexpr int LAZY = 8;               // log₂ of how far P̃ may exceed 1
constexpr float EXACT = 16777216.0f;  // 2^24: from here on, m c has no fraction
constexpr float HUGE = 1.2676506e30f;  // 2^100
#define NO_SHIFT __int_as_float(0x7fffffff)  // NaN, and what is computed with it

// What P̃ is rounded to. MOST: a sum of P̃ up to this shows that each weight fits. fp16 ends at 65504. bf16 has room, but O must
// not become ∞. GROWTH: log₂ of the largest power by which a rounded P̃ may be divided. The smallest number of fp16 is 2^-24.
template <typename T> struct Rounded;
template <> struct Rounded<__half> {
    static constexpr float MOST = 65504.0f;
    static constexpr int GROWTH = 24;
    static constexpr bool ENDS = true;  // numbers become ∞ between MOST and 2^GROWTH
};
template <> struct Rounded<__nv_bfloat16> {
    static constexpr float MOST = 1099511627776.0f;
    static constexpr int GROWTH = 100;
    static constexpr bool ENDS = false;
};

// Two numbers times two.
template <typename T> __device__ inline Word times(Word two, Word by);
#define DEFINE_TIMES(T, type)                                                  \
    template <> __device__ inline Word times<T>(Word two, Word by) {           \
        asm("mul.rn." type " %0, %0, %1;" : "+r"(two) : "r"(by));              \
        return two;                                                            \
    }
DEFINE_TIMES(__half, "f16x2")
DEFINE_TIMES(__nv_bfloat16, "bf16x2")

// What a thread knows of its two rows: m, near the maximum so far; shift, m c as it is subtracted; ℓ of only this lane's columns.
struct Rows {
    float m[2], shift[2], l[2];

    __device__ void init() {
        m[0] = m[1] = -INFINITY, shift[0] = shift[1] = NO_SHIFT, l[0] = l[1] = 0.0f;
    }
    // Whether S − m must be taken first: some row of the warp has m = −∞, or |m c| so large that S c − m c is imprecise.
    __device__ bool exact() const { return shift[0] != shift[0]; }
    // At the end: sum ℓ over the row's four lanes; and L, if P̃ was 2^(c (S − m) + offset).
    __device__ __forceinline__ void sum_l() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            l[r] += __shfl_xor_sync(~0u, l[r], 1);
            l[r] += __shfl_xor_sync(~0u, l[r], 2);
        }
    }
    __device__ float L(int r, float c, int offset = 0) const {
        return l[r] == 0.0f ? -INFINITY : (m[r] * c - offset) * 0.693147180559945f + logf(l[r]);
    }
    // Then `factor` is 1/ℓ; and unless L is null, it gets those of the rows `query` and `query` + 8 from 0 to before `end`.
    __device__ __forceinline__ void end(float (&factor)[2], float* L, int query, int end, float c, Total* total, int offset = 0) {
        sum_l();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            factor[r] = __fdividef(1.0f, nonzero(l[r]));
            if (L && threadIdx.x % 4 == 0 && query + 8 * r >= 0 && query + 8 * r < end) {
                L[query + 8 * r] = this->L(r, c, offset);
                Tally(total).add(1, 1);
            }
        }
    }
};

// −∞ where `masked` says so of a column of 8t + e mod 2, counted from this thread's first, and of its upper row, 0, or lower, 1.
template <int n, typename Masked> __device__ __forceinline__ void mask_where(float (&S)[n][4], const Masked& masked) {
#pragma unroll
    for (int t = 0; t < n; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (masked(8 * t + e % 2, e / 2)) S[t][e] = -INFINITY;
}

// S becomes P̃ = 2^(c (S − m) + offset), and ℓ grows. If some row's maximum has grown (if lazy, by a factor above 2^limit), all
// rows of the warp get their new m, and ℓ is multiplied by α. Then this returns true, and O must be multiplied by α, too.
template <int B_c, bool lazy, int limit = LAZY, int offset = 0>
__device__ __forceinline__ bool softmax(float (&S)[B_c / 8][4], Rows& rows, float (&alpha)[2], float c) {
    float most[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        most[r] = S[0][2 * r];
        float other = S[0][2 * r + 1];  // two chains, as latency is the limit
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
        if (__any_sync(~0u, largest >= EXACT || least == -INFINITY)) rows.shift[0] = rows.shift[1] = NO_SHIFT;
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

// P = P̃, rounded to T, with the old m. S stays, `sum` is the row's sum of P̃, and ℓ grows by it. No maximum is computed. If some
// row of the warp has no m yet, or a sum is so large that m may have to grow, this returns false, and ℓ is unchanged.
template <typename T, int B_c>
__device__ __forceinline__ bool softmax_as_before(Word (&P)[B_c / 16][4], const float (&S)[B_c / 8][4], Rows& rows,
                                                  float (&sum)[2], float c) {
    sum[0] = sum[1] = 0.0f;
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
    if (__any_sync(~0u, !(sum[0] <= Rounded<T>::MOST && sum[1] <= Rounded<T>::MOST))) return false;  // also for NaN
    rows.l[0] += sum[0], rows.l[1] += sum[1];
    return true;
}

// After the above has returned false: raise m by a power of two that the sums give, so that 1/2 <= ℓ < 4, and mend P. This
// multiplies P by α, and computes only weights again that T could not hold. Returns false, with nothing changed, if the sums do
// not say by how much m must grow.
template <typename T, int B_c>
__device__ __forceinline__ bool mend(Word (&P)[B_c / 16][4], const float (&S)[B_c / 8][4], Rows& rows, float (&alpha)[2],
                                     const float (&sum)[2], float c) {
    int growth[2];
    bool known = 1 / HUGE <= c && c <= HUGE;  // m = shift / c
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float most = rows.l[r] + sum[r];
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        growth[r] = max(0, (__float_as_int(most) >> 23) - 126);  // most < 2^growth; large if most is ∞
        known = known && growth[r] <= Rounded<T>::GROWTH && fabsf(rows.shift[r] + growth[r]) < EXACT;
    }
    if (__any_sync(~0u, !known)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        alpha[r] = __int_as_float(127 - growth[r] << 23);
        rows.l[r] = (rows.l[r] + sum[r]) * alpha[r];
        rows.shift[r] += growth[r];
        rows.m[r] = __fdividef(rows.shift[r], c);
    }
    Word lost = 0;  // a bit for each 16 columns in which some P̃ has become ∞
#pragma unroll
    for (int t = 0; t < B_c / 16; ++t) {
        Word beyond = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (Rounded<T>::ENDS) beyond |= P[t][e] + 0x04000400;
            P[t][e] = times<T>(P[t][e], pack<T>(alpha[e % 2], alpha[e % 2]));
        }
        if (beyond & 0x80008000) lost |= 1 << t;
    }
    lost = __reduce_or_sync(~0u, lost);
#pragma unroll
    for (int t = 0; t < B_c / 16; ++t)
        if (lost >> t & 1) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float(&four)[4] = S[2 * t + e / 2];
                const int r = e % 2;
                P[t][e] = pack<T>(exp_2(fmaf(four[2 * r], c, -rows.shift[r])), exp_2(fmaf(four[2 * r + 1], c, -rows.shift[r])));
            }
        }
    return true;
}

// P̃ of the next tile by sums: with the old m; if that will not do, mended or, at worst, computed again with maxima. P is rounded
// to T. Returns whether m has grown, so that O must be multiplied by α.
template <typename T, int B_c, bool mends>
__device__ __forceinline__ bool softmax_by_sums(Word (&P)[B_c / 16][4], float (&S)[B_c / 8][4], Rows& rows, float (&alpha)[2],
                                                float c) {
    float sum[2];
    bool grown = false;
    if (!softmax_as_before<T, B_c>(P, S, rows, sum, c)) {
        grown = mends && mend<T, B_c>(P, S, rows, alpha, sum, c);
        if (!grown) {
            grown = softmax<B_c, true>(S, rows, alpha, c);
            round_to_operands<T, B_c>(P, S);
        }
    }
    return grown;
}

// P_next takes P's place. The compiler would leave out a plain copy, and write P while P V runs. `zero` is 0, but the compiler
// cannot know.
template <int B_c> __device__ __forceinline__ void replace(Word (&P)[B_c / 16][4], const Word (&P_next)[B_c / 16][4], Word zero) {
#pragma unroll
    for (int t = 0; t < B_c / 16; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) P[t][e] = P_next[t][e] ^ zero;
}

// Multiply a warpgroup's 64 rows of Q by the sign, so that c is positive for any τ. `barrier` is a named one of its own.
template <int B_r, int d>
__device__ __forceinline__ void apply_sign(Word Q_w, float sign, int barrier, Word flip = 0x80008000) {
#pragma unroll 1
    for (int at = thread_index(); at < d / HALF * 2048; at += WARPGROUP) {
        const Word place = Q_w + at / 2048 * (B_r * 128) + at % 2048 * 4;
        store_word(place, sign == 0.0f ? 0 : load_word(place) ^ flip);
    }
    show_writes();
    meet(barrier, WARPGROUP);
}

// Set a tile's rows from `rows` on to 0, since 0 · NaN is NaN.
template <int d, int B_c> __device__ __forceinline__ void clear_rows(Word tile, int rows, int barrier) {
    const float zeros[4] = {};
#pragma unroll 1
    for (int half = 0; half < d / HALF; ++half)
#pragma unroll 1
        for (int at = rows * 8 + thread_index(); at < B_c * 8; at += WARPGROUP)
            store_four(tile + half * (B_c * 128) + at * 16, zeros);
    show_writes();
    meet(barrier, WARPGROUP);
}

template <int d> __device__ inline void rescale(float (&O)[d / 8][4], const float (&alpha)[2]) {
#pragma unroll
    for (int t = 0; t < d / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) O[t][e] *= alpha[e / 2];
}

// Write `columns` columns of O from column x on, times a factor for each row and rounded to T, to shared memory: this warp's 16
// rows, in halves `half_bytes` apart, swizzled as TMA reads them. Lane l gives the address of row l mod 16.
template <typename T, int columns, int half_bytes, int d>
__device__ __forceinline__ void round_rows(Word row, const float (&O)[d / 8][4], int x, const float (&factor)[2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < columns / 8; t += 2) {
        Word rounded[4];
#pragma unroll
        for (int of = 0; of < 4; ++of) {
            const float(&four)[4] = O[x / 8 + t + of / 2];
            rounded[of] = pack<T>(four[of % 2 * 2] * factor[of % 2], four[of % 2 * 2 + 1] * factor[of % 2]);
        }
        store_operand<false>(row + t / 8 * half_bytes + ((t % 8 + lane / 16 ^ lane % 8) << 4), rounded);
    }
}
