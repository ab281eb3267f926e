// no spills, no stack
#include "hopper.cuh"

#ifndef NOADD
#define NOADD 0
#endif
#ifndef NOEXP
#define NOEXP 0
#endif
#ifndef NOBAR
#define NOBAR 0
#endif
#ifndef NODQ
#define NODQ 0
#endif
#ifndef ORDER
#define ORDER 0
#endif
#ifndef EARLY
#define EARLY 0
#endif
#ifndef READ
#define READ 1
#endif

constexpr int B_c = 128, CONSUMERS = B_c / 64;

template <int d> constexpr int B_r = d == 64 ? 128 : 64;

struct Problem {
    int N_q, N_k, H, H_kv, group, T_r, T_c;  // H query heads, `group` to each of H_kv KV heads
    float tau, c;                            // τ and τ log₂e, at most finite
    Dropout dropout;
    float *rows, *sums;  // L_i log₂e and D_i of tile after tile; dQ_i, in the order of accumulators
    Word* turns;         // how many blocks have added to each half of dQ_i

    __device__ Offset tile(int head, int i) const { return Offset(head) * T_r + i; }
};

// The first row block that sees key `key`, and the last key that row block i sees.
template <bool causal, int d> __device__ inline int first_row_block(const Problem& p, int key) {
    return causal ? max(key - (p.N_k - p.N_q), 0) / B_r<d> : 0;
}

// ------------------------------------------------------------------------------------------------------------- shared memory

// K_j | V_j | Q_i, Q_{i+1} | dO_i, dO_{i+1} | dS_ij, dS_{i+1,j} | L_i, D_i, L_{i+1}, D_{i+1} | barriers
template <int d> struct Memory {
    static constexpr int STAGES = 2, KV_BYTES = B_c * d * 2, Q_BYTES = B_r<d> * d * 2, dS_BYTES = B_r<d> * B_c * 2;
    static constexpr int ROWS_BYTES = B_r<d> * 8;
    static constexpr int V_AT = KV_BYTES, Q_AT = 2 * KV_BYTES, dO_AT = Q_AT + STAGES * Q_BYTES, dS_AT = dO_AT + STAGES * Q_BYTES;
    static constexpr int STAGING_AT = dS_AT + 2 * dS_BYTES, ROWS_AT = STAGING_AT + 2 * 64 * 64 * 4, END = ROWS_AT + STAGES * ROWS_BYTES;
    static constexpr int BYTES = END + (2 + 2 * STAGES) * 16;
    Ring<1, KV_BYTES> K_j, V_j;
    Ring<STAGES, Q_BYTES> Q_i, dO_i;
    Word base;

    __device__ explicit Memory(Word base) : base(base) {
        K_j = {base, base + END};
        V_j = {base + V_AT, base + END + 16};
        Q_i = {base + Q_AT, base + END + 32};
        dO_i = {base + dO_AT, base + END + 32 + STAGES * 16};
    }
    __device__ Word dS_ij(Word n) const { return base + dS_AT + n % 2 * dS_BYTES; }
    __device__ Word sums(int w) const { return base + STAGING_AT + w * 16384; }
    __device__ Word rows(Word n) const { return base + ROWS_AT + n % STAGES * ROWS_BYTES; }
    __device__ void init() const {
        if (threadIdx.x == 0) K_j.init(1), V_j.init(1), Q_i.init(4 * CONSUMERS), dO_i.init(4 * CONSUMERS);
        publish_barriers();
    }
};

// -------------------------------------------------------------------------------------------------------------- producer

template <bool causal, int d>
__device__ __forceinline__ void produce(const Memory<d>& sram, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                                        const TensorMap& dO, int j, int h_kv, int b, const Problem& p, Total* totals) {
    constexpr int KV_BYTES = B_c * d * 2, Q_BYTES = B_r<d> * d * 2, ROWS_BYTES = B_r<d> * 8;
    Tally Q_reads(totals), K_reads(totals + 2), V_reads(totals + 4), dO_reads(totals + 6), L_reads(totals + 8), D_reads(totals + 10);
    const auto load_keys = [&](const Ring<1, KV_BYTES>& ring, const TensorMap& X, Tally& reads) {
        ring.there(0).arrive_and_expect(KV_BYTES);
        load(ring.tile(0), X, j * B_c, h_kv, b, ring.there(0));
        reads.add(min(B_c, p.N_k - j * B_c), d);
    };
    load_keys(sram.K_j, K, K_reads);
    const int i_first = first_row_block<causal, d>(p, j * B_c);
    Word n = 0;
#pragma unroll 1
    for (int h = h_kv * p.group; h < (h_kv + 1) * p.group; ++h)
#pragma unroll 1
        for (int i = i_first; i < p.T_r; ++i, ++n) {
            const int rows = min(B_r<d>, p.N_q - i * B_r<d>);
            sram.Q_i.wait_free(n);
            sram.Q_i.there(n).arrive_and_expect(Q_BYTES + ROWS_BYTES);
            load(sram.Q_i.tile(n), Q, i * B_r<d>, h, b, sram.Q_i.there(n));
            load(sram.rows(n), p.rows + p.tile(b * p.H + h, i) * (2 * B_r<d>), ROWS_BYTES, sram.Q_i.there(n));
            Q_reads.add(rows, d), L_reads.add(rows, 1), D_reads.add(rows, 1);
            if (n == 0) load_keys(sram.V_j, V, V_reads);
            sram.dO_i.wait_free(n);
            sram.dO_i.there(n).arrive_and_expect(Q_BYTES);
            load(sram.dO_i.tile(n), dO, i * B_r<d>, h, b, sram.dO_i.there(n));
            dO_reads.add(rows, d);
        }
}

// ------------------------------------------------------------------------------------------------------------- adder

constexpr int EVERYBODY = 1, TOGETHER = 2, FULL = 4, EMPTY = 6;  // named barriers: both consumers; TOGETHER + w, all of warpgroup w

template <bool causal, int d, bool in_turn>
__device__ __forceinline__ void add_up(const Memory<d>& sram, int w, int j, int h_kv, int b, const Problem& p) {
    constexpr int B_r = ::B_r<d>;
    const int i_first = first_row_block<causal, d>(p, j * B_c);
    const bool leader = threadIdx.x % 32 == 0;
#pragma unroll 1
    for (int h = h_kv * p.group; h < (h_kv + 1) * p.group; ++h)
#pragma unroll 1
        for (int i = i_first; i < p.T_r; ++i) {
            come(EMPTY + w, WARPGROUP + 32);
            const Offset tile = p.tile(b * p.H + h, i);
            Word* turn = p.turns + tile * 2 + w;
            if (in_turn && leader) {
                const int last = causal ? min(p.T_c - 1, (min(i * B_r + B_r, p.N_q) - 1 + p.N_k - p.N_q) / B_c) : 0;
                const Word mine = causal ? last - j : j;
                Word now;
                do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
                while (now != mine);
            }
            meet(FULL + w, WARPGROUP + 32);
            if (leader && !NOADD) {
                asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(p.sums + tile * (B_r * d) + w * 4096), "r"(sram.sums(w)), "r"(16384) : "memory");
                if (in_turn) {
                    wait_stores();
                    asm volatile("fence.acq_rel.gpu;\nred.release.gpu.global.add.u32 [%0], 1;" ::"l"(turn) : "memory");
                } else {
                    wait_stores_read();
                }
            }
            __syncwarp();
        }
    if (leader) READ ? wait_stores_read() : wait_stores();
}

// ------------------------------------------------------------------------------------------------------------- consumers

// x, but the compiler must not compute what depends on it before the loop: it would keep dozens of registers.
__device__ inline Word here(Word x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Two numbers of shared memory.
__device__ inline void load_pair(float (&x)[2], Word from) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from));
}

template <typename T, int d, bool causal, bool dropping, bool in_turn> struct Consumer {
    static constexpr int B_r = ::B_r<d>;
    const Memory<d>& sram;
    const Problem& p;
    const int w, j, h_kv, b;

    float dK_j[d / 8][4], dV_j[d / 8][4];
    float S_ij[B_r / 8][4], dP_ij[B_r / 8][4], dQ_ij[8][4];
    Word P_ij[B_r / 16][4], dS_ij[B_r / 16][4];

    __device__ __forceinline__ Word K_w() const { return sram.K_j.tile(0) + here(w) * 64 * 128; }
    __device__ __forceinline__ Word V_w() const { return sram.V_j.tile(0) + here(w) * 64 * 128; }

    // P_ij
    __device__ __forceinline__ void softmax(Word n, int i, int head, bool masked) {
        const int lane = thread_index() % 32, key = j * B_c + here(threadIdx.x - WARPGROUP) / 32 * 16 + lane / 4;
        const Word L_i = sram.rows(n) + lane % 4 * 8;
#pragma unroll
        for (int t = 0; t < B_r / 8; ++t) {
            float L[2];
            load_pair(L, L_i + t * 32);
#pragma unroll
            for (int e = 0; e < 4; ++e) S_ij[t][e] = NOEXP ? S_ij[t][e] - L[e % 2] : exp_2(fminf(fmaf(S_ij[t][e], p.c, -L[e % 2]), 0.0f));
        }
        if (masked) {
            int first[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                first[r] = causal ? key + 8 * r - (p.N_k - p.N_q) - i * B_r - lane % 4 * 2 : 0;
                if (key + 8 * r >= p.N_k) first[r] = B_r;
            }
#pragma unroll
            for (int t = 0; t < B_r / 8; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (8 * t + e % 2 < first[e / 2]) S_ij[t][e] = 0.0f;
        }
        if (dropping) drop(i, key, head);
#pragma unroll
        for (int t = 0; t < B_r / 8; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float x = S_ij[t][2 * r], y = S_ij[t][2 * r + 1];
                P_ij[t / 2][t % 2 * 2 + r] = dropping ? pack<T>(fmaxf(x, 0.0f), fmaxf(y, 0.0f)) : pack<T>(x, y);
            }
    }

    __device__ __forceinline__ void drop(int i, int key, int head) {
        const int lane = thread_index() % 32;
#pragma unroll
            for (int t = 0; t < B_r / 8; t += 2)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    Word words[4];  // [2a + r]: of query 8a further on, key 8r further on; in one of its halves
                    philox(words, i * B_r + 8 * t + lane % 4 * 2 + e, key & ~16, head, here(p.dropout.key_0), here(p.dropout.key_1));
#pragma unroll
                    for (int of = 0; of < 4; ++of) {
                        float& P = S_ij[t + of / 2][of % 2 * 2 + e];
                        P = words[of] << (key & 16) <= p.dropout.last ? -P : P;
                    }
                }
    }

    __device__ __forceinline__ void gradient(Word n) {
        const Word D_i = sram.rows(n) + B_r * 4 + thread_index() % 4 * 8;
#pragma unroll
        for (int t = 0; t < B_r / 8; ++t) {
            float D[2];
            load_pair(D, D_i + t * 32);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float P = S_ij[t][e], dP = dP_ij[t][e];
                S_ij[t][e] = dropping ? fabsf(P) * ((P > 0.0f ? p.dropout.keep_scale * dP : 0.0f) - D[e % 2]) : P * (dP - D[e % 2]);
            }
        }
    }

    __device__ __forceinline__ void share(Word n) const {
        const int thread = thread_index(), lane = thread % 32, chunk = thread / 32 * 2 + lane / 8 % 2;
        const Word to = sram.dS_ij(n) + w * (B_r * 128) + (lane / 16 * 8 + lane % 8) * 128 + ((chunk ^ lane % 8) << 4);
#pragma unroll
        for (int t = 0; t < B_r / 16; ++t) store_operand<true>(to + t * 2048, dS_ij[t]);
    }

    __device__ __forceinline__ void add_dQ(int head, int i, Total* totals) {
        const int thread = thread_index();
        float* sums = p.sums + p.tile(head, i) * (B_r * d) + w * 4096;
        meet(EMPTY + w, WARPGROUP + 32);
#pragma unroll
        for (int t = 0; t < 8; ++t)
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(sram.sums(w) + (t * WARPGROUP + thread) * 16), "f"(dQ_ij[t][0]), "f"(dQ_ij[t][1]), "f"(dQ_ij[t][2]), "f"(dQ_ij[t][3]) : "memory");
        show_writes();
        come(FULL + w, WARPGROUP + 32);
        if (thread == 0) {
            const int rows = min(64, p.N_q - i * B_r - (d == 64 ? 64 * w : 0));
            Tally(totals + 12).add(rows, 64), Tally(totals + 13).add(rows, 64);
        }
    }

    // 64 rows of dK_j or dV_j
    __device__ __forceinline__ void write(const TensorMap& X, Word tile, const float (&C)[d / 8][4], float factor, Total* total) const {
        const int thread = thread_index(), lane = thread % 32, row = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
        for (int t = 0; t < d / 8; t += 2) {
            Word both[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) both[r] = pack<T>(C[t + r / 2][r % 2 * 2] * factor, C[t + r / 2][r % 2 * 2 + 1] * factor);
            store_operand<false>(tile + t / 8 * (64 * 128) + row * 128 + ((t % 8 + lane / 16 ^ lane % 8) << 4), both);
        }
        show_writes();
        meet(TOGETHER + w, WARPGROUP);
        if (thread == 0) {
            store(X, j * B_c + 64 * w, h_kv, b, tile);
            Tally(total).add(min(64, p.N_k - j * B_c - 64 * w), d);
        }
    }

    __device__ __forceinline__ void start_S(Word n) {
        sram.Q_i.wait_there(n);
        start_scores<T, d, B_r>(S_ij, K_w(), B_c, sram.Q_i.tile(n));
    }
    __device__ __forceinline__ void start_dP(Word n) {
        sram.dO_i.wait_there(n);
        start_scores<T, d, B_r>(dP_ij, V_w(), B_c, sram.dO_i.tile(n));
        finish<1>(S_ij);
    }
    __device__ __forceinline__ void start_gradients(Word n) {
        start_values<T, d, B_r>(dV_j, P_ij, sram.dO_i.tile(n));
        gradient(n);
        round_to_operands<T, B_r>(dS_ij, S_ij);
        share(n);
        if (ORDER == 0) start_values<T, d, B_r>(dK_j, dS_ij, sram.Q_i.tile(n));
        show_writes();
        if (!NOBAR) meet(EVERYBODY, CONSUMERS * WARPGROUP);
        if (!NODQ) start_product<T, B_c>(dQ_ij, sram.dS_ij(n) + (d == 64 ? here(w) * 64 * 128 : 0), B_r,
                              sram.K_j.tile(0) + (d == 64 ? 0 : here(w) * B_c * 128));
        else commit();
        if (ORDER == 1) start_values<T, d, B_r>(dK_j, dS_ij, sram.Q_i.tile(n));
        if (EARLY) {
            finish<2>();
            sram.dO_i.free(n).arrive_once_a_warp();
        } else {
            finish<1>();
            sram.dO_i.free(n).arrive_once_a_warp();
            sram.Q_i.free(n).arrive_once_a_warp();
        }
    }
    template <int later> __device__ __forceinline__ void finish_gradients(Word n, int i, int head, Total* totals) {
        if (EARLY) {
            finish<later + 1>();
            sram.Q_i.free(n).arrive_once_a_warp();
        }
        finish<later>(dQ_ij);
        add_dQ(head, i, totals);
    }

    __device__ __forceinline__ void consume(const TensorMap& dK, const TensorMap& dV, Total* totals) {
#pragma unroll
        for (int t = 0; t < d / 8; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) dK_j[t][e] = dV_j[t][e] = 0.0f;

        const int i_first = first_row_block<causal, d>(p, j * B_c);
        const int tiles = (p.T_r - i_first) * p.group;
        // Row blocks before this one have a mask.
        const int whole = j * B_c + B_c > p.N_k ? p.T_r : causal ? (j * B_c + B_c - 1 - (p.N_k - p.N_q) + B_r - 1) / B_r : 0;
        sram.K_j.wait_there(0);
        sram.V_j.wait_there(0);
        int i = i_first, head = (b * p.H_kv + h_kv) * p.group;
        start_S(0);
        start_dP(0);
        softmax(0, i, head, i < whole);
        finish<0>(dP_ij);
#pragma unroll 1
        for (Word n = 0; n < tiles - 1; ++n) {
            start_gradients(n);
            start_S(n + 1);
            const int i_now = i, head_now = head;
            if (++i == p.T_r) i = first_row_block<causal, d>(p, here(j) * B_c), ++head;
            finish_gradients<1>(n, i_now, head_now, totals);
            start_dP(n + 1);
            softmax(n + 1, i, head, i < whole);
            finish<0>(dP_ij);
        }
        start_gradients(tiles - 1);
        finish_gradients<0>(tiles - 1, i, head, totals);
        finish<0>(dK_j);
        finish<0>(dV_j);
        meet(EVERYBODY, CONSUMERS * WARPGROUP);
        write(dV, sram.V_j.tile(0) + w * 64 * d * 2, dV_j, dropping ? p.dropout.keep_scale : 1.0f, totals + 17);
        write(dK, sram.K_j.tile(0) + w * 64 * d * 2, dK_j, p.tau, totals + 15);
        if (thread_index() == 0) READ ? wait_stores_read() : wait_stores();
    }
};

template <typename T, int d, bool causal, bool dropping, bool in_turn>
__global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
hopper_backward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
                const __grid_constant__ TensorMap dO, const __grid_constant__ TensorMap dK, const __grid_constant__ TensorMap dV,
                const __grid_constant__ Problem p, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    const Memory<d> sram(__cvta_generic_to_shared(shared));
    sram.init();
    const int of = blockIdx.x % p.T_c, h_kv = blockIdx.x / p.T_c % p.H_kv, b = blockIdx.x / p.T_c / p.H_kv;
    const int j = causal && in_turn ? p.T_c - 1 - of : of;
    if (threadIdx.x < WARPGROUP) {
        keep_registers<24>();
        if (threadIdx.x == 0) produce<causal, d>(sram, Q, K, V, dO, j, h_kv, b, p, totals);
        if (threadIdx.x >= 32 && threadIdx.x < 96) add_up<causal, d, in_turn>(sram, threadIdx.x / 32 - 1, j, h_kv, b, p);
    } else {
        take_registers<240>();
        const int w = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // the same in a warp, for all the compiler sees
        Consumer<T, d, causal, dropping, in_turn> consumer{sram, p, w, j, h_kv, b};
        consumer.consume(dK, dV, totals);
    }
}

// ------------------------------------------------------------------------------------------------------ before and after

constexpr int THREADS = 256;
constexpr float LOG2_E = 1.44269504088896341f;

// L_i log₂e and D_i of a row block, and zeros for dQ_i. Rows past N_q, and rows that see no key, get L = +∞, so P = 0 there.
template <typename T, int d> __global__ void __launch_bounds__(THREADS)
prepare(const T* O, const T* dO, Offset dO_batch, Offset dO_head, Offset dO_row, const float* L, const __grid_constant__ Problem p,
        Total* totals) {
    constexpr int B_r = ::B_r<d>, LANES = d / 8;  // lanes for a row, 16 bytes each
    const int i = blockIdx.x % p.T_r, head = blockIdx.x / p.T_r, lane = threadIdx.x % LANES, end = min(B_r, p.N_q - i * B_r);
    const Offset tile = p.tile(head, i), first = Offset(head) * p.N_q + i * B_r;
    O += first * d + lane * 8;
    dO += head / p.H * dO_batch + head % p.H * dO_head + i * B_r * dO_row + lane * 8;
    for (int row = threadIdx.x / LANES; row < B_r; row += THREADS / LANES) {
        float D = 0.0f;
        if (row < end) {
            const uint4 x = *reinterpret_cast<const uint4*>(O + row * d), y = *reinterpret_cast<const uint4*>(dO + row * dO_row);
#pragma unroll
            for (int e = 0; e < 8; ++e)
                D = fmaf(to_float(reinterpret_cast<const T*>(&x)[e]), to_float(reinterpret_cast<const T*>(&y)[e]), D);
        }
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) D += __shfl_xor_sync(~0u, D, lanes);
        if (lane == 0) {
            const float L_row = row < end ? L[first + row] : -INFINITY;
            p.rows[tile * (2 * B_r) + row] = L_row == -INFINITY ? INFINITY : L_row * LOG2_E;
            p.rows[tile * (2 * B_r) + B_r + row] = D;
        }
    }
    float4* sums = reinterpret_cast<float4*>(p.sums + tile * (B_r * d));
    for (int x = threadIdx.x; x < B_r * d / 4; x += THREADS) sums[x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (threadIdx.x < 2) p.turns[tile * 2 + threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        Tally(totals).add(end, d);      // O, read
        Tally(totals + 2).add(end, d);  // dO, read
        Tally(totals + 4).add(end, 1), Tally(totals + 5).add(end, 1);  // L
        Tally(totals + 7).add(end, 1);  // D
        Tally(totals + 9).add(end, d);  // dQ
    }
}

// dQ_i = τ times its sums, rounded; threads as the consumers' that summed them.
template <typename T, int d> __global__ void __launch_bounds__(CONSUMERS * WARPGROUP)
finish_dQ(T* dQ, const __grid_constant__ Problem p, Total* totals) {
    constexpr int B_r = ::B_r<d>;
    const int i = blockIdx.x % p.T_r, head = blockIdx.x / p.T_r, w = threadIdx.x / WARPGROUP, thread = thread_index(), lane = thread % 32;
    const float4* sums = reinterpret_cast<const float4*>(p.sums + p.tile(head, i) * (B_r * d) + w * 4096) + thread;
    const int row = i * B_r + (d == 64 ? 64 * w : 0) + thread / 32 * 16 + lane / 4;
    dQ += (Offset(head) * p.N_q + row) * d + (d == 64 ? 0 : 64 * w) + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < 8; ++t) {
        const float4 x = sums[t * WARPGROUP];
        if (row < p.N_q) *reinterpret_cast<Word*>(dQ + 8 * t) = pack<T>(p.tau * x.x, p.tau * x.y);
        if (row + 8 < p.N_q) *reinterpret_cast<Word*>(dQ + 8 * d + 8 * t) = pack<T>(p.tau * x.z, p.tau * x.w);
    }
    if (threadIdx.x == 0) Tally(totals).add(min(B_r, p.N_q - i * B_r), d), Tally(totals + 1).add(min(B_r, p.N_q - i * B_r), d);
}
