// FlashAttention, forward, in a narrow sliding window, d = 64, on Hopper: wgmma and TMA (hopper.cuh); fp16 or bf16, sums in fp32.
//
// The steps are those of hopper.cu. But where each query sees 256 keys at most it is not products that bind: it is HBM, if only
// it never has to wait. So K and V go by in a ring, as the window slides down a head, and every tile of them is loaded once.
//
// Queries come in strips of 64, of which four consumers, warpgroups, have every fourth. A strip sees a few tiles of 64 keys, three
// if the window reaches back 127 keys; the next strip sees all of these but one, and one more. Thus each tile that arrives is what
// the next strip waits for: the consumers do the same at different times, without barriers that make them, and what
// one of them does in registers the others cover.
//
//     tile          j−2    j−1    j      j+1    j+2    j+3    j+4    j+5  …     10 stages of K and of V
//     strip j       └──────────────┘ warpgroup 0                     └─ on their way
//     strip j+1            └──────────────┘ warpgroup 1
//     strip j+2                   └──────────────┘ 2
//     strip j+3                          └──────────────┘ 3
//
// A strip's order of events is a row block's in hopper.cu: from its last tile to its first. Then it lets go of the tiles that no
// later strip sees; a tile is free when all four consumers have let go of it. O_i leaves by TMA from where Q_i was.
//
//     B_r × B_c    consumers × registers, producer's    shared memory: 8 Q_i + 10 K_j + 10 V_j
//     64 × 64      4 × 112, 32                          64 + 80 + 80 = 224 KB
//
// One block a multiprocessor draws run after run, each `run` times four strips of a head, one below the other.
//
// HBM, in elements a head (flashsim.count("q_outer", …), to the element, where B_r is a run's rows): Q, O, L once, live tiles of
// K and V once a run.
//
// no spills, no stack
#include "hopper_softmax.cuh"

constexpr int CONSUMERS = 4, ROWS = 64, B_c = 64, d = 64;
constexpr int TILE = 64 * d * 2;  // bytes of Q_i, of K_j, of V_j, of O_i
constexpr int STAGES = 10, Q_STAGES = 2 * CONSUMERS;

struct Problem {
    int N_q, N_k, H, group, fours;  // H query heads, `group` to a KV head; strips of a head, four by four
    int run, runs;                  // how many fours make a run; runs of all heads
    int left, right, wants_L;       // the window: keys from position − left to position + right
    float c, sign;                  // as in hopper.cu
};

// The keys that row 0 of strip s sees, from the first to before the second; of row r they are r further on.
__device__ inline int begin_of(const Problem& p, int s) { return p.N_k - p.N_q + s * ROWS - p.left; }
__device__ inline int end_of(const Problem& p, int s) { return p.N_k - p.N_q + s * ROWS + p.right + 1; }

// The tiles that strip s sees, from the first to before the second.
__device__ inline int first_tile(const Problem& p, int s) { return max(0, begin_of(p, s)) / B_c; }
__device__ inline int end_tile(const Problem& p, int s) {
    return (min(p.N_k, max(0, end_of(p, s) + ROWS - 1)) + B_c - 1) / B_c;
}

// Four strips from s on, of query head h of batch b; none: s < 0. Tile j is the (tile_0 + j)-th in the ring. They begin with tile
// `begin`; tiles before `next` no later strip of the run sees.
struct Four {
    int s, h, b, begin, next;
    Word tile_0;
};

constexpr int TOGETHER = 8;  // named barrier TOGETHER + w: all of warpgroup w

// ------------------------------------------------------------------------------------------------------------- shared memory

// Q_i, and O_i in its place | K_j | V_j | barriers | which strips
struct Memory {
    static constexpr int K_AT = Q_STAGES * TILE, V_AT = K_AT + STAGES * TILE, END = V_AT + STAGES * TILE;
    typedef Ring<Q_STAGES, TILE> RingQ;
    typedef Ring<STAGES, TILE> RingKV;
    RingQ Q_i;
    RingKV K_j, V_j;
    Four* fours;

    __device__ explicit Memory(char* shared) {
        const Word base = __cvta_generic_to_shared(shared);
        Q_i = {base, base + END};
        K_j = {base + K_AT, base + END + RingQ::BARRIER_BYTES};
        V_j = {base + V_AT, base + END + RingQ::BARRIER_BYTES + RingKV::BARRIER_BYTES};
        fours = reinterpret_cast<Four*>(shared + END + RingQ::BARRIER_BYTES + 2 * RingKV::BARRIER_BYTES);
    }
    __device__ Four& four(Word q) const { return fours[q % 4]; }  // there as long as anybody is at the q-th
    __device__ void init() const {
        if (threadIdx.x == 0) Q_i.init(1), K_j.init(4 * CONSUMERS), V_j.init(4 * CONSUMERS);  // a thread; a warp each
        publish_barriers();
    }
};

// -------------------------------------------------------------------------------------------------------------- producer

// One thread starts all loads, of run after run: each Q_i, and then those of its tiles that no strip above has had.
__device__ __forceinline__ void produce(const Memory& sram, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                                        Word* counter, const Problem& p, Total* totals) {
    Tally Q_reads(totals), K_reads(totals + 2), V_reads(totals + 4);
    const int runs_a_head = (p.fours + p.run - 1) / p.run;
    int n = blockIdx.x;
    Word kv = 0, strip = 0;  // tiles of K and V, and strips, so far
#pragma unroll 1
    while (n < p.runs) {
        const int head = n / runs_a_head, h = head % p.H, b = head / p.H;
        int s = n % runs_a_head * p.run * 4, j = first_tile(p, s);
        const int end = min(p.fours * 4, s + p.run * 4);
        const Word tile_0 = kv - j;
        n = gridDim.x + atomicInc(counter, p.runs - 1);  // as often as there are runs, so 0 at the end
#pragma unroll 1
        for (; s < end; ++s, ++strip) {
            sram.Q_i.wait_free(strip);
            if (s % 4 == 0)
                sram.four(strip / 4) = {s, h, b, first_tile(p, s), s + 4 < end ? first_tile(p, s + 4) : end_tile(p, s + 3), tile_0};
            sram.Q_i.there(strip).arrive_and_expect(TILE);
            load(sram.Q_i.tile(strip), Q, s * ROWS, h, b, sram.Q_i.there(strip));
            Q_reads.add(min(ROWS, p.N_q - s * ROWS), d);
#pragma unroll 1
            for (; j < end_tile(p, s); ++j, ++kv) {
                sram.K_j.wait_free(kv);
                sram.K_j.there(kv).arrive_and_expect(TILE);
                load(sram.K_j.tile(kv), K, j * B_c, h / p.group, b, sram.K_j.there(kv));
                sram.V_j.wait_free(kv);
                sram.V_j.there(kv).arrive_and_expect(TILE);
                load(sram.V_j.tile(kv), V, j * B_c, h / p.group, b, sram.V_j.there(kv));
                K_reads.add(min(B_c, p.N_k - j * B_c), d), V_reads.add(min(B_c, p.N_k - j * B_c), d);
            }
        }
    }
    for (int w = 0; w < CONSUMERS; ++w, ++strip) {
        sram.Q_i.wait_free(strip);
        if (w == 0) sram.four(strip / 4).s = -CONSUMERS;
        sram.Q_i.there(strip).arrive();
    }
}

// ------------------------------------------------------------------------------------------------------------- consumers

// A warpgroup, which has the w-th strip of every four. A thread has two rows, row and row + 8, with three other lanes.
template <typename T> struct Consumer {
    const Memory& sram;
    const Problem& p;
    const int w;
    Word q = 0;        // fours so far
    Word tile_0;       // plus j: tile j's number in the ring
    int s, first;      // this strip, and its first tile
    int whole_begin, whole_end;  // its tiles without a mask

    Rows rows;
    float S_ij[B_c / 8][4], O_i[d / 8][4];
    Word P_ij[B_c / 16][4];

    __device__ __forceinline__ Consumer(const Memory& sram, const Problem& p, int w) : sram(sram), p(p), w(w) {}

    __device__ __forceinline__ Word strip() const { return CONSUMERS * q + w; }

    // −∞ for keys that a row does not see: those after its last, and before its first.
    __device__ __forceinline__ void mask(int j) {
        const int thread = thread_index(), lane = thread % 32, row = thread / 32 * 16 + lane / 4, left = j * B_c + lane % 4 * 2;
        if (j >= whole_end) {
            const int end = end_of(p, s) + row, least = min(p.N_k, end) - left, other = min(p.N_k, end + 8) - left;
#pragma unroll
            for (int t = 0; t < B_c / 8; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (8 * t + e % 2 >= (e < 2 ? least : other)) S_ij[t][e] = -INFINITY;
        }
        if (j < whole_begin) {
            const int begin = begin_of(p, s) + row - left;
#pragma unroll
            for (int t = 0; t < B_c / 8; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (8 * t + e % 2 < begin + e / 2 * 8) S_ij[t][e] = -INFINITY;
        }
    }

    // S_ij, P̃_ij of the last tile.
    __device__ __forceinline__ void begin(int j) {
        sram.K_j.wait_there(tile_0 + j);
        start_scores<T, d, B_c>(S_ij, sram.Q_i.tile(strip()), ROWS, sram.K_j.tile(tile_0 + j));
        finish<0>(S_ij);
        mask(j);
        float alpha[2];
        softmax<B_c, true>(S_ij, rows, alpha, p.c);
        round_to_operands<T, B_c>(P_ij, S_ij);
    }

    // S_ij, P̃_ij of tile j while O_i of tile j + 1 is summed.
    __device__ __forceinline__ void advance(int j) {
        start_scores<T, d, B_c>(S_ij, sram.Q_i.tile(strip()), ROWS, sram.K_j.tile(tile_0 + j));
        sram.V_j.wait_there(tile_0 + j + 1);
        start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(tile_0 + j + 1));
        finish<1>(S_ij);
        mask(j);
        float alpha[2];
        const bool grown = softmax<B_c, true>(S_ij, rows, alpha, p.c);
        if (rows.l[0] + rows.l[1] < 0.0f) __trap();  // never: so the compiler leaves the exponentials above what waits for O_i
        sram.V_j.wait_there(tile_0 + j);
        finish<0>(O_i);
        round_to_operands<T, B_c>(P_ij, S_ij);
        if (grown) rescale<d>(O_i, alpha);
    }

    // O_i of the first tile.
    __device__ __forceinline__ void end(int j) {
        sram.V_j.wait_there(tile_0 + j);
        start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(tile_0 + j));
        finish<0>(O_i);
    }

    // Let go of tiles j to end − 1; those that this strip has not seen must have come.
    __device__ __forceinline__ void let_go(int j, int end) {
#pragma unroll 1
        for (; j < end; ++j) {
            sram.K_j.wait_there(tile_0 + j);
            sram.K_j.free(tile_0 + j).arrive_once_a_warp();
            sram.V_j.wait_there(tile_0 + j);
            sram.V_j.free(tile_0 + j).arrive_once_a_warp();
        }
    }

    // Let go of Q_i's place of the strip before, when TMA has read its O_i there.
    __device__ __forceinline__ void let_go_of_last() {
        if (q > 0 && thread_index() == 0) {
            wait_stores_read();
            sram.Q_i.free(strip() - CONSUMERS).arrive();
        }
    }

    // O_i ← diag(ℓ_i)⁻¹ O_i and L_i.
    __device__ __forceinline__ void write(const TensorMap& O, float* L, char* shared, Tally& O_writes, Tally& L_writes) {
        const int thread = thread_index(), lane = thread % 32, row = thread / 32 * 16 + lane / 4, h = sram.four(q).h;
        const int b = sram.four(q).b;
        char* const O_w = shared + strip() % Q_STAGES * TILE;
        L += (Offset(b) * p.H + h) * p.N_q;
        meet(TOGETHER + w, WARPGROUP);  // nobody reads Q_i any more
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float l = rows.l[r];
            l += __shfl_xor_sync(~0u, l, 1);
            l += __shfl_xor_sync(~0u, l, 2);
            const int below = row + 8 * r, query = s * ROWS + below;
            if (p.wants_L && lane % 4 == 0 && query < p.N_q) {
                L[query] = l == 0.0f ? -INFINITY : rows.m[r] * p.c * 0.693147180559945f + logf(l);
                L_writes.add(1, 1);
            }
            const float factor = __fdividef(1.0f, nonzero(l));
#pragma unroll
            for (int t = 0; t < d / 8; ++t)
                *reinterpret_cast<Word*>(O_w + below * 128 + ((t ^ below % 8) << 4) + lane % 4 * 4) =
                    pack<T>(O_i[t][2 * r] * factor, O_i[t][2 * r + 1] * factor);
        }
        show_writes();
        meet(TOGETHER + w, WARPGROUP);
        if (thread == 0) {
            store(O, s * ROWS, h, b, __cvta_generic_to_shared(O_w));
            O_writes.add(min(ROWS, p.N_q - s * ROWS), d);
        }
    }

    // Q_i times sign: scores of a negative τ, or of 0, by a positive c.
    __device__ __forceinline__ void apply_sign(char* Q_w) const {
#pragma unroll 1
        for (int of = thread_index(); of < TILE / 4; of += WARPGROUP) {
            Word& two = reinterpret_cast<Word*>(Q_w)[of];
            two = p.sign == 0.0f ? 0 : two ^ 0x80008000;
        }
        show_writes();
        meet(TOGETHER + w, WARPGROUP);
    }

    __device__ __forceinline__ void consume(char* shared, const TensorMap& O, float* L, Total* totals) {
        Tally O_writes(totals + 7), L_writes(totals + 9);
#pragma unroll 1
        for (;; ++q) {
            sram.Q_i.wait_there(strip());
            s = sram.four(q).s + w;
            if (s < 0) break;
            if (p.sign != 1.0f) apply_sign(shared + strip() % Q_STAGES * TILE);
            tile_0 = sram.four(q).tile_0;
            first = first_tile(p, s);
            const int last = s * ROWS < p.N_q ? end_tile(p, s) - 1 : -1;
            whole_begin = (max(0, begin_of(p, s) + ROWS - 1) + B_c - 1) / B_c;
            whole_end = min(p.N_k, max(0, end_of(p, s))) / B_c;
#pragma unroll
            for (int t = 0; t < d / 8; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) O_i[t][e] = 0.0f;
            rows.init();
            if (first <= last) begin(last);
            let_go_of_last();
            if (first <= last) {
#pragma unroll 1
                for (int j = last - 1; j >= first; --j) advance(j);
                end(first);
            }
            let_go(sram.four(q).begin, sram.four(q).next);
            write(O, L, shared, O_writes, L_writes);
        }
        if (thread_index() == 0) wait_stores();
    }
};

template <typename T>
__global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
hopper_window(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
              const __grid_constant__ TensorMap O, float* L, Word* counter, const __grid_constant__ Problem p, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    const Memory sram(shared);
    sram.init();
    if (threadIdx.x < WARPGROUP) {
        keep_registers<32>();
        if (threadIdx.x == 0) produce(sram, Q, K, V, counter, p, totals);
    } else {
        take_registers<112>();
        const int w = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // the same in a warp, for all the compiler sees
        Consumer<T> consumer(sram, p, w);
        consumer.consume(shared, O, L, totals);
    }
}
