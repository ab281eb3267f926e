// FlashAttention, forward, on Hopper's own instructions: wgmma and TMA (hopper.cuh); fp16 or bf16, sums in fp32.
//
//     S_ij = Q_i K_jᵀ,   P̃_ij = e^{τ (MASK(S_ij) − m_i)},   ℓ_i ← ℓ_i + rowsum(P̃_ij),   O_i ← O_i + dropout(P̃_ij) V_j
//     at the end:   O_i ← diag(ℓ_i)⁻¹ O_i,   L_i = τ m_i + log ℓ_i
//
// m_i is a row's maximum after its first tile. Later it grows only if it must: hopper_softmax.cuh.
//
// Roles. A block of threads has a producer, one thread of which starts all copies, and 2 or 4 consumers: warpgroups of 128
// threads with 64 rows of Q_i each. Each multiprocessor has one block, which takes row block after row block until none is left.
// Four consumers with row blocks of 128 are two teams; each has a copying thread, barriers and shared memory of its own.
//
//     d      B_r × B_c    consumers × registers, producer's    shared memory: Q_i + K_j + V_j + O_i
//     256    128 × 64     2 × 232, 40                          64 + 2·32 + 2·32 + 32 = 224 KB; O_i leaves by halves
//     128    128 × 128    2 × 232, 40                          32 + 2·32 + 2·32 + 32 = 192 KB
//     64     256 × 64     4 × 112, 32     full                 2·32 + 8·8 + 8·8 + 32 = 224 KB
//     64     128 × 64     2·2 × 112, 32   causal, any mask     2·(2·16 + 4·8 + 4·8 + 16) = 224 KB
//     64     128 × 128    2 × 232, 40     dropout              16 + 2·16 + 2·16 + 16 = 96 KB
//
// Order of events. Time runs to the right. Tiles go from the last to the first, since only the last ones need masks.
//
//     producer        K_2, Q_i    K_1, V_2           K_0, V_1           V_0       next row block: K, Q as soon as there is room
//     tensor cores    S_2         S_1   O += P̃_2 V_2   S_0   O += P̃_1 V_1   O += P̃_0 V_0
//     registers           P̃_2           P̃_1                P̃_0                    O / ℓ ──> shared memory ──> TMA
//
// HBM, in elements per head (flashsim.count("q_outer", …), exactly): Q is read once, O and L are written once, K and V are read
// once for each of the T_r row blocks, in live tiles only. All reads of K and V but the first come from the L2.
//
// Roofline. Tensor cores: 989 TFLOP/s at 1.83 GHz; with the card's limit of 700 W, cuBLAS reached 711. At d = 64, a tile's
// exponentials, 16 per cycle and multiprocessor, take as many cycles as its products. What was tried: docs/gpu-tried.md.
// no spills, no stack
#include "hopper_softmax.cuh"

// What is masked. FULL: nothing. CAUSAL: keys after the query's own position. ARRAY: what an array in HBM says, with a byte per
// element, and keys more than `right` after the query's position. WINDOW: keys outside a window around that position. LISTED:
// these, and all tiles that are not in the row block's list of live tiles.
enum Kind { FULL, CAUSAL, ARRAY, WINDOW, LISTED };

struct Problem {
    int N_q, N_k, H, group, T_r, row_blocks;  // H query heads, `group` per KV head; row blocks of all heads
    int section;                              // heads whose row blocks take turns
    int wants_L;
    int left, right;            // the window: keys from position − left to position + right
    Mask mask;
    const int *starts, *tiles;  // row block i's live tiles: tiles[starts[i]] to before tiles[starts[i + 1]], ascending
    float c, sign;  // c = |τ| log₂e, capped to be finite, and τ's sign; or 1 and 0 if τ log₂e is 0 in fp32
    Dropout dropout;
    // Packed batches: where each sequence begins, and the last one ends; each row block's sequence and its number in that; O. N_q
    // and N_k are sums over all sequences, and T_r is the number of row blocks of a head.
    const int *cu_q, *cu_k, *order;
    void* O;
};

struct Sequence {  // a row block's sequence: where its queries and keys begin among all, and how many there are
    int q, N_q, k, N_k;
};

// Row r of a block whose first query is `top` sees keys before min(N_k, end_of + r), and in a window only from begin_of + r on.
template <Kind kind> __device__ inline int end_of(const Problem& p, const Sequence& s, int top) {
    return kind == FULL ? s.N_k : s.N_k - s.N_q + top + (kind == CAUSAL ? 0 : p.right) + 1;
}
template <Kind kind> __device__ inline int begin_of(const Problem& p, const Sequence& s, int top) {
    return kind < WINDOW ? 0 : s.N_k - s.N_q + top - p.left;
}

// Tiles `begin` to `end` − 1 of those in p.tiles, or of all tiles.
struct Range {
    int begin, end;
};

// The tiles of which some of the `rows` rows from `top` on see a key, and the tiles of which all rows see all keys.
template <Kind kind, int B_c> __device__ inline Range seen_by_some(const Problem& p, const Sequence& s, int top, int rows) {
    const int end = kind == FULL ? s.N_k : min(s.N_k, max(0, end_of<kind>(p, s, top) + rows - 1));
    return {max(0, begin_of<kind>(p, s, top)) / B_c, int(Word(end + B_c - 1) / B_c)};
}
template <Kind kind, int B_c> __device__ inline Range seen_by_all(const Problem& p, const Sequence& s, int top, int rows) {
    const int end = kind == FULL ? s.N_k : min(s.N_k, max(0, end_of<kind>(p, s, top)));
    return {kind < WINDOW ? 0 : (max(0, begin_of<kind>(p, s, top) + rows - 1) + B_c - 1) / B_c, int(Word(end) / B_c)};
}

// The live tiles of row block i. If they are listed, they are counted from the block's first on.
template <Kind kind, int B_r, int B_c> __device__ inline Range live_tiles(const Problem& p, const Sequence& s, int i) {
    if (kind == LISTED) return {0, __ldg(p.starts + i + 1) - __ldg(p.starts + i)};
    return seen_by_some<kind, B_c>(p, s, i * B_r, B_r);
}
template <Kind kind> __device__ inline int tile(const Problem& p, int i, int t) {
    return kind == LISTED ? __ldg(p.tiles + __ldg(p.starts + i) + t) : t;
}

// Those of them that need no mask for the 64 rows from `top` on.
template <Kind kind, int B_c> __device__ inline Range whole_tiles(const Problem& p, const Sequence& s, int i, Range live, int top) {
    Range whole = seen_by_all<kind, B_c>(p, s, top, 64);
    if (kind == LISTED) {
        while (live.begin < live.end && tile<kind>(p, i, live.end - 1) >= whole.end) --live.end;
        while (live.begin < live.end && tile<kind>(p, i, live.begin) < whole.begin) ++live.begin;
        whole = live;
    }
    return whole;
}

// Named barriers: 1 + w for warpgroup w's turn; from TOGETHER on, for all threads of a warpgroup.
constexpr int TOGETHER = 8;

// ------------------------------------------------------------------------------------------------------------- shared memory

// Q_i | K_j, K_{j-1} | V_j, V_{j-1} | O_i | the mask's tiles, which come with K_j | barriers | the row block of Q_i. If d = B_c =
// 64, there are 2 Q_i, 8 K_j, 8 V_j, or 2, 4, 4 for each of two teams, whose barriers come after both teams' tiles.
template <int d, int B_r, int B_c, bool masks>
struct Memory : KeysAndValues<d == 64 && B_c == 64 ? B_r / 32 : 2, B_c * d * 2, d == 64 && B_c == 64> {
    static constexpr int O_COLUMNS = d < 128 || (d > 128 && masks) ? 64 : 128;  // columns that are stored at a time
    static constexpr int consumers = B_r / 64, Q_BYTES = B_r * d * 2, KV_BYTES = B_c * d * 2, O_BYTES = B_r * O_COLUMNS * 2;
    static constexpr int MASK_BYTES = masks ? B_r * B_c : 0;
    static constexpr bool JOINT = d == 64 && B_c == 64;
    static constexpr int TEAMS = JOINT ? 4 / consumers : 1;  // each has its own row blocks, and all of this
    static constexpr int Q_STAGES = JOINT ? 2 : 1, STAGES = JOINT ? 2 * consumers : 2;
    static constexpr int K_AT = Q_STAGES * Q_BYTES, V_AT = K_AT + STAGES * KV_BYTES, O_AT = V_AT + STAGES * KV_BYTES;
    static constexpr int MASK_AT = O_AT + O_BYTES, END = MASK_AT + STAGES * MASK_BYTES, BARRIERS = (Q_STAGES + 2 * STAGES) * 16, NUMBERS = (Q_STAGES + 1) * 12;
    Ring<Q_STAGES, Q_BYTES> Q_i;
    RowBlock* row_blocks;
    Sequence* sequences;
    int team;

    __device__ Memory(char* shared, int team) : team(team) {
        const Word all = __cvta_generic_to_shared(shared), base = all + team * END;
        const Word barriers = all + TEAMS * END + team * BARRIERS;
        Q_i = {base, barriers};
        this->place(base + K_AT, base + V_AT, barriers + Q_i.BARRIER_BYTES);
        row_blocks = reinterpret_cast<RowBlock*>(shared + TEAMS * (END + BARRIERS) + team * NUMBERS);
        sequences = reinterpret_cast<Sequence*>(shared + TEAMS * (END + BARRIERS + NUMBERS)) + team * (Q_STAGES + 1);
    }
    __device__ RowBlock& row_block(Word q) const { return row_blocks[q % (Q_STAGES + 1)]; }  // valid while a warp uses the q-th
    template <bool varlen> __device__ Sequence sequence(const Problem& p, Word q) const {
        return varlen ? sequences[q % (Q_STAGES + 1)] : Sequence{0, p.N_q, 0, p.N_k};
    }
    // Called by the threads that copy: the first thread of a warp for each team.
    __device__ static bool copies() { return threadIdx.x % 32 == 0 && threadIdx.x / 32 < TEAMS; }
    __device__ void init() const {
        if (copies()) Q_i.init(4 * consumers), this->init_barriers(4 * consumers);  // each warp arrives once
        publish_barriers();
    }

    __device__ Word mask(Word kv) const { return Q_i.tiles + MASK_AT + kv % STAGES * MASK_BYTES; }
    // Each stage has an address of its own. One that depends on q would stay in a register from tile to tile.
    __device__ __forceinline__ void evict_Q(Word q) const { q % Q_STAGES ? Q_i.evict(1) : Q_i.evict(0); }
};

// -------------------------------------------------------------------------------------------------------------- producer

// One thread starts all loads, row block after row block: K_last, Q_i, K_{j-1}, V_j, …, V_first.
template <Kind kind, bool longest, bool varlen, int d, int B_r, int B_c>
__device__ __forceinline__ void produce(const Memory<d, B_r, B_c, kind == ARRAY>& sram, const TensorMap& Q, const TensorMap& K,
                                        const TensorMap& V, const TensorMap& M, Word* counter, const Problem& p, Total* totals) {
    Tally Q_reads(totals), K_reads(totals + 2), V_reads(totals + 4), mask_reads(totals + 10);
    Tally cu_q_reads(totals + 12), cu_k_reads(totals + 14), order_reads(totals + 16);
    int n = blockIdx.x + sram.team * gridDim.x;
    Word kv = 0, q = 0;
#pragma unroll 1
    for (; n < p.row_blocks; ++q) {
        RowBlock at = in_order<longest && !varlen>(p, n);
        // Drawn early, and as often as there are row blocks, so that the counter is 0 at the end.
        n = sram.TEAMS * gridDim.x + atomicInc(counter, p.row_blocks - 1);
        Sequence of{0, p.N_q, 0, p.N_k};
        if (varlen) {
            const int s = __ldg(p.order + 2 * at.i);
            const int a = __ldg(p.cu_q + s), c = __ldg(p.cu_k + s), a_next = __ldg(p.cu_q + s + 1), c_next = __ldg(p.cu_k + s + 1);
            at.i = __ldg(p.order + 2 * at.i + 1);
            of = {a, a_next - a, c, c_next - c};
            order_reads.add(1, 2), cu_q_reads.add(1, 2), cu_k_reads.add(1, 2);
        }
        const int h_kv = at.h / p.group;
        const auto load_V = [&](int j, Word kv) {
            sram.load_V(kv, V, of.k + j * B_c, h_kv, at.b);
            V_reads.add(min(B_c, of.N_k - j * B_c), d);
        };
        const auto load_K = [&](int j, Word kv) {
            sram.load_K(kv, K, of.k + j * B_c, h_kv, at.b, kind == ARRAY ? (p.mask.rows ? B_r : 1) * B_c : 0);
            if (kind == ARRAY) {
                const int top = at.i * B_r * p.mask.rows;
                load_mask(sram.mask(kv), M, j * B_c, top, p.mask.matrix(at.h, at.b), sram.K_j.there(kv));
                mask_reads.add(p.mask.rows ? min(B_r, p.N_q - top) : 1, min(B_c, p.N_k - j * B_c));
            }
            K_reads.add(min(B_c, of.N_k - j * B_c), d);
            if (sram.JOINT) load_V(j, kv);
        };
        const Range live = live_tiles<kind, B_r, B_c>(p, of, at.i);
        int t = live.end - 1, j = t >= live.begin ? tile<kind>(p, at.i, t) : 0;
        if (t >= live.begin) load_K(j, kv);
        sram.Q_i.wait_free(q);
        sram.row_block(q) = at;
        if (varlen) sram.sequences[q % (sram.Q_STAGES + 1)] = of;  // not earlier: consumers may still use the one that was here
        sram.Q_i.start(q, Q, of.q + at.i * B_r, at.h, at.b);
        Q_reads.add(min(B_r, of.N_q - at.i * B_r), d);
#pragma unroll 1
        for (; t >= live.begin; --t, ++kv) {
            const int next = t > live.begin ? tile<kind>(p, at.i, t - 1) : 0;
            if (t > live.begin) load_K(next, kv + 1);
            if (!sram.JOINT) load_V(j, kv);
            j = next;
        }
    }
    sram.Q_i.wait_free(q);
    sram.row_block(q).i = -1;
    sram.Q_i.there(q).arrive();
}

// ------------------------------------------------------------------------------------------------------------- consumers

// A warpgroup, with rows 64w to 64w + 63 of Q_i. A thread shares two rows, row and row + 8, with three other lanes.
template <typename T, int d, int B_r, int B_c, Kind kind, bool dropping, bool split, bool turns, bool lazy, bool sums, bool mends,
          bool varlen>
struct Consumer {
    typedef Memory<d, B_r, B_c, kind == ARRAY> Sram;
    const Sram& sram;
    const Problem& p;
    const int w;
    const Turn<turns, B_r / 64> turn;
    Word q = 0, kv = 0;  // row blocks, and tiles of K and V, so far
    int passed = 0;      // tiles before kv that are not needed, and must still be freed
    Range whole;         // those of its tiles that need no mask

    Rows rows;
    float S_ij[B_c / 8][4], O_i[d / 8][4];
    Word P_ij[B_c / 16][4];

    __device__ __forceinline__ Consumer(const Sram& sram, const Problem& p, int w) : sram(sram), p(p), w(w), turn(w) {}

    __device__ __forceinline__ Sequence sequence() const { return sram.template sequence<varlen>(p, q); }
    __device__ __forceinline__ Word Q_w() const { return sram.Q_i.tile(q) + w * 64 * 128; }

    __device__ static Word* in_shared(Word at) { return static_cast<Word*>(__cvta_shared_to_generic(at)); }
    __device__ __forceinline__ int together() const { return TOGETHER + sram.team * Sram::consumers + w; }

    static constexpr bool apart = B_c == 64 && !turns && kind != LISTED;  // a warpgroup skips tiles that its rows do not see
    // The tiles of row block i that this warpgroup computes, and the t-th of them.
    __device__ __forceinline__ Range its_tiles(int i) const {
        return apart ? seen_by_some<kind, B_c>(p, sequence(), i * B_r + 64 * w, 64) : live_tiles<kind, B_r, B_c>(p, sequence(), i);
    }
    __device__ __forceinline__ int tile_of(int t) const {
        const int i = sram.row_block(q).i;
        return kind == WINDOW ? its_tiles(i).begin + t : tile<kind>(p, i, t);
    }

    // −∞ for keys that a row does not see: those after its last, those before its first, and those that an array masks.
    __device__ __forceinline__ void mask(int t, Word kv) {
        const int j = tile_of(t);
        const int thread = thread_index(), lane = thread % 32, row = 64 * w + thread / 32 * 16 + lane / 4;
        const int top = sram.row_block(q).i * B_r, left = j * B_c + lane % 4 * 2;
        const Sequence s = sequence();
        if (t >= whole.end) {
            const int end = end_of<kind>(p, s, top) + row - left, keys = s.N_k - left;  // of the upper row
            if (kind != FULL) mask_where(S_ij, [&](int column, int r) { return column - 8 * r >= end; });
            if (kind == FULL || (kind != ARRAY && (j + 1) * B_c > s.N_k))
                mask_where(S_ij, [&](int column, int) { return column >= keys; });
        }
        if (kind >= WINDOW && t < whole.begin) {
            const int begin = begin_of<kind>(p, s, top) + row - left;
            mask_where(S_ij, [&](int column, int r) { return column - 8 * r < begin; });
        }
        if (kind == ARRAY) {  // a row has its bytes in chunks of 16, swizzled as TMA writes them
            const Word of = p.mask.rows ? row : 0, place = of * B_c / 128 % (B_c / 16) << 4;
            const Word at = sram.mask(kv) + of * B_c + lane % 4 * 2, below = p.mask.rows ? 8 * B_c : 0;
#pragma unroll
            for (int x = 0; x < B_c / 8; ++x)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const Word two = load_two_bytes(at + (x / 2 << 4 ^ place) + x % 2 * 8 + (r ? below : 0));
                    if (!(two & 0xff)) S_ij[x][2 * r] = -INFINITY;
                    if (two < 0x100) S_ij[x][2 * r + 1] = -INFINITY;
                }
            __syncwarp();
            sram.evict_K(kv);  // the mask came with K
        }
    }

    // 0 for weights that dropout drops. The factor 1/(1 − p) is applied at the end.
    __device__ __forceinline__ void drop(int t) {
        const int j = tile_of(t);
        const RowBlock at = sram.row_block(q);
        const int thread = thread_index(), lane = thread % 32, row = at.i * B_r + 64 * w + thread / 32 * 16 + lane / 4;
#pragma unroll
        for (int x = 0; x < B_c / 8; x += 4)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                Word words[4];  // [2a + b]: of row + 8a, and column + 8b in the upper half, + 8b + 16 in the lower
                philox(words, row, j * B_c + 8 * x + lane % 4 * 2 + e, at.b * p.H + at.h, p.dropout.key_0, p.dropout.key_1);
#pragma unroll
                for (int of = 0; of < 4; ++of) {
                    if (words[of] <= p.dropout.last) S_ij[x + of % 2][of / 2 * 2 + e] = 0.0f;
                    if (words[of] << 16 <= p.dropout.last) S_ij[x + of % 2 + 2][of / 2 * 2 + e] = 0.0f;
                }
            }
    }

    // S_ij and P̃_ij of the warpgroup's t-th tile, while O_i of the tile after it, if there is one, is summed.
    template <bool first, bool begun = false> __device__ __forceinline__ void step(int t, bool masked, bool last) {
        constexpr int ahead = first ? 0 : 1;
        if (first) {
            sram.wait_K(kv);
#pragma unroll 1
            for (; passed > 0; --passed) sram.evict_V(kv - passed);
        }
        turn.take();
        start_scores<T, d, B_c>(S_ij, Q_w(), B_r, sram.K_j.tile(kv + ahead));
        if (!first) sram.wait_V(kv);
        if (!first) start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(kv));
        turn.pass();
        finish<ahead>(S_ij);
        if (kind != ARRAY) sram.evict_K(kv + ahead);
        if (last) sram.evict_Q(q);
        if (masked) mask(t, kv + ahead);
        const bool quick = sums && !first && (!masked || begun);  // without maxima, since each row has seen a key
        float alpha[2], sum[2];
        bool grown = false;
        Word P_next[B_c / 16][4];
        if (!quick || !softmax_as_before<T, B_c>(P_next, S_ij, rows, sum, p.c)) {
            grown = quick && mends && mend<T, B_c>(P_next, S_ij, rows, alpha, sum, p.c);
            if (!grown) {
                grown = softmax<B_c, lazy>(S_ij, rows, alpha, p.c);
                if (dropping) drop(t);
                if (quick) round_to_operands<T, B_c>(P_next, S_ij);
            }
        }
        if (!first && !quick && rows.l[0] + rows.l[1] < 0.0f) __trap();  // never; it keeps the exponentials above the wait for O_i
        if (!last) sram.wait_K(kv + ahead + 1);
        if (!first) finish<0>(O_i);
        if (!first) sram.evict_V(kv);
        quick ? replace<B_c>(P_ij, P_next, p.wants_L >> 1) : round_to_operands<T, B_c>(P_ij, S_ij);
        if (!first && grown) rescale<d>(O_i, alpha);
        kv += ahead;
    }

    // O_i of the first tile.
    __device__ __forceinline__ void end() {
        sram.wait_V(kv);
        turn.take();
        start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(kv));
        turn.pass();
        finish<0>(O_i);
        sram.evict_V(kv);
        ++kv;
    }

    // Skip tiles of which this warpgroup's rows see nothing. With many stages, this waits until a tile has come that they do see.
    // By then the producer has requested all earlier tiles, so their places had been freed after their last use.
    __device__ __forceinline__ void pass_by(int tiles) {
        if (!Sram::JOINT) return skip(tiles);
        kv += tiles, passed += tiles;
    }
    __device__ __forceinline__ void skip(int tiles) {
        tiles += passed, kv -= passed, passed = 0;
#pragma unroll 1
        for (; tiles > 0; --tiles, ++kv) {
            sram.wait_K(kv), sram.evict_K(kv);
            sram.wait_V(kv), sram.evict_V(kv);
        }
    }

    // Store a warp's first `rows` rows of O_i if another sequence's rows follow, which TMA would overwrite.
    __device__ __forceinline__ void put_rows(Word mine, int rows, Offset to) {
        for (int at = thread_index() % 32; at < rows * (Sram::O_COLUMNS / 8); at += 32) {
            const int r = at / (Sram::O_COLUMNS / 8), chunk = at % (Sram::O_COLUMNS / 8);
            const Word from = mine + chunk / 8 * (16 * 128) + r * 128 + ((chunk % 8 ^ r % 8) << 4);
            reinterpret_cast<uint4*>(p.O)[(to + r * d) / 8 + chunk] = *reinterpret_cast<const uint4*>(in_shared(from));
        }
    }

    // O_i ← diag(ℓ_i)⁻¹ O_i and L_i.
    __device__ __forceinline__ void write(const TensorMap& O, float* L, Total* totals) {
        const Word O_w = sram.Q_i.tiles + Sram::O_AT + w * 64 * Sram::O_COLUMNS * 2;
        const int thread = thread_index(), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
        const RowBlock at = sram.row_block(q);
        const Sequence s = sequence();
        const int first = at.i * B_r + 64 * w, left = s.N_q - first - thread / 32 * 16;  // left: of this warp's rows
        const Word mine = O_w + thread / 32 * (16 * Sram::O_COLUMNS * 2);
        rows.sum_l();
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            factor[r] = __fdividef(dropping ? p.dropout.keep_scale : 1.0f, nonzero(rows.l[r]));
            const int query = first + row + 8 * r;
            if (p.wants_L && lane % 4 == 0 && query < s.N_q) {
                L[(Offset(at.b) * p.H + at.h) * p.N_q + s.q + query] = rows.L(r, p.c);
                Tally(totals + 9).add(1, 1);
            }
        }
#pragma unroll
        for (int x = 0; x < d; x += Sram::O_COLUMNS) {
            if (lane == 0) wait_stores_read();
            __syncwarp();
            round_rows<T, Sram::O_COLUMNS, 16 * 128, d>(mine + lane % 16 * 128, O_i, x, factor);
            show_writes();
            __syncwarp();
            if (varlen && left < 16)
                put_rows(mine, left, (Offset(at.h) * p.N_q + s.q + first + thread / 32 * 16) * d + x);
            else if (lane == 0)
                store(O, s.q + first + thread / 32 * 16, at.h, at.b, mine, x / HALF);
            if (lane == 0) Tally(totals + 7).add(min(16, left), Sram::O_COLUMNS);
        }
    }

    // Multiply a warpgroup's rows of Q_i by the sign, so that c is positive for any τ. Rows of other sequences become 0. The shared
    // `apply_sign` would spill here.
    __device__ __forceinline__ void apply_sign(int rows) const {
#pragma unroll 1
        for (int of = thread_index(); of < d / HALF * 2048; of += WARPGROUP) {
            Word& two = *in_shared(Q_w() + of / 2048 * (B_r * 128) + of % 2048 * 4);
            two = p.sign == 0.0f || (varlen && of % 2048 / 32 >= rows) ? 0 : two ^ (varlen && p.sign > 0.0f ? 0 : 0x80008000);
        }
        show_writes();
        meet(together(), WARPGROUP);
    }

    __device__ __forceinline__ void consume(const TensorMap& O, float* L, Total* totals) {
#pragma unroll 1
        for (;; ++q) {
            sram.Q_i.wait_there(q);
            const int i = sram.row_block(q).i;
            if (i < 0) break;
            const int rows_left = varlen ? sequence().N_q - i * B_r - 64 * w : 64;
            if (p.sign != 1.0f || rows_left < 64) apply_sign(rows_left);
            fill(O_i, 0.0f);
            rows.init();

            constexpr bool apart_from_masks = split && kind != ARRAY;  // an array masks every tile
            const Range live = live_tiles<kind, B_r, B_c>(p, sequence(), i), its = its_tiles(i);
            whole = whole_tiles<kind, B_c>(p, sequence(), i, its, i * B_r + 64 * w);
            if (kind == WINDOW) whole.begin -= its.begin, whole.end -= its.begin;
            if (its.begin < its.end) {
                if (apart) pass_by(live.end - its.end);
                int t = its.end - its.begin - 1;
                step<true>(t, kind == ARRAY || t >= whole.end || t < whole.begin, t == 0);
                if (varlen && (t + 1) * B_c > sequence().N_k) {  // the last V_j has another sequence's rows
                    sram.wait_V(kv);
                    clear_rows<d, B_c>(sram.V_j.tile(kv), sequence().N_k - t * B_c, together());
                }
#pragma unroll 1
                for (--t; t >= (apart_from_masks ? max(0, whole.end) : 0); --t) step<false, kind == ARRAY>(t, true, t == 0);
                if (apart_from_masks) {
#pragma unroll 1
                    for (; t >= max(0, whole.begin); --t) step<false>(t, false, t == 0);
                }
                if (kind >= WINDOW) {  // tiles with the left edge; a row without m makes sums NaN
#pragma unroll 1
                    for (; t >= 0; --t) step<false, d == 64>(t, true, t == 0);
                }
                end();
                if (apart) {
                    const int i = sram.row_block(q).i;  // read again, so that it did not stay in registers
                    pass_by(its_tiles(i).begin - live_tiles<kind, B_r, B_c>(p, sequence(), i).begin);
                }
            } else {
                sram.evict_Q(q);
                if (apart) skip(live.end - live.begin);
            }
            write(O, L, totals);
        }
        if (thread_index() % 32 == 0) wait_stores();
    }
};

template <typename T, int d, int B_r, int B_c, Kind kind, bool dropping, bool longest, bool split, bool turns, bool lazy, bool sums,
          bool mends, bool varlen>
__global__ void __launch_bounds__((Memory<d, B_r, B_c, kind == ARRAY>::TEAMS * (B_r / 64) + 1) * WARPGROUP, 1)
hopper(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
       const __grid_constant__ TensorMap O, const __grid_constant__ TensorMap M, float* L, Word* counter,
       const __grid_constant__ Problem p, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    typedef Memory<d, B_r, B_c, kind == ARRAY> Sram;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), consumer = warp / 4 - 1;  // shows the compiler that a warp shares it
    const int team = Sram::TEAMS == 1 ? 0 : consumer < 0 ? warp : consumer / Sram::consumers;
    const Sram sram(shared, team);
    sram.init();
    if (consumer < 0) {
        keep_registers<Sram::JOINT ? 32 : 40>();
        if (Sram::copies()) produce<kind, longest, varlen>(sram, Q, K, V, M, counter, p, totals);
    } else {
        take_registers<Sram::JOINT ? 112 : 232>();
        const int w = consumer - team * Sram::consumers;
        Consumer<T, d, B_r, B_c, kind, dropping, split, turns, lazy, sums, mends, varlen>(sram, p, w).consume(O, L, totals);
    }
}
