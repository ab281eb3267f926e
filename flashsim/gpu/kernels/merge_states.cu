// Merges attention of the same queries to some keys with attention to others. Each is O and its log-sum-exp.
//
//     m = max(L, l),  z = e^(L − m) + e^(l − m),  O ← (e^(L − m) O + e^(l − m) o) / z,  L ← m + log z
//
// O is (heads, N, d) and L (heads, N). o is (heads, n, d) and l (heads, n), for rows first … first + n − 1 of O. A row that saw
// no key has L = −∞ and O = 0. A thread has 8 numbers of a row; d is 64, 128 or 256, so one warp has all d / 8 threads of a row.
//
// `pause` lets a stream wait for some nanoseconds.
#include "common.cuh"

template <typename T> struct alignas(16) Eight { T x[8]; };

template <typename State, typename Part>
__global__ void __launch_bounds__(256)
merge_states(State* O, float* L, const Part* o, const float* l, int heads, int N, int n, int first, int d) {
    const Offset thread = blockIdx.x * Offset(blockDim.x) + threadIdx.x;
    const int threads = d / 8, column = int(thread % threads) * 8;
    const Offset row = thread / threads;
    const bool in = row < Offset(heads) * n;
    const Offset at = row / n * N + first + row % n;
    Eight<State> state;
    float total = 0.0f;
    if (in) {
        state = *reinterpret_cast<const Eight<State>*>(O + at * d + column);
        const Eight<Part> part = *reinterpret_cast<const Eight<Part>*>(o + row * d + column);
        const float m = fmaxf(L[at], l[row]), finite = m == -INFINITY ? 0.0f : m;
        const float old = __expf(L[at] - finite), more = __expf(l[row] - finite), z = old + more;
        const float scale = z > 0.0f ? 1.0f / z : 0.0f;
        total = finite + __logf(z);
#pragma unroll
        for (int k = 0; k < 8; ++k)
            state.x[k] = from_float<State>((old * to_float(state.x[k]) + more * to_float(part.x[k])) * scale);
    }
    __syncwarp();  // all threads of the row have read L
    if (in) {
        *reinterpret_cast<Eight<State>*>(O + at * d + column) = state;
        if (column == 0) L[at] = total;
    }
}

__device__ inline Total nanoseconds() {
    Total now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

extern "C" __global__ void pause(int wanted) {
    for (const Total start = nanoseconds(); nanoseconds() - start < wanted;) {}
}
