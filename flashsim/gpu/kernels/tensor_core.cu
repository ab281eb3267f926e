// FlashAttention, forward, on tensor cores: mma.sync, cp.async, swizzled shared memory; fp16 or bf16, sums in fp32.
//
// The loops are q_outer.cu's: a block of 4 warps keeps Q_i, O_i, m_i, ℓ_i and loads one tile K_j, V_j after the other.
//
//     S_ij = Q_i K_jᵀ
//     m_i^new = max(m_i, rowmax(MASK(S_ij)))
//     where e^{τ (m_i^new − m_i)} > 2^8 in some row of a warp:   ℓ_i, O_i ← e^{τ (m_i − m_i^new)} (ℓ_i, O_i),   m_i ← m_i^new
//     P̃_ij = e^{τ (MASK(S_ij) − m_i)}
//     ℓ_i ← ℓ_i + rowsum(P̃_ij),   O_i ← O_i + dropout(P̃_ij) V_j
//     at the end:   O_i ← diag(ℓ_i)⁻¹ O_i,   L_i = τ m_i + log ℓ_i
//
// Roles. A warp owns 32 rows of Q_i, which stay in shared memory. So 16×16 elements of K_j or V_j, read from there once, serve
// four products of 16×8×16. The accumulators of S_ij, rounded pairwise, are the left operands P̃_ij: P never leaves registers.
//
// Order of events. cp.async copies the next tile to a second buffer while tile j is computed; there is one barrier per tile. Two
// blocks share a multiprocessor: one computes products while the other computes exponentials. The last tile comes first, since
// its rows past N_k are zeros and masked, then the tiles on the causal edge. The other tiles need no mask, and those above the
// edge are skipped. Within a head, row blocks with the most tiles come first. A head's blocks follow each other, for the L2.
//
// Arithmetic. e^x is 2^(x log₂e). S − m is taken before the product with c = τ log₂e: it is 0 at the maximum, where S c − m c, 4%
// faster, may round to anything. c is positive: Q_i changes its sign for τ < 0, and is 0 for τ = 0. m_i is only near the maximum,
// so O_i is seldom rescaled, and P̃ ≤ 2^8. A row's 4 lanes sum ℓ_i at the end. O_i leaves in 16-byte stores through Q_i's place.
//
// Traffic, in elements per head. From L2 to the multiprocessors: Q once, K and V once for each of T_r = ⌈N_q/128⌉ row blocks, in
// live tiles only, so N_q d + 2 T_r N_k d without a mask. From DRAM: Q, K, V once. O and L are written once.
// What it reaches: docs/gpu-tried.md. no spills, no stack
#include "mma.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS, TILES_DOWN = 2;  // 16-row tiles of a warp, one below the other
constexpr int WARP_ROWS = 16 * TILES_DOWN, B_r = WARP_ROWS * WARPS;
constexpr float LAZY = 8.0f;  // log₂ of how far P̃ may exceed 1

// ------------------------------------------------------------------------------------------------------------- copies

// Copy 16 bytes to shared memory, or write 16 bytes of zeros without reading.
__device__ inline void copy_16(Word to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

// threadIdx.x, read again, so that what follows from it does not stay in registers.
__device__ inline int thread_index() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Start copying `rows` rows; those from `left` on become zeros.
template <int d, int rows, typename T>
__device__ inline void copy_tile(int thread, Word tile, const T* X, Offset stride, int left) {
    constexpr int chunks = d / 8, step = THREADS / chunks;
    static_assert(rows % step == 0 && step % 8 == 0, "whole steps, each the same to the swizzle");
    const int row = thread / chunks, chunk = thread % chunks;
    const T* from = X + row * stride + chunk * 8;
    const Word to = tile + swizzled<2 * d>(row, chunk);
    left -= row;
#pragma unroll
    for (int r = 0; r < rows; r += step) {
        copy_16(to + r * 2 * d, from, r < left);
        from += step * stride;
        asm volatile("" : "+l"(from));  // one pointer that moves on, instead of one for each step
    }
}

constexpr int ALL = 1 << 30;

// ------------------------------------------------------------------------------------------------------------- kernel

// Grid (T_r, H_q, B). c = |τ| log₂e, capped to be finite, and `sign` is τ's; or 1 and 0 if τ log₂e is 0 in fp32.
// O and L are contiguous; L may be null.
template <typename T, int d, int B_c, bool causal, bool dropping>
__global__ void __launch_bounds__(THREADS, 2)
tensor_core(const T* Q, const T* K, const T* V, T* O, float* L, Strides q, Strides k, Strides v, int N_q, int N_k, int group,
            float c, float sign, Dropout dropout) {
    constexpr int TILE = B_c * d * 2;
    extern __shared__ __align__(1024) char shared[];
    const Word Q_i = __cvta_generic_to_shared(shared), K_j = Q_i + B_r * d * 2, V_j = K_j + 2 * TILE;

    const int i = gridDim.x - 1 - blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    Q += b * q.batch + h * q.head;
    K += b * k.batch + h / group * k.head;
    V += b * v.batch + h / group * v.head;

    // Row r of the block sees the keys before min(N_k, edge + r).
    const int edge = causal ? N_k - N_q + i * B_r + 1 : N_k;
    const int T_c = (min(N_k, max(0, causal ? edge + B_r - 1 : N_k)) + B_c - 1) / B_c;

    int thread = thread_index();
    if (T_c > 0) {
        const int last = (T_c - 1) * B_c;
        const Word buffer = (T_c - 1) % 2 * TILE;
        copy_tile<d, B_r>(thread, Q_i, Q + q.row * (i * B_r), q.row, N_q - i * B_r);
        copy_tile<d, B_c>(thread, K_j + buffer, K + k.row * last, k.row, N_k - last);
        copy_tile<d, B_c>(thread, V_j + buffer, V + v.row * last, v.row, N_k - last);
        if (sign != 1.0f) {
            wait_for_copies();
            __syncthreads();
            T* x = reinterpret_cast<T*>(shared);
#pragma unroll 1
            for (int at = thread; at < B_r * d; at += THREADS) x[at] = from_float<T>(to_float(x[at]) * sign);
        }
    }

    // [t][r]: row 16t + 8r + lane/4 of the warp; ℓ sums only this lane's columns.
    float O_i[TILES_DOWN][d / 8][4] = {}, m_i[TILES_DOWN][2], l_i[TILES_DOWN][2] = {};
#pragma unroll
    for (int t = 0; t < TILES_DOWN; ++t) m_i[t][0] = m_i[t][1] = -INFINITY;

#pragma unroll 1
    for (int j = T_c - 1; j >= 0; --j) {
        thread = thread_index();
        const Word buffer = j % 2 * TILE;
        const int lane = thread % 32, first = thread / 32 * WARP_ROWS;  // first: the warp's first row
        wait_for_copies();
        __syncthreads();  // tile j has come, and no warp still reads tile j + 1
        if (j > 0) {
            copy_tile<d, B_c>(thread, K_j + (TILE - buffer), K + k.row * ((j - 1) * B_c), k.row, ALL);
            copy_tile<d, B_c>(thread, V_j + (TILE - buffer), V + v.row * ((j - 1) * B_c), v.row, ALL);
        }

        // S_ij = Q_i K_jᵀ
        float S_ij[TILES_DOWN][B_c / 8][4];
        const Word Q_lane = Q_i + swizzled<2 * d>(first + lane % 16, lane / 16);
        product<T, d>(S_ij, Q_lane, K_j + buffer + lane_offset<2 * d>(lane, false));

        // MASK, if the warp's first row does not see all of the tile
        const int keys = N_k - j * B_c, seen = causal ? edge + first - j * B_c : keys;
        if (min(keys, seen) < B_c) {
            const int lane = thread_index() % 32, column = lane % 4 * 2;
#pragma unroll
            for (int t = 0; t < TILES_DOWN; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int end = causal ? min(keys, seen + lane / 4 + t * 16 + e / 2 * 8) : keys;
#pragma unroll
                    for (int n = 0; n < B_c / 8; ++n)
                        if (n * 8 + e % 2 >= end - column) S_ij[t][n][e] = -INFINITY;
                }
        }

        // m_i^new and, where it has grown, ℓ_i, O_i, m_i
        float m_new[TILES_DOWN][2];
        bool grown = false;
#pragma unroll
        for (int t = 0; t < TILES_DOWN; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float m = m_i[t][r];
#pragma unroll
                for (int n = 0; n < B_c / 8; ++n) m = fmaxf(m, fmaxf(S_ij[t][n][2 * r], S_ij[t][n][2 * r + 1]));
                m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
                m_new[t][r] = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
                grown |= (m_new[t][r] - m_i[t][r]) * c > LAZY;  // −∞ − (−∞) is not
            }
        if (__any_sync(~0u, grown)) {
#pragma unroll
            for (int t = 0; t < TILES_DOWN; ++t)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float alpha = exp_2((m_i[t][r] - finite(m_new[t][r])) * c);
                    m_i[t][r] = m_new[t][r];
                    l_i[t][r] *= alpha;
#pragma unroll
                    for (int n = 0; n < d / 8; ++n) O_i[t][n][2 * r] *= alpha, O_i[t][n][2 * r + 1] *= alpha;
                }
        }

        // P̃_ij, in S_ij's place, and ℓ_i
#pragma unroll
        for (int t = 0; t < TILES_DOWN; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float m = finite(m_i[t][r]);
#pragma unroll
                for (int n = 0; n < B_c / 8; ++n)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; ++e) {
                        S_ij[t][n][e] = exp_2((S_ij[t][n][e] - m) * c);
                        l_i[t][r] += S_ij[t][n][e];
                    }
            }
        if constexpr (dropping) {  // the factor 1/(1 − p) is applied at the end
            const int row = i * B_r + first + lane / 4, column = j * B_c + lane % 4 * 2, head = b * gridDim.y + h;
#pragma unroll
            for (int t = 0; t < TILES_DOWN; ++t)
#pragma unroll
                for (int n = 0; n < B_c / 8; n += 4)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        Word words[4];  // [2a + b]: of row + 8a, and column + 8b in the upper half, + 8b + 16 in the lower
                        philox(words, row + t * 16, column + n * 8 + e, head, dropout.key_0, dropout.key_1);
#pragma unroll
                        for (int of = 0; of < 4; ++of) {
                            if (words[of] <= dropout.last) S_ij[t][n + of % 2][of / 2 * 2 + e] = 0.0f;
                            if (words[of] << 16 <= dropout.last) S_ij[t][n + of % 2 + 2][of / 2 * 2 + e] = 0.0f;
                        }
                    }
        }

        // O_i += P̃_ij V_j
        add_product<T, d>(O_i, S_ij, V_j + buffer + lane_offset<2 * d>(lane, true));
    }

    // O_i ← diag(ℓ_i)⁻¹ O_i and L_i. A warp writes O over its own rows of Q_i, which no other warp has read.
    thread = thread_index();
    const int lane = thread % 32, first = thread / 32 * WARP_ROWS, top = i * B_r;
    const Offset rows = (Offset(b) * gridDim.y + h) * N_q;
    __syncwarp();
#pragma unroll
    for (int t = 0; t < TILES_DOWN; ++t)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float l = l_i[t][r];
            l += __shfl_xor_sync(~0u, l, 1);
            l += __shfl_xor_sync(~0u, l, 2);
            const int row = first + t * 16 + r * 8 + lane / 4;
            if (L && lane % 4 == 0 && top + row < N_q)
                L[rows + top + row] = l == 0.0f ? -INFINITY : m_i[t][r] * c * 0.693147180559945f + logf(l);
            const float factor = __fdividef(dropping ? dropout.keep_scale : 1.0f, nonzero(l));
#pragma unroll
            for (int n = 0; n < d / 8; ++n)
                *reinterpret_cast<Word*>(shared + swizzled<2 * d>(row, n) + lane % 4 * 4) =
                    pack<T>(O_i[t][n][2 * r] * factor, O_i[t][n][2 * r + 1] * factor);
        }
    __syncwarp();
    constexpr int chunks = d / 8, step = 32 / chunks;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r += step) {
        const int row = first + r + lane / chunks, chunk = lane % chunks;
        const uint4 o = *reinterpret_cast<const uint4*>(shared + swizzled<2 * d>(row, chunk));
        if (top + row < N_q) *reinterpret_cast<uint4*>(O + (rows + top + row) * d + chunk * 8) = o;
    }
}
