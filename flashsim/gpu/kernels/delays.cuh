// A build for tests, -DDELAYED=1, in which things happen as late as they may. Results must not depend on it.
//
// - linger(): now and then a warp waits beside a barrier, so that others overtake it.
// - later(product): a product is computed where the kernel waits for it, instead of where it is started. Until then, its operands
//   in shared memory or registers must not be written to. Tensor cores are too fast to show such a race.
//
// In all other builds, linger() does nothing, and later(product) is product().
#pragma once

#include "common.cuh"

#if DELAYED
constexpr int MOST_BLOCKS = 1024, MOST_THREADS = 640, MOST_STARTED = 6;

// A product that has been started: its function, and the data that this keeps.
struct Product {
    void (*compute)(const Product&);
    Total kept[5];
};
// A thread's started products in a ring, the oldest first.
struct Started {
    int first, many;
    Product products[MOST_STARTED];
};
__device__ Started all_started[MOST_BLOCKS * MOST_THREADS];

__device__ inline Started& started() {
    if (blockIdx.x >= MOST_BLOCKS) __trap();
    return all_started[blockIdx.x * MOST_THREADS + threadIdx.x];
}

__device__ inline void linger() {
    Word random;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(random)::"memory");
    random = (random ^ threadIdx.x / 32 << 9) * 0x9E3779B1u;
    random = (random ^ random >> 15) * 0x85EBCA6Bu;
    if (random >> 29 == 0) __nanosleep((random & 0xFFFF) >> (random >> 16 & 7));  // once in 8 times, for up to 66 µs, mostly less
}

template <typename Function> __device__ __noinline__ void compute(const Product& product) {
    (*reinterpret_cast<const Function*>(product.kept))();
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <typename Function> __device__ __forceinline__ void later(const Function& product) {
    static_assert(sizeof(Function) <= sizeof(Product::kept), "it keeps too much");
    Started& mine = started();
    if (mine.many == MOST_STARTED) __trap();
    Product& place = mine.products[(mine.first + mine.many++) % MOST_STARTED];
    place.compute = compute<Function>;
    memcpy(place.kept, &product, sizeof(Function));
}
// Compute all but the last `left` products.
__device__ inline void compute_started(int left) {
    linger();
    for (Started& mine = started(); mine.many > left; --mine.many) {
        const Product& oldest = mine.products[mine.first];
        mine.first = (mine.first + 1) % MOST_STARTED;
        oldest.compute(oldest);
    }
}
#else
__device__ inline void linger() {}
template <typename Function> __device__ __forceinline__ void later(const Function& product) { product(); }
__device__ inline void compute_started(int) {}
#endif
