// FlashAttention with the loops exchanged, forward, scalar: O, ℓ and m stay on chip. One block of threads per row block.
//
//     1  Initialize the pseudo-random number generator state R and save it to HBM.
//     2  Set block sizes B_r, B_c.
//     3  Divide Q, O, L into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
//     4  for 1 ≤ i ≤ T_r do                                                (the blocks of the grid: all i of all heads at once)
//     5    Load Q_i from HBM to on-chip SRAM.
//     6    Initialize O_i = (0), ℓ_i = (0), m_i = (−∞) on SRAM.
//     7    for 1 ≤ j ≤ T_c, where tile (i, j) is live, do
//     8      Load K_j, V_j from HBM to on-chip SRAM.
//     9      S_ij = τ Q_i K_jᵀ.
//     10     S_ij^masked = MASK(S_ij).
//     11     m_i^new = max(m_i, rowmax(S_ij^masked)).
//     12     P̃_ij = exp(S_ij^masked − m_i^new).
//     13     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
//     14     P̃_ij^dropped = dropout(P̃_ij, p_drop).
//     15     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij^dropped V_j.
//     16     m_i ← m_i^new.
//     17   end for
//     18   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
//     19   Write O_i, L_i to HBM.
//     20 end for
//     21 Return O, L, R.
//
// These are the steps of flashsim/algorithms/q_outer.py. Unlike in Algorithm 2, row blocks run in parallel, so that one head
// fills the GPU. O is divided by ℓ and written once. Causally, tiles above the diagonal are neither loaded nor computed.
// HBM, in elements per head (flashsim.count("q_outer", …), exactly): Q is read and O, L are written once; K, V are read once for
// each row block, in live tiles only. So B_r decides how much is moved. Times: docs/gpu-tried.md. no spills, no stack
#include "scalar.cuh"

template <typename T, int d, int B_r, int B_c, typename Mask, typename Drop>
__global__ void __launch_bounds__(THREADS, d > 64 || COUNT || Drop::keeps_R ? 1 : 2)
q_outer(const T* q, const T* k, const T* v, T* o, float* L_column, Word* state, Problem p, Total* totals) {
    const int T_r = ceil_div(p.N_q, B_r), i = blockIdx.x % T_r, head = blockIdx.x / T_r;
    const Offset rows = Offset(head) * p.N_q;
    Hbm<const T> Q(q + p.query(p.q, head), totals), K(k + p.key(p.k, head), totals + 2), V(v + p.key(p.v, head), totals + 4);
    Hbm<T> O(o + rows * d, totals + 6);
    Hbm<float> L(L_column + rows, totals + 8);
    Hbm<Word> R(state + 2 * Offset(head), totals + 10);
    Mask MASK(p, head, totals + 12);
    Drop dropout(p, head);
    if (Drop::keeps_R && i == 0 && threadIdx.x == 0) R.put(0, p.dropout.key_0), R.put(1, p.dropout.key_1);  // line 1

    extern __shared__ float sram[];
    const Tile<B_r, d> Q_i{sram};  // line 2: B_r, B_c
    const Tile<B_c, d> K_j{Q_i.data + Q_i.size}, V_j{K_j.data + K_j.size};
    const Tile<B_r, B_c> P_dropped_ij{V_j.data + V_j.size};

    const int top = i * B_r, queries = min(B_r, p.N_q - top);  // line 3
    const int live = MASK.live(top + queries - 1, ceil_div(p.N_k, B_c), B_c);  // line 4
    Q_i.load(Q, Offset(top) * p.q.row, p.q.row, queries);  // line 5
    Registers<B_r, d> O_i;
    O_i.fill(0.0f);  // line 6
    float l_i[B_r / SIDE], m_i[B_r / SIDE];  // of row y + 16a, the same in all 16 threads of the row
#pragma unroll
    for (int a = 0; a < B_r / SIDE; ++a) l_i[a] = 0.0f, m_i[a] = -INFINITY;  // line 6
    for (int j = 0; j < live; ++j) {  // line 7
        const int left = j * B_c, keys = min(B_c, p.N_k - left);
        __syncthreads();  // the last P̃_ij V_j is done
        K_j.load(K, Offset(left) * p.k.row, p.k.row, keys);  // line 8
        V_j.load(V, Offset(left) * p.v.row, p.v.row, keys);  // line 8
        __syncthreads();

        Registers<B_r, B_c> S_ij;
        S_ij.fill(0.0f);
        multiply_add<d>(S_ij, Q_i, transposed(K_j));  // line 9
        S_ij.each([&](float& s, int r, int c) {
            const bool inside = r < queries && c < keys;
            s = inside && MASK.allows(top + r, left + c) ? p.tau * s : -INFINITY;  // line 10
        });
        float m_new[B_r / SIDE];
#pragma unroll
        for (int a = 0; a < B_r / SIDE; ++a) {
            m_new[a] = fmaxf(m_i[a], rowmax(S_ij, a));  // line 11
#pragma unroll
            for (int b = 0; b < B_c / SIDE; ++b) S_ij.at[a][b] = expf(S_ij.at[a][b] - finite(m_new[a]));  // line 12
            const float old = expf(m_i[a] - finite(m_new[a]));
            l_i[a] = old * l_i[a] + rowsum(S_ij, a);  // line 13
#pragma unroll
            for (int b = 0; b < B_c / SIDE; ++b)
                S_ij.at[a][b] *= dropout.Z(top + S_ij.row(a), left + S_ij.column(b));  // line 14
#pragma unroll
            for (int b = 0; b < d / SIDE; ++b) O_i.at[a][b] *= old;  // line 15
        }
        S_ij.to(P_dropped_ij);
        __syncthreads();
        multiply_add<B_c>(O_i, P_dropped_ij, V_j);  // line 15
#pragma unroll
        for (int a = 0; a < B_r / SIDE; ++a) m_i[a] = m_new[a];  // line 16
    }  // line 17
#pragma unroll
    for (int a = 0; a < B_r / SIDE; ++a) {
        const int r = O_i.row(a);
#pragma unroll
        for (int b = 0; b < d / SIDE; ++b) O_i.at[a][b] /= nonzero(l_i[a]);  // line 18
        if (x() == 0 && r < queries) L.store(top + r, m_i[a] + logf(l_i[a]));  // line 19
    }
    O_i.store(O, Offset(top) * d, d, queries);  // line 19
}  // line 20, and 21
