// Hopper's instructions as operations on tiles: copies by the tensor memory accelerator (TMA), products by warpgroups (wgmma),
// and the barriers between them. All PTX is here, so that kernels read like the paper's lines.
//
// A tile in shared memory has `rows` rows of d 16-bit elements, in d/64 halves of 64 columns, one half after the other. A row of
// a half is 128 bytes, and its 16-byte chunk c lies at place c ⊕ (row mod 8), as TMA writes and wgmma reads it, without bank
// conflicts. Tiles start at multiples of 1024 bytes.
//
// The 128 threads of a warpgroup have the accumulators of a product of 64 rows × n columns: C[t][e] of a thread is in row
// 16·warp + lane/4 + 8·(e/2) and column 8t + 2·(lane mod 4) + e mod 2, as with mma.sync.
#pragma once

#include "delays.cuh"

constexpr int WARPGROUP = 128;
constexpr int HALF = 64;  // columns of a half: 128 bytes

// -------------------------------------------------------------------------------------------------------------- barriers

// An mbarrier opens when all arrivals and all bytes that it expects have come, and closes again for the next round. A thread
// waits for a round by its parity. At the start, waiting for parity 1 returns at once.
struct Barrier {
    Word at;

    __device__ void expect_arrivals(int count) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
    }
    __device__ void arrive() const {
        linger();
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
    }
    __device__ void arrive_once_a_warp() const {
        linger();
        asm volatile(
            "{\n.reg .pred p;\n"
            "elect.sync _|p, 0xffffffff;\n"
            "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(at)
            : "memory");
    }
    __device__ void arrive_and_expect(int bytes) const {
        linger();
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    }
#define ASK(how)                                                                                                         \
    asm volatile("{\n.reg .pred p;\nmbarrier." how ".parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" \
                 : "=r"(open) : "r"(at), "r"(parity) : "memory")
    __device__ void wait(Word parity) const {
        Word open;
        do ASK("try_wait");
        while (!open);
        linger();
    }
    __device__ bool is_open(Word parity) const {
        Word open;
        ASK("test_wait");
        return open;
    }
};

// Make barriers known to TMA, by the thread that has set them up, and to all threads, before they are used.
__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void publish_barriers() {
    show_barriers();
    __syncthreads();
}

// Named barriers: come and wait until `threads` threads have come, or come and go on.
__device__ inline void meet(int name, int threads) {
    linger();
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
    linger();
}
__device__ inline void come(int name, int threads) {
    linger();
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// Let TMA and wgmma, the asynchronous proxy, see what this thread has written to shared memory, or has seen written to HBM.
__device__ inline void show_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void show_hbm() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

struct TensorMap;

// A ring of `stages` tiles of `bytes` bytes. Each has a barrier that opens when the tile has come, and one for when it is free.
// `n` counts tiles from 0 on. It takes `left` arrivals to free a tile, and `came` arrivals to say that it has come.
template <int stages, int bytes> struct Ring {
    Word tiles, barriers;
    static constexpr int BARRIER_BYTES = stages * 16;

    __device__ Word tile(Word n) const { return tiles + n % stages * bytes; }
    __device__ Barrier there(Word n) const { return {barriers + n % stages * 16}; }
    __device__ Barrier free(Word n) const { return {barriers + n % stages * 16 + 8}; }
    __device__ void init(int left, int came = 1) const {
        for (int n = 0; n < stages; ++n) there(n).expect_arrivals(came), free(n).expect_arrivals(left);
    }
    __device__ void wait_there(Word n) const { there(n).wait(n / stages & 1); }
    __device__ bool is_there(Word n) const { return there(n).is_open(n / stages & 1); }
    __device__ void wait_free(Word n) const { free(n).wait(~(n / stages) & 1); }
    // The verbs of the simulator's memory: load the n-th tile as soon as its place is free; a warp says that it is done with it.
    // `more` bytes come with the tile. `start` is `load` to a place that is known to be free.
    __device__ void start(Word n, const TensorMap& X, int row, int head, int batch, int more = 0) const;
    __device__ void load(Word n, const TensorMap& X, int row, int head, int batch, int more = 0) const {
        wait_free(n);
        start(n, X, row, head, batch, more);
    }
    __device__ void evict(Word n) const { free(n).arrive_once_a_warp(); }
};

// --------------------------------------------------------------------------------------------------------------- copies

// How an array in HBM is cut into tiles, made by the driver. Coordinates are (column of 64, row, half, head, batch).
struct alignas(64) TensorMap {
    char opaque[128];
};

// Fetch a description before the first copy needs it.
__device__ inline void prefetch(const TensorMap& X) { asm volatile("prefetch.tensormap [%0];" ::"l"(&X) : "memory"); }

// Start copying a box, whose first element has these coordinates, to shared memory. What lies past the ends becomes 0.
__device__ inline void load_box(Word tile, const TensorMap& X, int x, int y, int z, int head, int batch, Barrier there) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
        "[%7];" ::"r"(tile),
        "l"(&X), "r"(x), "r"(y), "r"(z), "r"(head), "r"(batch), "r"(there.at)
        : "memory");
}
// Start copying a tile of a head, from row `row` on.
__device__ inline void load(Word tile, const TensorMap& X, int row, int head, int batch, Barrier there) {
    load_box(tile, X, 0, row, 0, head, batch, there);
}

template <int stages, int bytes>
__device__ void Ring<stages, bytes>::start(Word n, const TensorMap& X, int row, int head, int batch, int more) const {
    there(n).arrive_and_expect(bytes + more);
    ::load(tile(n), X, row, head, batch, there(n));
}

// K_j and V_j. As `pairs`, they come and go together, with half as many barriers; that takes more than two stages, as a tile is
// awaited before the one two before it is free.
template <int stages, int bytes, bool pairs> struct KeysAndValues {
    static_assert(!pairs || stages > 2, "there must be room for a tile while two are in use");
    Ring<stages, bytes> K_j, V_j;

    __device__ void place(Word K, Word V, Word barriers) {
        K_j = {K, barriers}, V_j = {V, barriers + (pairs ? 0 : K_j.BARRIER_BYTES)};
    }
    __device__ void init_barriers(int left) const {
        K_j.init(left);
        if (!pairs) V_j.init(left);
    }
    __device__ __forceinline__ void load_K(Word n, const TensorMap& K, int row, int head, int batch, int more = 0) const {
        K_j.load(n, K, row, head, batch, more + (pairs ? bytes : 0));
    }
    __device__ __forceinline__ void load_V(Word n, const TensorMap& V, int row, int head, int batch) const {
        pairs ? load(V_j.tile(n), V, row, head, batch, V_j.there(n)) : V_j.load(n, V, row, head, batch);
    }
    __device__ __forceinline__ void wait_K(Word n) const { K_j.wait_there(n); }
    __device__ __forceinline__ void wait_V(Word n) const {
        if (!pairs) V_j.wait_there(n);
    }
    __device__ __forceinline__ void evict_K(Word n) const {
        if (!pairs) K_j.evict(n);
    }
    __device__ __forceinline__ void evict_V(Word n) const { V_j.evict(n); }
};

// Start copying a tile of a mask's bytes, from row `row` and column `column` on. Bytes past the ends become 0.
__device__ inline void load_mask(Word tile, const TensorMap& X, int column, int row, int matrix, Barrier there) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            tile),
        "l"(&X), "r"(column), "r"(row), "r"(matrix), "r"(there.at)
        : "memory");
}

// Start copying a tile from shared memory, without rows past the end. Its first half is the row's `half`-th.
__device__ inline void store(const TensorMap& X, int row, int head, int batch, Word tile, int half = 0) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];\n"
        "cp.async.bulk.commit_group;" ::"l"(&X),
        "r"(0), "r"(row), "r"(half), "r"(head), "r"(batch), "r"(tile)
        : "memory");
}
// Start copying `bytes` successive bytes, a multiple of 16.
__device__ inline void load(Word to, const void* from, int bytes, Barrier there) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(there.at)
                 : "memory");
}

// Start copying them from shared memory.
__device__ inline void store(void* to, Word from, int bytes) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}

// Start adding fp32 numbers, `bytes` bytes of them, to numbers in HBM.
__device__ inline void add_to(float* sums, Word from, int bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;" ::"l"(sums),
        "r"(from), "r"(bytes)
        : "memory");
}

// Load two numbers from shared memory; store four to it.
__device__ inline void load_pair(float (&x)[2], Word from) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from));
}
__device__ inline void store_four(Word to, const float (&x)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}

// Store four words to HBM.
__device__ inline void put_four(void* to, const Word (&x)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// Load one byte, or two, from shared memory.
__device__ inline Word load_byte(Word from) {
    Word x;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}
__device__ inline Word load_two_bytes(Word from) {
    unsigned short x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from));
    return x;
}

// Load a word from shared memory.
__device__ inline Word load_word(Word from) {
    Word x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}
__device__ inline void store_word(Word to, Word x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }

// A counter in HBM: wait until it has reached `turn`; add 1 after everything that this thread has written.
__device__ inline void wait_until(const Word* counter, Word turn) {
    Word now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    while (now != turn);
    linger();
}
__device__ inline void step(Word* counter) {
    linger();
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// Wait until this thread's stores have read shared memory, or have written to HBM.
__device__ inline void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Elements that copies of one array move. In builds with -DCOUNT=1, the threads that start the copies sum them up.
struct Tally {
#if COUNT
    Total* const total;
    Total sum = 0;
    __device__ explicit Tally(Total* total) : total(total) {}
    __device__ ~Tally() {
        if (sum) atomicAdd(total, sum);
    }
    Tally(const Tally&) = delete;  // a copy would count twice
    __device__ void add(int rows, int columns) { sum += max(rows, 0) * columns; }
#else
    __device__ explicit Tally(Total*) {}
    __device__ void add(int, int) {}
#endif
};

// How a mask lies in HBM: whether its rows differ, 1 or 0; the step in matrices from head to head, and from batch entry to batch
// entry.
struct Mask {
    int rows, heads, batches;
    __device__ int matrix(int head, int batch) const { return head * heads + batch * batches; }
};

// Let the next kernel's blocks of threads start where there is room; wait until the kernel before has ended, and see what it wrote.
__device__ inline void start_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---------------------------------------------------------------------------------------------------------------- roles

// A warpgroup's registers per thread: warps that copy give registers back, and warps that compute take them.
template <int registers> __device__ inline void keep_registers() {
    if (!DELAYED) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> __device__ inline void take_registers() {
    if (!DELAYED) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Consumers that start their products one after the other. Warpgroup w has the named barrier 1 + w.
template <bool turns, int consumers> struct Turn {
    int mine, next;
    __device__ explicit Turn(int w) : mine(1 + w), next(1 + (w + 1) % consumers) {
        if (turns && w == consumers - 1) pass();
    }
    __device__ void take() const {
        if (turns) meet(mine, 2 * WARPGROUP);
    }
    __device__ void pass() const {
        if (turns) come(next, 2 * WARPGROUP);
    }
};

// threadIdx.x within its warpgroup, read again, so that what follows from it does not stay in registers for long.
__device__ inline int thread_index() {
    Word thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % WARPGROUP;
}

// ------------------------------------------------------------------------------------------------------------- products

// A tile as an operand: its address and the distance of its halves, in units of 16 bytes. The other word says that groups of 8
// rows are 1024 bytes apart, and has the swizzle. See PTX, "matrix descriptor".
struct Operand {
    Word low;
    __device__ Operand(Word tile, int half_bytes) : low((tile & 0x3FFFF) >> 4 | half_bytes >> 4 << 16) {}
    __device__ Total at(int bytes) const { return Total(1u << 30 | 1024 >> 4) << 32 | (low + (bytes >> 4)); }
};
typedef Total Descriptor;

// Accumulators: fp32, n/8 times 4 per thread.
#define ASM_4(C, t) "+f"(C[t][0]), "+f"(C[t][1]), "+f"(C[t][2]), "+f"(C[t][3])
#define ASM_16(C, t) ASM_4(C, t), ASM_4(C, t + 1), ASM_4(C, t + 2), ASM_4(C, t + 3)
#define ASM_32(C, t) ASM_16(C, t), ASM_16(C, t + 4)
#define ASM_64(C, t) ASM_32(C, t), ASM_32(C, t + 8)
#define ASM_128(C, t) ASM_64(C, t), ASM_64(C, t + 16)
#define NEW_4(C, t) "=f"(C[t][0]), "=f"(C[t][1]), "=f"(C[t][2]), "=f"(C[t][3])
#define NEW_16(C, t) NEW_4(C, t), NEW_4(C, t + 1), NEW_4(C, t + 2), NEW_4(C, t + 3)
#define NEW_32(C, t) NEW_16(C, t), NEW_16(C, t + 4)
#define NEW_64(C, t) NEW_32(C, t), NEW_32(C, t + 8)
#define NEW_128(C, t) NEW_64(C, t), NEW_64(C, t + 16)
#define LIST_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define LIST_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST_64                                                                                                          \
    LIST_32                                                                                                              \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59," \
    "%60,%61,%62,%63"
#define LIST_128                                                                                                              \
    LIST_64                                                                                                                   \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85"                                \
    ",%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107"                        \
    ",%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// C = A Bᵀ, or C += A Bᵀ: C is 64 × n, A is 64 × 16 and B is n × 16, both in shared memory. C += A B: A is in registers, as a
// left operand of mma.sync, and B is 16 × n in shared memory.
template <typename T, int n, bool add> __device__ inline void wgmma(float (&C)[n / 8][4], Descriptor A, Descriptor B);
template <typename T, int n> __device__ inline void wgmma(float (&C)[n / 8][4], const Word (&A)[4], Descriptor B);

// C = A B, or C += A B: A is 64 × 16 and B is 16 × n, both in shared memory.
template <typename T, int n, bool add> __device__ inline void wgmma_straight(float (&C)[n / 8][4], Descriptor A, Descriptor B);

// C += Aᵀ B: A is 16 × 64 and B is 16 × 128, both in shared memory.
template <typename T> __device__ inline void wgmma_across(float (&C)[16][4], Descriptor A, Descriptor B);

// `add` is 1 or 0; `across` says which of A and B are transposed, if A is in shared memory, or that B is.
#define WGMMA(type, n, count, C, operands, add, across, ...)                                                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" LIST_##count "}, " operands ", " #add \
                 ", 1, 1, " across ";" : C : __VA_ARGS__)
#define DEFINE_WGMMA(T, type, n, count, first, second, third, fourth, fifth)                                              \
    template <> __device__ inline void wgmma<T, n, false>(float (&C)[n / 8][4], Descriptor A, Descriptor B) {             \
        WGMMA(type, n, count, NEW_##count(C, 0), "%" #first ", %" #second, 0, "0, 0", "l"(A), "l"(B));                    \
    }                                                                                                                     \
    template <> __device__ inline void wgmma<T, n, true>(float (&C)[n / 8][4], Descriptor A, Descriptor B) {              \
        WGMMA(type, n, count, ASM_##count(C, 0), "%" #first ", %" #second, 1, "0, 0", "l"(A), "l"(B));                    \
    }                                                                                                                     \
    template <> __device__ inline void wgmma<T, n>(float (&C)[n / 8][4], const Word(&A)[4], Descriptor B) {               \
        WGMMA(type, n, count, ASM_##count(C, 0), "{%" #first ", %" #second ", %" #third ", %" #fourth "}, %" #fifth, 1, "1", \
              "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B));                                                        \
    }
#define DEFINE_WGMMAS(T, type)                                                                                            \
    DEFINE_WGMMA(T, type, 32, 16, 16, 17, 18, 19, 20)                                                                     \
    DEFINE_WGMMA(T, type, 64, 32, 32, 33, 34, 35, 36)                                                                     \
    DEFINE_WGMMA(T, type, 128, 64, 64, 65, 66, 67, 68)                                                                    \
    DEFINE_WGMMA(T, type, 256, 128, 128, 129, 130, 131, 132)                                                              \
    template <> __device__ inline void wgmma_straight<T, 64, false>(float (&C)[8][4], Descriptor A, Descriptor B) {       \
        WGMMA(type, 64, 32, NEW_32(C, 0), "%32, %33", 0, "0, 1", "l"(A), "l"(B));                                         \
    }                                                                                                                     \
    template <> __device__ inline void wgmma_straight<T, 64, true>(float (&C)[8][4], Descriptor A, Descriptor B) {        \
        WGMMA(type, 64, 32, ASM_32(C, 0), "%32, %33", 1, "0, 1", "l"(A), "l"(B));                                         \
    }                                                                                                                     \
    template <> __device__ inline void wgmma_across<T>(float (&C)[16][4], Descriptor A, Descriptor B) {                   \
        WGMMA(type, 128, 64, ASM_64(C, 0), "%64, %65", 1, "1, 1", "l"(A), "l"(B));                                        \
    }
DEFINE_WGMMAS(__half, "f16")
DEFINE_WGMMAS(__nv_bfloat16, "bf16")

// Needed before the first wgmma, and after writing registers that a wgmma will use.
__device__ inline void registers_ready() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Start S = Q Kᵀ: 64 rows of Q, whose halves are `Q_rows` rows apart, and n rows of K, of a tile with K_rows rows.
template <typename T, int d, int n, int K_rows = n>
__device__ inline void start_scores(float (&S)[n / 8][4], Word Q, int Q_rows, Word K) {
    later([&S, Q, Q_rows, K] {
        const Operand Q_operand(Q, 0), K_operand(K, 0);
        registers_ready();
#pragma unroll
        for (int x = 0; x < d; x += 16) {
            const int half = x / HALF, within = x % HALF * 2;
            const Descriptor A = Q_operand.at(half * Q_rows * 128 + within), B = K_operand.at(half * K_rows * 128 + within);
            x == 0 ? wgmma<T, n, false>(S, A, B) : wgmma<T, n, true>(S, A, B);
        }
        commit();
    });
}

// Start O += P V: P is in registers, and V has n rows. P and O must not be touched until it has finished.
template <typename T, int d, int n>
__device__ inline void start_values(float (&O)[d / 8][4], const Word (&P)[n / 16][4], Word V) {
    later([&O, &P, V] {
        const Operand V_operand(V, n * 128);
        registers_ready();
#pragma unroll
        for (int x = 0; x < n; x += 16) wgmma<T, d>(O, P[x / 16], V_operand.at(x * 128));
        commit();
    });
}

// Start C = A B, 64 × 64: 64 rows of A, whose halves are `A_rows` rows apart, and as many rows of B as A has columns.
template <typename T, int n>
__device__ inline void start_product(float (&C)[8][4], Word A, int A_rows, Word B) {
    later([&C, A, A_rows, B] {
        const Operand A_operand(A, 0), B_operand(B, 0);
        registers_ready();
#pragma unroll
        for (int x = 0; x < n; x += 16) {
            const Descriptor left = A_operand.at(x / HALF * A_rows * 128 + x % HALF * 2), right = B_operand.at(x * 128);
            x == 0 ? wgmma_straight<T, 64, false>(C, left, right) : wgmma_straight<T, 64, true>(C, left, right);
        }
        commit();
    });
}

// Start C += Aᵀ B: n rows of A, 64 columns wide, and 128 columns of B, a tile of n rows.
template <typename T, int n> __device__ inline void start_across(float (&C)[16][4], Word A, Word B) {
    later([&C, A, B] {
        const Operand A_operand(A, 0), B_operand(B, n * 128);
        registers_ready();
#pragma unroll
        for (int x = 0; x < n; x += 16) wgmma_across<T>(C, A_operand.at(x * 128), B_operand.at(x * 128));
        commit();
    });
}

// Wait until all but the last `later` products have finished. With C, C is what the next code uses.
template <int later> __device__ inline void finish() {
    compute_started(later);
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(later) : "memory");
}
#define DEFINE_FINISH(n, count)                                                                             \
    template <int later> __device__ inline void finish(float (&C)[n][4]) {                                \
        compute_started(later);                                                                           \
        asm volatile("wgmma.wait_group.sync.aligned %" #count ";" : ASM_##count(C, 0) : "n"(later) : "memory"); \
    }
DEFINE_FINISH(4, 16)
DEFINE_FINISH(8, 32)
DEFINE_FINISH(16, 64)
DEFINE_FINISH(32, 128)

// Write 16 × 16 elements, a left operand of this warp, to a tile with rows 128 bytes apart. Each lane gives the address of a row:
// lanes 0 to 7 those of the top left 8 × 8, then bottom left, top right, bottom right. Transposed, it is the address of a column.
template <bool transposed> __device__ inline void store_operand(Word row, const Word (&A)[4]) {
    if (transposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(A[0]), "r"(A[1]),
                     "r"(A[2]), "r"(A[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(A[0]), "r"(A[1]),
                     "r"(A[2]), "r"(A[3])
                     : "memory");
}

// The row of a product of 64 rows in which this thread's C[t][0] is.
__device__ inline int row_of_thread() { return thread_index() / 32 * 16 + thread_index() % 32 / 4; }

template <int n> __device__ __forceinline__ void fill(float (&C)[n][4], float x) {
#pragma unroll
    for (int t = 0; t < n; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) C[t][e] = x;
}

// P, rounded to T, as left operands.
template <typename T, int n> __device__ inline void round_to_operands(Word (&P)[n / 16][4], const float (&S)[n / 8][4]) {
#pragma unroll
    for (int t = 0; t < n / 8; ++t)
#pragma unroll
        for (int r = 0; r < 2; ++r) P[t / 2][t % 2 * 2 + r] = pack<T>(S[t][2 * r], S[t][2 * r + 1]);
}

// L log₂e / 2 and D of B_r rows, of which the first `end` exist. Rows past them, and rows that see no key, get L = +∞, so P = 0
// there. O and dO are at the first row. A block has PREPARING threads.
constexpr int PREPARING = 256;
template <typename T, int d, int B_r>
__device__ __forceinline__ void prepare_rows(float* rows, const T* O, const T* dO, Offset dO_row, const float* L, int end) {
    constexpr int LANES = d / 8;  // lanes per row, 16 bytes each
    const int lane = threadIdx.x % LANES;
    for (int row = threadIdx.x / LANES; row < B_r; row += PREPARING / LANES) {
        float D = 0.0f;
        if (row < end)
            D = add_dot<T>(D, *reinterpret_cast<const uint4*>(O + row * d + lane * 8),
                           *reinterpret_cast<const uint4*>(dO + row * dO_row + lane * 8));
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) D += __shfl_xor_sync(~0u, D, lanes);
        if (lane == 0) {
            const float L_row = row < end ? L[row] : -INFINITY;
            rows[row] = L_row == -INFINITY ? INFINITY : L_row * 0.721347520444481704f;
            rows[B_r + row] = D;
        }
    }
}
