// FlashAttention, forward, of 8-bit numbers (e4m3) on Hopper's wgmma and TMA (hopper.cuh); d = 128, O in fp16, sums in fp32.
//
// Loops and roles are hopper.cu's. What 8 bits change:
// - wgmma sums 8-bit operands only along their rows, so it needs V transposed. A V whose keys lie next to each other is taken as
//   it is. Otherwise the producer's three idle warps transpose V, tile after tile, by way of HBM.
// - P̃_ij stays in registers. Its columns 2q, 2q + 1, 8 + 2q, 8 + 2q + 1 are where an operand has its columns 4q to 4q + 3. So
//   `turn` puts V's keys into that order, or, if V is taken as it is, TMA loads K's rows in that order.
// - e4m3 ends at 448 and has 3 bits after the point. P̃ = 2^(c (S − m) + OFFSET). ℓ is the sum of P̃ before rounding.
// - A tile's products take half the cycles, as many as its exponentials. Three warpgroups keep both busy. For want of registers,
//   each takes half a tile at a time. Its Q_i is in registers.
// - P̃ is computed with the old m, except in halves with masks and in a row block's first half. If sums are too large, m becomes
//   the maximum, and P̃, still fp32, is mended: divided by the factor of growth. If a weight is ∞, mma.sync computes S_ij again.
// - Causally, if the rows do not fill all row blocks, the first one is short, since it sees the fewest keys.
// - The kernel has no scales. Those of Q and K belong in τ, and O must be multiplied by that of V.
//
//     B_r × B_c = 192 × 128    consumers 3 × 160 registers, producer 32
//     shared memory: 2 Q_i 48 | 3 K_j 48 | 3 V_jᵀ 48 | O_i 48 | V_j and V_jᵀ on their way 32 = 224 KB
//     a consumer's thread: O_i 64 + S 32 + P̃ 8, and 8 of the next + Q_i 16 = 128 registers
//
// Order of events in a warpgroup, for halves of tiles. Time runs to the right. The other two warpgroups are elsewhere in it.
//
//     tensor cores    S_2  O += P̃_3 V_3     S_1  O += P̃_2 V_2     S_0  O += P̃_1 V_1     O += P̃_0 V_0   S of the next row block
//     registers            P̃_2                   P̃_1                   P̃_0              O / ℓ ──> shared ──> TMA
//
// HBM, in elements per head: as hopper.cu; causally, K and V are read as if `ahead` more queries came before the first. If V is
// transposed, it is read and written once more.
// Roofline. Tensor cores: 1979 TFLOP/s at 1.83 GHz. What was tried: docs/gpu-tried.md. no spills, no stack
#include "hopper_softmax.cuh"
#include "mma.cuh"

constexpr int d = 128, B_r = 192, B_c = 128, CONSUMERS = B_r / 64;
constexpr int KEYS = 64;              // of half a tile, which a warpgroup takes at a time
constexpr float LARGEST = 448.0f;     // the largest P̃, which is 2^OFFSET where S = m

struct Problem {
    int N_q, N_k, H, group, T_r, row_blocks;  // H query heads, `group` per KV head; row blocks of all heads
    int section, last_section;                // heads of a section; the first head of the last section
    int wants_L;
    int ahead;                        // rows of the first row block before query 0, a multiple of 64
    Word T_c, H_kv, tiles;            // V's tiles of a head, KV heads of a batch entry, tiles in all
    Word last_draw, together, last;   // see Counters; the last count's number
    struct Count {
        Word tiles, steps;
    } count[2];  // of every count but the last; of the last
    float c, sign;  // c = |τ| log₂e, capped to be finite, and τ's sign; or 1 and 0 if τ log₂e is 0 in fp32
};

// The n-th row block. Sections of heads come one after the other; the last has more heads if V is transposed. In each, the blocks
// that take longest come first. Causally, these are the blocks of all heads that see the most keys. Otherwise, the blocks of head
// after head come first, and then each head's last block, which may be short.
template <bool causal, bool keys_contiguous> __device__ inline RowBlock in_order(const Problem& p, int n) {
    const int whole = p.section * p.T_r;
    int first = n / whole * p.section, heads = min(p.section, p.row_blocks / p.T_r - first), within = n % whole;
    if (!keys_contiguous && first >= p.last_section)
        first = p.last_section, heads = p.row_blocks / p.T_r - first, within = n - first * p.T_r;
    const int before = heads * (p.T_r - 1);
    if (!causal && within < before) {
        const int head = first + within / (p.T_r - 1);
        return {within % (p.T_r - 1), head % p.H, head / p.H};
    }
    if (!causal) within -= before;
    const int head = first + within % heads;
    return {p.T_r - 1 - within / heads, head % p.H, head / p.H};
}

// A row block's first query. Causally, the first row block may be short: its first warpgroups then have no rows.
__device__ inline int first_query(const Problem& p, int i) { return i * B_r - p.ahead; }

// Row r of a block whose first query is `top` sees the keys before end_of + r; tiles_seen are the tiles that some of its rows
// see.
template <bool causal> __device__ inline int end_of(const Problem& p, int top) {
    return causal ? p.N_k - p.N_q + top + 1 : p.N_k;
}
template <bool causal> __device__ inline int tiles_seen(const Problem& p, int top) {
    return (min(p.N_k, max(0, end_of<causal>(p, top) + B_r - 1)) + B_c - 1) / B_c;
}
// How many halves of tiles some rows, or all rows, of a warpgroup see whose first query is `top`.
template <bool causal> __device__ inline int halves_seen(const Problem& p, int top) {
    return top >= 0 && top < p.N_q ? (min(p.N_k, max(0, end_of<causal>(p, top) + 63)) + KEYS - 1) / KEYS : 0;
}
template <bool causal> __device__ inline int whole_halves(const Problem& p, int top) {
    return min(p.N_k, max(0, end_of<causal>(p, top))) / KEYS;
}

// ------------------------------------------------------------------------------------------------------------- 8-bit operands

// S = Q Kᵀ, or S += Q Kᵀ: S is 64 × 64, Q is 64 × 32 bytes in registers, and K is 64 × 32 in shared memory.
#define WGMMA_8(shape, list, operands, add, C, A, B)                                                                    \
    asm volatile("wgmma.mma_async.sync.aligned." shape "k32.f32.e4m3.e4m3 {" list "}, " operands ", " add ", 1, 1;" : C \
                 : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B))
template <bool add> __device__ inline void wgmma_8(float (&S)[8][4], const Word (&Q)[4], Descriptor K) {
    if (add) WGMMA_8("m64n64", LIST_32, "{%32, %33, %34, %35}, %36", "1", ASM_32(S, 0), Q, K);
    else WGMMA_8("m64n64", LIST_32, "{%32, %33, %34, %35}, %36", "0", NEW_32(S, 0), Q, K);
}
// O += P V: O is 64 × 128, P is 64 × 32 bytes in registers, and Vᵀ is 128 × 32 in shared memory.
__device__ inline void wgmma_8(float (&O)[16][4], const Word (&P)[4], Descriptor V) {
    WGMMA_8("m64n128", LIST_64, "{%64, %65, %66, %67}, %68", "1", ASM_64(O, 0), P, V);
}
// Wait for both products.
__device__ inline void finish(float (&O)[16][4], float (&S)[8][4]) {
    compute_started(0);
    asm volatile("wgmma.wait_group.sync.aligned 0;" : ASM_64(O, 0), ASM_32(S, 0)::"memory");
}

// Start S = Q Kᵀ for 64 rows of Q; start O += P V.
__device__ inline void start_scores_8(float (&S)[8][4], const Word (&Q)[d / 32][4], Word K) {
    later([&S, &Q, K] {
        const Operand K_operand(K, 0);
        registers_ready();
        wgmma_8<false>(S, Q[0], K_operand.at(0));
#pragma unroll
        for (int x = 32; x < d; x += 32) wgmma_8<true>(S, Q[x / 32], K_operand.at(x));
        commit();
    });
}
__device__ inline void start_values_8(float (&O)[16][4], const Word (&P)[KEYS / 32][4], Word V) {
    later([&O, &P, V] {
        const Operand V_operand(V, 0);
        registers_ready();
#pragma unroll
        for (int x = 0; x < KEYS; x += 32) wgmma_8(O, P[x / 32], V_operand.at(x));
        commit();
    });
}

// Four numbers, rounded, the first in the lowest byte.
__device__ inline Word pack_8(float a, float b, float c, float e) {
    Word four;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(e));
    return four;
}

// P̃ as left operands: S[t] and S[t + apart] make the n-th 16 columns of an operand.
template <int apart> __device__ inline void round_to_operands_8(Word (&P)[KEYS / 32][4], const float (&S)[8][4]) {
#pragma unroll
    for (int n = 0; n < KEYS / 16; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int t = apart == 1 ? 2 * n : n;
            P[n / 2][n % 2 * 2 + r] = pack_8(S[t][2 * r], S[t][2 * r + 1], S[t + apart][2 * r], S[t + apart][2 * r + 1]);
        }
}

typedef float Scores[KEYS / 8][4];

// P̃ in S's place by the old m, and a thread's sums of it. Returns whether this is right in all rows of the warp: m is a number,
// and no weight exceeds LARGEST, since no sum of 16 does.
__device__ __forceinline__ bool weights(Scores& S, Rows& rows, float (&sums)[2], float c) {
#pragma unroll
    for (int t = 0; t < KEYS / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            S[t][e] = exp_2(fmaf(S[t][e], c, -rows.shift[e / 2]));
            sums[e / 2] = t == 0 && e % 2 == 0 ? S[t][e] : sums[e / 2] + S[t][e];
        }
    return __all_sync(~0u, sums[0] <= LARGEST && sums[1] <= LARGEST);  // false for NaN, from m or a shift
}

// After weights() has returned false: m becomes the maximum, ℓ grows by `sums`, and P̃ and ℓ are multiplied by α. If P̃ does not
// give α, since there is no m yet or a weight is ∞, this returns false, and nothing is changed.
template <int OFFSET> __device__ __forceinline__ bool mend(Scores& P, Rows& rows, const float (&sums)[2], float (&alpha)[2], float c) {
    float growth[2];  // log₂
    bool known = 1 / HUGE <= c && c <= HUGE;  // m = (shift + OFFSET) / c
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float most = P[0][2 * r], other = P[0][2 * r + 1];
#pragma unroll
        for (int t = 1; t < KEYS / 8; ++t) most = fmaxf(most, P[t][2 * r]), other = fmaxf(other, P[t][2 * r + 1]);
        most = fmaxf(most, other);
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        growth[r] = fmaxf(0.0f, __log2f(most) - OFFSET);
        known = known && most <= HUGE && fabsf(rows.shift[r] + growth[r]) < EXACT;  // false for NaN
    }
    if (__any_sync(~0u, !known)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        alpha[r] = exp_2(-growth[r]);
        rows.l[r] = (rows.l[r] + sums[r]) * alpha[r];
        rows.shift[r] += growth[r];
        rows.m[r] = __fdividef(rows.shift[r] + OFFSET, c);
    }
#pragma unroll
    for (int t = 0; t < KEYS / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) P[t][e] *= alpha[e / 2];
    return true;
}

// S = Q Kᵀ of one warp's 16 rows, without the other warps of its warpgroup.
__device__ __forceinline__ void scores_of_a_warp(Scores& S, Word Q, Word K) {
    const int lane = threadIdx.x % 32;
    Q += lane % 16 * 128, K += lane % 8 * 128;
    fill(S, 0.0f);
#pragma unroll 1
    for (int chunk = 0; chunk < d / 16; chunk += 2) {
        Word A[4], B[2];
        ldmatrix(A, Q + ((chunk + lane / 16 ^ lane % 8) << 4));
#pragma unroll
        for (int t = 0; t < KEYS / 8; ++t) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                         : "=r"(B[0]), "=r"(B[1])
                         : "r"(K + t * 1024 + ((chunk + lane / 8 % 2 ^ lane % 8) << 4))
                         : "memory");
            asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                         "{%0, %1, %2, %3};"
                         : ASM_4(S, t)
                         : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
        }
    }
}

// x, rounded. Numbers beyond ±448 become ±448.
template <typename T> __global__ void __launch_bounds__(256) round_to_8(const T* x, Word* rounded, Offset fours) {
    const Offset at = Offset(blockIdx.x) * 256 + threadIdx.x;
    if (at >= fours) return;
    x += 4 * at;
    rounded[at] = pack_8(to_float(x[0]), to_float(x[1]), to_float(x[2]), to_float(x[3]));
}

// ------------------------------------------------------------------------------------------------------------- shared memory

// Q_i, the next Q_i | K_j … | V_jᵀ … | O_i | V_j as given | turned | barriers | which row blocks the Q_i are of, which tile is
// given
struct Memory {
    static constexpr int Q_STAGES = 2, STAGES = 3, Q_BYTES = B_r * d, KV_BYTES = B_c * d;
    static constexpr int K_AT = Q_STAGES * Q_BYTES, V_AT = K_AT + STAGES * KV_BYTES, O_AT = V_AT + STAGES * KV_BYTES;
    static constexpr int GIVEN_AT = O_AT + B_r * d * 2, END = GIVEN_AT + 2 * KV_BYTES;
    static constexpr int NUMBERS_AT = END + (Q_STAGES + 2 * STAGES + 1) * 16;
    Ring<Q_STAGES, Q_BYTES> Q_i;
    Ring<STAGES, KV_BYTES> K_j, V_j;
    Ring<1, KV_BYTES> given;
    RowBlock* row_blocks;
    Word* tile;

    __device__ explicit Memory(char* shared) {
        const Word base = __cvta_generic_to_shared(shared);
        Q_i = {base, base + END};
        K_j = {base + K_AT, base + END + Q_STAGES * 16};
        V_j = {base + V_AT, base + END + (Q_STAGES + STAGES) * 16};
        given = {base + GIVEN_AT, base + END + (Q_STAGES + 2 * STAGES) * 16};
        row_blocks = reinterpret_cast<RowBlock*>(shared + NUMBERS_AT);
        tile = reinterpret_cast<Word*>(row_blocks + Q_STAGES + 1);
    }
    __device__ RowBlock& row_block(Word q) const { return row_blocks[q % (Q_STAGES + 1)]; }
    __device__ void init() const {
        if (threadIdx.x == 0) {
            Q_i.init(4 * CONSUMERS), K_j.init(4 * CONSUMERS), V_j.init(4 * CONSUMERS);  // each warp arrives once
            given.init(1);
        }
        publish_barriers();
    }
};

// ---------------------------------------------------------------------------------------------------------- V transposed

// What blocks of threads tell each other; all are 0 between launches. `tile` is the next tile of V to be transposed; each block
// draws one too many. `row_block` is the next row block. Each of `turned` counts the transposed tiles of 2^together KV heads,
// then the row blocks that have waited for them; the last step is back to 0.
struct Counters {
    Word *tile, *row_block, *turned;
};

// Called after a tile has been written.
__device__ inline void step_turned(const Counters& c, const Problem& p, Word head) {
    const Word n = head >> p.together;
    asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(c.turned + n), "r"(p.count[n == p.last].steps) : "memory");
}
// Wait until all tiles have been written, and TMA can see them.
__device__ inline void wait_turned(const Counters& c, const Problem& p, Word head) {
    const Word n = head >> p.together, tiles = p.count[n == p.last].tiles;
    Word* const count = c.turned + n;
    Word now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    while (now < tiles);
    asm volatile("fence.proxy.async.global;" ::: "memory");
    atomicInc(count, p.count[n == p.last].steps);
}

// V_jᵀ: a warp takes 32 keys by 16 columns at a time. To ldmatrix, two columns are one number of 16 bits: transposed, a
// lane's word has two keys of two columns. Two words, of keys 8 apart, make one word of either column. Half of the lanes store
// the even column's first, the others the odd one's, so that the 8 rows of a store lie in different banks.
__device__ __forceinline__ void turn(Word from, Word to) {
    const int thread = thread_index(), lane = thread % 32, row = lane % 8, of = lane / 8, half = row / 4 ^ of % 2;
    const Word first = lane < 16 ? 0x6420 : 0x7531;
    from += lane * 128, to += (2 * row + half) * 128;
#pragma unroll 1
    for (int part = thread / 32 - 1; part < 32; part += 3) {
        const int keys = part % 4, columns = part / 4;
        Word V[4], turned[4];
        ldmatrix_transposed(V, from + keys * (32 * 128) + ((columns ^ row) << 4));
#pragma unroll
        for (int n = 0; n < 4; ++n) turned[n] = __byte_perm(V[n / 2 * 2], V[n / 2 * 2 + 1], first ^ n % 2 * 0x1111);
        store_operand<false>(to + columns * (16 * 128) + ((keys * 2 + of / 2 ^ (2 * row + half) % 8) << 4), turned);
    }
}

// Three warps draw the next tile of V, load it to shared memory and transpose it.
constexpr int TURNING = 1 + CONSUMERS, TURNERS = 96;  // a named barrier, and how many threads use it
__device__ __forceinline__ void transpose(const Memory& sram, const TensorMap& V, char* transposed, const Counters& counters,
                                          const Problem& p, Total* totals) {
    const Word given = sram.given.tile(0), turned = given + Memory::KV_BYTES;
    const auto leads = [] { return thread_index() == 32; };
    Word next;
    const auto start_next = [&] {
        *sram.tile = next;
        if (next < p.tiles) {
            const Word head = next / p.T_c, j = next % p.T_c;
            sram.given.there(0).arrive_and_expect(Memory::KV_BYTES);
            load(given, V, j * B_c, head % p.H_kv, head / p.H_kv, sram.given.there(0));
            for (int n = 10; n < 12; ++n) Tally(totals + n).add(min(B_c, p.N_k - int(j) * B_c), d);  // read and written
            next = atomicInc(counters.tile, p.last_draw);
        } else {
            sram.given.there(0).arrive();
        }
    };
    if (leads()) next = atomicInc(counters.tile, p.last_draw), start_next();
#pragma unroll 1
    for (Word n = 0;; ++n) {
        sram.given.wait_there(n);
        const Word tile = *sram.tile;
        if (tile >= p.tiles) break;
        turn(given, turned);
        show_writes();
        meet(TURNING, TURNERS);
        if (leads()) {
            store(transposed + Offset(tile) * Memory::KV_BYTES, turned, Memory::KV_BYTES);
            start_next();
            wait_stores();
            step_turned(counters, p, tile / p.T_c);
        }
        meet(TURNING, TURNERS);
    }
}

// -------------------------------------------------------------------------------------------------------------- producer

// One thread starts all loads, row block after row block: K_last, Q_i, K_{j-1}, V_j, …, V_first.
template <bool causal, bool keys_contiguous>
__device__ __forceinline__ void produce(const Memory& sram, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                                        const char* transposed, const Counters& counters, const Problem& p, Total* totals) {
    int n = blockIdx.x;
    Word kv = 0, q = 0;
#pragma unroll 1
    for (; n < p.row_blocks; ++q) {
        const RowBlock at = in_order<causal, keys_contiguous>(p, n);
        n = gridDim.x + atomicInc(counters.row_block, p.row_blocks - 1);  // drawn early; 0 after the last
        const int h_kv = at.h / p.group;
        const auto load_K = [&](int j, Word kv) {
            sram.K_j.wait_free(kv);
            sram.K_j.there(kv).arrive_and_expect(Memory::KV_BYTES);
            if (keys_contiguous) {
#pragma unroll
                for (int n = 0; n < 4; ++n)  // in each half of K_j, two of each four rows, then the other two
                    load_box(sram.K_j.tile(kv) + n * (B_c / 4 * d), K, 0, n % 2 * 2, j * (B_c / 4) + n / 2 * (KEYS / 4), h_kv, at.b,
                             sram.K_j.there(kv));
            } else {
                load(sram.K_j.tile(kv), K, j * B_c, h_kv, at.b, sram.K_j.there(kv));
            }
        };
        const int first = first_query(p, at.i);
        int j = tiles_seen<causal>(p, first) - 1;
        if (j >= 0) load_K(j, kv);
        sram.Q_i.wait_free(q);
        sram.row_block(q) = at;
        sram.Q_i.start(q, Q, first, at.h, at.b);
        Tally(totals).add(min(first + B_r, p.N_q) - max(first, 0), d);
        const Word head = at.b * p.H_kv + h_kv;
        if (j > 0) load_K(j - 1, kv + 1);
        if (!keys_contiguous) wait_turned(counters, p, head);
        Word V_j = head * p.T_c + j;
#pragma unroll 1
        for (; j >= 0; --j, ++kv, --V_j) {
            sram.V_j.wait_free(kv);
            sram.V_j.there(kv).arrive_and_expect(Memory::KV_BYTES);
            if (keys_contiguous)
                load_box(sram.V_j.tile(kv), V, j * B_c, 0, 0, h_kv, at.b, sram.V_j.there(kv));
            else
                load(sram.V_j.tile(kv), transposed + Offset(V_j) * Memory::KV_BYTES, Memory::KV_BYTES, sram.V_j.there(kv));
            for (int n = 2; n < 6; n += 2) Tally(totals + n).add(min(B_c, p.N_k - j * B_c), d);  // also of K_j
            if (j > 1) load_K(j - 2, kv + 2);
        }
    }
    sram.Q_i.wait_free(q);
    sram.row_block(q).i = -1;
    sram.Q_i.there(q).arrive();
}

// ------------------------------------------------------------------------------------------------------------- consumers

constexpr int TOGETHER = 1;  // named barriers: TOGETHER + w for all threads of warpgroup w

// A warpgroup, with rows 64w to 64w + 63 of Q_i. A thread shares two rows, row and row + 8, with three other lanes.
template <bool causal, bool keys_contiguous, int OFFSET> struct Consumer {
    static constexpr int apart = keys_contiguous ? KEYS / 16 : 1;  // K's rows are loaded in another order
    const Memory& sram;
    const Problem& p;
    const int w;
    Total* const totals;
    Word q = 0, n = 0;   // row blocks, and tiles of K and V, so far
    Word skipped;        // tiles at a row block's start that its rows do not see
    int whole;           // halves that need no mask

    Rows rows;
    Scores S_ij;
    Word Q_w[d / 32][4];
    float O_i[d / 8][4];
    Word P_ij[KEYS / 32][4];

    __device__ __forceinline__ Consumer(const Memory& sram, const Problem& p, int w, Total* totals)
        : sram(sram), p(p), w(w), totals(totals) {}

    // Load this warp's rows of Q as left operands.
    __device__ __forceinline__ void load_Q(Word q) {
        const int lane = threadIdx.x % 32;
        const Word row = sram.Q_i.tile(q) + w * 64 * d + thread_index() / 32 * 16 * d + lane % 16 * 128;
#pragma unroll
        for (int x = 0; x < d / 32; ++x)
            ldmatrix(Q_w[x], row + ((2 * x + lane / 16 ^ lane % 8) << 4));
    }

    __device__ __forceinline__ Word K_half(Word n, bool upper) const { return sram.K_j.tile(n) + upper * KEYS * d; }
    __device__ __forceinline__ Word V_half(Word n, bool upper) const { return sram.V_j.tile(n) + upper * KEYS; }

    // −∞ for keys after a row's last.
    __device__ __forceinline__ void mask(Scores& S_ij, int h) {
        const int thread = thread_index(), lane = thread % 32, row = 64 * w + thread / 32 * 16 + lane / 4;
        const int top = first_query(p, sram.row_block(q).i), left = h * KEYS + lane % 4 * (keys_contiguous ? 4 : 2);
        int end[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
            end[r] = (causal ? min(p.N_k, end_of<causal>(p, top) + row + 8 * r) : p.N_k) - left;
#pragma unroll
        for (int t = 0; t < KEYS / 8; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int key = (keys_contiguous ? t % apart * 16 + t / apart * 2 : 8 * t) + e % 2;
                if (key >= end[e / 2]) S_ij[t][e] = -INFINITY;
            }
    }

    // Compute S_ij of half h while O_i of half h + 1 is summed, and its P̃_ij. The first S_ij is there already. Upper halves come
    // before lower ones.
    template <bool upper, bool first, bool maxima> __device__ __forceinline__ void step(int h) {
        if (!first) {
            start_scores_8(S_ij, Q_w, K_half(n, upper));
            start_values_8(O_i, P_ij, upper ? V_half(n - 1, false) : V_half(n, true));
            if (maxima) finish(O_i, S_ij);  // registers do not suffice for more overlap
            else finish<1>(S_ij);
        }
        const bool K_came = !upper && sram.K_j.is_there(n + 1);  // read early
        bool grown = false, fits = true;
        float alpha[2], sums[2];
        if (maxima) {
            if (h >= whole) mask(S_ij, h);
            grown = softmax<KEYS, false, 0, OFFSET>(S_ij, rows, alpha, p.c);
        } else {
            fits = weights(S_ij, rows, sums, p.c);
        }
        Word P_next[KEYS / 32][4];
        round_to_operands_8<apart>(P_next, S_ij);
        if (upper || first) sram.V_j.wait_there(n);
        if (!upper && h > 0 && !K_came) sram.K_j.wait_there(n + 1);
        if (!first) {
            if (!maxima) finish<0>(O_i);
            if (upper) sram.V_j.evict(n - 1);
        }
        if (!fits) {
            grown = mend<OFFSET>(S_ij, rows, sums, alpha, p.c);
            Tally(totals + (grown ? 12 : 13)).add(threadIdx.x % 32 == 0, 1);
            if (!grown) {
                const int warp = thread_index() / 32;
                scores_of_a_warp(S_ij, sram.Q_i.tile(q) + (w * 64 + warp * 16) * d, K_half(n, upper));
                grown = softmax<KEYS, false, 0, OFFSET>(S_ij, rows, alpha, p.c);
            }
            round_to_operands_8<apart>(P_next, S_ij);
        } else if (!maxima) {
            rows.l[0] += sums[0], rows.l[1] += sums[1];
        }
#pragma unroll
        for (int x = 0; x < KEYS / 32; ++x)
#pragma unroll
            for (int e = 0; e < 4; ++e) P_ij[x][e] = P_next[x][e];
        if (!first && grown) rescale<d>(O_i, alpha);
        if (!upper) sram.K_j.evict(n), ++n;
    }

    // P̃_ij and O_i of halves h to 0, except P̃_i0 V_0. At most two of them need masks.
    __device__ __forceinline__ void sum(int h) {
        int j = h / 2 - 1;
        if (h % 2 == 1) {
            step<true, true, true>(h);
            h - 1 >= whole ? step<false, false, true>(h - 1) : step<false, false, false>(h - 1);
        } else {
            step<false, true, true>(h);
            if (j >= 0) {
                h - 1 >= whole ? step<true, false, true>(h - 1) : step<true, false, false>(h - 1);
                step<false, false, false>(h - 2);
                --j;
            }
        }
#pragma unroll 1
        for (; j >= 0; --j) {
            step<true, false, false>(2 * j + 1);
            step<false, false, false>(2 * j);
        }
        sram.Q_i.evict(q);
    }

    // The q-th row block's last half for this warpgroup; −1 if it sees none, −2 if there is no such row block.
    __device__ __forceinline__ int last_half(Word q) {
        sram.Q_i.wait_there(q);
        const int i = sram.row_block(q).i;
        if (i < 0) return -2;
        if (p.sign != 1.0f) apply_sign<B_r, HALF>(sram.Q_i.tile(q) + w * 64 * d, p.sign, TOGETHER + w, 0x80808080);
        const int top = first_query(p, i), halves = halves_seen<causal>(p, top + 64 * w);
        skipped = tiles_seen<causal>(p, top) - (halves + 1) / 2;
        return halves - 1;
    }

    // Start S_ij of its last half h. If there is none, start any product: one must be under way on all paths, or on none.
    __device__ __forceinline__ void start_first(Word q, int h) {
        Word at = n;
        if (h >= 0) {
            for (; at < n + skipped; ++at) sram.K_j.wait_there(at), sram.K_j.evict(at);
            sram.K_j.wait_there(at);
        }
        load_Q(q);
        start_scores_8(S_ij, Q_w, K_half(at, h % 2 == 1));
    }

    // Free the tiles at the start that its rows do not see; K's only if the rows see no tile at all.
    __device__ __forceinline__ void skip(bool K_too) {
        for (; skipped > 0; --skipped, ++n) {
            if (K_too) sram.K_j.wait_there(n), sram.K_j.evict(n);
            sram.V_j.wait_there(n), sram.V_j.evict(n);
        }
    }

    // O_i ← diag(ℓ_i)⁻¹ O_i and L_i.
    __device__ __forceinline__ void write(const TensorMap& O, float* L, char* O_w) {
        const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
        const RowBlock at = sram.row_block(q);
        if (thread == 0) wait_stores_read();
        meet(TOGETHER + w, WARPGROUP);
        float* const L_h = p.wants_L ? L + (Offset(at.b) * p.H + at.h) * p.N_q : nullptr;
        const int first = first_query(p, at.i) + 64 * w;
        float factor[2];
        rows.end(factor, L_h, first + 16 * warp + lane / 4, p.N_q, p.c, totals + 9, OFFSET);
        const Word row = __cvta_generic_to_shared(O_w) + (16 * warp + lane % 16) * 128;
        round_rows<__half, d, 64 * 128, d>(row, O_i, 0, factor);
        show_writes();
        meet(TOGETHER + w, WARPGROUP);
        if (thread == 0 && first >= 0) {  // a copy to HBM may end after the last query, but must not begin before the first
            store(O, first, at.h, at.b, __cvta_generic_to_shared(O_w));
            Tally(totals + 7).add(min(64, p.N_q - first), d);
        }
    }

    __device__ __forceinline__ void consume(char* shared, const TensorMap& O, float* L) {
        char* const O_w = shared + Memory::O_AT + w * 64 * d * 2;
        int h = last_half(q);
        start_first(q, h);
        finish<0>(S_ij);
#pragma unroll 1
        for (; h >= -1; ++q) {
            whole = whole_halves<causal>(p, first_query(p, sram.row_block(q).i) + 64 * w);
            fill(O_i, 0.0f);
            rows.init();
            skip(h < 0);
            if (h >= 0) {
                sum(h);
                start_values_8(O_i, P_ij, V_half(n - 1, false));
                h = last_half(q + 1);
                start_first(q + 1, h);
                finish<1>(O_i);
                sram.V_j.evict(n - 1);
                write(O, L, O_w);
            } else {
                sram.Q_i.evict(q);
                write(O, L, O_w);
                h = last_half(q + 1);
                start_first(q + 1, h);
            }
            finish<0>(S_ij);
        }
        if (thread_index() == 0) wait_stores();
    }
};

template <bool causal, bool keys_contiguous, int OFFSET>
__global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
hopper_fp8(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
           const __grid_constant__ TensorMap O, float* L, char* transposed, const __grid_constant__ Counters counters,
           const __grid_constant__ Problem p, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    const Memory sram(shared);
    sram.init();
    if (threadIdx.x < WARPGROUP) {
        keep_registers<32>();
        if (threadIdx.x >= 32) {
            if (!keys_contiguous) transpose(sram, V, transposed, counters, p, totals);
        } else if (threadIdx.x == 0) {
            produce<causal, keys_contiguous>(sram, Q, K, V, transposed, counters, p, totals);
        }
    } else {
        take_registers<160>();
        const int w = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // shows the compiler that a warp shares it
        Consumer<causal, keys_contiguous, OFFSET> consumer(sram, p, w, totals);
        consumer.consume(shared, O, L);
    }
}
