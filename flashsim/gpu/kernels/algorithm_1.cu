// Algorithm 1: FlashAttention, forward, as printed. One block of threads per (batch, head).
//
//     1  Set block sizes B_c, B_r.
//     2  Initialize O = (0), ℓ = (0), m = (−∞) in HBM.
//     3  Divide Q into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
//     4  Divide O, ℓ, m into T_r blocks of B_r rows.
//     5  for 1 ≤ j ≤ T_c do
//     6    Load K_j, V_j from HBM to on-chip SRAM.
//     7    for 1 ≤ i ≤ T_r do
//     8      Load Q_i, O_i, ℓ_i, m_i from HBM to on-chip SRAM.
//     9      S_ij = Q_i K_jᵀ.
//     10     m̃_ij = rowmax(S_ij), P̃_ij = exp(S_ij − m̃_ij), ℓ̃_ij = rowsum(P̃_ij).
//     11     m_i^new = max(m_i, m̃_ij), ℓ_i^new = e^{m_i − m_i^new} ℓ_i + e^{m̃_ij − m_i^new} ℓ̃_ij.
//     12     Write O_i ← diag(ℓ_i^new)⁻¹ (diag(ℓ_i) e^{m_i − m_i^new} O_i + e^{m̃_ij − m_i^new} P̃_ij V_j) to HBM.
//     13     Write ℓ_i ← ℓ_i^new, m_i ← m_i^new to HBM.
//     14   end for
//     15 end for
//     16 Return O.
//
// Q_i, K_j, V_j and P̃_ij are in shared memory, O_i and S_ij in registers. Arithmetic is fp32. The paper's Algorithm 1 has no
// softmax scale; here τ multiplies Q as it is loaded. Nothing is masked, so every row has keys.
//
// HBM, in elements per head (flashsim.count("flash_basic", …), exactly): K and V are read once, Q, O, ℓ, m are read T_c times,
// and O, ℓ, m are written T_c + 1 times. All rows of Q pass for every B_c keys, so twice the B_c means half the traffic.
//
// One multiprocessor does all the work of a head: see q_outer.cu. Times: docs/gpu-tried.md.
// no spills, no stack
#include "scalar.cuh"

template <typename T, int d, int B_r, int B_c>  // line 1: B_r, B_c
__global__ void __launch_bounds__(THREADS, 1)
algorithm_1(const T* q, const T* k, const T* v, T* o, float* l_column, float* m_column, Problem p, Total* totals) {
    const int head = blockIdx.x;
    const Offset rows = Offset(head) * p.N_q;
    Hbm<const T> Q(q + p.query(p.q, head), totals), K(k + p.key(p.k, head), totals + 2), V(v + p.key(p.v, head), totals + 4);
    Hbm<T> O(o + rows * d, totals + 6);
    Hbm<float> l(l_column + rows, totals + 8), m(m_column + rows, totals + 10);

    extern __shared__ float sram[];
    const Tile<B_r, d> Q_i{sram};
    const Tile<B_c, d> K_j{Q_i.data + Q_i.size}, V_j{K_j.data + K_j.size};
    const Tile<B_r, B_c> P_tilde_ij{V_j.data + V_j.size};
    const Column<B_r> l_i{P_tilde_ij.data + P_tilde_ij.size}, m_i{l_i.data + l_i.size};

    for (Offset e = threadIdx.x; e < Offset(p.N_q) * d; e += THREADS) O.store(e, 0.0f);  // line 2
    for (int r = threadIdx.x; r < p.N_q; r += THREADS) l.store(r, 0.0f), m.store(r, -INFINITY);  // line 2
    __syncthreads();  // makes what one thread has written to HBM visible to the block

    const int T_c = ceil_div(p.N_k, B_c);  // line 3
    const int T_r = ceil_div(p.N_q, B_r);  // line 4
    for (int j = 0; j < T_c; ++j) {  // line 5
        const int keys = min(B_c, p.N_k - j * B_c);
        __syncthreads();  // the last P̃_ij V_j is done
        K_j.load(K, Offset(j) * B_c * p.k.row, p.k.row, keys);  // line 6
        V_j.load(V, Offset(j) * B_c * p.v.row, p.v.row, keys);  // line 6
        for (int i = 0; i < T_r; ++i) {  // line 7
            const int top = i * B_r, queries = min(B_r, p.N_q - top);
            Q_i.load(Q, Offset(top) * p.q.row, p.q.row, queries, p.tau);  // line 8
            Registers<B_r, d> O_i;
            O_i.load(O, Offset(top) * d, d, queries);  // line 8
            l_i.load(l, top, queries, 0.0f), m_i.load(m, top, queries, -INFINITY);  // line 8
            __syncthreads();

            Registers<B_r, B_c> S_ij;
            S_ij.fill(0.0f);
            multiply_add<d>(S_ij, Q_i, transposed(K_j));  // line 9
            S_ij.each([&](float& s, int, int c) { s = c < keys ? s : -INFINITY; });  // no key: the tile is ragged

            float keep_old[B_r / SIDE], keep_new[B_r / SIDE];
#pragma unroll
            for (int a = 0; a < B_r / SIDE; ++a) {
                const int r = S_ij.row(a);
                const float m_tilde = rowmax(S_ij, a);  // line 10
#pragma unroll
                for (int b = 0; b < B_c / SIDE; ++b) S_ij.at[a][b] = expf(S_ij.at[a][b] - m_tilde);  // line 10
                const float l_tilde = rowsum(S_ij, a);  // line 10
                const float m_new = fmaxf(m_i[r], m_tilde);  // line 11
                const float old = expf(m_i[r] - m_new), now = expf(m_tilde - m_new);  // line 11
                const float l_new = old * l_i[r] + now * l_tilde;  // line 11
                keep_old[a] = l_i[r] * old / l_new;  // line 12
                keep_new[a] = now / l_new;  // line 12
                __syncwarp();
                if (x() == 0) l_i[r] = l_new, m_i[r] = m_new;
            }
            S_ij.to(P_tilde_ij);
            __syncthreads();

            Registers<B_r, d> PV;
            PV.fill(0.0f);
            multiply_add<B_c>(PV, P_tilde_ij, V_j);  // line 12
#pragma unroll
            for (int a = 0; a < B_r / SIDE; ++a)
#pragma unroll
                for (int b = 0; b < d / SIDE; ++b)
                    O_i.at[a][b] = keep_old[a] * O_i.at[a][b] + keep_new[a] * PV.at[a][b];  // line 12
            O_i.store(O, Offset(top) * d, d, queries);  // line 12
            l_i.store(l, top, queries), m_i.store(m, top, queries);  // line 13
        }  // line 14
    }  // line 15
}  // line 16
