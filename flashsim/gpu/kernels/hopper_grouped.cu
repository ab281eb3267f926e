// Few queries, but more than 64 of a KV head, on Hopper: wgmma and TMA (hopper.cuh); fp16 or bf16, sums in fp32.
//
// As in hopper_decode.cu, all queries that share a KV head are the rows of one problem: row r is query r / group of the group's
// head r mod group. A row block has as many whole queries, with all their heads, as fit into B_r rows; the other rows are zeros.
// The keys of each head are cut into `splits` parts. An item of work is one part of one row block. If there is one part, the
// consumers write O. Otherwise each item has (O, ℓ, m), neither divided nor rounded. The blocks of a cluster merge their parts by
// reading each other's shared memory, and `merge` of hopper_decode.cu merges what is still in parts. `choose_cut` of
// hopper_grouped.py decides. The steps are those of hopper.cu.
//
//     d      B_r × B_c    consumers × registers, producer's    shared memory: Q_i + K_j + V_j
//     128    128 × 128    2 × 232, 40                          32 + 2·32 + 2·32 = 160 KB
//     64     128 × 128    2 × 232, 40                          16 + 4·16 + 4·16 = 144 KB
//
// Roles. Each multiprocessor has one block of threads, which takes every G-th item. One thread of its producer starts all copies;
// two consumers, warpgroups, have 64 rows of Q_i each. The row blocks of a head that read the same keys are neighbours among
// the items, so that the L2 serves all but one of them.
//
// Order of events. Time runs to the right; tiles go from the last to the first.
//
//     producer        K_2, Q_i    K_1, V_2           K_0, V_1           V_0       next item: K, Q as soon as there is room
//     tensor cores    S_2         S_1   O += P̃_2 V_2   S_0   O += P̃_1 V_1   O += P̃_0 V_0
//     registers           P̃_2           P̃_1                P̃_0                    O, or (O, ℓ, m) ──> HBM
//
// HBM, in elements (flashsim.count, exactly): as "split_kv" with a group's heads together, or "q_outer" if there is one part. But
// in a cluster, each block reads Q.
// Roofline. HBM up to about 128 rows, tensor cores beyond. What was tried: docs/gpu-tried.md.
// no spills, no stack
#include "hopper_parts.cuh"

constexpr int B_r = 128, B_c = 128;
constexpr int CONSUMERS = B_r / 64;
constexpr int ALL = 7, TOGETHER = 8;  // named barriers: for all consumers; from there on, for each one's threads

// ----------------------------------------------------------------------------------------------------------------- items

// Tiles `begin` to `end` − 1 of KV head `head`, of all batch entries, for the row block whose first row is `top`; none if top < 0.
// Its part of the head is at place `part` among all parts.
struct Item {
    int top, head, part, begin, end;
};

// How heads are cut: rows of a row block, row blocks of a head, parts of its keys. The host divides once for all.
struct Cut {
    int rows, T_r, splits;
};

// How many keys a query sees.
__device__ inline int seen(const Problem& p, int query) {
    return p.causal ? min(p.N_k, max(0, p.N_k - p.N_q + query + 1)) : p.N_k;
}

// The n-th item. The row blocks of a head take turns; in clusters, the parts of a row block do.
template <int cluster> __device__ inline Item item(const Problem& p, const Cut& cut, int n) {
    const int splits = cut.splits, head = n / (splits * cut.T_r), of_head = n - head * (splits * cut.T_r);
    const int fast = cluster > 1 ? splits : cut.T_r, high = of_head / fast, low = of_head - high * fast;
    const int s = cluster > 1 ? low : high, top = (cluster > 1 ? high : low) * cut.rows;
    const int part = head * (splits / cluster + 1) + s / cluster;
    const int keys = p.causal ? seen(p, (min(top + cut.rows, p.rows) - 1) / p.group) : p.N_k;
    const int begin = int(Word(p.T_c) * s / splits), end = int(Word(p.T_c) * (s + 1) / splits);  // at most 128 splits
    return {top, head, part, begin, min(end, (keys + B_c - 1) / B_c)};
}

// ------------------------------------------------------------------------------------------------------------- shared memory

// Q_i | K_j, K_{j-1}, … | V_j, V_{j-1}, … | barriers | the item of Q_i, and the next one
template <int d> struct Memory {
    static constexpr int STAGES = 256 / d, Q_BYTES = B_r * d * 2, KV_BYTES = B_c * d * 2;
    static constexpr int V_AT = Q_BYTES + STAGES * KV_BYTES, END = V_AT + STAGES * KV_BYTES;
    typedef Ring<1, Q_BYTES> RingQ;
    typedef Ring<STAGES, KV_BYTES> RingKV;
    RingQ Q_i;
    static constexpr int BARRIERS = RingQ::BARRIER_BYTES + 2 * RingKV::BARRIER_BYTES;
    RingKV K_j, V_j;
    Item* items;

    __device__ explicit Memory(char* shared) : items(reinterpret_cast<Item*>(shared + END + BARRIERS)) {
        const Word all = __cvta_generic_to_shared(shared), barriers = all + END;
        Q_i = {all, barriers};
        K_j = {all + Q_BYTES, barriers + RingQ::BARRIER_BYTES};
        V_j = {all + V_AT, barriers + RingQ::BARRIER_BYTES + RingKV::BARRIER_BYTES};
    }
    __device__ Item& item(Word q) const { return items[q % 2]; }  // valid while a warp uses the q-th
    __device__ void init(char* shared, const Cut& cut) const {
        if (cut.rows < B_r) {  // rows that are in no row block: 0 · NaN is NaN, and a warp's rows decide together
            for (int at = threadIdx.x; at < Q_BYTES / 16; at += blockDim.x)
                reinterpret_cast<uint4*>(shared)[at] = make_uint4(0, 0, 0, 0);
            show_writes();
        }
        if (threadIdx.x == 0) Q_i.init(4 * CONSUMERS), K_j.init(4 * CONSUMERS), V_j.init(4 * CONSUMERS);
        publish_barriers();
    }
};

// -------------------------------------------------------------------------------------------------------------- producer

// One thread starts all loads, item after item: K_last, Q_i, K_{j-1}, V_j, …, V_first.
template <int cluster, int d>
__device__ __forceinline__ void produce(const Memory<d>& sram, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                                        const Problem& p, const Cut& cut, Total* totals) {
    Tally Q_reads(totals), K_reads(totals + 2), V_reads(totals + 4);
    const Total policy = evict_first();
    const int rows = cut.rows, items = p.heads * cut.splits * cut.T_r;
    Word kv = 0, q = 0;
#pragma unroll 1
    for (int n = blockIdx.x; n < items; n += gridDim.x, ++q) {
        const Item at = item<cluster>(p, cut, n);
        const int h = at.head % p.H_kv, b = at.head / p.H_kv;
        const auto load_K = [&](int j, Word kv) {
            load_once(sram.K_j, kv, K, j * B_c, h, b, policy);
            K_reads.add(min(B_c, p.N_k - j * B_c), d);
        };
        int j = at.end - 1;
        if (j >= at.begin) load_K(j, kv);
        sram.Q_i.wait_free(q);
        sram.item(q) = at;
        sram.Q_i.there(q).arrive_and_expect(rows * d * 2);
#pragma unroll
        for (int half = 0; half < d / HALF; ++half)  // 64 columns of all heads of the group
            load_box(sram.Q_i.tile(q) + half * B_r * 128, Q, half * HALF, 0, at.top / p.group, h, b, sram.Q_i.there(q));
        Q_reads.add(min(rows, p.rows - at.top), d);
#pragma unroll 1
        for (; j >= at.begin; --j, ++kv) {
            if (j > at.begin) load_K(j - 1, kv + 1);
            load_once(sram.V_j, kv, V, j * B_c, h, b, policy);
            V_reads.add(min(B_c, p.N_k - j * B_c), d);
        }
    }
    sram.Q_i.wait_free(q);
    sram.item(q).top = -1;
    sram.Q_i.there(q).arrive();
}

// ------------------------------------------------------------------------------------------------------------- consumers

// Four lanes have two columns each of four chunks of 8 columns. Afterwards each has a chunk: lane x the x-th.
__device__ __forceinline__ void to_chunks(Word (&four)[4], int lane) {
#pragma unroll
    for (int x = 0; x < 4; x += 2) {
        const Word from = __shfl_xor_sync(~0u, lane % 2 ? four[x] : four[x + 1], 1);
        (lane % 2 ? four[x] : four[x + 1]) = from;
    }
#pragma unroll
    for (int x = 0; x < 2; ++x) {
        const Word from = __shfl_xor_sync(~0u, lane / 2 ? four[x] : four[x + 2], 2);
        (lane / 2 ? four[x] : four[x + 2]) = from;
    }
}

// A warpgroup, with rows 64w to 64w + 63 of Q_i. A thread shares two rows, row and row + 8, with three other lanes.
template <typename T, int d, int cluster> struct Consumer {
    const Memory<d>& sram;
    const Problem& p;
    const Cut& cut;
    const int w;
    const Turn<true, CONSUMERS> turn;
    Word q = 0, n = 0;  // items, and tiles of K and V, so far

    Rows rows;
    float S_ij[B_c / 8][4], O_i[d / 8][4];
    Word P_ij[B_c / 16][4];

    __device__ __forceinline__ Consumer(const Memory<d>& sram, const Problem& p, const Cut& cut, int w)
        : sram(sram), p(p), cut(cut), w(w), turn(w) {}

    __device__ __forceinline__ Word Q_w() const { return sram.Q_i.tile(q) + w * 64 * 128; }
    // This thread's upper row in the row block.
    __device__ __forceinline__ int row() const { return 64 * w + row_of_thread(); }

    // −∞ for keys that a row does not see.
    __device__ __forceinline__ void mask(int j) {
        const int first = sram.item(q).top + row();
        int end[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) end[r] = seen(p, (first + 8 * r) / p.group) - j * B_c - thread_index() % 4 * 2;
        mask_where(S_ij, [&](int column, int r) { return column >= end[r]; });
    }

    // S_ij and P̃_ij of tile j, the n-th, while O_i of the tile before it is summed: as in hopper_forward.cu.
    template <bool first> __device__ __forceinline__ void step(int j, bool masked, bool last) {
        turn.take();
        start_scores<T, d, B_c>(S_ij, Q_w(), B_r, sram.K_j.tile(n));
        if (!first) sram.V_j.wait_there(n - 1);
        if (!first) start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(n - 1));
        turn.pass();
        finish<first ? 0 : 1>(S_ij);
        sram.K_j.evict(n);
        if (last) sram.Q_i.evict(q);
        if (masked) mask(j);
        const bool maxima = first || masked;
        float alpha[2];
        Word P_next[B_c / 16][4];
        const bool grown = maxima ? softmax<B_c, true>(S_ij, rows, alpha, p.c)
                                  : softmax_by_sums<T, B_c, true>(P_next, S_ij, rows, alpha, p.c);
        if (!last) sram.K_j.wait_there(n + 1);
        if (!first) finish<0>(O_i);
        if (!first) sram.V_j.evict(n - 1);
        maxima ? round_to_operands<T, B_c>(P_ij, S_ij) : replace<B_c>(P_ij, P_next, p.wants_L >> 1);
        if (!first && grown) rescale<d>(O_i, alpha);
        ++n;
    }

    // O_i of the first tile.
    __device__ __forceinline__ void end() {
        sram.V_j.wait_there(n - 1);
        turn.take();
        start_values<T, d, B_c>(O_i, P_ij, sram.V_j.tile(n - 1));
        turn.pass();
        finish<0>(O_i);
        sram.V_j.evict(n - 1);
    }

    // O_i ← diag(ℓ_i)⁻¹ O_i and L_i; or O_i, ℓ_i, m_i as a part, in the place where `merge` looks for it.
    __device__ __forceinline__ void write(const Item& at, const Results<T>& results) {
        const int lane = thread_index() % 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int below = row() + 8 * r, of = at.top + below;
            const bool in = below < cut.rows && of < p.rows;
            if (cut.splits == 1) {
                const float factor = __fdividef(1.0f, nonzero(rows.l[r]));
                const Offset to = place(p, at.head, of);
#pragma unroll
                for (int t = 0; t < d / 8; t += 4) {
                    Word four[4];
#pragma unroll
                    for (int x = 0; x < 4; ++x) four[x] = pack<T>(O_i[t + x][2 * r] * factor, O_i[t + x][2 * r + 1] * factor);
                    to_chunks(four, lane);
                    if (in) put_four(results.O + to * d + 8 * (t + lane), four);
                }
                Tally(results.totals + 7).add(in, d / 4);
                if (in && p.wants_L && lane == 0) {
                    results.L[to] = rows.L(r, p.c);
                    Tally(results.totals + 9).add(1, 1);
                }
            } else if (in) {
                const float factor = rounding(rows, r, p.c);
                const Offset to = Offset(at.part) * p.rows + of;
#pragma unroll
                for (int t = 0; t < d / 8; ++t)
                    __stcg(reinterpret_cast<float2*>(results.O_parts + to * d) + 4 * t + lane,
                           make_float2(O_i[t][2 * r] * factor, O_i[t][2 * r + 1] * factor));
                Tally(results.totals + 11).add(1, d / 4);
                if (lane == 0) {
                    results.l_parts[to] = rows.l[r] * factor, results.m_parts[to] = rows.m[r];
                    Tally(results.totals + 13).add(1, 1), Tally(results.totals + 15).add(1, 1);
                }
            }
        }
    }

    __device__ __forceinline__ void consume(char* shared, const Results<T>& to) {
#pragma unroll 1
        for (;; ++q) {
            sram.Q_i.wait_there(q);
            const Item at = sram.item(q);
            if (at.top < 0) break;
            const int whole = seen(p, (at.top + 64 * w) / p.group) / B_c;  // tiles that need no mask
            if (p.sign != 1.0f) apply_sign<B_r, d>(Q_w(), p.sign, TOGETHER + w);
            fill(O_i, 0.0f);
            rows.init();
            int j = at.end - 1;
            if (j >= at.begin) {
                sram.K_j.wait_there(n);
                step<true>(j, j >= whole, j == at.begin);
#pragma unroll 1
                for (--j; j >= max(at.begin, whole); --j) step<false>(j, true, j == at.begin);
#pragma unroll 1
                for (; j >= at.begin; --j) step<false>(j, false, j == at.begin);
                end();
            } else {
                sram.Q_i.evict(q);
            }
            rows.sum_l();
            const Item done = sram.item(q);  // read again, so that it did not stay in registers
            if (cluster == 1) {
                write(done, to);
                continue;
            }
            meet(ALL, CONSUMERS * WARPGROUP);  // the last V_j is no longer read
#pragma unroll
            for (int r = 0; r < 2; ++r)
                show<d>(shared + Memory<d>::Q_BYTES + (row() + 8 * r) * SHOWN<d>, O_i, rows, r, p.c);
            meet_cluster();
            merge_shown<d, cluster>(sram.K_j.tiles, p, to, done.head, done.top, min(done.top + cut.rows, p.rows), done.part,
                                    cut.splits == cluster, 4 * w + thread_index() / 32, 4 * CONSUMERS);
            meet_cluster();  // a block must not end while another reads its shared memory
            break;           // it has just one item
        }
    }
};

template <typename T, int d, int cluster>
__global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
hopper_grouped(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V, T* O,
               float* L, float* O_parts, float* l_parts, float* m_parts, const __grid_constant__ Problem p,
               const __grid_constant__ Cut cut, Total* totals) {
    extern __shared__ __align__(1024) char shared[];
    const Memory<d> sram(shared);
    start_next_kernel();
    if (threadIdx.x == 0) prefetch(K), prefetch(Q), prefetch(V);
    sram.init(shared, cut);
    const int consumer = __shfl_sync(~0u, threadIdx.x / 32, 0) / 4 - 1;  // shows the compiler that a warp shares it
    if (consumer < 0) {
        keep_registers<40>();
        if (threadIdx.x == 0) produce<cluster>(sram, Q, K, V, p, cut, totals);
    } else {
        take_registers<232>();
        Consumer<T, d, cluster>(sram, p, cut, consumer).consume(shared, {O, L, O_parts, l_parts, m_parts, totals});
    }
}
