// Products of tiles on tensor cores by mma.sync, with operands read from shared memory. For sm_80 and later.
//
//     product(S_ij, Q_i, K_j)            S_ij = Q_i K_jᵀ         of tiles in shared memory
//     add_product(O_i, P_ij, V_j)        O_i += P_ij V_j         P_ij in registers, rounded pairwise
//
// A warp multiplies 16×16 by 16×8 at a time. In each 16×8 of accumulators, C[m][n][4], a lane has rows lane/4 and lane/4 + 8, and
// columns 2 (lane mod 4) and the next. When rounded, accumulators are laid out like a left operand of the next product.
//
// Tiles lie in shared memory in rows of d elements. The 16-byte chunk c of row r is at place c ⊕ (r mod 8). So ldmatrix, straight
// or transposed, and the copies have no bank conflicts, without padding.
#pragma once
#include "common.cuh"

// ------------------------------------------------------------------------------------------------------- instructions

typedef Word Fragment[4];  // 16×16 elements over a warp: a left operand, or two right operands side by side

// C += A B: 16×8 += 16×16 16×8.
template <typename T> __device__ inline void mma(float (&C)[4], const Fragment& A, Word B_0, Word B_1);
#define DEFINE_MMA(T, type)                                                                                             \
    template <> __device__ inline void mma<T>(float (&C)[4], const Fragment& A, Word B_0, Word B_1) {                   \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
            : "+f"(C[0]), "+f"(C[1]), "+f"(C[2]), "+f"(C[3])                                                            \
            : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B_0), "r"(B_1));                                          \
    }
DEFINE_MMA(__half, "f16")
DEFINE_MMA(__nv_bfloat16, "bf16")

#define DEFINE_LDMATRIX(name, how)                                                                                \
    __device__ inline void name(Fragment& x, Word address) {                                                      \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0,%1,%2,%3}, [%4];"                       \
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");                 \
    }
DEFINE_LDMATRIX(ldmatrix, "")
DEFINE_LDMATRIX(ldmatrix_transposed, ".trans")

// Wait until all of this thread's cp.async copies have come.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ------------------------------------------------------------------------------------------------ tiles in shared memory

// Where the 16-byte chunk `chunk` of row `row` lies in a tile whose rows have `pitch` bytes. The same chunk of eight rows lies in
// eight different 16-byte columns of the banks. Adding 2c to the chunk is ⊕ 32c, adding 8r to the row is + 8r·pitch.
template <int pitch> __device__ inline Word swizzled(int row, int chunk) {
    return row * pitch + ((chunk ^ (pitch == 64 ? row >> 1 & 3 : row & 7)) << 4);
}

// What a lane adds to a tile's address so that ldmatrix reads 16×16 elements. With `down`, matrices 0 1 2 3 are top left, bottom
// left, top right, bottom right: a left operand, or if transposed two right ones. Otherwise they are top left, top right, bottom
// left, bottom right: two right operands, or if transposed a left one.
template <int pitch> __device__ inline Word lane_offset(int lane, bool down) {
    return down ? swizzled<pitch>(lane % 16, lane / 16) : swizzled<pitch>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

template <int pitch> __device__ inline Word lane_offset(bool down) { return lane_offset<pitch>(threadIdx.x % 32, down); }

// The address of the 16×16 elements at (row, column), both multiples of 16, from tile + lane_offset. Tiles are 1024-byte aligned.
template <int pitch> __device__ inline Word at(Word tile_and_lane, int row, int column) {
    return (tile_and_lane ^ (column * 2)) + row * pitch;
}

// ------------------------------------------------------------------------------------------------------------ products

// C = A Bᵀ over the tiles' d columns, for 16 M rows of A and 8 N rows of B. A and B are addresses with their lane's offset.
template <typename T, int d, int M, int N> __device__ inline void product(float (&C)[M][N][4], Word A, Word B) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) C[m][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < d; k += 16) {
        Fragment a[M];
#pragma unroll
        for (int m = 0; m < M; ++m) ldmatrix(a[m], at<2 * d>(A, 16 * m, k));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            Fragment b;
            ldmatrix(b, at<2 * d>(B, 8 * n, k));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma<T>(C[m][n], a[m], b[0], b[1]);
                mma<T>(C[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// C += A B, where A is accumulators, which are rounded to T here.
template <typename T, int d, int M, int N, int W>
__device__ inline void add_product(float (&C)[M][W][4], const float (&A)[M][N][4], Word B) {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        Fragment a[M];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) a[m][e] = pack<T>(A[m][k + e / 2][e % 2 * 2], A[m][k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < W; n += 2) {
            Fragment b;
            ldmatrix_transposed(b, at<2 * d>(B, 8 * k, 8 * n));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma<T>(C[m][n], a[m], b[0], b[1]);
                mma<T>(C[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}
