// FlashAttention, backward, on Hopper's own instructions: wgmma and TMA (hopper.cuh); fp16 or bf16, sums in fp32.
//
//     P_ij = e^{min(τ MASK(S_ij) − L_i, 0)},   dV_j = Σ_i dropout(P_ij)ᵀ dO_i,   dP_ij = dropout(dO_i V_jᵀ),
//     D_i = rowsum(dO_i ∘ O_i),   dS_ij = P_ij ∘ (dP_ij − D_i),   dK_j = τ Σ_i dS_ijᵀ Q_i,   dQ_i = τ Σ_j dS_ij K_j.
//
// Two kernels. `prepare` writes L log₂e / 2, D and zeros for dQ's sums, in fp32. In `hopper_backward`, each multiprocessor's
// block of threads draws key blocks of 128 keys. For each, it loads all row blocks that see these keys, of all heads of the
// group. With windows and block masks, they come as a list (hopper_backward.py, `_listed`).
//
// Roles. A producer, one thread of which draws key blocks and starts all loads; two consumers, warpgroups that have 64 keys each;
// for each of them a thread that adds its half of dQ_i to HBM, and stores its rows of dK_j and dV_j; a warp that rounds dQ.
//
//     d      B_r × B_c   registers   shared memory: K_j V_j | 2 Q_i | 2 dO_i | 2 dS_ij | dQ_i | 2 L_i, D_i | to be rounded
//     128    64 × 128    2 × 240, 24                64    | 32    | 32     | 32      | 32   | 1          | 16 = 210 KB
//     64     128 × 128   2 × 240, 24                48    | 32    | 32     | 64      | 32   | 2          | 16 = 227 KB
//
// S_ij and dP_ij are transposed: their accumulators, rounded, are the left operands of dV_j += P_ijᵀ dO_i and dK_j += dS_ijᵀ Q_i.
// Only dQ_i, a sum over all keys, needs dS_ij in shared memory. Each consumer computes half of dQ_i, over all 128 keys.
// Order of events in either consumer. Time runs to the right.
//
//     tensor cores    dV_j += P_i dO_i      dK_j += dS_i Q_i       dQ_{i-1} = dS_{i-1} K_j    S_{i+1}                 dP_{i+1}
//     registers       dS_i ──> shared                                                        dQ_{i-1} ──> shared     P_{i+1}
//     HBM                                                                                    dQ_{i-1} added by TMA
//
// HBM, in elements per head (flashsim.count("q_outer", direction="backward", …), exactly): Q, dO, L, D are read once for each of
// the T_c key blocks, in live tiles only; dQ is read and written as often. K and V are read once, dK and dV are written once.
//
// Roofline. Tensor cores as in hopper.cu; shared memory, at 128 bytes per cycle, allows 0.87 (d = 128) and 0.91 (d = 64) of their
// rate. What was tried: docs/gpu-tried.md. no spills, no stack
#include "hopper.cuh"

constexpr int B_c = 128, CONSUMERS = B_c / 64;
template <int d> constexpr int B_r = d == 64 ? 128 : 64;

// What is masked. FULL: nothing. CAUSAL: keys after the query's own position. ARRAY and CAUSAL_ARRAY: the same, and what an array
// in HBM says, with a byte per element. LISTED: keys outside a window, and tiles that are not in the key block's list.
enum Kind { FULL, CAUSAL, ARRAY, CAUSAL_ARRAY, LISTED };
__host__ __device__ constexpr bool is_causal(Kind kind) { return kind == CAUSAL || kind == CAUSAL_ARRAY; }
__host__ __device__ constexpr bool has_array(Kind kind) { return kind == ARRAY || kind == CAUSAL_ARRAY; }

struct Tile {
    int i, before;  // row block, and how many key blocks add to its dQ_i before
};

struct Problem {
    int N_q, N_k, H, H_kv, group, T_r, T_c;  // H query heads, `group` for each of H_kv KV heads
    int heads, section;                      // KV heads over the batch; how many heads' key blocks take turns
    int unseen;                              // how many row blocks, a head's first, see no key; 0 if listed
    int left, right;                         // the window: keys from position − left to position + right
    Mask mask;
    const int *starts, *adders;  // key block j's live tiles: tiles[starts[j]] to before tiles[starts[j + 1]]; how many have i
    const Tile* tiles;
    float tau, half_c;                       // τ and τ log₂e / 2, capped to be finite
    Dropout dropout;
    float *rows, *sums;  // L_i log₂e / 2 and D_i, row block after row block; dQ_i, in the order of accumulators
    Word* turns;         // how many key blocks have added to each half of dQ_i
    Word* drawn;         // how many key blocks have been drawn

    __device__ Offset row_block(int head, int i) const { return Offset(head) * T_r + i; }
};

struct KeyBlock {  // the j-th of a KV head; heads are counted over the batch
    int j, head;
};

// The n-th key block. Sections of heads come one after the other; in each, the blocks of all heads that most queries see come
// first. With turns, those that add first come first.
template <bool backwards> __device__ inline KeyBlock in_order(const Problem& p, int n) {
    const int T_c = here(p.T_c), section = here(p.section), whole = section * T_c, within = n % whole;
    const int first = n / whole * section;
    const int heads = min(section, p.heads - first), j = within / heads;
    return {backwards ? T_c - 1 - j : j, first + within % heads};
}

// The live tiles of key block j, from `begin` to before `end`, and the row block of the t-th of all tiles.
template <Kind kind, int d> __device__ inline int begin_of(const Problem& p, int j) {
    if (kind == LISTED) return __ldg(p.starts + j);
    return is_causal(kind) ? max(j * B_c - int(here(p.N_k) - p.N_q), 0) / B_r<d> : 0;
}
template <Kind kind> __device__ inline int end_of(const Problem& p, int j) {
    return kind == LISTED ? __ldg(p.starts + j + 1) : p.T_r;
}
template <Kind kind> __device__ inline int row_block(const Problem& p, int t) { return kind == LISTED ? __ldg(&p.tiles[t].i) : t; }

// How many key blocks add to dQ_i of row block i, and how many of them before key block j, whose t-th tile it is.
template <Kind kind, int d> __device__ inline Word key_blocks(const Problem& p, int i) {
    if (kind == LISTED) return __ldg(p.adders + i);
    if (!is_causal(kind)) return p.T_c;
    return Word(min(i * B_r<d> + B_r<d>, p.N_q) - 1 + p.N_k - p.N_q) / B_c + 1;
}
template <Kind kind, int d> __device__ inline Word key_blocks_before(const Problem& p, int j, int t) {
    if (kind == LISTED) return __ldg(&p.tiles[t].before);
    return is_causal(kind) ? key_blocks<kind, d>(p, t) - 1 - j : j;
}

// ------------------------------------------------------------------------------------------------------------- shared memory

// K_j | V_j | Q_i, Q_{i+1} | dO_i, dO_{i+1} | dS_ij, dS_{i+1,j} | dQ_i, on its way | the mask's tiles | L_i, D_i, L_{i+1},
// D_{i+1} | what dropout drops in row blocks i and i + 1 | sums to be rounded, by 8 columns | barriers, words
template <int d, bool dropping, bool masks> struct Memory {
    static constexpr int K_STAGES = d == 64 && !dropping && !masks ? 2 : 1;  // room for the next key block's K_j
    static constexpr int STAGES = 2, KV_BYTES = B_c * d * 2, Q_BYTES = B_r<d> * d * 2, ROWS_BYTES = B_r<d> * 2 * 4;
    static constexpr int dS_BYTES = B_r<d> * B_c * 2, HALF_dQ_BYTES = 64 * 64 * 4, DROPPED_BYTES = 2048;
    static constexpr int V_AT = K_STAGES * KV_BYTES, Q_AT = V_AT + KV_BYTES, dO_AT = Q_AT + STAGES * Q_BYTES;
    static constexpr int dS_AT = dO_AT + STAGES * Q_BYTES, dQ_AT = dS_AT + 2 * dS_BYTES, MASK_AT = dQ_AT + 2 * HALF_dQ_BYTES;
    static constexpr int MASK_STAGES = d == 64 ? 1 : 2, MASK_BYTES = masks ? B_r<d> * B_c : 0;
    static constexpr int ROWS_AT = MASK_AT + MASK_STAGES * MASK_BYTES;
    static constexpr int DROPPED_AT = ROWS_AT + STAGES * ROWS_BYTES, SUMS_AT = DROPPED_AT + dropping * 2 * DROPPED_BYTES;
    static constexpr int SUMS_BYTES = HALF_dQ_BYTES / 8, SUMS_STRIDE = SUMS_BYTES + 16;  // padded, for few bank conflicts
    static constexpr int END = SUMS_AT + 8 * SUMS_STRIDE;
    Word base;
    Ring<K_STAGES, KV_BYTES> K_j;
    Ring<1, KV_BYTES> V_j;
    Ring<STAGES, Q_BYTES> Q_i, dO_i;
    Ring<2, dS_BYTES> dS_ij;
    Ring<MASK_STAGES, MASK_BYTES> mask;

    __device__ explicit Memory(Word base) : base(base) {
        K_j = {base, base + END + 272};
        V_j = {base + V_AT, base + END + 16};
        Q_i = {base + Q_AT, base + END + 32};
        dO_i = {base + dO_AT, base + END + 64};
        dS_ij = {base + dS_AT, base + END + 96};
        mask = {base + MASK_AT, base + END + 320};
    }
    __device__ Ring<1, HALF_dQ_BYTES> dQ_i(int w) const {
        return {base + dQ_AT + w * HALF_dQ_BYTES, base + END + 128 + w * 16};
    }
    __device__ Word L_i(Word n) const { return base + ROWS_AT + n % STAGES * ROWS_BYTES; }
    __device__ Word D_i(Word n) const { return L_i(n) + ROWS_BYTES / 2; }
    __device__ Barrier sums_there() const { return {base + END + 224}; }
    __device__ Word which_j(Word k) const { return base + END + 256 + k % K_STAGES * 8; }  // valid until K_j is free; < 0 if none
    __device__ Word which_head(Word k) const { return which_j(k) + 4; }
    __device__ Word which_matrix(Word k) const { return base + END + 312; }  // the mask's
    __device__ Word which_i(Word n) const { return base + END + 304 + n % STAGES * 8; }  // if listed; valid until Q_i is free
    __device__ Word whose_i(Word n) const { return which_i(n) + 4; }
    // One bit per element of the n-th row block, for two warps whose keys are 16 apart: [half of the queries][warp][lane].
    __device__ Word dropped(Word n, Word pair) const { return base + DROPPED_AT + n % 2 * DROPPED_BYTES + pair * 512; }
    __device__ void init() const {
        constexpr int WARPS = 4 * CONSUMERS, EACH = 32 * WARPS;  // all lanes arrive, as racecheck needs
        if (threadIdx.x == 0) {
            K_j.init(EACH + CONSUMERS), V_j.init(WARPS), Q_i.init(EACH), dO_i.init(WARPS), dS_ij.init(WARPS, WARPS);
            if (masks) mask.init(EACH);
            for (int w = 0; w < CONSUMERS; ++w) dQ_i(w).init(1, 4);
            sums_there().expect_arrivals(1);
        }
        publish_barriers();
    }
};

// How many rows a thread has moved. Counting builds add it to totals.
struct Rows {
    Word rows;
#if COUNT
    __device__ void times(int columns, Total* total) const { atomicAdd(total, Total(rows) * columns); }
#else
    __device__ void times(int, Total*) const {}
#endif
};

// Named barriers: TOGETHER + w for all threads of warpgroup w; TURN + w for its turn.
constexpr int TOGETHER = 1, TURN = 3;

// -------------------------------------------------------------------------------------------------------------- producer

// One thread draws key blocks and starts all loads: K_j, V_j, and the row blocks that see K_j, head after head.
template <Kind kind, bool backwards, int d, bool dropping>
__device__ __forceinline__ void produce(const Memory<d, dropping, has_array(kind)>& sram, const TensorMap& Q, const TensorMap& K,
                                        const TensorMap& V, const TensorMap& dO, const TensorMap& M, const Problem& p,
                                        Total* totals) {
    constexpr int B_r = ::B_r<d>, ROWS_BYTES = B_r * 8;
    Rows moved{0}, keys{0};
    Word n = 0;
    int drawn = atomicAdd(p.drawn, 1);
#pragma unroll 1
    for (Word k = 0;; ++k) {
        sram.V_j.wait_free(k);
        sram.K_j.wait_free(k);
        const int all = int(here(p.heads)) * p.T_c;
        KeyBlock at = in_order<backwards>(p, drawn);
        if (kind == LISTED) {
#pragma unroll 1
            while (drawn < all && begin_of<kind, d>(p, at.j) == end_of<kind>(p, at.j))  // unseen: `prepare` writes zeros
                at = in_order<backwards>(p, drawn = atomicAdd(p.drawn, 1));
        }
        if (drawn >= all) {
            store_word(sram.which_j(k), ~0u);
            sram.K_j.there(k).arrive();
            break;
        }
        const int H_kv = here(p.H_kv);
        store_word(sram.which_j(k), at.j), store_word(sram.which_head(k), at.head);
        sram.K_j.start(k, K, at.j * B_c, at.head % H_kv, at.head / H_kv);
        sram.V_j.start(k, V, at.j * B_c, at.head % H_kv, at.head / H_kv);
        keys.rows += min(B_c, p.N_k - at.j * B_c);
#pragma unroll 1
        for (int g = 0; g < p.group; ++g) {
            const int head = load_word(sram.which_head(k)) * p.group + g, H = here(p.H), h = head % H, b = head / H;
            if (has_array(kind)) store_word(sram.which_matrix(k), p.mask.matrix(h, b));
#pragma unroll 1
            for (int t = begin_of<kind, d>(p, load_word(sram.which_j(k)));
                 t < end_of<kind>(p, load_word(sram.which_j(k))); ++t, ++n) {
                const int i = row_block<kind>(p, t);
                sram.Q_i.wait_free(n);
                if (kind == LISTED) store_word(sram.which_i(n), i), store_word(sram.whose_i(n), head);
                sram.Q_i.start(n, Q, i * B_r, h, b, ROWS_BYTES);
                load(sram.L_i(n), p.rows + Offset(Word(head * p.T_r + i)) * (2 * B_r), ROWS_BYTES, sram.Q_i.there(n));
                sram.dO_i.load(n, dO, i * B_r, h, b);
                if (has_array(kind)) {
                    sram.mask.wait_free(n);
                    sram.mask.there(n).arrive_and_expect((p.mask.rows ? B_r : 1) * B_c);
                    const int left = load_word(sram.which_j(k)) * B_c, top = here(i) * B_r * p.mask.rows;
                    load_mask(sram.mask.tile(n), M, left, top, load_word(sram.which_matrix(k)), sram.mask.there(n));
                    Tally(totals + 18).add(p.mask.rows ? min(B_r, p.N_q - top) : 1, min(B_c, p.N_k - left));
                }
                moved.rows += min(B_r, p.N_q - i * B_r);
            }
        }
        drawn = atomicAdd(p.drawn, 1);
    }
    keys.times(d, totals + 2), keys.times(d, totals + 4);
    moved.times(d, totals), moved.times(d, totals + 6), moved.times(1, totals + 8), moved.times(1, totals + 10);
}

// ---------------------------------------------------------------------------------------------------------------- adders

// A thread adds warpgroup w's part of dQ_i to HBM, and then stores the warpgroup's rows of dK_j and dV_j from the same shared
// memory. With turns, it first waits until all earlier key blocks that see row block i have added.
template <Kind kind, bool in_turn, int d, bool dropping>
__device__ __forceinline__ void add(const Memory<d, dropping, has_array(kind)>& sram, int w, const TensorMap& dK, const TensorMap& dV,
                                    const Problem& p, Total* totals) {
    constexpr int B_r = ::B_r<d>;
    const auto dQ_i = sram.dQ_i(w);
    Rows added{0}, keys{0};
    Word n = 0;
#pragma unroll 1
    for (Word k = 0;; ++k) {
        sram.K_j.wait_there(k);
        const int j = load_word(sram.which_j(k));
        if (j < 0) break;
        int h = load_word(sram.which_head(k)) * p.group;
        sram.K_j.free(k).arrive();
#pragma unroll 1
        do {
#pragma unroll 1
            for (int t = begin_of<kind, d>(p, j); t < end_of<kind>(p, j); ++t, ++n) {
                const int i = row_block<kind>(p, t);
                const Offset half = p.row_block(h, i) * 2 + w;
                // Before dQ_i comes, since asking takes as long as adding.
                if (in_turn) wait_until(p.turns + half, key_blocks_before<kind, d>(p, j, t));
                dQ_i.wait_there(n);
                add_to(p.sums + half * 4096, dQ_i.tile(n), 64 * 64 * 4);
                wait_stores_read();
                dQ_i.free(n).arrive();
                wait_stores();
                step(p.turns + half);
                added.rows += max(0, min(64, p.N_q - i * B_r - (d == 64 ? 64 * w : 0)));
            }
        } while (++h % int(here(p.group)));
        const int head = h / p.group - 1;
#pragma unroll 1
        for (int second = 0; second < 2; ++second, ++n) {
            dQ_i.wait_there(n);
            store(second ? dV : dK, j * B_c + 64 * w, head % p.H_kv, head / p.H_kv, dQ_i.tile(n));
            wait_stores_read();
            dQ_i.free(n).arrive();
        }
        keys.rows += max(0, min(64, p.N_k - j * B_c - 64 * w));
    }
    added.times(64, totals + 12), added.times(64, totals + 13), keys.times(d, totals + 15), keys.times(d, totals + 17);
}

// ------------------------------------------------------------------------------------------------------------- rounder

// A warp rounds dQ_i = τ times its sums when all key blocks have added to them. Each block of threads rounds as many halves of
// row blocks as the others, section after section, about in the order in which they are complete. A lane has 8 columns of a row.
template <Kind kind, typename T, int d, bool dropping>
__device__ __forceinline__ void round_dQ(const Memory<d, dropping, has_array(kind)>& sram, T* dQ, const Problem& p, Total* totals) {
    typedef Memory<d, dropping, has_array(kind)> Sram;
    constexpr int B_r = ::B_r<d>, STRIDE = Sram::SUMS_STRIDE, BYTES = Sram::SUMS_BYTES;
    const Word lane = threadIdx.x % 32, sums = sram.base + Sram::SUMS_AT;
    Rows rounded{0};
    Word parity = 0;
#pragma unroll 1
    for (Word n = blockIdx.x; n < here(p.heads) * p.group * p.T_r * 2; n += here(gridDim.x)) {
        const Word section = here(p.section) * p.group, whole = section * here(p.T_r) * 2, before = n / whole * section;
        const Word heads = min(section, p.heads * p.group - before), within = n % whole / 2;
        const int head = before + within % heads, i = within / heads, w = n % 2;
        if (kind == LISTED ? key_blocks<kind, d>(p, i) == 0 : i < p.unseen) continue;
        const Word half = (head * here(p.T_r) + i) * 2 + w;
        wait_until(p.turns + half, key_blocks<kind, d>(p, i));
        show_hbm();
        if (lane == 0) sram.sums_there().arrive_and_expect(8 * BYTES);
        if (lane < 8) load(sums + lane * STRIDE, p.sums + Offset(half) * 4096 + lane * (BYTES / 4), BYTES, sram.sums_there());
        sram.sums_there().wait(parity);
        parity ^= 1;
        const int end = p.N_q - i * B_r - (d == 64 ? 64 * w : 0);  // rows of this half that exist
        const Word first = (head + 1) * p.N_q - end, column = (d == 64 ? 0 : 64 * w) + lane % 8 * 8;
#pragma unroll 1
        for (int row = lane / 8; row < min(64, end); row += 4) {
            const Word from = sums + lane % 8 * STRIDE + (row / 16 * 8 + row % 8) * 64 + row / 8 % 2 * 8;
            Word eight[4];
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                float sum[2];
                load_pair(sum, from + t * 16);
                eight[t] = pack<T>(p.tau * sum[0], p.tau * sum[1]);
            }
            put_four(dQ + Offset(first + row) * d + column, eight);
        }
        rounded.rows += max(0, min(64, end));
        __syncwarp();
    }
    if (lane == 0) rounded.times(64, totals + 12), rounded.times(64, totals + 13);
}

// ------------------------------------------------------------------------------------------------------------- consumers

// A warpgroup, with keys 64w to 64w + 63 of K_j and V_j: the rows of the transposed S_ij, P_ij, dP_ij, dS_ij. A thread has two
// keys, key and key + 8. Element [t][e] is of query 8t + 2 (lane mod 4) + e mod 2 and of key + 8 (e / 2).
template <typename T, int d, Kind kind, bool dropping> struct Consumer {
    static constexpr int B_r = ::B_r<d>, CALLS = B_r / 16;  // calls of Philox for half of the queries
    const Memory<d, dropping, has_array(kind)>& sram;
    const Problem& p;
    const int w;
    int j, head, i;  // key block, query head (counted over the batch), row block
    Word k;          // key blocks so far

    float dK_j[d / 8][4], dV_j[d / 8][4];
    float S_ij[B_r / 8][4], dP_ij[B_r / 8][4], dQ_i[8][4];  // dQ_i: 64 queries × 64 columns, over all keys of the block
    Word P_ij[B_r / 16][4], dS_ij[B_r / 16][4];

    __device__ __forceinline__ void start_S(Word n) {
        sram.Q_i.wait_there(n);
        start_scores<T, d, B_r>(S_ij, sram.K_j.tile(k) + here(w) * (64 * 128), B_c, sram.Q_i.tile(n));
    }
    __device__ __forceinline__ void start_dP(Word n) {
        sram.dO_i.wait_there(n);
        start_scores<T, d, B_r>(dP_ij, sram.V_j.tile(0) + here(w) * (64 * 128), B_c, sram.dO_i.tile(n));
    }

    // If d = 128, there are registers for L_i before S_ij has come.
    __device__ __forceinline__ void load_L(Word n, float (&L)[B_r / 8][2]) {
#pragma unroll
        for (int t = 0; t < B_r / 8; ++t)
            if (d == 128) load_pair(L[t], sram.L_i(n) + thread_index() % 4 * 8 + t * 32);
    }
    // P_ij = e^{MASK(S_ij) − L_i}, at most 1 however S_ij and L_i are rounded. Its sign is minus where dropout drops it.
    __device__ __forceinline__ void softmax(Word n, float (&L)[B_r / 8][2]) {
        const int lane = thread_index() % 32, key = j * B_c + here(threadIdx.x - WARPGROUP) / 32 * 16 + lane / 4;
        finish<1>(S_ij);
#pragma unroll
        for (int t = 0; t < B_r / 8; ++t) {
            if (d == 64) load_pair(L[t], sram.L_i(n) + lane % 4 * 8 + t * 32);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float x = fmaf(S_ij[t][e], p.half_c, -L[t][e % 2]);
                S_ij[t][e] = exp_2(x - fabsf(x));  // 2 min(x, 0)
            }
        }
        const int after = (here(j) + 1) * B_c, top = i * B_r;
        const bool to_the_right = (is_causal(kind) || kind == LISTED) && after - 1 - (p.N_k - p.N_q) - p.right > top;
        const bool to_the_left = kind == LISTED && after - B_c - (p.N_k - p.N_q) + p.left < top + B_r - 1;
        if (after > p.N_k || to_the_right || to_the_left) mask(key, top, lane);
        if (has_array(kind)) mask_by_array(n);
        if (dropping) drop(n);
#pragma unroll
        for (int t = 0; t < B_r / 8; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float x = S_ij[t][2 * r], y = S_ij[t][2 * r + 1];
                P_ij[t / 2][t % 2 * 2 + r] = dropping ? pack_positive<T>(x, y) : pack<T>(x, y);
            }
    }
    __device__ __forceinline__ void mask(int key, int top, int lane) {
        int first[2], last[2];  // queries that see the key, from the tile's `top` on
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int own = key + 8 * r - (p.N_k - p.N_q) - top - lane % 4 * 2;
            first[r] = is_causal(kind) || kind == LISTED ? own - p.right : 0, last[r] = own + p.left;
            if (key + 8 * r >= p.N_k) first[r] = B_r;
        }
#pragma unroll
        for (int t = 0; t < B_r / 8; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (8 * t + e % 2 < first[e / 2] || (kind == LISTED && 8 * t + e % 2 > last[e / 2])) S_ij[t][e] = 0.0f;
    }
    // P is 0 where the mask's tile has a 0. A query's bytes lie in chunks of 16, swizzled as TMA writes them; a warp's keys are
    // one chunk.
    __device__ __forceinline__ void mask_by_array(Word n) {
        const Word thread = here(threadIdx.x - WARPGROUP), warp = thread / 32, lane = thread % 32;
        sram.mask.wait_there(n);
        if (p.mask.rows) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const Word query = lane % 4 * 2 + e, at = here(sram.mask.tile(n) + query * B_c + ((warp ^ query) << 4) + lane / 4);
#pragma unroll
                for (int t = 0; t < B_r / 8; ++t)
#pragma unroll
                    for (int r = 0; r < 2; ++r)
                        if (!load_byte(at + t * 8 * B_c + 8 * r)) S_ij[t][2 * r + e] = 0.0f;
            }
        } else {
            const Word at = sram.mask.tile(n) + (warp << 4) + lane / 4, seen[2] = {load_byte(at), load_byte(at + 8)};
#pragma unroll
            for (int t = 0; t < B_r / 8; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (!seen[e / 2]) S_ij[t][e] = 0.0f;
        }
        sram.mask.free(n).arrive();
    }
    // What dropout drops in the n-th row block. A call of Philox serves four elements of a thread, and four of the thread whose
    // keys are 16 later or earlier. Each of the two makes the calls for half of the queries, for both.
    __device__ __forceinline__ void decide(Word n) {
        const Word thread = here(threadIdx.x - WARPGROUP), lane = thread % 32, pair = thread / 64, half = thread / 32 % 2;
        const Word row = i * B_r + half * (B_r / 2) + lane % 4 * 2, key = j * B_c + pair * 32 + lane / 4;
        const Word key_0 = here(p.dropout.key_0), key_1 = here(p.dropout.key_1);
        Word lower = 0, upper = 0;  // bits of the lower and the upper keys
#pragma unroll 4
        for (int x = CALLS - 1; x >= 0; --x) {
            Word words[4];  // [2a + r]: of query + 8a, and key + 8r in the upper half, + 8r + 16 in the lower
            philox(words, row + x / 2 * 16 + x % 2, key, head, key_0, key_1);
            lower <<= 4, upper <<= 4;
#pragma unroll
            for (int of = 0; of < 4; ++of) {
                if (words[of] <= p.dropout.last) lower |= 1u << of;
                if (words[of] << 16 <= p.dropout.last) upper |= 1u << of;
            }
        }
        const Word to = sram.dropped(n, pair) + half * 256 + lane * 4;
        store_word(to, lower), store_word(to + 128, upper);
    }
    // P becomes −P where dropout drops it.
    __device__ __forceinline__ void drop(Word n) {
        const Word thread = here(threadIdx.x - WARPGROUP);
        meet(TOGETHER + w, WARPGROUP);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Word dropped = load_word(sram.dropped(n, thread / 64) + half * 256 + thread % 64 * 4);
#pragma unroll
            for (int x = 0; x < CALLS; ++x)
#pragma unroll
                for (int of = 0; of < 4; ++of) {
                    float& P = S_ij[half * CALLS + x / 2 * 2 + of / 2][of % 2 * 2 + x % 2];
                    P = __int_as_float(__float_as_int(P) ^ (dropped << 31 - 4 * x - of & 1u << 31));
                }
        }
    }

    // dS_ij = P_ij ∘ (dP_ij − D_i), rounded: as an operand in registers, and in shared memory, where each query has a row.
    __device__ __forceinline__ void softmax_gradient(Word n) {
        const int quad = thread_index() % 4;
#pragma unroll
        for (int t = 0; t < B_r / 8; ++t) {
            float D[2];
            load_pair(D, sram.D_i(n) + quad * 8 + t * 32);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float P = S_ij[t][e], dP = dP_ij[t][e];
                S_ij[t][e] =
                    dropping ? fabsf(P) * ((P > 0.0f ? p.dropout.keep_scale * dP : 0.0f) - D[e % 2]) : P * (dP - D[e % 2]);
            }
        }
        round_to_operands<T, B_r>(dS_ij, S_ij);
        const int thread = thread_index(), lane = thread % 32, chunk = thread / 32 * 2 + lane / 8 % 2;
        const Word to = sram.dS_ij.tile(n) + w * (B_r * 128) + (lane / 16 * 8 + lane % 8) * 128 + ((chunk ^ lane % 8) << 4);
#pragma unroll
        for (int t = 0; t < B_r / 16; ++t) store_operand<true>(to + t * 2048, dS_ij[t]);
    }

    __device__ __forceinline__ void take_turn() const {
        if (d == 128) meet(TURN + w, 2 * WARPGROUP);
    }
    __device__ __forceinline__ void pass_turn() const {
        if (d == 128) come(TURN + 1 - w, 2 * WARPGROUP);
    }

    // dQ_i of the n-th row block. Both consumers have written its dS_ij.
    __device__ __forceinline__ void start_dQ(Word n) {
        const Word rows = d == 64 ? here(w) * (64 * 128) : 0, columns = d == 64 ? 0 : here(w) * (B_c * 128);
        sram.dS_ij.wait_there(n);
        start_product<T, B_c>(dQ_i, sram.dS_ij.tile(n) + rows, B_r, sram.K_j.tile(k) + columns);
    }
    // Write dQ_i to shared memory, from which another thread adds it to HBM.
    template <int later> __device__ __forceinline__ void write_dQ(Word n) {
        sram.dQ_i(w).wait_free(n);
        finish<later>(dQ_i);
        sram.dS_ij.evict(n);
        const Word to = sram.dQ_i(w).tile(n) + thread_index() * 16;
#pragma unroll
        for (int t = 0; t < 8; ++t) store_four(to + t * (WARPGROUP * 16), dQ_i[t]);
        show_writes();
        __syncwarp();
        sram.dQ_i(w).there(n).arrive_once_a_warp();
    }

    // dV_j and dK_j of the n-th row block, and dQ_i of the one before, for which this does not wait.
    template <bool first> __device__ __forceinline__ void gradients(Word n) {
        start_values<T, d, B_r>(dV_j, P_ij, sram.dO_i.tile(n));
        sram.dS_ij.wait_free(n);
        softmax_gradient(n);
        take_turn();
        start_values<T, d, B_r>(dK_j, dS_ij, sram.Q_i.tile(n));
        show_writes();
        __syncwarp();
        sram.dS_ij.there(n).arrive_once_a_warp();
        if (!first) start_dQ(n - 1);
        finish<first ? 0 : 1>();
        sram.dO_i.evict(n);
        sram.Q_i.free(n).arrive();  // each thread has read L_i and D_i
    }
    // P_ij and dP_ij of the n-th row block; dQ_i of row block n − 2 goes to shared memory.
    template <bool first> __device__ __forceinline__ void scores(Word n) {
        start_S(n);
        if (!first) write_dQ<1>(n - 2);
        if (dropping) next(n), decide(n);
        float L[B_r / 8][2];
        load_L(n, L);
        start_dP(n);
        pass_turn();
        if (!dropping) next(n);
        softmax(n, L);
        sram.dO_i.wait_there(n);  // it has come: this loop stops the compiler from moving exponentials
        finish<0>(dP_ij);
    }

    // The n-th row block's number and head. If tiles are listed, they come from the producer.
    __device__ __forceinline__ void next(Word n) {
        if (kind == LISTED) {
            i = load_word(sram.which_i(n)), head = load_word(sram.whose_i(n));
        } else if (++i == p.T_r) {
            i = begin_of<kind, d>(p, here(j)), ++head;
        }
    }

    // Write 64 rows of dK_j or dV_j to shared memory, from which another thread stores them.
    __device__ __forceinline__ void write(Word n, float (&C)[d / 8][4], float factor) {
        const auto out = sram.dQ_i(w);
        out.wait_free(n);
        const int thread = thread_index(), lane = thread % 32, row = thread / 32 * 16 + lane % 16;
#pragma unroll
        for (int t = 0; t < d / 8; t += 2) {
            Word both[4];
#pragma unroll
            for (int r = 0; r < 4; ++r)
                both[r] = pack<T>(C[t + r / 2][r % 2 * 2] * factor, C[t + r / 2][r % 2 * 2 + 1] * factor);
            store_operand<false>(out.tile(n) + t / 8 * (64 * 128) + row * 128 + ((t % 8 + lane / 16 ^ lane % 8) << 4), both);
        }
        show_writes();
        __syncwarp();
        out.there(n).arrive_once_a_warp();
    }
    __device__ __forceinline__ void write_out(Word n) {
        write(n, dK_j, p.tau);
        write(n + 1, dV_j, dropping ? p.dropout.keep_scale : 1.0f);
    }

    __device__ __forceinline__ void consume() {
        Word n = 0;
        if (w == 1) pass_turn();
#pragma unroll 1
        for (k = 0;; ++k) {
            sram.K_j.wait_there(k);
            j = load_word(sram.which_j(k));
            if (j < 0) break;
            const int tiles = end_of<kind>(p, j) - begin_of<kind, d>(p, j);
            const Word last = n + tiles * p.group - 1;
            if (dropping) head = load_word(sram.which_head(k)) * p.group;
            i = begin_of<kind, d>(p, j);
            if (kind == LISTED) sram.Q_i.wait_there(n), next(n);
            if (dropping) decide(n);
            start_S(n);
            sram.V_j.wait_there(k);
            start_dP(n);
            if (k > 0) finish<2>(dK_j), finish<2>(dV_j), write_out(n);
            fill(dK_j, 0.0f), fill(dV_j, 0.0f);
            float L[B_r / 8][2];
            load_L(n, L);
            softmax(n, L);
            finish<0>(dP_ij);
            gradients<true>(n);
            if (n < last) {
                scores<true>(++n);
#pragma unroll 1
                for (; n < last; ++n) {
                    gradients<false>(n);
                    scores<false>(n + 1);
                }
                gradients<false>(n);
                write_dQ<0>(n - 1);
            }
            sram.V_j.evict(k);
            pass_turn();
            start_dQ(n);
            write_dQ<0>(n);
            finish<0>(dK_j);
            finish<0>(dV_j);
            sram.K_j.free(k).arrive();  // each thread has read which_j
            ++n;
        }
        if (k > 0) write_out(n);
    }
};

template <typename T, int d, Kind kind, bool dropping, bool in_turn>
__global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
hopper_backward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
                const __grid_constant__ TensorMap dO, const __grid_constant__ TensorMap dK, const __grid_constant__ TensorMap dV,
                const __grid_constant__ TensorMap M, T* dQ, const __grid_constant__ Problem p, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    const Memory<d, dropping, has_array(kind)> sram(__cvta_generic_to_shared(shared));
    sram.init();
    if (threadIdx.x < WARPGROUP) {
        keep_registers<24>();
        if (threadIdx.x == 0) produce<kind, is_causal(kind) && in_turn>(sram, Q, K, V, dO, M, p, totals);
        if (threadIdx.x == 32 || threadIdx.x == 64) add<kind, in_turn>(sram, threadIdx.x / 64, dK, dV, p, totals);
        if (threadIdx.x >= 96) round_dQ<kind>(sram, dQ, p, totals);
    } else {
        take_registers<240>();
        const int w = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // shows the compiler that a warp shares it
        Consumer<T, d, kind, dropping> consumer{sram, p, w};
        consumer.consume();
    }
}

// ------------------------------------------------------------------------------------------------------ before and after

// All threads write zeros of 16 bits.
template <typename T> __device__ inline void clear(T* to, int elements) {
    for (int x = threadIdx.x; x < elements / 8; x += PREPARING) reinterpret_cast<uint4*>(to)[x] = make_uint4(0, 0, 0, 0);
}

// L_i log₂e / 2 and D_i of a row block, and zeros for dQ_i. If tiles are listed, also zeros for each dK_j and dV_j to which no
// row block adds. Rows past N_q, and rows that see no key, get L = +∞, so P = 0 there.
template <typename T, int d>
__global__ void __launch_bounds__(PREPARING)
prepare(const T* O, const T* dO, Offset dO_batch, Offset dO_head, Offset dO_row, const float* L, T* dQ, T* dK, T* dV,
        const __grid_constant__ Problem p, Total* totals) {
    constexpr int B_r = ::B_r<d>;
    const int i = blockIdx.x % p.T_r, head = blockIdx.x / p.T_r, end = min(B_r, p.N_q - i * B_r);
    const Offset at = p.row_block(head, i), first = Offset(head) * p.N_q + i * B_r;
    dO += head / p.H * dO_batch + head % p.H * dO_head + i * B_r * dO_row;
    prepare_rows<T, d, B_r>(p.rows + at * (2 * B_r), O + first * d, dO, dO_row, L + first, end);
    if (i < p.unseen || (p.adders && p.adders[i] == 0))
        clear(dQ + first * d, end * d);
    else
        clear(reinterpret_cast<T*>(p.sums + at * (B_r * d)), 2 * B_r * d);
    for (int n = blockIdx.x; p.starts && n < p.heads * p.T_c; n += gridDim.x) {
        const int j = n % p.T_c, keys = min(B_c, p.N_k - j * B_c);
        const Offset to = (Offset(n / p.T_c) * p.N_k + j * B_c) * d;
        if (p.starts[j] < p.starts[j + 1]) continue;
        clear(dK + to, keys * d), clear(dV + to, keys * d);
        if (threadIdx.x == 0) Tally(totals + 11).add(keys, d), Tally(totals + 13).add(keys, d);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.drawn = 0;
    if (threadIdx.x < 2) p.turns[at * 2 + threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        Tally(totals).add(end, d), Tally(totals + 2).add(end, d);      // O, dO read
        Tally(totals + 4).add(end, 1), Tally(totals + 5).add(end, 1);  // L read and, times log₂e, written
        Tally(totals + 7).add(end, 1), Tally(totals + 9).add(end, d);  // D, dQ written
    }
}
