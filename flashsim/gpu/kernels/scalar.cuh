// What the scalar kernels share: the problem, tiles in shared memory and in registers, products of tiles, masks, dropout.
//
// A block is 16 × 16 threads. Thread (y, x) has rows y + 16a and columns x + 16b of an m × n tile in registers. The 16 threads
// of a row are half a warp, so shuffles among them give the row's maximum and sum, always in the same order.
#pragma once

#include "common.cuh"

constexpr int SIDE = 16, THREADS = SIDE * SIDE;

__device__ inline int y() { return threadIdx.x / SIDE; }
__device__ inline int x() { return threadIdx.x % SIDE; }

// ------------------------------------------------------------------------------------------------------------- problem

// What flashsim/gpu/launching.py packs. H counts query heads; each `group` of them shares a KV head.
struct Problem {
    Strides q, k, v, o, dO;
    const unsigned char* mask;
    Offset mask_batch, mask_head, mask_row, mask_column;
    int H, group, N_q, N_k;
    float tau;
    Dropout dropout;
    int unused;

    // Where a head's rows begin. `index` counts query heads over the whole batch.
    __device__ Offset query(const Strides& s, int index) const { return index / H * s.batch + index % H * s.head; }
    __device__ Offset key(const Strides& s, int index) const { return index / H * s.batch + index % H / group * s.head; }
};

__device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// --------------------------------------------------------------------------------------------------------------- tiles

// A tile in shared memory. Each row is padded by one element, so that a column's elements lie in different banks.
template <int rows, int cols> struct Tile {
    static constexpr int size = rows * (cols + 1);
    float* data;

    __device__ float& operator()(int r, int c) const { return data[r * (cols + 1) + c]; }

    // Load rows start … start + valid − 1 of X times `factor`; rows are `stride` apart in X. Rows beyond are 0.
    template <typename T> __device__ void load(Hbm<T>& X, Offset start, Offset stride, int valid, float factor = 1) const {
        for (int e = threadIdx.x; e < rows * cols; e += THREADS) {
            const int r = e / cols, c = e % cols;
            (*this)(r, c) = r < valid ? factor * X.load(start + r * stride + c) : 0.0f;
        }
    }
};

template <int rows, int cols> struct TransposedTile {
    Tile<rows, cols> tile;
    __device__ float operator()(int r, int c) const { return tile(c, r); }
};
template <int rows, int cols> __device__ inline TransposedTile<rows, cols> transposed(Tile<rows, cols> tile) {
    return {tile};
}

// One number for each row of a tile, in shared memory: ℓ_i, m_i.
template <int rows> struct Column {
    static constexpr int size = rows;
    float* data;

    __device__ float& operator[](int r) const { return data[r]; }
    template <typename T> __device__ void load(Hbm<T>& X, Offset start, int valid, float beyond) const {
        for (int r = threadIdx.x; r < rows; r += THREADS) data[r] = r < valid ? X.load(start + r) : beyond;
    }
    template <typename T> __device__ void store(Hbm<T>& X, Offset start, int valid) const {
        for (int r = threadIdx.x; r < rows; r += THREADS)
            if (r < valid) X.store(start + r, data[r]);
    }
};

// A tile in registers. at[a][b] is at (row(a), column(b)).
template <int rows, int cols> struct Registers {
    static_assert(rows % SIDE == 0 && cols % SIDE == 0, "tiles are multiples of 16 by 16");
    static constexpr int A = rows / SIDE, B = cols / SIDE;
    float at[A][B];

    __device__ static int row(int a) { return y() + SIDE * a; }
    __device__ static int column(int b) { return x() + SIDE * b; }

    __device__ void fill(float value) {
        each([&](float& element, int, int) { element = value; });
    }
    template <typename T> __device__ void load(Hbm<T>& X, Offset start, Offset stride, int valid) {
        each([&](float& element, int r, int c) { element = r < valid ? X.load(start + r * stride + c) : 0.0f; });
    }
    template <typename T> __device__ void store(Hbm<T>& X, Offset start, Offset stride, int valid) {
        each([&](float& element, int r, int c) {
            if (r < valid) X.store(start + r * stride + c, element);
        });
    }
    __device__ void to(Tile<rows, cols> tile) {
        each([&](float& element, int r, int c) { tile(r, c) = element; });
    }
    // f(element, row, column)
    template <typename F> __device__ void each(F f) {
#pragma unroll
        for (int a = 0; a < A; ++a)
#pragma unroll
            for (int b = 0; b < B; ++b) f(at[a][b], row(a), column(b));
    }
};

template <int rows, int cols> __device__ inline float rowmax(const Registers<rows, cols>& X, int a) {
    float most = X.at[a][0];
#pragma unroll
    for (int b = 1; b < X.B; ++b) most = fmaxf(most, X.at[a][b]);
#pragma unroll
    for (int lanes = SIDE / 2; lanes; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
    return most;
}

__device__ inline float sum_of_row(float part) {
#pragma unroll
    for (int lanes = SIDE / 2; lanes; lanes /= 2) part += __shfl_xor_sync(0xffffffffu, part, lanes);
    return part;
}

template <int rows, int cols> __device__ inline float rowsum(const Registers<rows, cols>& X, int a) {
    float sum = X.at[a][0];
#pragma unroll
    for (int b = 1; b < X.B; ++b) sum += X.at[a][b];
    return sum_of_row(sum);
}

// C += A B over `inner` products, with A(row, k) and B(k, column) in shared memory. If A's entry is 0, the product is left out,
// since 0 · NaN is NaN. So masked keys and values never reach the result.
template <int inner, int rows, int cols, typename Left, typename Right>
__device__ inline void multiply_add(Registers<rows, cols>& C, Left A, Right B) {
#pragma unroll 4
    for (int k = 0; k < inner; ++k) {
        constexpr int m = rows / SIDE, n = cols / SIDE;
        float left[m], right[n];
#pragma unroll
        for (int a = 0; a < m; ++a) left[a] = A(C.row(a), k);
#pragma unroll
        for (int b = 0; b < n; ++b) right[b] = B(k, C.column(b));
#pragma unroll
        for (int a = 0; a < m; ++a)
#pragma unroll
            for (int b = 0; b < n; ++b)
                if (left[a] != 0) C.at[a][b] = fmaf(left[a], right[b], C.at[a][b]);
    }
}

// ---------------------------------------------------------------------------------------------- MASK and dropout, as types

struct NoMask {
    static constexpr bool implicit = true;
    __device__ NoMask(const Problem&, int, Total*) {}
    __device__ bool allows(int, int) { return true; }
    __device__ int live(int, int T_c, int) { return T_c; }
};

// Query i attends to keys j ≤ i + N_k − N_q: aligned at the bottom right.
struct Causal {
    const int diagonal;
    __device__ Causal(const Problem& p, int, Total*) : diagonal(p.N_k - p.N_q) {}
    __device__ bool allows(int row, int column) { return column <= row + diagonal; }
    // Tiles 0 … live − 1 are live in a row block whose last row is `last`.
    __device__ int live(int last, int T_c, int B_c) {
        const int key = last + diagonal;
        return key < 0 ? 0 : min(T_c, key / B_c + 1);
    }
};

// A byte in HBM for each (row, column), nonzero if attended to. Each tile reads its bytes once.
struct Dense {
    Hbm<const unsigned char> mask;
    const Offset row_stride, column_stride;
    __device__ Dense(const Problem& p, int index, Total* totals)
        : mask(p.mask + index / p.H * p.mask_batch + index % p.H * p.mask_head, totals),
          row_stride(p.mask_row),
          column_stride(p.mask_column) {}
    __device__ bool allows(int row, int column) { return mask.get(row * row_stride + column * column_stride) != 0; }
    __device__ int live(int, int T_c, int) { return T_c; }
};

struct CausalDense {
    Causal causal;
    Dense dense;
    __device__ CausalDense(const Problem& p, int index, Total* totals) : causal(p, index, totals), dense(p, index, totals) {}
    __device__ bool allows(int row, int column) {
        const bool attended = dense.allows(row, column);  // always read, since the tile is loaded whole
        return causal.allows(row, column) && attended;
    }
    __device__ int live(int last, int T_c, int B_c) { return causal.live(last, T_c, B_c); }
};

struct NoDropout {
    static constexpr bool keeps_R = false;
    __device__ void set(Word, Word) {}
    __device__ NoDropout(const Problem&, int) {}
    __device__ float Z(int, int) const { return 1.0f; }
};

struct PhiloxDropout {
    static constexpr bool keeps_R = true;
    Dropout dropout;
    const Word head;
    __device__ PhiloxDropout(const Problem& p, int index) : dropout(p.dropout), head(index) {}
    __device__ void set(Word word_0, Word word_1) { dropout.key_0 = word_0, dropout.key_1 = word_1; }
    __device__ float Z(int row, int column) const { return dropout.Z(row, column, head); }
};
