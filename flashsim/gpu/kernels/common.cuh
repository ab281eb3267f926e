// What every kernel shares: element types, Philox dropout, and access to HBM, which builds with -DCOUNT=1 count.
//
// A kernel reads and writes HBM only by Hbm<T>: X.load(at), X.store(at, x). In a build with -DCOUNT=1, each call counts one
// element in a register of the thread. When the kernel ends, every thread adds its sums to the array's two 64-bit totals.
// Without COUNT, an Hbm<T> is its pointer, and load and store are one instruction each.
//
// Loads and stores bypass the L1 (ld.global.cg, st.global.cg), since the model's HBM accesses leave the multiprocessor.
// Offsets are 64-bit: B·H·N·d may exceed 2^31.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef COUNT
#define COUNT 0
#endif
#ifndef DELAYED
#define DELAYED 0
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

typedef long long Offset;
typedef unsigned int Word;
typedef unsigned long long Total;

struct Strides {  // of an array (B, H, N, d), in elements; the last axis has stride 1
    Offset batch, head, row;
};

// x, hidden from the compiler. Otherwise it would compute what depends on x before the loop, and keep dozens of registers.
__device__ inline Word here(Word x) {
    asm volatile("" : "+r"(x));
    return x;
}

// ------------------------------------------------------------------------------------------------------- element types

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// sum + x · y, of eight elements each.
template <typename T> __device__ inline float add_dot(float sum, const uint4& x, const uint4& y) {
#pragma unroll
    for (int e = 0; e < 8; ++e)
        sum = fmaf(to_float(reinterpret_cast<const T*>(&x)[e]), to_float(reinterpret_cast<const T*>(&y)[e]), sum);
    return sum;
}

// Two neighbours, rounded, in one register; and the same with negative numbers replaced by 0.
template <typename T> __device__ inline Word pack(float low, float high);
template <typename T> __device__ inline Word pack_positive(float low, float high);
#define DEFINE_PACK(T, type)                                                                 \
    template <> __device__ inline Word pack<T>(float low, float high) {                      \
        Word both;                                                                           \
        asm("cvt.rn." type ".f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));           \
        return both;                                                                         \
    }                                                                                        \
    template <> __device__ inline Word pack_positive<T>(float low, float high) {             \
        Word both;                                                                           \
        asm("cvt.rn.relu." type ".f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));      \
        return both;                                                                         \
    }
DEFINE_PACK(__half, "f16x2")
DEFINE_PACK(__nv_bfloat16, "bf16x2")

__device__ inline float exp_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---------------------------------------------------------------------------------------------------------------- HBM

// One array in HBM. `totals` are its {reads, writes}; builds without COUNT do not use them.
template <typename T> struct Hbm {
    T* const data;
#if COUNT
    Total* const totals;
    Total reads = 0, writes = 0;

    __device__ Hbm(T* data, Total* totals) : data(data), totals(totals) {}
    __device__ ~Hbm() {
        if (reads) atomicAdd(totals, reads);
        if (writes) atomicAdd(totals + 1, writes);
    }
    Hbm(const Hbm&) = delete;  // a copy would count twice
#else
    __device__ Hbm(T* data, Total*) : data(data) {}
#endif

    __device__ auto get(Offset at) {  // as it is stored
#if COUNT
        ++reads;
#endif
        return __ldcg(data + at);
    }
    __device__ void put(Offset at, T x) {
#if COUNT
        ++writes;
#endif
        __stcg(data + at, x);
    }
    __device__ float load(Offset at) { return to_float(get(at)); }
    __device__ void store(Offset at, float x) { put(at, from_float<T>(x)); }
};

// ------------------------------------------------------------------------------------------------------------ dropout

// Philox4x32-10: the four output words for the counter (row, column, head, 0). Loops that are not unrolled take fewer registers.
template <int unrolled = 10>
__device__ inline void philox(Word (&c)[4], Word row, Word column, Word head, Word key_0, Word key_1) {
    c[0] = row, c[1] = column, c[2] = head, c[3] = 0;
#pragma unroll unrolled
    for (int round = 0; round < 10; ++round) {
        const Total product_0 = Total(0xD2511F53u) * c[0], product_1 = Total(0xCD9E8D57u) * c[2];
        c[0] = Word(product_1 >> 32) ^ c[1] ^ key_0;
        c[1] = Word(product_1);
        c[2] = Word(product_0 >> 32) ^ c[3] ^ key_1;
        c[3] = Word(product_0);
        key_0 += 0x9E3779B9u;
        key_1 += 0xBB67AE85u;
    }
}

// Dropout of attention weights. As in flashsim/attention/masks/dropout.py, a call of Philox serves eight elements, with half a word for
// each: queries r, r + 8 and keys c, c + 8, c + 16, c + 24. To compare halves as words, the lower half is shifted up, and `last`
// is the greatest word that is dropped: p · 2^16, rounded up, times 2^16, minus 1.
struct Dropout {
    Word key_0, key_1, last;
    float keep_scale;  // 1/(1 − p)

    // Z of Algorithm 4's line 14: 1/(1 − p) where the weight is kept, else 0. `head` counts query heads over the batch.
    __device__ float Z(Word row, Word column, Word head) const {
        asm volatile("" : "+r"(row), "+r"(column));  // so that registers keep nothing of other elements' words
        Word words[4];
        philox(words, row & ~8u, column & ~24u, head, key_0, key_1);
        words[0] = row & 8 ? words[2] : words[0];
        words[1] = row & 8 ? words[3] : words[1];
        return (column & 8 ? words[1] : words[0]) << (column & 16) <= last ? 0.0f : keep_scale;
    }
};

// --------------------------------------------------------------------------------------------- what masked rows need

// m to be subtracted from scores, with 0 for −∞: then e^(−∞ − m) is 0, whereas −∞ − (−∞) would be NaN.
__device__ inline float finite(float m) { return m == -INFINITY ? 0.0f : m; }

// ℓ to divide by, with 1 for 0.
__device__ inline float nonzero(float l) { return l == 0.0f ? 1.0f : l; }
