// The passes of standard attention (Algorithms 0 and 3) between the matrix products, which cuBLAS computes.
//
// S and P are contiguous matrices (rows, N_k) in the inputs' type, with N_q · H · B rows. A block of threads takes one row at a
// time. A pass reads and writes each N × N matrix once: when a row is read a second time, it is in cache. Arithmetic is fp32.
// Times: docs/gpu-tried.md.
// no spills, no stack
#include "scalar.cuh"

// The sum or the maximum of all threads' values, in every thread.
template <typename F> __device__ inline float of_block(float value, float* shared, F combine) {
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    __syncthreads();  // what was in `shared` has been read
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / 32; ++warp) value = combine(value, shared[warp]);
    return value;
}
__device__ inline float add(float a, float b) { return a + b; }

// Which head and which query a row is.
struct Row {
    int head, row;
    __device__ Row(Offset number, int N_q) : head(number / N_q), row(number % N_q) {}
};

// S ← MASK(S), in place.
template <typename T, typename Mask> __global__ void __launch_bounds__(THREADS) mask_scores(T* S, Problem p, Offset rows) {
    for (Offset number = blockIdx.x; number < rows; number += gridDim.x) {
        const Row at(number, p.N_q);
        Mask MASK(p, at.head, nullptr);
        T* s = S + number * p.N_k;
        for (int c = threadIdx.x; c < p.N_k; c += THREADS)
            if (!MASK.allows(at.row, c)) s[c] = from_float<T>(-INFINITY);
    }
}

// P = softmax(S) by rows, 0 for rows of −∞; lse = log Σ exp S if asked for.
template <typename T> __global__ void __launch_bounds__(THREADS)
softmax_rows(const T* S, T* P, float* lse, int N_k, Offset rows) {
    __shared__ float shared[THREADS / 32];
    for (Offset number = blockIdx.x; number < rows; number += gridDim.x) {
        const T* s = S + number * N_k;
        float m = -INFINITY, l = 0.0f;
        for (int c = threadIdx.x; c < N_k; c += THREADS) m = fmaxf(m, to_float(s[c]));
        m = of_block(m, shared, fmaxf);
        for (int c = threadIdx.x; c < N_k; c += THREADS) l += expf(to_float(s[c]) - finite(m));
        l = of_block(l, shared, add);
        for (int c = threadIdx.x; c < N_k; c += THREADS)
            P[number * N_k + c] = from_float<T>(expf(to_float(s[c]) - finite(m)) / nonzero(l));
        if (lse && threadIdx.x == 0) lse[number] = m + logf(l);
    }
}

// P^dropped = P ∘ Z, and in the backward pass dP = dP^dropped ∘ Z, in place (from = to). A thread takes eight elements at a
// time, those of one call of Philox.
template <typename T> __global__ void __launch_bounds__(THREADS) drop(const T* from, T* to, Problem p, Offset rows) {
    const Offset heads = rows / p.N_q;
    const int pairs = (p.N_q + 15) / 16 * 8, calls = (p.N_k + 31) / 32 * 8;
    for (Offset pair = blockIdx.x; pair < heads * pairs; pair += gridDim.x) {
        const int head = pair / pairs, row = pair % pairs / 8 * 16 + pair % 8;
        const Offset first = (Offset(head) * p.N_q + row) * p.N_k;
        for (int call = threadIdx.x; call < calls; call += THREADS) {
            const int column = call / 8 * 32 + call % 8;
            Word words[4];
            philox(words, row, column, head, p.dropout.key_0, p.dropout.key_1);
#pragma unroll
            for (int of = 0; of < 8; ++of) {
                const int r = of / 4 * 8, c = column + of % 4 * 8;
                const Word half = words[of / 4 * 2 + of % 2] << of % 4 / 2 * 16;
                const Offset at = first + Offset(r) * p.N_k + c;
                if (row + r < p.N_q && c < p.N_k)
                    to[at] = from_float<T>(half <= p.dropout.last ? 0.0f : to_float(from[at]) * p.dropout.keep_scale);
            }
        }
    }
}

// dS = P ∘ (dP − rowsum(P ∘ dP)), in place of dP; 0 where P is 0.
template <typename T> __global__ void __launch_bounds__(THREADS) softmax_backward_rows(const T* P, T* dP, int N_k, Offset rows) {
    __shared__ float shared[THREADS / 32];
    for (Offset number = blockIdx.x; number < rows; number += gridDim.x) {
        const T* weights = P + number * N_k;
        T* gradient = dP + number * N_k;
        float D = 0.0f;
        for (int c = threadIdx.x; c < N_k; c += THREADS) {
            const float weight = to_float(weights[c]);
            if (weight != 0) D += weight * to_float(gradient[c]);
        }
        D = of_block(D, shared, add);
        for (int c = threadIdx.x; c < N_k; c += THREADS) {
            const float weight = to_float(weights[c]);
            gradient[c] = from_float<T>(weight == 0 ? 0.0f : weight * (to_float(gradient[c]) - D));
        }
    }
}
