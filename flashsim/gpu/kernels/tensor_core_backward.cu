// FlashAttention, backward, on tensor cores: mma.sync, cp.async, swizzled shared memory; fp16 or bf16, sums in fp32. sm_80+.
//
// S_ij = τ Q_i K_jᵀ is computed again from Q, K and L, the log-sum-exp that the forward pass kept:
//     P_ij = e^(S_ij − L_i),   dV_j = Σ_i P_ijᵀ dO_i,   dP_ij = dO_i V_jᵀ,   D_i = rowsum(dO_i ∘ O_i),
//     dS_ij = P_ij ∘ (dP_ij − D_i),   dK_j = τ Σ_i dS_ijᵀ Q_i,   dQ_i = τ Σ_j dS_ij K_j.
//
// Four kernels. `prepare` writes D and L·log₂e. `dk_dv` keeps K_j, V_j, dK_j, dV_j on chip and loads one Q_i, dO_i after the
// other. With ADD_DQ, it adds dQ_i to fp32 sums in HBM by atomic additions, in any order, and `round_dq` rounds them. Without,
// `dq` keeps Q_i and dO_i on chip and computes S and dP again: 7 products instead of 5, but the same bits in every run.
//
// Roles. A warp computes S_ijᵀ = K_j Q_iᵀ and dP_ijᵀ for 16 M keys. Their accumulators, rounded pairwise, are the left operands
// of P_ijᵀ dO_i and dS_ijᵀ Q_i; only dQ_i, a sum over all keys of the block, needs dS_ij in shared memory. Shared memory is the
// limit, since a right operand read from there serves M products of 16×8×16. At d = 64, M = 2: dK_j, dV_j take 128 registers a
// thread. At d = 128 they would take 256, so two warps (HALVES = 2) share 32 keys: each has half of the queries of S_ijᵀ and half
// of the columns of dK_j, dV_j, and reads the other half's P_ijᵀ, dS_ijᵀ from shared memory. M = HALVES = 1 reads a fifth more.
//
// Order of events. Q_{i+1}, dO_{i+1}, L_{i+1}, D_{i+1} are copied (cp.async) to a second buffer while tile i is computed. A tile
// has two barriers. A head's blocks follow each other, so that Q, dO, dQ stay in the L2; causally, the longest come first.
//
// Masks. Rows past N_q, and rows whose keys are all masked, get L = +∞, so P = 0. Only tiles on the causal edge or past N_k test
// positions; those above the edge are skipped. One block adds all query heads of a group to dK_j, dV_j. Dropout: Z is P's sign.
//
// Traffic, in elements per head, without a mask. Between L2 and chip, `dk_dv` reads Q and dO T_c times, K and V once, adds
// N_q d T_c numbers of fp32 to dQ's sums, in the order of accumulators, and writes dK and dV once. `dq` reads K and V T_r times.
// DRAM sees each input and each result once, and dQ's sums twice.
// What it reaches: docs/gpu-tried.md. no spills, no stack
#include "mma.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128  // d
#endif
#ifndef BF16
#define BF16 0  // elements are bf16, else fp16
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#if BF16
typedef __nv_bfloat16 Element;
#else
typedef __half Element;
#endif

constexpr int d = HEAD_DIM, PITCH = 2 * d;  // PITCH: bytes of a row of Q, K, V, dO
constexpr int PAD = 128;                    // D and L are padded to a multiple of this many rows
constexpr float LOG2_E = 1.44269504088896341f;

// Everything a launch needs; the same for all four kernels.
struct Problem {
    const Element *Q, *K, *V, *O, *dO;
    const float* L;               // (B, H_q, N_q), natural logarithm
    Element *dQ, *dK, *dV;
    float *L2, *D, *dQ_sum;       // scratch: (B·H_q, N_q up to PAD) twice, and dQ's sums
    Strides q, k, v, o, d_o, dq, dk, dv;
    Dropout dropout;
    int N_q, N_k, H_q, H_k, group, causal;  // group = H_q / H_k
    int padded;                             // N_q up to a multiple of PAD
    float tau, tau_2;                       // τ, τ log₂e

    // Differences come first, as N_q + N_k may exceed 2^31.
    __device__ bool live(int i, int j) const { return j < N_k && (!causal || j <= i - N_q + N_k); }
};

// ------------------------------------------------------------------------------------------------------------- copies

// Copy 16 bytes to shared memory, or zeros.
__device__ inline void copy_16(Word to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

// Start copying rows first … first + ROWS − 1 of an N×d matrix; rows past N become zeros.
template <int ROWS, int THREADS>
__device__ inline void copy_tile(Word tile, const Element* X, Offset stride, int first, int N) {
    constexpr int CHUNKS = d / 8, STEP = THREADS / CHUNKS;
    static_assert(ROWS % STEP == 0, "whole steps");
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const Element* from = X + (first + row) * stride + chunk * 8;
#pragma unroll
    for (int step = 0; step < ROWS; step += STEP) {
        const bool there = first + row + step < N;
        copy_16(tile + swizzled<PITCH>(row + step, chunk), there ? from : X, there);
        from += STEP * stride;
    }
}

// Start copying rows of L2 and D, which are padded. Both take 4·ROWS bytes.
template <int ROWS> __device__ inline void copy_rows(Word to, const float* L2, const float* D) {
    constexpr int CHUNKS = ROWS / 4;
    if (threadIdx.x < 2 * CHUNKS) {
        const float* from = threadIdx.x < CHUNKS ? L2 + threadIdx.x * 4 : D + (threadIdx.x - CHUNKS) * 4;
        copy_16(to + threadIdx.x * 16, from, true);
    }
}

// ------------------------------------------------------------------------------------------------------------ products

// C += A B, where A is rounded accumulators, 16 M × 8 N, in registers. B has 8 N rows, and its columns start at its address.
template <int M, int N, int W>
__device__ inline void add_product(float (&C)[M][W][4], const Word (&A)[M][N][2], Word B) {
#pragma unroll
    for (int k = 0; k < N; k += 2)
#pragma unroll
        for (int n = 0; n < W; n += 2) {
            Fragment b;
            ldmatrix_transposed(b, at<PITCH>(B, 8 * k, 8 * n));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                const Fragment a = {A[m][k][0], A[m][k][1], A[m][k + 1][0], A[m][k + 1][1]};
                mma<Element>(C[m][n], a, b[0], b[1]);
                mma<Element>(C[m][n + 1], a, b[2], b[3]);
            }
        }
}

// The same with A in shared memory, in rows of `pitch` bytes; its N columns start at its address.
template <int N, int pitch, int M, int W> __device__ inline void add_product(float (&C)[M][W][4], Word A, Word B) {
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        Fragment a[M];
#pragma unroll
        for (int m = 0; m < M; ++m) ldmatrix(a[m], at<pitch>(A, 16 * m, k));
#pragma unroll
        for (int n = 0; n < W; n += 2) {
            Fragment b;
            ldmatrix_transposed(b, at<PITCH>(B, k, 8 * n));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma<Element>(C[m][n], a[m], b[0], b[1]);
                mma<Element>(C[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Which of a warp's 16 M × COLUMNS accumulators dropout keeps, one bit each. Rows are keys in dk_dv, and queries in dq. A call of
// Philox serves two queries, 8 apart, and four keys.
template <int M, int COLUMNS, bool ROWS_ARE_KEYS> struct Kept {
    static constexpr int SPAN = COLUMNS < 64 ? COLUMNS / 8 : 8;  // groups of four bits in a word
    static constexpr int ACROSS = ROWS_ARE_KEYS ? 2 : 4;         // such groups that a call serves
#if __CUDA_ARCH__ >= 900
    static constexpr int UNROLLED = ROWS_ARE_KEYS ? SPAN / ACROSS : 1;  // dq has no registers for more
#else
    static constexpr int UNROLLED = 1;  // nor has dk_dv on sm_80
#endif
    static_assert(SPAN % ACROSS == 0, "what a call serves is in one lane");
    Word bits[M][COLUMNS / 8 / SPAN];

    __device__ Kept(const Dropout& dropout, int row, int column, Word head) {
#if DROPOUT
        const Word key_0 = here(dropout.key_0), key_1 = here(dropout.key_1);
        row += threadIdx.x % 32 / 4, column += threadIdx.x % 4 * 2;
        constexpr int DOWN = ROWS_ARE_KEYS && M % 2 == 0 ? 2 : 1;  // rows of tiles that a call serves
#pragma unroll
        for (int m = 0; m < M; m += DOWN)
#pragma unroll
            for (int word = 0; word < COLUMNS / 8 / SPAN; ++word) {
                Word found[2] = {0, 0};  // of keys in the upper halves of words, and in the lower halves
#pragma unroll UNROLLED
                for (int n = 0; n < SPAN; n += ACROSS) {
                    Word kept[2] = {0, 0};
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int x = row + 16 * m, y = column + 8 * (word * SPAN + n) + e;
                        Word words[4];
                        philox(words, ROWS_ARE_KEYS ? y : x, ROWS_ARE_KEYS ? x & ~16 : y, head, key_0, key_1);
#pragma unroll
                        for (int of = 0; of < 4; ++of) {
                            const int query = of / 2, key = of % 2;  // the offset of 8
                            const int bit = e + (ROWS_ARE_KEYS ? 2 * key + 4 * query : 2 * query + 4 * key);
                            kept[0] |= Word(words[of] > dropout.last) << bit;
                            kept[1] |= Word(words[of] << 16 > dropout.last) << bit;
                        }
                    }
                    if (!ROWS_ARE_KEYS) kept[0] |= kept[1] << 8;
                    found[0] |= kept[0] << 4 * n;
                    found[1] |= kept[1] << 4 * n;
                }
                if (DOWN == 2) bits[m][word] = found[0], bits[m + DOWN - 1][word] = found[1];
                else bits[m][word] = ROWS_ARE_KEYS && row & 16 ? found[1] : found[0];
            }
#endif
    }
    // P where the element is kept, −P where it is dropped. P ≥ 0, so from here on its sign carries Z.
    __device__ float operator()(int m, int n, int e, float P) const {
        return !DROPOUT || bits[m][n / SPAN] >> (n % SPAN * 4 + e) & 1 ? P : -P;
    }
};

// P ∘ Z, without Z's factor 1/(1 − p), for P with Z's sign.
__device__ inline float dropped(float P) { return DROPOUT ? fmaxf(P, 0.0f) : P; }

// dS = P ∘ (dP ∘ Z − D), for P with Z's sign.
__device__ inline float dS_of(float P, float dP, float D, const Problem& p) {
    return DROPOUT ? fabsf(P) * ((P > 0.0f ? p.dropout.keep_scale * dP : 0.0f) - D) : P * (dP - D);
}

// Write a warp's 16 M × 8 W accumulators, times `factor`, to a matrix from its row `first` and its column `column` on. They go
// through a tile, so that a row's elements are written 16 bytes at a time.
template <int M, int W>
__device__ inline void store_rows(
    Element* X, Offset stride, int first, int N, int column, Word tile, const float (&C)[M][W][4], float factor) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < W; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Word both = pack<Element>(factor * C[m][n][2 * half], factor * C[m][n][2 * half + 1]);
                const Word to = tile + swizzled<PITCH>(16 * m + 8 * half + lane / 4, n + column / 8) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both) : "memory");
            }
    __syncwarp();
    constexpr int STEP = 32 / W;
    const int row = lane / W, chunk = lane % W + column / 8;
#pragma unroll
    for (int step = 0; step < 16 * M; step += STEP) {
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(tile + swizzled<PITCH>(row + step, chunk)) : "memory");
        if (first + row + step < N) *reinterpret_cast<uint4*>(X + (first + row + step) * stride + chunk * 8) = x;
    }
}

// ------------------------------------------------------------------------------------------------------------ prepare

// D_i and L_i·log₂e, one block for PAD rows of a head; the padding is D = 0, L = +∞. With ADD_DQ, also zeros for dQ's sums.
template <bool ADD_DQ> __global__ void __launch_bounds__(256) prepare(const __grid_constant__ Problem p) {
    constexpr int LANES = d / 8, STEP = 256 / LANES;
    const int tiles = p.padded / PAD, head = blockIdx.x / tiles, first = blockIdx.x % tiles * PAD;
    const int b = head / p.H_q, h = head % p.H_q, chunk = threadIdx.x % LANES;
    const Element* O = p.O + b * p.o.batch + h * p.o.head + chunk * 8;
    const Element* dO = p.dO + b * p.d_o.batch + h * p.d_o.head + chunk * 8;
    const Offset out = Offset(head) * p.padded;
    for (int i = first + threadIdx.x / LANES; i < first + PAD; i += STEP) {
        float D = 0.0f;
        if (i < p.N_q)
            D = add_dot<Element>(D, *reinterpret_cast<const uint4*>(O + i * p.o.row),
                                 *reinterpret_cast<const uint4*>(dO + i * p.d_o.row));
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) D += __shfl_xor_sync(~0u, D, lanes);
        if (chunk == 0) {
            const float L = i < p.N_q ? p.L[Offset(head) * p.N_q + i] : -INFINITY;
            p.D[out + i] = D;
            p.L2[out + i] = L == -INFINITY ? INFINITY : L * LOG2_E;
        }
    }
    if constexpr (ADD_DQ) {
        float4* sums = reinterpret_cast<float4*>(p.dQ_sum + (out + first) * d);
        for (int x = threadIdx.x; x < PAD * d / 4; x += 256) sums[x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

// -------------------------------------------------------------------------------------------------------------- dk_dv

// How dQ_i, B_r × d, is divided among the warps: WARPS_DOWN of them divide its rows, the others its columns. Each has 16 DOWN
// rows and 8 ACROSS columns.
template <int WARPS, int B_r, int WARPS_DOWN> struct DqOverWarps {
    static constexpr int WARPS_ACROSS = WARPS / WARPS_DOWN;
    static constexpr int DOWN = B_r / 16 / WARPS_DOWN, ACROSS = d / 8 / WARPS_ACROSS;
    static_assert(DOWN * WARPS_DOWN * 16 == B_r && ACROSS * WARPS_ACROSS * 8 == d && ACROSS % 2 == 0, "dQ_i divides");
    const int warp = threadIdx.x / 32;
    const int row = warp / WARPS_ACROSS * DOWN * 16, column = warp % WARPS_ACROSS * ACROSS * 8;

    // Where the sums of this thread's accumulators start in tile i of a head. Registers follow each other, 32 lanes side by side.
    __device__ float* sums(const Problem& p, int head, int i) const {
        const Offset tile = (Offset(head) * p.padded + i * B_r) * d;
        return p.dQ_sum + tile + warp * (32 * DOWN * ACROSS * 4) + threadIdx.x % 32;
    }
};

// dK_j and dV_j: one block has the B_c keys of tile j of a KV head. Each 16 M keys have HALVES warps.
template <int WARPS, int M, int HALVES, int B_r, int WARPS_DOWN, int BLOCKS, bool ADD_DQ>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) dk_dv(const __grid_constant__ Problem p) {
    constexpr int THREADS = 32 * WARPS, B_c = 16 * M * WARPS / HALVES;
    constexpr int COLUMNS = B_r / HALVES, WIDTH = d / HALVES;  // queries of a warp's S_ijᵀ; columns of its dK_j, dV_j
    constexpr int KEYS_BYTES = B_c * PITCH, QUERIES_BYTES = B_r * PITCH, ROWS_BYTES = 8 * B_r, P_BYTES = B_c * B_r * 2;
    static_assert(PAD % B_r == 0 && COLUMNS % 16 == 0, "tiles end where D and L do");
    extern __shared__ __align__(1024) unsigned char shared[];
    const Word K_j = __cvta_generic_to_shared(shared), V_j = K_j + KEYS_BYTES, Q = V_j + KEYS_BYTES, dO = Q + 2 * QUERIES_BYTES;
    const Word dS = dO + 2 * QUERIES_BYTES, P = dS + (ADD_DQ || HALVES > 1) * P_BYTES, rows = P + (HALVES > 1) * P_BYTES;

    const int T_c = (p.N_k + B_c - 1) / B_c, T_r = (p.N_q + B_r - 1) / B_r;
    const int j = blockIdx.x % T_c, b = blockIdx.x / T_c / p.H_k, h_k = blockIdx.x / T_c % p.H_k;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % HALVES;
    const int first_key = j * B_c, own = 16 * M * (warp / HALVES), first_column = half * COLUMNS;
    // With a causal mask, the first query that sees key `first_key` is first_key − (N_k − N_q).
    const int i_first = p.causal ? max(first_key - (p.N_k - p.N_q), 0) / B_r : 0;
    const int head_first = b * p.H_q + h_k * p.group, tiles = (T_r - i_first) * p.group;

    const Word lane_down = lane_offset<PITCH>(true), lane_right = lane_offset<PITCH>(false);

    float dK[M][WIDTH / 8][4] = {}, dV[M][WIDTH / 8][4] = {};

    // Copy tile i of query head h (Q_i, dO_i, L_i, D_i) to buffer `stage`.
    auto copy_queries = [&](int h, int i, int stage) {
        const Element* Q_h = p.Q + b * p.q.batch + (h_k * p.group + h) * p.q.head;
        const Element* dO_h = p.dO + b * p.d_o.batch + (h_k * p.group + h) * p.d_o.head;
        copy_tile<B_r, THREADS>(Q + stage * QUERIES_BYTES, Q_h, p.q.row, i * B_r, p.N_q);
        copy_tile<B_r, THREADS>(dO + stage * QUERIES_BYTES, dO_h, p.d_o.row, i * B_r, p.N_q);
        const Offset row = Offset(head_first + h) * p.padded + i * B_r;
        copy_rows<B_r>(rows + stage * ROWS_BYTES, p.L2 + row, p.D + row);
    };
    // Write a warp's part of P_ijᵀ or dS_ijᵀ, rounded.
    auto share = [&](Word tile, const Word (&x)[M][COLUMNS / 8][2]) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int key = own + m * 16 + e * 8 + lane / 4;
                    const Word to = tile + swizzled<2 * B_r>(key, n + first_column / 8) + lane % 4 * 4;
                    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x[m][n][e]) : "memory");
                }
    };

    copy_tile<B_c, THREADS>(K_j, p.K + b * p.k.batch + h_k * p.k.head, p.k.row, first_key, p.N_k);
    copy_tile<B_c, THREADS>(V_j, p.V + b * p.v.batch + h_k * p.v.head, p.v.row, first_key, p.N_k);
    int h = 0, i = i_first;
    copy_queries(h, i, 0);

    for (int tile = 0; tile < tiles; ++tile) {
        const int stage = tile & 1, first_query = i * B_r, head = head_first + h;
        const Word Q_i = Q + stage * QUERIES_BYTES, dO_i = dO + stage * QUERIES_BYTES, L_i = rows + stage * ROWS_BYTES;
        const DqOverWarps<WARPS, B_r, WARPS_DOWN> part;
        float* const sums = ADD_DQ ? part.sums(p, head, i) : nullptr;
        const Word down = here(lane_down), right = here(lane_right), down_half = down ^ (half * WIDTH * 2);
        wait_for_copies();
        __syncthreads();  // tile i has come; the other buffer, P and dS have been read
        if (++i == T_r) i = i_first, ++h;
        if (tile + 1 < tiles) copy_queries(h, i, stage ^ 1);

        const Kept<M, COLUMNS, true> Z_ij(p.dropout, first_key + own, first_query + first_column, head);

        // S_ijᵀ = K_j Q_iᵀ, then P_ijᵀ in the same registers. Element e of group n is of query
        // first_query + first_column + 8 n + 2 (lane mod 4) + (e mod 2).
        float S[M][COLUMNS / 8][4];
        product<Element, d>(S, K_j + own * PITCH + down, Q_i + first_column * PITCH + right);
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            float L[2];
            const Word from = L_i + (first_column + n * 8 + lane % 4 * 2) * 4;
            asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(L[0]), "=f"(L[1]) : "r"(from));
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) S[m][n][e] = Z_ij(m, n, e, exp_2(fminf(fmaf(S[m][n][e], p.tau_2, -L[e & 1]), 0.0f)));
        }
        if (first_key + B_c > p.N_k || (p.causal && first_key + B_c - 1 > first_query - p.N_q + p.N_k)) {
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int query = first_query + first_column + n * 8 + lane % 4 * 2 + (e & 1);
                        const int key = first_key + own + m * 16 + lane / 4 + e / 2 * 8;
                        if (!p.live(query, key)) S[m][n][e] = 0.0f;
                    }
        }

        // dV_j += (P_ij ∘ Z_ij)ᵀ dO_i. Z's factor 1/(1 − p) is applied at the end.
        Word rounded[M][COLUMNS / 8][2];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; e += 2) rounded[m][n][e / 2] = pack<Element>(dropped(S[m][n][e]), dropped(S[m][n][e + 1]));
        if constexpr (HALVES > 1) share(P, rounded);
        add_product(dV, rounded, dO_i + first_column * PITCH + down_half);

        // dP_ijᵀ = V_j dO_iᵀ, and dS_ijᵀ = P_ijᵀ ∘ (dP_ijᵀ ∘ Z_ijᵀ − D_iᵀ), rounded.
        float dP[M][COLUMNS / 8][4];
        product<Element, d>(dP, V_j + own * PITCH + down, dO_i + first_column * PITCH + right);
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            float D[2];
            const Word from = L_i + (B_r + first_column + n * 8 + lane % 4 * 2) * 4;
            asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(D[0]), "=f"(D[1]) : "r"(from));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                float dS_ij[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) dS_ij[e] = dS_of(S[m][n][e], dP[m][n][e], D[e & 1], p);
                rounded[m][n][0] = pack<Element>(dS_ij[0], dS_ij[1]);
                rounded[m][n][1] = pack<Element>(dS_ij[2], dS_ij[3]);
            }
        }
        if constexpr (ADD_DQ || HALVES > 1) share(dS, rounded);

        // dK_j += dS_ijᵀ Q_i. τ is applied at the end.
        add_product(dK, rounded, Q_i + first_column * PITCH + down_half);

        // Products that need other warps' results: dQ needs dS_ij of all keys, dV_j and dK_j the other half's P_ijᵀ and dS_ijᵀ.
        if constexpr (ADD_DQ) __syncthreads();
        else if constexpr (HALVES > 1) asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");
        if constexpr (HALVES > 1) {
            const int other = COLUMNS - first_column;
            const Word lane_other = at<2 * B_r>(lane_offset<2 * B_r>(true), own, other);
            add_product<COLUMNS, 2 * B_r>(dV, P + lane_other, dO_i + other * PITCH + down_half);
            add_product<COLUMNS, 2 * B_r>(dK, dS + lane_other, Q_i + other * PITCH + down_half);
        }

        // dQ_i += dS_ij K_j.
        if constexpr (ADD_DQ) {
            const Word dS_lane = dS + lane_offset<2 * B_r>(false), K_lane = K_j + down;
            float dQ[part.DOWN][part.ACROSS][4] = {};
#pragma unroll
            for (int k = 0; k < B_c; k += 16) {
                Fragment a[part.DOWN];
#pragma unroll
                for (int m = 0; m < part.DOWN; ++m) ldmatrix_transposed(a[m], at<2 * B_r>(dS_lane, k, part.row + 16 * m));
#pragma unroll
                for (int n = 0; n < part.ACROSS; n += 2) {
                    Fragment b;
                    ldmatrix_transposed(b, at<PITCH>(K_lane, k, part.column + 8 * n));
#pragma unroll
                    for (int m = 0; m < part.DOWN; ++m) {
                        mma<Element>(dQ[m][n], a[m], b[0], b[1]);
                        mma<Element>(dQ[m][n + 1], a[m], b[2], b[3]);
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < part.DOWN; ++m)
#pragma unroll
                for (int n = 0; n < part.ACROSS; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) atomicAdd(sums + ((m * part.ACROSS + n) * 4 + e) * 32, dQ[m][n][e]);
        }
    }

    __syncthreads();  // K_j and V_j have been read: dK_j and dV_j use their place
    Element* dK_h = p.dK + b * p.dk.batch + h_k * p.dk.head;
    Element* dV_h = p.dV + b * p.dv.batch + h_k * p.dv.head;
    store_rows(dK_h, p.dk.row, first_key + own, p.N_k, half * WIDTH, K_j + own * PITCH, dK, p.tau);
    const float Z_factor = DROPOUT ? p.dropout.keep_scale : 1.0f;
    store_rows(dV_h, p.dv.row, first_key + own, p.N_k, half * WIDTH, V_j + own * PITCH, dV, Z_factor);
}

// ----------------------------------------------------------------------------------------------------------- round_dq

// dQ_i = τ · its sums, rounded. One block has tile i of a query head, with its threads arranged as in dk_dv.
template <int WARPS, int B_r, int WARPS_DOWN>
__global__ void __launch_bounds__(32 * WARPS) round_dq(const __grid_constant__ Problem p) {
    const int T_r = (p.N_q + B_r - 1) / B_r, i = blockIdx.x % T_r, head = blockIdx.x / T_r, lane = threadIdx.x % 32;
    const DqOverWarps<WARPS, B_r, WARPS_DOWN> part;
    const float* sums = part.sums(p, head, i);
    Element* dQ = p.dQ + head / p.H_q * p.dq.batch + head % p.H_q * p.dq.head + part.column + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < part.DOWN; ++m)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
#pragma unroll
            for (int n = 0; n < part.ACROSS; ++n) {
                const float* x = sums + ((m * part.ACROSS + n) * 4 + e) * 32;
                const int query = i * B_r + part.row + 16 * m + 4 * e + lane / 4;
                if (query < p.N_q)
                    *reinterpret_cast<Word*>(dQ + query * p.dq.row + 8 * n) = pack<Element>(p.tau * x[0], p.tau * x[32]);
            }
}

// ----------------------------------------------------------------------------------------------------------------- dq

// dQ_i: one block has the B_r queries of tile i of a query head, and loads one K_j, V_j after the other. A warp owns 16 M
// queries.
template <int WARPS, int M, int B_c, int BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) dq(const __grid_constant__ Problem p) {
    constexpr int THREADS = 32 * WARPS, B_r = 16 * M * WARPS, QUERIES_BYTES = B_r * PITCH, KEYS_BYTES = B_c * PITCH;
    static_assert(PAD % B_r == 0, "tiles end where D and L do");
    extern __shared__ __align__(1024) unsigned char shared[];
    const Word Q_i = __cvta_generic_to_shared(shared), dO_i = Q_i + QUERIES_BYTES;
    const Word K = dO_i + QUERIES_BYTES, V = K + 2 * KEYS_BYTES;

    const int T_r = (p.N_q + B_r - 1) / B_r;
    const int i = T_r - 1 - blockIdx.x % T_r, head = blockIdx.x / T_r;
    const int b = head / p.H_q, h = head % p.H_q, h_k = h / p.group;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_query = i * B_r, own = 16 * M * warp;
    // With a causal mask, the last query of the tile sees keys up to its own index + N_k − N_q.
    const int last = p.causal ? min(first_query + B_r - 1 - p.N_q + p.N_k, p.N_k - 1) : p.N_k - 1;
    const int tiles = last < 0 ? 0 : last / B_c + 1;

    const Element* K_h = p.K + b * p.k.batch + h_k * p.k.head;
    const Element* V_h = p.V + b * p.v.batch + h_k * p.v.head;
    const Word down = lane_offset<PITCH>(true), right = lane_offset<PITCH>(false);

    auto copy_keys = [&](int j) {
        copy_tile<B_c, THREADS>(K + (j & 1) * KEYS_BYTES, K_h, p.k.row, j * B_c, p.N_k);
        copy_tile<B_c, THREADS>(V + (j & 1) * KEYS_BYTES, V_h, p.v.row, j * B_c, p.N_k);
    };

    copy_tile<B_r, THREADS>(Q_i, p.Q + b * p.q.batch + h * p.q.head, p.q.row, first_query, p.N_q);
    copy_tile<B_r, THREADS>(dO_i, p.dO + b * p.d_o.batch + h * p.d_o.head, p.d_o.row, first_query, p.N_q);
    copy_keys(0);

    float L[M][2], D[M][2];  // of rows lane / 4 and lane / 4 + 8 of each 16
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Offset row = Offset(head) * p.padded + first_query + own + 16 * m + 8 * half + lane / 4;
            L[m][half] = p.L2[row];
            D[m][half] = p.D[row];
        }
    float dQ[M][d / 8][4] = {};

    for (int j = 0; j < tiles; ++j) {
        const int first_key = j * B_c;
        const Word K_j = K + (j & 1) * KEYS_BYTES, V_j = V + (j & 1) * KEYS_BYTES;
        wait_for_copies();
        __syncthreads();  // tile j has come; the other buffer has been read
        if (j + 1 < tiles) copy_keys(j + 1);

        const Kept<M, B_c, false> Z_ij(p.dropout, first_query + own, first_key, head);

        // S_ij = Q_i K_jᵀ, then P_ij and dS_ij in the same registers; dP_ij = dO_i V_jᵀ.
        float S[M][B_c / 8][4], dP[M][B_c / 8][4];
        product<Element, d>(S, Q_i + own * PITCH + down, K_j + right);
        product<Element, d>(dP, dO_i + own * PITCH + down, V_j + right);
        const bool edge = first_key + B_c > p.N_k || (p.causal && first_key + B_c - 1 > first_query - p.N_q + p.N_k);
        Word rounded[M][B_c / 8][2];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < B_c / 8; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int query = first_query + own + m * 16 + lane / 4 + e / 2 * 8;
                    const int key = first_key + n * 8 + lane % 4 * 2 + (e & 1);
                    float P = exp_2(fminf(fmaf(S[m][n][e], p.tau_2, -L[m][e / 2]), 0.0f));
                    if (edge && !p.live(query, key)) P = 0.0f;
                    S[m][n][e] = dS_of(Z_ij(m, n, e, P), dP[m][n][e], D[m][e / 2], p);
                }
                rounded[m][n][0] = pack<Element>(S[m][n][0], S[m][n][1]);
                rounded[m][n][1] = pack<Element>(S[m][n][2], S[m][n][3]);
            }
        add_product(dQ, rounded, K_j + down);  // dQ_i += dS_ij K_j. τ is applied at the end.
    }

    wait_for_copies();    // if no key was live, a copy to Q_i's place may still run
    __syncthreads();
    Element* dQ_h = p.dQ + b * p.dq.batch + h * p.dq.head;
    store_rows(dQ_h, p.dq.row, first_query + own, p.N_q, 0, Q_i + own * PITCH, dQ, p.tau);
}
