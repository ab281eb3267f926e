// Algorithm 2: FlashAttention, forward, complete: softmax scaling, masking, dropout. One block of threads per (batch, head).
//
//     1  Initialize the pseudo-random number generator state R and save it to HBM.
//     2  Set block sizes B_c, B_r.
//     3  Initialize O = (0), ℓ = (0), m = (−∞) in HBM.
//     4  Divide Q into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
//     5  Divide O, ℓ, m into T_r blocks of B_r rows.
//     6  for 1 ≤ j ≤ T_c do
//     7    Load K_j, V_j from HBM to on-chip SRAM.
//     8    for 1 ≤ i ≤ T_r do
//     9      Load Q_i, O_i, ℓ_i, m_i from HBM to on-chip SRAM.
//     10     S_ij = τ Q_i K_jᵀ.
//     11     S_ij^masked = MASK(S_ij).
//     12     m̃_ij = rowmax(S_ij^masked), P̃_ij = exp(S_ij^masked − m̃_ij), ℓ̃_ij = rowsum(P̃_ij).
//     13     m_i^new = max(m_i, m̃_ij), ℓ_i^new = e^{m_i − m_i^new} ℓ_i + e^{m̃_ij − m_i^new} ℓ̃_ij.
//     14     P̃_ij^dropped = dropout(P̃_ij, p_drop).
//     15     Write O_i ← diag(ℓ_i^new)⁻¹ (diag(ℓ_i) e^{m_i − m_i^new} O_i + e^{m̃_ij − m_i^new} P̃_ij^dropped V_j) to HBM.
//     16     Write ℓ_i ← ℓ_i^new, m_i ← m_i^new to HBM.
//     17   end for
//     18 end for
//     19 Return O, ℓ, m, R.
//
// This is algorithm_1.cu with MASK and dropout as types, so that a variant without them has no cost for them. R is Philox's
// key, the seed (common.cuh). Unlike the paper, a row whose keys are all masked so far keeps ℓ = 0 and O = 0 (`finite`,
// `nonzero`).
//
// HBM, in elements per head (flashsim.count("flash", …), exactly): as Algorithm 1. Dropout adds two writes of R, and a dense
// mask is read once. Causally, too, every tile (i, j) is loaded and stored: the paper skips none. Times: docs/gpu-tried.md.
// no spills, no stack
#include "scalar.cuh"

template <typename T, int d, int B_r, int B_c, typename Mask, typename Drop>
__global__ void __launch_bounds__(THREADS, 1)
algorithm_2(const T* q, const T* k, const T* v, T* o, float* l_column, float* m_column, Word* state, Problem p,
            Total* totals) {
    const int head = blockIdx.x;
    const Offset rows = Offset(head) * p.N_q;
    Hbm<const T> Q(q + p.query(p.q, head), totals), K(k + p.key(p.k, head), totals + 2), V(v + p.key(p.v, head), totals + 4);
    Hbm<T> O(o + rows * d, totals + 6);
    Hbm<float> l(l_column + rows, totals + 8), m(m_column + rows, totals + 10);
    Hbm<Word> R(state + 2 * Offset(head), totals + 12);
    Mask MASK(p, head, totals + 14);
    Drop dropout(p, head);
    if (Drop::keeps_R && threadIdx.x == 0) R.put(0, p.dropout.key_0), R.put(1, p.dropout.key_1);  // line 1

    extern __shared__ float sram[];
    const Tile<B_r, d> Q_i{sram};  // line 2: B_r, B_c
    const Tile<B_c, d> K_j{Q_i.data + Q_i.size}, V_j{K_j.data + K_j.size};
    const Tile<B_r, B_c> P_dropped_ij{V_j.data + V_j.size};
    const Column<B_r> l_i{P_dropped_ij.data + P_dropped_ij.size}, m_i{l_i.data + l_i.size};

    for (Offset e = threadIdx.x; e < Offset(p.N_q) * d; e += THREADS) O.store(e, 0.0f);  // line 3
    for (int r = threadIdx.x; r < p.N_q; r += THREADS) l.store(r, 0.0f), m.store(r, -INFINITY);  // line 3
    __syncthreads();  // makes what one thread has written to HBM visible to the block

    const int T_c = ceil_div(p.N_k, B_c);  // line 4
    const int T_r = ceil_div(p.N_q, B_r);  // line 5
    for (int j = 0; j < T_c; ++j) {  // line 6
        const int left = j * B_c, keys = min(B_c, p.N_k - left);
        __syncthreads();  // the last P̃_ij V_j is done
        K_j.load(K, Offset(left) * p.k.row, p.k.row, keys);  // line 7
        V_j.load(V, Offset(left) * p.v.row, p.v.row, keys);  // line 7
        for (int i = 0; i < T_r; ++i) {  // line 8
            const int top = i * B_r, queries = min(B_r, p.N_q - top);
            Q_i.load(Q, Offset(top) * p.q.row, p.q.row, queries);  // line 9
            Registers<B_r, d> O_i;
            O_i.load(O, Offset(top) * d, d, queries);  // line 9
            l_i.load(l, top, queries, 0.0f), m_i.load(m, top, queries, -INFINITY);  // line 9
            __syncthreads();

            Registers<B_r, B_c> S_ij;
            S_ij.fill(0.0f);
            multiply_add<d>(S_ij, Q_i, transposed(K_j));  // line 10
            S_ij.each([&](float& s, int r, int c) {
                const bool inside = r < queries && c < keys;
                s = inside && MASK.allows(top + r, left + c) ? p.tau * s : -INFINITY;  // line 11
            });

            float keep_old[B_r / SIDE], keep_new[B_r / SIDE];
#pragma unroll
            for (int a = 0; a < B_r / SIDE; ++a) {
                const int r = S_ij.row(a);
                const float m_tilde = rowmax(S_ij, a);  // line 12
#pragma unroll
                for (int b = 0; b < B_c / SIDE; ++b) S_ij.at[a][b] = expf(S_ij.at[a][b] - finite(m_tilde));  // line 12
                const float l_tilde = rowsum(S_ij, a);  // line 12
                const float m_new = fmaxf(m_i[r], m_tilde);  // line 13
                const float old = expf(m_i[r] - finite(m_new)), now = expf(m_tilde - finite(m_new));  // line 13
                const float l_new = old * l_i[r] + now * l_tilde;  // line 13
                keep_old[a] = l_i[r] * old / nonzero(l_new);
                keep_new[a] = now / nonzero(l_new);
                __syncwarp();
                if (x() == 0) l_i[r] = l_new, m_i[r] = m_new;
            }
            S_ij.each([&](float& P_tilde, int r, int c) { P_tilde *= dropout.Z(top + r, left + c); });  // line 14
            S_ij.to(P_dropped_ij);
            __syncthreads();

            Registers<B_r, d> PV;
            PV.fill(0.0f);
            multiply_add<B_c>(PV, P_dropped_ij, V_j);  // line 15
#pragma unroll
            for (int a = 0; a < B_r / SIDE; ++a)
#pragma unroll
                for (int b = 0; b < d / SIDE; ++b)
                    O_i.at[a][b] = keep_old[a] * O_i.at[a][b] + keep_new[a] * PV.at[a][b];  // line 15
            O_i.store(O, Offset(top) * d, d, queries);  // line 15
            l_i.store(l, top, queries), m_i.store(m, top, queries);  // line 16
        }  // line 17
    }  // line 18
}  // line 19
