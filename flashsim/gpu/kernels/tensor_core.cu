// FlashAttention, forward, on tensor cores: mma.sync, cp.async, swizzled shared memory; fp16 or bf16, sums in fp32.
//
// q_outer.cu's loops: a block of threads owns Q_i, O_i, m_i, ℓ_i; K_j, V_j stream past.
//
//     S_ij = Q_i K_jᵀ
//     m_i^new = max(m_i, rowmax(MASK(S_ij)))
//     where e^{τ (m_i^new − m_i)} > 2^8 in some row of a warp:   ℓ_i, O_i ← e^{τ (m_i − m_i^new)} (ℓ_i, O_i),   m_i ← m_i^new
//     P̃_ij = e^{τ (MASK(S_ij) − m_i)}
//     ℓ_i ← ℓ_i + rowsum(P̃_ij),   O_i ← O_i + dropout(P̃_ij) V_j
//     at the end:   O_i ← diag(ℓ_i)⁻¹ O_i,   L_i = τ m_i + log ℓ_i
//
// What the rung adds to q_outer.cu, and each step's reason:
// - Both products on tensor cores, 16×8×16 at a time. A warp owns 32 rows, not 16, so that each 16×16 of K_j or V_j that it
//   reads from shared memory serves four products: with 16 rows shared memory, not the tensor cores, would be the limit.
// - S_ij's accumulators, rounded pairwise, are P̃_ij's left operands: P never leaves the registers. A row lies in 4 lanes.
// - Q_i stays in shared memory (in registers it would take 64 of the 255). K_{j−1}, V_{j−1} are copied (cp.async, not through
//   registers) while tile j is computed: two buffers each, and one barrier a tile.
// - Tiles are stored in rows of d elements, 16-byte chunk c of row r at place c ⊕ (r mod 8): ldmatrix, straight (K) or
//   transposed (V), the copies, and O's way out meet no bank conflict, and no padding is spent.
// - e^x is 2^(x log₂e), one instruction, with τ log₂e in one factor c. The difference S − m is taken first: it is exactly 0
//   at the maximum, however large S is, where S c − m c, one instruction fewer and 4% faster, may round to anything.
// - c is positive: Q_i's sign is flipped in shared memory for τ < 0, and Q_i zeroed for τ = 0, so that maxima are maxima.
// - m_i need not be the maximum, only near it, so ℓ_i and O_i are seldom rescaled, for whole warps at once. P̃ ≤ 2^8.
// - The last tile comes first: it is the one with rows past N_k, which are copied as zeros and masked. The tiles on the
//   causal edge follow; the others are not masked, and those above the edge are skipped. The row blocks with the most tiles
//   come first in a head, and the blocks of a head follow each other, so that its K and V stay in L2.
// - ℓ_i is summed over a row's 4 lanes once, at the end; O_i is divided then, and leaves in full 16-byte stores by way of
//   Q_i's place in shared memory.
// - Two blocks of 4 warps share a multiprocessor, with up to 255 registers a thread: one computes scores while the other is
//   busy with exponentials.
//
// Traffic, in elements a head. DRAM: what is compulsory, Q, K, V read once, O and L written once. From L2 to the
// multiprocessors: Q once, K and V once for each of the T_r = ⌈N_q/128⌉ row blocks, live tiles only: N_q d + 2 T_r N_k d
// without a mask. Measured at 32 heads, N = 4096, d = 128: 2.181 GB into the L1s and 34.08 MB out of them, to the sector what
// the formula says; 1.69 to 1.73 GB of the 2.181 are counted at the L2's slices, as if requests of several multiprocessors for
// one line were merged on the way. DRAM reads 102.6 MB (compulsory: 100.7), writes 23.8 MB of 34.1; the rest is in L2 at the
// end.
//
// Gain, measured: TFLOP/s (4 B H N² d, half of it causally), H = 16, B·N = 16384, full / causal, and over FlashAttention-2 in
// the same rounds. NVIDIA H200, driver 580.159.04, CuPy 14.2, PyTorch 2.11.0 with cuDNN 9.19; 2026-11-21. What mma.sync can
// do at most there, without any loads: 645.
//
//                            N = 1024      2048       4096       16384
//     d = 128, fp16         329 / 259  343 / 299  350 / 315  356 / 338     1.10 to 1.12 full, 1.15 to 1.16 causal
//       FlashAttention-2    296 / 226  308 / 260  313 / 274  324 / 292
//       cuDNN (wgmma)       570 / 418  613 / 487  633 / 534  658 / 593
//     d = 64, fp16          305 / 234  316 / 262  326 / 285  329 / 311     1.16 to 1.17 full, 1.11 to 1.16 causal
//       FlashAttention-2    264 / 201  274 / 236  280 / 255  283 / 270
//       cuDNN (wgmma)       408 / 319  437 / 368  451 / 404  461 / 437
//     d = 32, fp16          217 / 160  227 / 185  232 / 202                1.08 to 1.11 full, 1.09 to 1.14 causal
//     d = 128, bf16         331 / 269             351 / 322                1.10 full, 1.14 to 1.15 causal
//
// With dropout, at N = 2048, d = 128, 64, 32: 266 / 225, 209 / 175, 129 / 106; 0.97 / 0.96, 0.95 / 0.92, 1.06 / 1.19 of
// FlashAttention-2. A call of Philox serves eight elements that one lane has; S_ij holds fewer keys for it, for registers.
//
// no spills, no stack
#include "mma.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS, TILES_DOWN = 2;  // 16-row tiles that a warp has one below the other
constexpr int WARP_ROWS = 16 * TILES_DOWN, B_r = WARP_ROWS * WARPS;
constexpr float LAZY = 8.0f;  // log₂ of how far P̃ may exceed 1

// ------------------------------------------------------------------------------------------------------------- copies

// Copy 16 bytes to shared memory, or, reading nothing, 16 bytes of zeros.
__device__ inline void copy_16(Word to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// threadIdx.x, read anew, so that the compiler keeps nothing that follows from it in registers that it needs.
__device__ inline int thread_index() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Start copying `rows` rows, those from `left` on as zeros.
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
        asm volatile("" : "+l"(from));  // one pointer, moved on; not one for each step, kept over the loop
    }
}

constexpr int ALL = 1 << 30;

// ------------------------------------------------------------------------------------------------------------- kernel

// Grid (T_r, H_q, B). c = |τ| log₂e, at most finite, and sign that of τ; or 1 and 0 where τ log₂e is 0 in fp32.
// O and L, which may be null, are contiguous.
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

    // [t][r]: row 16t + 8r + lane/4 of the warp's; ℓ of this lane's columns alone.
    float O_i[TILES_DOWN][d / 8][4] = {}, m_i[TILES_DOWN][2], l_i[TILES_DOWN][2] = {};
#pragma unroll
    for (int t = 0; t < TILES_DOWN; ++t) m_i[t][0] = m_i[t][1] = -INFINITY;

#pragma unroll 1
    for (int j = T_c - 1; j >= 0; --j) {
        thread = thread_index();
        const Word buffer = j % 2 * TILE;
        const int lane = thread % 32, first = thread / 32 * WARP_ROWS;  // first: of the warp's rows
        wait_for_copies();
        __syncthreads();  // tile j is there, and nobody still reads tile j + 1
        if (j > 0) {
            copy_tile<d, B_c>(thread, K_j + (TILE - buffer), K + k.row * ((j - 1) * B_c), k.row, ALL);
            copy_tile<d, B_c>(thread, V_j + (TILE - buffer), V + v.row * ((j - 1) * B_c), v.row, ALL);
        }

        // S_ij = Q_i K_jᵀ
        float S_ij[TILES_DOWN][B_c / 8][4];
        const Word Q_lane = Q_i + swizzled<2 * d>(first + lane % 16, lane / 16);
        product<T, d>(S_ij, Q_lane, K_j + buffer + lane_offset<2 * d>(lane, false));

        // MASK, where the warp's first row does not see all of the tile
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

        // m_i^new, and where it has grown ℓ_i, O_i, m_i
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
        if constexpr (dropping) {  // the factor 1/(1 − p) waits for the end
            const int row = i * B_r + first + lane / 4, column = j * B_c + lane % 4 * 2, head = b * gridDim.y + h;
#pragma unroll
            for (int t = 0; t < TILES_DOWN; ++t)
#pragma unroll
                for (int n = 0; n < B_c / 8; n += 4)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        Word words[4];  // [2a + b]: of row 8a below, column 8b, and in the lower half 8b + 16, further on
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

    // O_i ← diag(ℓ_i)⁻¹ O_i and L_i. A warp writes where Q_i had the rows that it alone has read.
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
