// Decoding on Hopper: few queries, a long cache of keys and values (FlashDecoding); fp16 or bf16, sums in fp32.
//
// All queries that share a KV head, of the group's heads and of several positions, are the rows of one tile: row r is query
// r / group of the group's head r mod group. There are at most 64; the other rows are zeros. The steps are those of hopper.cu.
//
// Flat list of tiles. Each KV head has T_c tiles of B_c keys; T is the sum over heads. Of G blocks of threads, the b-th takes
// tiles ⌊bT/G⌋ to ⌊(b+1)T/G⌋ − 1. If one block has all tiles of a head, it writes O. Other heads are cut: each block has a part
// (O, ℓ, m), neither divided nor rounded. If heads are cut alike, the blocks of a cluster merge their parts by reading each
// other's shared memory. A second kernel merges what is still in parts. Block b's part of a head is at place b + head, which no
// other part has. `choose_cut` of hopper_decode.py decides how many blocks there are.
//
// Paged: a head is cut into T_c runs of equally many pages; some may be empty. A table's word says which page of the pool has a
// sequence's keys from p·j on. The last page is copied whole, and V's rows after the last key become 0, since 0 · NaN is NaN.
//
//     d      B_r × B_c    blocks on a multiprocessor, shared memory of each     registers: S_ij + P̃_ij + O_i of at most 168
//     128    64 × 64      2: Q + 2 K_j + 2 V_j = 16 + 32 + 32 = 80 KB           32 + 16 + 64
//     64     64 × 64      2: Q + 4 K_j + 4 V_j = 8 + 32 + 32 = 72 KB            32 + 16 + 32
//
// Roles: one warpgroup computes, and one more warp copies. Order of events; time runs to the right:
//     producer        K_0, V_0   K_1, V_1   K_2 as soon as there is room, across heads
//     tensor cores    S_0                     O += P̃_0 V_0, S_1                 O += P̃_1 V_1, S_2
//     registers             P̃_0 = 2^(…)                          P̃_1 = 2^(…)
//
// Within a block, nothing overlaps. HBM is busy if 64 KB per multiprocessor are on their way; here there are up to 128 KB.
//
// HBM, in elements (flashsim.count, exactly). A head that is not split moves as much as "q_outer" with a group's heads together,
// and a head in t parts as much as "split_kv" with splits = t. Paged, it is "paged" and "paged_split" of flashsim.serving with
// tail = "page". But in a cluster, each block reads Q and, if paged, the length.
// Roofline. HBM: a copy reaches 4.2 TB/s of an H200's 4.8, and reading alone 4.4 to 4.6. What was tried: docs/gpu-tried.md.
// no spills, no stack
#include "hopper_parts.cuh"

constexpr int ROWS = 64;  // B_r
constexpr int THREADS = WARPGROUP + 32;
constexpr int B_c = 64;
constexpr int TOGETHER = 1, READY = 2;  // named barriers: for the warps that compute; for all, once barriers are set up

// Paged: a block has keys `begin` to `end` − 1 of n keys.
struct Run {
    int begin, end, n;
};

// ------------------------------------------------------------------------------------------------------------- shared memory

// Q | K_j, K_{j+1}, … | V_j, V_{j+1}, … | barriers | the run
template <int d> struct Memory {
    static constexpr int STAGES = 256 / d, Q_BYTES = ROWS * d * 2, KV_BYTES = B_c * d * 2, V_AT = Q_BYTES + STAGES * KV_BYTES;
    static constexpr int END = V_AT + STAGES * KV_BYTES;
    typedef Ring<STAGES, KV_BYTES> RingKV;
    Word Q;
    RingKV K_j, V_j;
    Run& run;

    __device__ explicit Memory(char* shared) : run(*reinterpret_cast<Run*>(shared + END + 2 * RingKV::BARRIER_BYTES)) {
        Q = __cvta_generic_to_shared(shared);
        K_j = {Q + Q_BYTES, Q + END};
        V_j = {Q + V_AT, Q + END + RingKV::BARRIER_BYTES};
    }
    __device__ void init() const {
        K_j.init(4), V_j.init(4);  // each warp arrives once
        show_barriers();
    }
};

// -------------------------------------------------------------------------------------------------------------- producer

// One thread starts all loads of K and V: K_j, V_j, K_{j+1}, …, head after head.
template <int d>
__device__ __forceinline__ void produce(const Memory<d>& sram, const TensorMap& K, const TensorMap& V, const Problem& p,
                                        Offset first, Offset end, Total* totals) {
    Tally K_reads(totals + 2), V_reads(totals + 4);
    const Total policy = evict_first();
    int head = int(first / p.T_c), j = int(first % p.T_c);
    Word kv = 0;
#pragma unroll 1
    for (Offset tile = first; tile < end; ++tile, ++kv) {
        const int h = head % p.H_kv, b = head / p.H_kv, keys = min(B_c, p.N_k - j * B_c);
        load_once(sram.K_j, kv, K, j * B_c, h, b, policy);
        load_once(sram.V_j, kv, V, j * B_c, h, b, policy);
        K_reads.add(keys, d), V_reads.add(keys, d);
        if (++j == p.T_c) j = 0, ++head;
    }
}

// The table's words for a run's pages: 32 at a time, one per lane, while the next 32 are on their way.
struct Words {
    const Word* const from;
    const int pages;
    Tally& reads;
    Word here, ahead;

    __device__ Words(const Word* from, int pages, Tally& reads) : from(from), pages(pages), reads(reads) {
        here = ask(0), ahead = ask(32);
    }
    __device__ Word ask(int first) const {
        const int at = first + threadIdx.x % 32;
        reads.add(at < pages, 1);
        return at < pages ? __ldcg(from + at) : 0;
    }
    __device__ void turn(int first) { here = ahead, ahead = ask(first + 32); }
};

// Paged: a warp finds which keys the block has, and starts all loads, with a lane for each piece.
template <int d>
__device__ __forceinline__ void produce_paged(const Memory<d>& sram, const TensorMap& K, const TensorMap& V, const Problem& p,
                                              int head, int part, Total* totals) {
    constexpr int HALVES = d / HALF;
    Tally K_reads(totals + 2), V_reads(totals + 4), table_reads(totals + 16), length_reads(totals + 18);
    const Total policy = evict_first();
    const int lane = threadIdx.x % 32, s = head / p.H_kv, h = head % p.H_kv;
    Word n = 0;
    if (lane == 0) n = __ldcg(p.lengths + s);
    length_reads.add(lane == 0, 1);
    n = __shfl_sync(~0u, n, 0);
    const int of_sequence = (int(n) + p.page - 1) / p.page, each = (of_sequence + p.T_c - 1) / p.T_c;
    const int first = min(part * each, of_sequence), pages = min(each, of_sequence - first);
    const int keys = min(pages * p.page, int(n) - first * p.page);  // of the run
    if (lane == 0) sram.run = {first * p.page, first * p.page + keys, int(n)};
    __syncwarp();
    come(READY, THREADS);
    const int rows = min(p.page, B_c), piece = lane / HALVES, half = lane % HALVES;
    Words words(p.table + Offset(s) * p.width + first, pages, table_reads);
    const auto start = [&](Word tile, const TensorMap& X, int row, Word page, int pieces, Barrier there) {
        if (lane == 0) there.arrive_and_expect(pieces * rows * HALVES * 128);
        __syncwarp();
        if (piece < pieces) load_once(tile + half * (B_c * 128) + piece * rows * 128, X, row, half, h, page, there, policy);
    };
    Word kv = 0;
    int seen = 0;  // pages before those in `words`
#pragma unroll 1
    for (int at = 0; at < keys; at += B_c, ++kv) {
        if (at / p.page >= seen + 32) words.turn(seen += 32);
        const int pieces = min(B_c / rows, (pages * p.page - at) / rows);
        const int key = at + min(piece, pieces - 1) * rows, page = key / p.page, row = key - page * p.page;
        const Word b = __shfl_sync(~0u, words.here, page % 32);
        if (b >= Word(p.pages)) __trap();  // not a page of the pool: stop
        sram.K_j.wait_free(kv);
        start(sram.K_j.tile(kv), K, row, b, pieces, sram.K_j.there(kv));
        sram.V_j.wait_free(kv);
        start(sram.V_j.tile(kv), V, row, b, pieces, sram.V_j.there(kv));
        if (lane == 0) K_reads.add(pieces * rows, d), V_reads.add(pieces * rows, d);
    }
}

// ------------------------------------------------------------------------------------------------------------- consumer

// The warpgroup that has all rows. A thread shares two rows, row and row + 8, with three other lanes.
template <typename T, int d, int cluster, bool paged> struct Consumer {
    const Memory<d>& sram;
    const Problem& p;
    const int lane, row;
    Word kv = 0;  // tiles of K and V so far

    Rows rows;
    float S_ij[B_c / 8][4], O_i[d / 8][4];
    Word P_ij[B_c / 16][4];

    __device__ __forceinline__ Consumer(const Memory<d>& sram, const Problem& p)
        : sram(sram), p(p), lane(threadIdx.x % 32), row(threadIdx.x / 32 * 16 + lane / 4) {}

    // The keys of the tiles: all of a head's, or those of a run.
    __device__ __forceinline__ Run its_run() const { return paged ? sram.run : Run{0, p.N_k, p.N_k}; }

    // Start loading a head's rows of Q to registers, 16 bytes at a time. Rows that do not exist are 0.
    static constexpr int CHUNKS = ROWS * (d / 8) / WARPGROUP;
    __device__ __forceinline__ void ask_for_Q(uint4 (&chunks)[CHUNKS], const T* Q, int head, Tally& Q_reads) const {
        Q += head / p.H_kv * p.Q.batch + head % p.H_kv * p.group * p.Q.head;
#pragma unroll
        for (int x = 0; x < CHUNKS; ++x) {
            const int at = threadIdx.x + x * WARPGROUP, r = at / (d / 8), column = at % (d / 8) * 8;
            chunks[x] = make_uint4(0, 0, 0, 0);
            if (r < p.rows && p.sign != 0.0f)
                chunks[x] = __ldcg(reinterpret_cast<const uint4*>(Q + r % p.group * p.Q.head + r / p.group * p.Q.row + column));
            Q_reads.add(r < p.rows, 8);
        }
    }
    // Multiply them by the sign, and write them to shared memory.
    __device__ __forceinline__ void put_Q(uint4 (&chunks)[CHUNKS], char* shared) const {
        const Word flip = p.sign < 0.0f ? 0x80008000 : 0;
#pragma unroll
        for (int x = 0; x < CHUNKS; ++x) {
            const int at = threadIdx.x + x * WARPGROUP, r = at / (d / 8), chunk = at % (d / 8), half = chunk / 8;
            uint4& eight = chunks[x];
            eight.x ^= flip, eight.y ^= flip, eight.z ^= flip, eight.w ^= flip;
            *reinterpret_cast<uint4*>(shared + half * (ROWS * 128) + r * 128 + ((chunk % 8 ^ r % 8) << 4)) = eight;
        }
        show_writes();
        meet(TOGETHER, WARPGROUP);
    }

    // −∞ for keys that a row does not see.
    __device__ __forceinline__ void mask(int j) {
        int end[2];
        const Run run = its_run();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int sees = p.causal ? min(run.end, run.n - p.N_q + (row + 8 * r) / p.group + 1) : run.end;
            end[r] = sees - run.begin - j * B_c - lane % 4 * 2;
        }
        mask_where(S_ij, [&](int column, int r) { return column >= end[r]; });
    }

    // S_ij becomes P̃_ij, and O_i is multiplied by α if a maximum has grown. In whole tiles, maxima are seldom computed.
    __device__ __forceinline__ void weigh(int j, int whole) {
        float alpha[2], sum[2];
        if (j < whole && !rows.exact() && softmax_as_before<T, B_c>(P_ij, S_ij, rows, sum, p.c)) return;
        if (j >= whole) mask(j);
        const bool grown = softmax<B_c, true>(S_ij, rows, alpha, p.c);
        round_to_operands<T, B_c>(P_ij, S_ij);
        if (grown) rescale<d>(O_i, alpha);
    }

    // O_i, ℓ_i, m_i of tiles begin to end − 1 of a head.
    __device__ __forceinline__ void attend(int begin, int end, int whole) {
        fill(O_i, 0.0f);
        rows.init();
        if (paged && begin >= end) return;
        sram.K_j.wait_there(kv);
        start_scores<T, d, B_c>(S_ij, sram.Q, ROWS, sram.K_j.tile(kv));
        finish<0>(S_ij);
        sram.K_j.evict(kv);
#pragma unroll 1
        for (int j = begin; j < end - 1; ++j, ++kv) {
            weigh(j, whole);
            sram.V_j.wait_there(kv);
            start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(kv));
            sram.K_j.wait_there(kv + 1);
            start_scores<T, d, B_c>(S_ij, sram.Q, ROWS, sram.K_j.tile(kv + 1));
            finish<1>(O_i);
            sram.V_j.evict(kv);
            finish<0>(S_ij);
            sram.K_j.evict(kv + 1);
        }
        weigh(end - 1, whole);
        sram.V_j.wait_there(kv);
        if (paged) {
            const Run run = its_run();
            if ((run.end - run.begin) % B_c) clear_rows<d, B_c>(sram.V_j.tile(kv), (run.end - run.begin) % B_c, TOGETHER);
        }
        start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(kv));
        finish<0>(O_i);
        sram.V_j.evict(kv);
        ++kv;
    }

    // O_i ← diag(ℓ_i)⁻¹ O_i and L_i of a head that is not split. They go through Q's place, so that whole rows are stored
    // together.
    __device__ __forceinline__ void write(const Results<T>& to, char* shared, int head) {
        char* const mine = shared + threadIdx.x / 32 * 2048;  // 16 rows of Q
        meet(TOGETHER, WARPGROUP);                            // Q is no longer read
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int below = lane / 4 + 8 * r;
            const float factor = __fdividef(1.0f, nonzero(rows.l[r]));
            if (p.wants_L && lane % 4 == 0 && row + 8 * r < p.rows) {
                to.L[place(p, head, row + 8 * r)] = rows.L(r, p.c);
                Tally(to.totals + 9).add(1, 1);
            }
#pragma unroll
            for (int t = 0; t < d / 8; ++t)
                *reinterpret_cast<Word*>(mine + t / 8 * (ROWS * 128) + below * 128 + ((t % 8 ^ below % 8) << 4) + lane % 4 * 4) =
                    pack<T>(O_i[t][2 * r] * factor, O_i[t][2 * r + 1] * factor);
        }
        __syncwarp();
#pragma unroll 4
        for (int at = lane; at < 16 * (d / 8); at += 32) {
            const int below = at / (d / 8), chunk = at % (d / 8), r = threadIdx.x / 32 * 16 + below;
            if (r >= p.rows) continue;
            const char* const eight = mine + chunk / 8 * (ROWS * 128) + below * 128 + ((chunk % 8 ^ below % 8) << 4);
            *reinterpret_cast<uint4*>(to.O + place(p, head, r) * d + 8 * chunk) = *reinterpret_cast<const uint4*>(eight);
            Tally(to.totals + 7).add(1, 8);
        }
    }

    // Store O_i, ℓ_i, m_i as a part of a head. The place of a warp's rows of Q has room for 8 of its 16 rows in fp32.
    __device__ __forceinline__ void leave(const Results<T>& to, char* shared, Offset part) {
        char* const mine = shared + threadIdx.x / 32 * 2048;
        meet(TOGETHER, WARPGROUP);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float factor = rounding(rows, r, p.c);
            if (lane % 4 == 0 && row + 8 * r < p.rows) {
                const Offset at = part * p.rows + row + 8 * r;
                to.l_parts[at] = rows.l[r] * factor, to.m_parts[at] = rows.m[r];
                Tally(to.totals + 13).add(1, 1), Tally(to.totals + 15).add(1, 1);
            }
#pragma unroll
            for (int t = 0; t < d / 8; ++t) {
                const int chunk = t % 8 * 2 + lane % 4 / 2;
                *reinterpret_cast<float2*>(mine + t / 8 * (ROWS * 128) + lane / 4 * 256 + ((chunk ^ lane / 4 * 2) << 4) + lane % 2 * 8) =
                    make_float2(O_i[t][2 * r] * factor, O_i[t][2 * r + 1] * factor);
            }
            __syncwarp();
#pragma unroll 4
            for (int at = lane; at < 8 * (d / 4); at += 32) {
                const int below = at / (d / 4), chunk = at % (d / 4), of = threadIdx.x / 32 * 16 + 8 * r + below;
                if (of >= p.rows) continue;
                const char* const four = mine + chunk / 16 * (ROWS * 128) + below * 256 + ((chunk % 16 ^ below * 2) << 4);
                __stcg(reinterpret_cast<float4*>(to.O_parts + (part * p.rows + of) * d + 4 * chunk), *reinterpret_cast<const float4*>(four));
                Tally(to.totals + 11).add(1, 4);
            }
            __syncwarp();
        }
    }

    __device__ __forceinline__ void consume(char* shared, const T* Q, const Results<T>& to, Offset first, Offset end) {
        Tally Q_reads(to.totals);
        int head = int(first / p.T_c), j = int(first % p.T_c);
#pragma unroll 1
        for (Offset tile = first; tile < end; ++head, j = 0) {
            const int last = int(min(Offset(p.T_c), j + (end - tile)));
            uint4 chunks[CHUNKS];
            ask_for_Q(chunks, Q, head, Q_reads);
            tile == first ? meet(READY, THREADS) : meet(TOGETHER, WARPGROUP);  // all warps have finished the last head
            put_Q(chunks, shared);
            const Run run = its_run();
            const int whole = (p.causal ? min(run.end, run.n - p.N_q + 1) - run.begin : run.end - run.begin) / B_c;
            paged ? attend(0, (run.end - run.begin + B_c - 1) / B_c, whole) : attend(j, last, whole);
            rows.sum_l();
            if (cluster > 1) {  // each block has just one part of one head
                char* const ring = shared + Memory<d>::Q_BYTES;
                meet(TOGETHER, WARPGROUP);  // the last V_j is no longer read
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    if (row + 8 * r < p.rows) show<d>(ring + (row + 8 * r) * SHOWN<d>, O_i, rows, r, p.c);
                meet_cluster();
                merge_shown<d, cluster>(sram.K_j.tiles, p, to, head, 0, p.rows, Offset(blockIdx.x / cluster) + head,
                                        gridDim.x == p.heads * cluster, threadIdx.x / 32, 4);
                meet_cluster();  // a block must not end while another reads its shared memory
            } else if (last - j == p.T_c)
                write(to, shared, head);
            else
                leave(to, shared, Offset(blockIdx.x) + head);
            tile += last - j;
        }
    }
};

template <typename T, int d, int cluster, bool paged>
__global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(THREADS, 2)
hopper_decode(const T* Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V, T* O, float* L,
              float* O_parts, float* l_parts, float* m_parts, const __grid_constant__ Problem p, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    start_next_kernel();
    const Memory<d> sram(shared);
    const Offset first = first_tile(p, blockIdx.x, gridDim.x), end = first_tile(p, blockIdx.x + 1, gridDim.x);
    if (threadIdx.x >= WARPGROUP) {
        const bool copies = threadIdx.x == WARPGROUP;
        if (copies) prefetch(K), prefetch(V), sram.init();
        if (paged) {
            produce_paged(sram, K, V, p, int(first / p.T_c), int(first % p.T_c), totals);
        } else {
            __syncwarp();
            come(READY, THREADS);  // without waiting
            if (copies) produce(sram, K, V, p, first, end, totals);
        }
    } else {
        Consumer<T, d, cluster, paged> consumer(sram, p);
        consumer.consume(shared, Q, {O, L, O_parts, l_parts, m_parts, totals}, first, end);
    }
}

// ---------------------------------------------------------------------------------------------------------------- merging

// Merge the parts of heads that were cut among `blocks` blocks to O and L. `share` of the block's 8 warps have a row.
template <typename T, int d>
__global__ void __launch_bounds__(256)
merge(T* O, float* L, const float* O_parts, const float* l_parts, const float* m_parts, int blocks, int share,
      const __grid_constant__ Problem p, Total* totals) {
    __shared__ float shared[8][d + 2];
    Tally O_parts_reads(totals + 10), l_parts_reads(totals + 12), m_parts_reads(totals + 14);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = blockIdx.x * (8 / share) + warp / share, head = row / p.rows, r = row % p.rows;
    const Offset first = Offset(head) * p.T_c;
    const int begin = block_of(p, first, blocks), end = block_of(p, first + p.T_c - 1, blocks) + 1;
    const bool split = head < p.heads && end - begin > 1;  // other heads were written by the block that had all their tiles
    Part<d> part;
    wait_for_kernel();
#pragma unroll 4
    for (int s = begin + warp % share; s < end * split; s += share) {
        const Offset at = (Offset(s) + head) * p.rows + r;
        float O_s[d / 32];
        const float m_s = __ldcg(m_parts + at), l_s = __ldcg(l_parts + at);
#pragma unroll
        for (int x = 0; x < d / 64; ++x) {
            const float2 two = __ldcg(reinterpret_cast<const float2*>(O_parts + at * d) + lane + 32 * x);
            O_s[2 * x] = two.x, O_s[2 * x + 1] = two.y;
        }
        part.add(m_s, l_s, O_s, p.c);
        m_parts_reads.add(lane == 0, 1), l_parts_reads.add(lane == 0, 1), O_parts_reads.add(1, d / 32);
    }
    if (share > 1) {
#pragma unroll
        for (int x = 0; x < d / 32; ++x) shared[warp][x * 32 + lane] = part.O[x];
        shared[warp][d] = part.m, shared[warp][d + 1] = part.l;
        __syncthreads();
        if (warp % share) return;
        for (int other = warp + 1; other < warp + share; ++other) {
            float O_s[d / 32];
#pragma unroll
            for (int x = 0; x < d / 32; ++x) O_s[x] = shared[other][x * 32 + lane];
            part.add(shared[other][d], shared[other][d + 1], O_s, p.c);
        }
    }
    if (split) part.write(Results<T>{O, L, nullptr, nullptr, nullptr, totals}, place(p, head, r), p);
}
