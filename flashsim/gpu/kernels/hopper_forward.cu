// FlashAttention, forward, on Hopper's wgmma and TMA: the kernel to read first. Full and causal; fp16 or bf16, sums in fp32.
// Masks, dropout, packed batches and 8 bits are in kernels of their own, on the same verbs for tiles (hopper.cuh).
//
//     1  Initialize the pseudo-random number generator state R and save it to HBM.                          (there is no dropout)
//     2  Set block sizes B_r, B_c.
//     3  Divide Q, O, L into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.               (in maps for TMA)
//     4  for 1 ≤ i ≤ T_r do                                    (blocks of threads draw row blocks of all heads until none is left)
//     5    Load Q_i from HBM to on-chip SRAM.
//     6    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
//     7    for 1 ≤ j ≤ T_c, where tile (i, j) is live, do                        (from the last to the first: the last have masks)
//     8      Load K_j, V_j from HBM to on-chip SRAM.
//     9      S_ij = Q_i K_jᵀ.                                                            (τ is in the exponent: c = τ log₂e)
//     10     S_ij^masked = MASK(S_ij), unless tile (i, j) is full.
//     11     m_i^new = max(m_i, rowmax(S_ij^masked)).                   (seldom: the old m does as long as the sums of P̃ are small)
//     12     P̃_ij = exp(S_ij^masked − m_i^new).
//     13     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
//     14     P̃_ij^dropped = dropout(P̃_ij, p_drop).                                                         (there is no dropout)
//     15     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij V_j.
//     16     m_i ← m_i^new.
//     17   end for
//     18   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
//     19   Write O_i, L_i to HBM.
//     20 end for
//     21 Return O, L.
//
// A block of threads has a producer, one thread of which loads tiles, and 2 or 4 consumers: warpgroups with 64 rows of Q_i each.
// While a consumer computes P̃_ij, the tensor cores compute its last P̃ V and the products of the others.
// HBM, in elements per head: as flashsim.count("q_outer", …) says. What was tried: docs/gpu-tried.md. no spills, no stack
#include "hopper_softmax.cuh"

template <int d> constexpr int B_r = d == 64 ? 256 : 128;  // line 2
template <int d> constexpr int B_c = d == 128 ? 128 : 64;  // line 2
template <int d> constexpr int CONSUMERS = B_r<d> / 64;

struct Problem {
    int N_q, N_k, H, group, T_r, row_blocks;  // H query heads, `group` per KV head; row blocks of all heads
    int section, wants_L;                     // heads whose row blocks take turns; whether L is written
    float c, sign;                            // c = |τ| log₂e, capped to be finite, and τ's sign; or 1 and 0 if τ is 0
};

// How many keys row `row` sees, and how many tiles of K have them.
template <bool causal> __device__ inline int keys_seen(const Problem& p, int row) {
    return causal ? min(p.N_k, max(0, p.N_k - p.N_q + row + 1)) : p.N_k;
}
template <bool causal, int d> __device__ inline int tiles_seen(const Problem& p, int row) {
    return (keys_seen<causal>(p, row) + B_c<d> - 1) / B_c<d>;
}

// Shared memory: Q_i | K_j, K_{j-1}, … | V_j, V_{j-1}, … | O_i | barriers | the row blocks of Q_i
template <int d> struct Sram : KeysAndValues<d == 64 ? 8 : 2, B_c<d> * d * 2, d == 64> {
    static constexpr int Q_STAGES = d == 64 ? 2 : 1, STAGES = d == 64 ? 8 : 2, O_COLUMNS = d < 128 ? d : 128;
    static constexpr int Q_BYTES = B_r<d> * d * 2, KV_BYTES = B_c<d> * d * 2, O_BYTES = B_r<d> * O_COLUMNS * 2;
    static constexpr int K_AT = Q_STAGES * Q_BYTES, V_AT = K_AT + STAGES * KV_BYTES, O_AT = V_AT + STAGES * KV_BYTES;
    static constexpr int END = O_AT + O_BYTES, NUMBERS_AT = END + (Q_STAGES + 2 * STAGES) * 16;
    Ring<Q_STAGES, Q_BYTES> Q_i;
    Word O_i;
    RowBlock* row_blocks;

    __device__ explicit Sram(char* shared) : row_blocks(reinterpret_cast<RowBlock*>(shared + NUMBERS_AT)) {
        const Word at = __cvta_generic_to_shared(shared);
        Q_i = {at, at + END}, O_i = at + O_AT;
        this->place(at + K_AT, at + V_AT, at + END + Q_STAGES * 16);
    }
    __device__ RowBlock& row_block(Word q) const { return row_blocks[q % (Q_STAGES + 1)]; }
    __device__ void init() const {
        constexpr int WARPS = 4 * CONSUMERS<d>;  // each evicts each tile once
        if (threadIdx.x == 0) Q_i.init(WARPS), this->init_barriers(WARPS);
        publish_barriers();
    }
};

// -------------------------------------------------------------------------------------------------------------- producer

// One thread loads all tiles, each as soon as there is room. K is one tile ahead of V, since S_{j-1} comes before P̃_j V_j.
template <bool causal, int d>
__device__ __forceinline__ void produce(const Sram<d>& sram, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                                        Word* counter, const Problem& p, Total* totals) {
    constexpr int B_r = ::B_r<d>, B_c = ::B_c<d>;
    Tally Q_reads(totals), K_reads(totals + 2), V_reads(totals + 4);
    Word q = 0, n = 0;  // row blocks, and tiles of K and V, so far
#pragma unroll 1
    for (int r = blockIdx.x; r < p.row_blocks; ++q) {  // line 4
        const RowBlock at = in_order(p, r);
        r = gridDim.x + atomicInc(counter, p.row_blocks - 1);  // drawn early, and as often as there are row blocks
        const int h_kv = at.h / p.group;
        int j = tiles_seen<causal, d>(p, at.i * B_r + B_r - 1) - 1;
        if (j >= 0) sram.load_K(n, K, j * B_c, h_kv, at.b);  // line 8
        sram.Q_i.wait_free(q);
        sram.row_block(q) = at;
        sram.Q_i.start(q, Q, at.i * B_r, at.h, at.b);  // line 5
        Q_reads.add(min(B_r, p.N_q - at.i * B_r), d);
#pragma unroll 1
        for (; j >= 0; --j, ++n) {  // line 7
            if (j > 0) sram.load_K(n + 1, K, (j - 1) * B_c, h_kv, at.b);  // line 8
            sram.load_V(n, V, j * B_c, h_kv, at.b);  // line 8
            K_reads.add(min(B_c, p.N_k - j * B_c), d), V_reads.add(min(B_c, p.N_k - j * B_c), d);
        }
    }
    sram.Q_i.wait_free(q);
    sram.row_block(q).i = -1;  // there is no more
    sram.Q_i.there(q).arrive();
}

// ------------------------------------------------------------------------------------------------------------- consumers

// A warpgroup, with rows 64w to 64w + 63 of Q_i. A thread shares two rows, row and row + 8, with three other lanes.
template <typename T, int d, bool causal> struct Consumer {
    static constexpr int B_r = ::B_r<d>, B_c = ::B_c<d>, O_COLUMNS = Sram<d>::O_COLUMNS;
    const Sram<d>& sram;
    const Problem& p;
    const int w;
    Word q, n;  // row blocks, and tiles of K and V, so far

    Rows rows;  // m_i, ℓ_i
    float S_ij[B_c / 8][4], O_i[d / 8][4];
    Word P_ij[B_c / 16][4];

    // Each stage has an address of its own. One that depends on q would stay in a register from tile to tile.
    __device__ __forceinline__ void evict_Q() const { q % Sram<d>::Q_STAGES ? sram.Q_i.evict(1) : sram.Q_i.evict(0); }

    // −∞ for keys that a row does not see: causally, those after its own position; those after the last key.
    __device__ __forceinline__ void mask(int j) {
        const int row = sram.row_block(q).i * B_r + 64 * w + row_of_thread();
        const int end = (causal ? p.N_k - p.N_q + row + 1 : p.N_k) - j * B_c - thread_index() % 4 * 2;
        mask_where(S_ij, [&](int column, int r) { return column - (causal ? 8 * r : 0) >= end; });  // the lower row is 8 below
    }

    // S_ij and P̃_ij of the n-th tile, while the tensor cores also add the tile before it, P̃_ij V_j, to O_i.
    template <bool first> __device__ __forceinline__ void step(int j, bool masked) {
        start_scores<T, d, B_c>(S_ij, sram.Q_i.tile(q) + w * 64 * 128, B_r, sram.K_j.tile(n));  // line 9
        if (!first) sram.wait_V(n - 1);
        if (!first) start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(n - 1));  // line 15
        finish<first ? 0 : 1>(S_ij);
        sram.evict_K(n);
        if (j == 0) evict_Q();
        if (masked) mask(j);  // line 10
        const bool maxima = first || masked;
        float alpha[2];
        Word P_next[B_c / 16][4];
        const bool grown = maxima ? softmax<B_c, true>(S_ij, rows, alpha, p.c)                       // lines 11, 12, 13, 16
                                  : softmax_by_sums<T, B_c, true>(P_next, S_ij, rows, alpha, p.c);  // lines 11, 12, 13, 16
        if (j > 0) sram.wait_K(n + 1);
        if (!first) finish<0>(O_i);
        if (!first) sram.evict_V(n - 1);
        maxima ? round_to_operands<T, B_c>(P_ij, S_ij) : replace<B_c>(P_ij, P_next, p.wants_L >> 1);
        if (!first && grown) rescale<d>(O_i, alpha);  // line 15
        ++n;
    }

    // O_i and L_i. A warp's 16 rows of O_i leave by themselves.
    __device__ __forceinline__ void write(const TensorMap& O, float* L, Total* totals) {
        const int thread = thread_index(), lane = thread % 32, warp = 4 * w + thread / 32;
        const RowBlock at = sram.row_block(q);
        const int top = at.i * B_r + 16 * warp;
        const Word O_w = sram.O_i + warp * (16 * O_COLUMNS * 2);
        float* const L_h = p.wants_L ? L + (Offset(at.b) * p.H + at.h) * p.N_q : nullptr;
        float factor[2];
        rows.end(factor, L_h, top + lane / 4, p.N_q, p.c, totals + 9);  // lines 18, 19
#pragma unroll
        for (int x = 0; x < d; x += O_COLUMNS) {
            if (lane == 0) wait_stores_read();
            __syncwarp();
            round_rows<T, O_COLUMNS, 16 * 128, d>(O_w + lane % 16 * 128, O_i, x, factor);  // line 18
            show_writes();
            __syncwarp();
            if (lane == 0) store(O, top, at.h, at.b, O_w, x / HALF);  // line 19
            if (lane == 0) Tally(totals + 7).add(min(16, p.N_q - top), O_COLUMNS);
        }
    }

    __device__ __forceinline__ void consume(const TensorMap& O, float* L, Total* totals) {
#pragma unroll 1
        for (;; ++q) {  // line 4
            sram.Q_i.wait_there(q);
            const int i = sram.row_block(q).i, top = i * B_r + 64 * w;
            if (i < 0) break;
            if (p.sign != 1.0f) apply_sign<B_r, d>(sram.Q_i.tile(q) + w * 64 * 128, p.sign, 1 + w);
            fill(O_i, 0.0f);  // line 6
            rows.init();      // line 6
            const int loaded = tiles_seen<causal, d>(p, i * B_r + B_r - 1), seen = tiles_seen<causal, d>(p, top + 63);
            const int whole = keys_seen<causal>(p, top) / B_c;  // tiles of which all rows see all keys
#pragma unroll 1
            for (int j = loaded; j > seen; --j, ++n) {  // of these, this warpgroup's rows see nothing
                sram.wait_K(n), sram.evict_K(n);
                sram.wait_V(n), sram.evict_V(n);
            }
            if (seen > 0) {
                int j = seen - 1;
                sram.wait_K(n);
                step<true>(j, j >= whole);
#pragma unroll 1
                for (--j; j >= whole; --j) step<false>(j, true);  // line 7
#pragma unroll 1
                for (; j >= 0; --j) step<false>(j, false);  // line 7
                sram.wait_V(n - 1);
                start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(n - 1));  // line 15
                finish<0>(O_i);
                sram.evict_V(n - 1);
            } else {
                evict_Q();
            }
            write(O, L, totals);
        }  // line 20
        if (thread_index() % 32 == 0) wait_stores();
    }
};

template <typename T, int d, bool causal>
__global__ void __launch_bounds__((CONSUMERS<d> + 1) * WARPGROUP, 1)
hopper_forward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
               const __grid_constant__ TensorMap O, float* L, Word* counter, const __grid_constant__ Problem p, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    const Sram<d> sram(shared);
    sram.init();
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);  // shows the compiler that a warp shares it
    if (warpgroup == 0) {
        keep_registers<d == 64 ? 32 : 40>();
        if (threadIdx.x == 0) produce<causal>(sram, Q, K, V, counter, p, totals);
    } else {
        take_registers<d == 64 ? 112 : 232>();
        Consumer<T, d, causal>{sram, p, warpgroup - 1}.consume(O, L, totals);
    }
}
