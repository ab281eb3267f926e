// FlashAttention, backward, on Hopper's own instructions (hopper.cuh), for heads of d = 256; fp16 or bf16, sums in fp32.
//
//     P_ij = e^{min(τ MASK(S_ij) − L_i, 0)},   dV_j = Σ_i P_ijᵀ dO_i,   dP_ij = dO_i V_jᵀ,   D_i = rowsum(dO_i ∘ O_i),
//     dS_ij = P_ij ∘ (dP_ij − D_i),   dK_j = τ Σ_i dS_ijᵀ Q_i,   dQ_i = τ Σ_j dS_ij K_j.
//
// Two passes ("q_outer_two_pass"). A block of `keys` computes dK_j, dV_j for 64 keys, and loads one Q_i, dO_i after the other. A
// block of `queries` computes dQ_i for 128 queries, loads one K_j, V_j after the other, and computes S and dP again. These are 7
// products instead of 5. But one block of threads has no room for dK_j, dV_j and dQ_i, and sums of dQ in HBM would be 64 KB per
// tile. `prepare` writes L log₂e / 2 and D.
//
// Roles. One thread starts all loads, and there are two consumers. In `keys`, each has 128 columns of dK_j and dV_j for all 64
// keys. It computes S_ij, P_ij, dP_ij, dS_ij for 32 of the keys, and shares P_ij and dS_ij in shared memory. In `queries`, each
// has 64 queries and all columns, and needs nothing of the other.
//
//                B_r × B_c   registers     shared memory
//     keys       64 × 64     2 × 240, 24   K_j V_j 64 | 2 Q_i dO_i 128 | 2 P_ij, dS_ij 24 | 2 L_i, D_i 1 = 217 KB
//     queries    128 × 64    2 × 240, 24   Q_i dO_i 128 | 2 K_j 64 | V_j 32 = 224 KB
//
// Order of events in any consumer. Time runs to the right.
//
//     keys, tensor cores       dV_j += P_iᵀ dO_i     dK_j += dS_iᵀ Q_i    S_{i+1}    dP_{i+1}
//           registers          dS_i ──> shared                                       P_{i+1} ──> shared
//     queries, tensor cores    dQ_i += dS_j K_j      S_{j+1}    dP_{j+1}
//              registers                                        P_{j+1}                           dS_{j+1}
//
// HBM, in elements per head (flashsim.count("q_outer_two_pass", direction="backward", …), exactly): `keys` reads Q, dO, L, D once
// for each live key block, and K, V once. `queries` reads K, V once for each live row block, and Q, dO, L, D once.
//
// Roofline. Shared memory, at 128 bytes per cycle. In `keys`, it is busy for 2944 cycles per tile of 64 × 64, and the tensor
// cores for 2048, since products for S and dP have only 32 columns. In `queries`, both are busy for 1536. no spills, no stack
#include "hopper_softmax.cuh"

constexpr int d = 256, B_c = 64, B_r = 64, ROW_BLOCK = 128;  // B_r: of `keys`; ROW_BLOCK: of `queries`
constexpr int CONSUMERS = 2, TILE = 64 * d * 2, SIDE = 64 * 64 * 2, ROWS_BYTES = B_r * 2 * 4;
constexpr int HALF_OF_64 = 64 * 128, HALF_OF_128 = 128 * 128;  // bytes of a half of a tile with so many rows

struct Problem {
    int N_q, N_k, H, H_kv, group, left, right;  // the window: keys from position − left to position + right
    int T_r, T_c, section;                      // blocks of ROW_BLOCK and of B_c; KV heads whose blocks take turns
    int heads;                                  // KV heads over the batch
    float tau, half_c;                          // τ and τ log₂e / 2, capped to be finite
    float* rows;                                // L_i log₂e / 2 and D_i, 64 of each, one block of B_r rows after the other

    __device__ const float* rows_at(int head, int i) const { return rows + (Offset(head) * (T_r * 2) + i) * (2 * B_r); }
    // The blocks of b rows that see some key from `first` to before `end`, and the blocks of b keys that some such row sees.
    __device__ int2 row_blocks(int first, int end, int b) const {
        const int from = max(0, first - (N_k - N_q) - right), to = min(N_q, min(end, N_k) - (N_k - N_q) + left);
        return from < to ? make_int2(from / b, (to - 1) / b + 1) : make_int2(0, 0);
    }
    __device__ int2 key_blocks(int first, int end, int b) const {
        const int from = max(0, first + (N_k - N_q) - left), to = min(N_k, min(end, N_q) + (N_k - N_q) + right);
        return from < to ? make_int2(from / b, (to - 1) / b + 1) : make_int2(0, 0);
    }
    // Whether all 64 queries from `query` on see all 64 keys from `key` on.
    __device__ bool whole(int query, int key) const {
        const int first = key - (N_k - N_q) - query;
        return key + 64 <= N_k && first + 63 <= right && first - 63 >= -left;
    }
    __device__ bool sees(int query, int key) const {
        const int ahead = key - (N_k - N_q) - query;
        return key < N_k && ahead <= right && ahead >= -left;
    }
};

// The n-th of `heads` × `blocks` blocks. Sections of heads come one after the other; in each, first the first blocks of all
// heads, then the second ones, and so on.
__device__ inline int2 in_order(int n, int heads, int section, int blocks) {
    const int whole = section * blocks, first = n / whole * section, within = n % whole, many = min(section, heads - first);
    return make_int2(within / many, first + within % many);
}

__device__ inline float load_float(Word from) { return __int_as_float(load_word(from)); }

// Named barriers: TOGETHER + w for all threads of warpgroup w; BOTH for both warpgroups.
constexpr int BOTH = 1, TOGETHER = 2;

// P = e^{S − L} of 64 rows, at most 1 however S and L are rounded; L as `prepare` writes it.
template <int n> __device__ __forceinline__ void weights(float (&S)[n / 8][4], const float (&L)[2], float half_c) {
#pragma unroll
    for (int t = 0; t < n / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float x = fmaf(S[t][e], half_c, -L[e / 2]);
            S[t][e] = exp_2(x - fabsf(x));  // 2 min(x, 0)
        }
}
template <int n> __device__ __forceinline__ void mask(float (&P)[n / 8][4], const Problem& p, int query, int key) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < n / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (!p.sees(query + 8 * (e / 2), key + 8 * t + lane % 4 * 2 + e % 2)) P[t][e] = 0.0f;
}
// dS = P ∘ (dP − D).
template <int n>
__device__ __forceinline__ void gradient(float (&P)[n / 8][4], const float (&dP)[n / 8][4], const float (&D)[2]) {
#pragma unroll
    for (int t = 0; t < n / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) P[t][e] *= dP[t][e] - D[e / 2];
}
// --------------------------------------------------------------------------------------------------------- dK_j and dV_j

// K_j | V_j | Q_i, dO_i, Q_{i+1}, dO_{i+1} | P_ij, P_{i+1,j} | dS_ij | L_i, D_i, L_{i+1}, D_{i+1} | barriers
struct KeyMemory {
    Word base;
    Ring<2, 2 * TILE> row_block;  // Q_i, and dO_i behind it
    Barrier there;                // K_j and V_j

    static constexpr int ROWS_AT = 6 * TILE + 3 * SIDE, END = ROWS_AT + 2 * ROWS_BYTES;
    __device__ explicit KeyMemory(Word base) : base(base) {
        row_block = {base + 2 * TILE, base + END}, there = {base + END + 32};
    }
    __device__ Word K_j() const { return base; }
    __device__ Word V_j() const { return base + TILE; }
    __device__ Word Q_i(Word n) const { return row_block.tile(n); }
    __device__ Word dO_i(Word n) const { return row_block.tile(n) + TILE; }
    __device__ Word P_ij(Word n) const { return base + 6 * TILE + n % 2 * SIDE; }
    __device__ Word dS_ij() const { return base + 6 * TILE + 2 * SIDE; }
    __device__ Word L_i(Word n) const { return base + ROWS_AT + n % 2 * ROWS_BYTES; }
    __device__ Word D_i(Word n) const { return L_i(n) + ROWS_BYTES / 2; }
    __device__ void init() const {
        if (threadIdx.x == 0) row_block.init(CONSUMERS * WARPGROUP), there.expect_arrivals(1);
        publish_barriers();
    }
};

template <typename T> struct KeyConsumer {
    const KeyMemory& sram;
    const Problem& p;
    const int w, j;
    float dK_j[16][4], dV_j[16][4];  // columns 128w to 128w + 127
    float S_ij[4][4], dP_ij[4][4];   // keys 32w to 32w + 31: P_ij and dS_ij, too

    __device__ __forceinline__ void start(Word n) {
        sram.row_block.wait_there(n);
        start_scores<T, d, 32, B_c>(S_ij, sram.Q_i(n), B_r, sram.K_j() + w * (32 * 128));
        start_scores<T, d, 32, B_c>(dP_ij, sram.dO_i(n), B_r, sram.V_j() + w * (32 * 128));
    }
    // Write a tile's columns 32w to 32w + 31, rounded, to shared memory.
    __device__ __forceinline__ void give(Word tile) const {
        Word rounded[2][4];
        round_to_operands<T, 32>(rounded, S_ij);
        const int lane = thread_index() % 32;
        const Word to = tile + (thread_index() / 32 * 16 + lane % 16) * 128;
#pragma unroll
        for (int t = 0; t < 2; ++t) store_operand<false>(to + ((4 * w + 2 * t + lane / 16 ^ lane % 8) << 4), rounded[t]);
        show_writes();
    }
    __device__ __forceinline__ void softmax(Word n, int i) {
        const Word at = sram.L_i(n) + row_of_thread() * 4;
        const float L[2] = {load_float(at), load_float(at + 32)};
        finish<1>(S_ij);
        weights<32>(S_ij, L, p.half_c);
        if (!p.whole(i * B_r, j * B_c)) mask<32>(S_ij, p, i * B_r + row_of_thread(), j * B_c + 32 * w);
        give(sram.P_ij(n));
        finish<0>(dP_ij);
    }
    // dV_j and dK_j of the n-th row block. If another one follows, its S_ij and dP_ij are started.
    template <bool last> __device__ __forceinline__ void advance(Word n, int i) {
        const Word at = sram.D_i(n) + row_of_thread() * 4;
        const float D[2] = {load_float(at), load_float(at + 32)};
        meet(BOTH, CONSUMERS * WARPGROUP);  // P_ij is complete, and the other no longer reads the last dS_ij
        start_across<T, 64>(dV_j, sram.P_ij(n), sram.dO_i(n) + w * (2 * HALF_OF_64));
        gradient<32>(S_ij, dP_ij, D);
        give(sram.dS_ij());
        meet(BOTH, CONSUMERS * WARPGROUP);
        start_across<T, 64>(dK_j, sram.dS_ij(), sram.Q_i(n) + w * (2 * HALF_OF_64));
        if (!last) {
            start(n + 1);
            finish<1>(S_ij);
        } else {
            finish<0>();
        }
        sram.row_block.free(n).arrive();  // each thread has read L_i and D_i
        if (!last) softmax(n + 1, i);
    }
    // Write 64 rows of 128 columns to the place of K_j or V_j, and from there to HBM.
    __device__ __forceinline__ void write(const TensorMap& X, Word tile, float (&C)[16][4], float factor, int h, int b) const {
        const float both[2] = {factor, factor};
        const Word mine = tile + w * (2 * HALF_OF_64), lane = thread_index() % 32;
        round_rows<T, 128, HALF_OF_64, 128>(mine + (thread_index() / 32 * 16 + lane % 16) * 128, C, 0, both);
        show_writes();
        meet(TOGETHER + w, WARPGROUP);
        if (thread_index() == 0)
            for (int half = 0; half < 2; ++half) store(X, j * B_c, h, b, mine + half * HALF_OF_64, 2 * w + half);
    }
    __device__ __forceinline__ void consume(const TensorMap& dK, const TensorMap& dV, int head) {
        const int2 live = p.row_blocks(j * B_c, (j + 1) * B_c, B_r);
        const Word tiles = (live.y - live.x) * p.group;
        fill(dK_j, 0.0f), fill(dV_j, 0.0f);
        if (tiles > 0) {
            int i = live.x;
            sram.there.wait(0);
            start(0);
            softmax(0, i);
#pragma unroll 1
            for (Word n = 0; n + 1 < tiles; ++n) {
                if (++i == live.y) i = live.x;
                advance<false>(n, i);
            }
            advance<true>(tiles - 1, i);
            finish<0>(dK_j), finish<0>(dV_j);
            meet(BOTH, CONSUMERS * WARPGROUP);  // K_j and V_j are no longer needed
        }
        write(dK, sram.K_j(), dK_j, p.tau, head % p.H_kv, head / p.H_kv);
        write(dV, sram.V_j(), dV_j, 1.0f, head % p.H_kv, head / p.H_kv);
        if (thread_index() == 0) wait_stores();
    }
};

template <typename T>
__global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
keys(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
     const __grid_constant__ TensorMap dO, const __grid_constant__ TensorMap dK, const __grid_constant__ TensorMap dV,
     const __grid_constant__ Problem p, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    const KeyMemory sram(__cvta_generic_to_shared(shared));
    sram.init();
    const int2 at = in_order(blockIdx.x, p.heads, p.section, p.T_c);
    const int j = at.x, head = at.y;
    if (threadIdx.x < WARPGROUP) {
        keep_registers<24>();
        if (threadIdx.x > 0) return;
        const int2 live = p.row_blocks(j * B_c, (j + 1) * B_c, B_r);
        const int n_keys = min(B_c, p.N_k - j * B_c);
        Tally(totals + 13).add(n_keys, d), Tally(totals + 15).add(n_keys, d);
        if (live.x == live.y) return;
        sram.there.arrive_and_expect(2 * TILE);
        load(sram.K_j(), K, j * B_c, head % p.H_kv, head / p.H_kv, sram.there);
        load(sram.V_j(), V, j * B_c, head % p.H_kv, head / p.H_kv, sram.there);
        Tally(totals + 2).add(n_keys, d), Tally(totals + 4).add(n_keys, d);
        Tally Q_read(totals), dO_read(totals + 6), L_read(totals + 8), D_read(totals + 10);
        Word n = 0;
#pragma unroll 1
        for (int g = 0; g < p.group; ++g) {
            const int h = head % p.H_kv * p.group + g, b = head / p.H_kv;
#pragma unroll 1
            for (int i = live.x; i < live.y; ++i, ++n) {
                const Barrier there = sram.row_block.there(n);
                sram.row_block.wait_free(n);
                there.arrive_and_expect(2 * TILE + ROWS_BYTES);
                load(sram.Q_i(n), Q, i * B_r, h, b, there);
                load(sram.dO_i(n), dO, i * B_r, h, b, there);
                load(sram.L_i(n), p.rows_at(b * p.H + h, i), ROWS_BYTES, there);
                const int rows = min(B_r, p.N_q - i * B_r);
                Q_read.add(rows, d), dO_read.add(rows, d), L_read.add(rows, 1), D_read.add(rows, 1);
            }
        }
    } else {
        take_registers<240>();
        const int w = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // shows the compiler that a warp shares it
        KeyConsumer<T>{sram, p, w, j}.consume(dK, dV, head);
    }
}

// ------------------------------------------------------------------------------------------------------------------ dQ_i

// Q_i | dO_i | K_j, K_{j+1} | V_j | barriers
struct QueryMemory {
    Word base;
    Ring<2, TILE> K_j;
    Ring<1, TILE> V_j;
    Barrier there;  // Q_i and dO_i

    static constexpr int END = 7 * TILE;
    __device__ explicit QueryMemory(Word base) : base(base) {
        K_j = {base + 4 * TILE, base + END}, V_j = {base + 6 * TILE, base + END + 32}, there = {base + END + 48};
    }
    __device__ Word Q_i() const { return base; }
    __device__ Word dO_i() const { return base + 2 * TILE; }
    __device__ void init() const {
        if (threadIdx.x == 0) K_j.init(4 * CONSUMERS), V_j.init(4 * CONSUMERS), there.expect_arrivals(1);
        publish_barriers();
    }
};

template <typename T> struct QueryConsumer {
    const QueryMemory& sram;
    const Problem& p;
    const int w, first;  // its first query
    float dQ_i[32][4];
    float S_ij[8][4], dP_ij[8][4];  // P_ij and dS_ij, too
    Word dS_ij[4][4];
    float L[2], D[2];

    __device__ __forceinline__ void start(Word n) {
        sram.K_j.wait_there(n);
        start_scores<T, d, B_c>(S_ij, sram.Q_i() + w * HALF_OF_64, ROW_BLOCK, sram.K_j.tile(n));
    }
    __device__ __forceinline__ void softmax(Word n, int j) {
        sram.V_j.wait_there(n);
        start_scores<T, d, B_c>(dP_ij, sram.dO_i() + w * HALF_OF_64, ROW_BLOCK, sram.V_j.tile(n));
        weights<B_c>(S_ij, L, p.half_c);
        if (!p.whole(first, j * B_c)) mask<B_c>(S_ij, p, first + row_of_thread(), j * B_c);
        sram.V_j.wait_there(n);  // it has come: this loop stops the compiler from moving exponentials
        finish<0>(dP_ij);
        sram.V_j.evict(n);
    }
    __device__ __forceinline__ void start_dQ(Word n) {
        gradient<B_c>(S_ij, dP_ij, D);
        round_to_operands<T, B_c>(dS_ij, S_ij);
        start_values<T, d, B_c>(dQ_i, dS_ij, sram.K_j.tile(n));
    }
    // Skip tiles of which these rows see nothing.
    __device__ __forceinline__ Word pass_by(Word n, Word to) const {
        for (; n < to; ++n) {
            sram.K_j.wait_there(n), sram.K_j.evict(n);
            sram.V_j.wait_there(n), sram.V_j.evict(n);
        }
        return n;
    }
    __device__ __forceinline__ void consume(const TensorMap& dQ, int2 live, int head) {
        const int2 its = first < p.N_q ? p.key_blocks(first, first + 64, B_c) : make_int2(0, 0);
        fill(dQ_i, 0.0f);
        if (live.x < live.y) sram.there.wait(0);
        if (its.x < its.y) {
            const float* rows = p.rows_at(head, first / B_r);
#pragma unroll
            for (int r = 0; r < 2; ++r) L[r] = __ldg(rows + row_of_thread() + 8 * r), D[r] = __ldg(rows + B_r + row_of_thread() + 8 * r);
            Word n = pass_by(0, its.x - live.x);
            start(n);
            finish<0>(S_ij);
            softmax(n, its.x);
#pragma unroll 1
            for (int j = its.x + 1; j < its.y; ++j, ++n) {
                start_dQ(n);
                start(n + 1);
                finish<0>(S_ij), finish<0>(dQ_i);
                sram.K_j.evict(n);
                softmax(n + 1, j);
            }
            start_dQ(n);
            finish<0>(dQ_i);
            sram.K_j.evict(n);
            pass_by(n + 1, live.y - live.x);
        } else {
            pass_by(0, live.y - live.x);
        }
        meet(TOGETHER + w, WARPGROUP);  // Q_i's rows are no longer needed
        const float both[2] = {p.tau, p.tau};
        const Word mine = sram.Q_i() + w * HALF_OF_64, lane = thread_index() % 32;
        round_rows<T, d, HALF_OF_128, d>(mine + (thread_index() / 32 * 16 + lane % 16) * 128, dQ_i, 0, both);
        show_writes();
        meet(TOGETHER + w, WARPGROUP);
        if (thread_index() == 0) {
            for (int half = 0; half < 4; ++half) store(dQ, first, head % p.H, head / p.H, mine + half * HALF_OF_128, half);
            wait_stores();
        }
    }
};

template <typename T>
__global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
queries(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
        const __grid_constant__ TensorMap dO, const __grid_constant__ TensorMap dQ, const __grid_constant__ Problem p,
        Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    const QueryMemory sram(__cvta_generic_to_shared(shared));
    sram.init();
    const int2 at = in_order(blockIdx.x, p.heads * p.group, p.section * p.group, p.T_r);
    const int i = p.T_r - 1 - at.x, head = at.y, h = head % p.H, b = head / p.H;  // causally, the longest come first
    const int2 live = p.key_blocks(i * ROW_BLOCK, (i + 1) * ROW_BLOCK, B_c);
    if (threadIdx.x < WARPGROUP) {
        keep_registers<24>();
        if (threadIdx.x > 0) return;
        const int rows = min(ROW_BLOCK, p.N_q - i * ROW_BLOCK);
        Tally(totals + 13).add(rows, d);
        Tally(totals).add(rows, d), Tally(totals + 6).add(rows, d);
        Tally(totals + 8).add(rows, 1), Tally(totals + 10).add(rows, 1);
        if (live.x == live.y) return;
        sram.there.arrive_and_expect(4 * TILE);
        load(sram.Q_i(), Q, i * ROW_BLOCK, h, b, sram.there);
        load(sram.dO_i(), dO, i * ROW_BLOCK, h, b, sram.there);
        Tally K_read(totals + 2), V_read(totals + 4);
#pragma unroll 1
        for (int j = live.x; j < live.y; ++j) {
            const Word n = j - live.x;
            sram.K_j.load(n, K, j * B_c, h / p.group, b);
            sram.V_j.load(n, V, j * B_c, h / p.group, b);
            const int keys = min(B_c, p.N_k - j * B_c);
            K_read.add(keys, d), V_read.add(keys, d);
        }
    } else {
        take_registers<240>();
        const int w = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // shows the compiler that a warp shares it
        QueryConsumer<T>{sram, p, w, i * ROW_BLOCK + 64 * w}.consume(dQ, live, head);
    }
}

// ---------------------------------------------------------------------------------------------------------------- before

// L_i log₂e / 2 and D_i of 64 rows. Rows past N_q, and rows that see no key, get L = +∞, so P = 0 there.
template <typename T>
__global__ void __launch_bounds__(PREPARING)
prepare(const T* O, const T* dO, Offset dO_batch, Offset dO_head, Offset dO_row, const float* L, const __grid_constant__ Problem p,
        Total* totals) {
    const int blocks = 2 * p.T_r, i = blockIdx.x % blocks, head = blockIdx.x / blocks, end = min(B_r, p.N_q - i * B_r);
    const Offset first = Offset(head) * p.N_q + i * B_r;
    dO += head / p.H * dO_batch + head % p.H * dO_head + i * B_r * dO_row;
    prepare_rows<T, d, B_r>(p.rows + Offset(blockIdx.x) * (2 * B_r), O + first * d, dO, dO_row, L + first, end);
    if (threadIdx.x == 0) {
        Tally(totals).add(end, d), Tally(totals + 2).add(end, d);      // O, dO read
        Tally(totals + 4).add(end, 1), Tally(totals + 5).add(end, 1);  // L read and, times log₂e, written
        Tally(totals + 7).add(end, 1);                                 // D written
    }
}
