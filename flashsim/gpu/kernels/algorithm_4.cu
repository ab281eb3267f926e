// Algorithm 4: FlashAttention, backward, as printed. One block of threads per (batch, query head).
//     1  Set the pseudo-random number generator state to R.
//     2  Set block sizes B_c, B_r.
//     3  Divide Q into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
//     4  Divide O, dO, ℓ, m into T_r blocks of B_r rows.
//     5  Initialize dQ = (0) in HBM, in T_r blocks, and dK = (0), dV = (0), in T_c blocks.
//     6  for 1 ≤ j ≤ T_c do
//     7    Load K_j, V_j from HBM to on-chip SRAM.
//     8    Initialize dK̃_j = (0), dṼ_j = (0) on SRAM.
//     9    for 1 ≤ i ≤ T_r do
//     10     Load Q_i, O_i, dO_i, dQ_i, ℓ_i, m_i from HBM to on-chip SRAM.
//     11     S_ij = τ Q_i K_jᵀ.
//     12     S_ij^masked = MASK(S_ij).
//     13     P_ij = diag(ℓ_i)⁻¹ exp(S_ij^masked − m_i).
//     14     Z_ij: the forward pass's dropout mask, each entry 1/(1 − p_drop) with probability 1 − p_drop, else 0.
//     15     P_ij^dropped = P_ij ∘ Z_ij.
//     16     dṼ_j ← dṼ_j + (P_ij^dropped)ᵀ dO_i.
//     17     dP_ij^dropped = dO_i V_jᵀ.
//     18     dP_ij = dP_ij^dropped ∘ Z_ij.
//     19     D_i = rowsum(dO_i ∘ O_i).
//     20     dS_ij = P_ij ∘ (dP_ij − D_i).
//     21     Write dQ_i ← dQ_i + τ dS_ij K_j to HBM.
//     22     dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
//     23   end for
//     24   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
//     25 end for
//     26 Return dQ, dK, dV.
// Q_i, dO_i, K_j, V_j, P_ij^dropped, dS_ij are in shared memory, dK̃_j, dṼ_j, dQ_i, O_i in registers. The seed gives Z again.
// HBM, in elements per head (flashsim.count("flash", direction="backward", …), exactly): K, V are read once, Q, O, dO, dQ, ℓ, m
// T_c times; dQ is written T_c + 1 times, dK, dV twice, once as zeros; dropout reads R's two words. no spills, no stack
#include "scalar.cuh"

template <typename T, int d, int B_r, int B_c, typename Mask, typename Drop>
__global__ void __launch_bounds__(THREADS, 1)
algorithm_4(const T* q, const T* k, const T* v, const T* o, const T* dO_, const float* l_column, const float* m_column,
            const Word* state, T* dq, T* dk, T* dv, Problem p, Total* totals) {
    const int head = blockIdx.x;
    const Offset rows = Offset(head) * p.N_q, keys_above = Offset(head) * p.N_k;
    Hbm<const T> Q(q + p.query(p.q, head), totals), K(k + p.key(p.k, head), totals + 2), V(v + p.key(p.v, head), totals + 4);
    Hbm<const T> O(o + p.query(p.o, head), totals + 6), dO(dO_ + p.query(p.dO, head), totals + 8);
    Hbm<const float> l(l_column + rows, totals + 10), m(m_column + rows, totals + 12);
    Hbm<const Word> R(state + 2 * Offset(head), totals + 14);
    Hbm<T> dQ(dq + rows * d, totals + 16), dK(dk + keys_above * d, totals + 18), dV(dv + keys_above * d, totals + 20);
    Mask MASK(p, head, totals + 22);
    Drop dropout(p, head);

    __shared__ Word words[2];
    if (Drop::keeps_R && threadIdx.x == 0) words[0] = R.get(0), words[1] = R.get(1);  // line 1
    __syncthreads();
    if (Drop::keeps_R) dropout.set(words[0], words[1]);  // line 1

    extern __shared__ float sram[];
    const Tile<B_r, d> Q_i{sram}, dO_i{Q_i.data + Q_i.size};  // line 2: B_r, B_c
    const Tile<B_c, d> K_j{dO_i.data + dO_i.size}, V_j{K_j.data + K_j.size};
    const Tile<B_r, B_c> P_dropped_ij{V_j.data + V_j.size}, dS_ij{P_dropped_ij.data + P_dropped_ij.size};
    const Column<B_r> l_i{dS_ij.data + dS_ij.size}, m_i{l_i.data + l_i.size};

    const int T_c = ceil_div(p.N_k, B_c);  // line 3
    const int T_r = ceil_div(p.N_q, B_r);  // line 4
    for (Offset e = threadIdx.x; e < Offset(p.N_q) * d; e += THREADS) dQ.store(e, 0.0f);  // line 5
    for (Offset e = threadIdx.x; e < Offset(p.N_k) * d; e += THREADS) dK.store(e, 0.0f), dV.store(e, 0.0f);  // line 5
    for (int j = 0; j < T_c; ++j) {  // line 6
        const int left = j * B_c, keys = min(B_c, p.N_k - left);
        __syncthreads();  // the last products of K_j are done; and what was written to HBM is visible to the block
        K_j.load(K, Offset(left) * p.k.row, p.k.row, keys);  // line 7
        V_j.load(V, Offset(left) * p.v.row, p.v.row, keys);  // line 7
        Registers<B_c, d> dK_tilde_j, dV_tilde_j;
        dK_tilde_j.fill(0.0f), dV_tilde_j.fill(0.0f);  // line 8
        for (int i = 0; i < T_r; ++i) {  // line 9
            const int top = i * B_r, queries = min(B_r, p.N_q - top);
            __syncthreads();  // the last products of Q_i are done
            Q_i.load(Q, Offset(top) * p.q.row, p.q.row, queries);  // line 10
            dO_i.load(dO, Offset(top) * p.dO.row, p.dO.row, queries);  // line 10
            Registers<B_r, d> O_i, dQ_i;
            O_i.load(O, Offset(top) * p.o.row, p.o.row, queries);  // line 10
            dQ_i.load(dQ, Offset(top) * d, d, queries);  // line 10
            l_i.load(l, top, queries, 0.0f), m_i.load(m, top, queries, -INFINITY);  // line 10
            __syncthreads();

            Registers<B_r, B_c> P_ij, dP_ij;
            P_ij.fill(0.0f);
            multiply_add<d>(P_ij, Q_i, transposed(K_j));  // line 11
            P_ij.each([&](float& s, int r, int c) {
                const bool inside = r < queries && c < keys;
                s = inside && MASK.allows(top + r, left + c) ? p.tau * s : -INFINITY;  // line 12
                s = expf(fminf(s - finite(m_i[r]), 0.0f)) / nonzero(l_i[r]);  // line 13
                const float Z = dropout.Z(top + r, left + c);  // line 14
                P_dropped_ij(r, c) = s * Z;  // line 15
            });
            __syncthreads();
            multiply_add<B_r>(dV_tilde_j, transposed(P_dropped_ij), dO_i);  // line 16
            dP_ij.fill(0.0f);
            multiply_add<d>(dP_ij, dO_i, transposed(V_j));  // line 17
            dP_ij.each([&](float& dP, int r, int c) { dP *= dropout.Z(top + r, left + c); });  // line 18
#pragma unroll
            for (int a = 0; a < B_r / SIDE; ++a) {
                float D_i = 0.0f;
#pragma unroll
                for (int b = 0; b < d / SIDE; ++b) D_i += dO_i(O_i.row(a), O_i.column(b)) * O_i.at[a][b];  // line 19
                D_i = sum_of_row(D_i);  // line 19
#pragma unroll
                for (int b = 0; b < B_c / SIDE; ++b) {
                    const float P = P_ij.at[a][b];  // where it is 0, so is dS, be dP there NaN or ∞
                    dS_ij(P_ij.row(a), P_ij.column(b)) = P == 0 ? 0.0f : P * (dP_ij.at[a][b] - D_i);  // line 20
                }
            }
            __syncthreads();

            Registers<B_r, d> dS_K;
            dS_K.fill(0.0f);
            multiply_add<B_c>(dS_K, dS_ij, K_j);  // line 21
#pragma unroll
            for (int a = 0; a < B_r / SIDE; ++a)
#pragma unroll
                for (int b = 0; b < d / SIDE; ++b) dQ_i.at[a][b] += p.tau * dS_K.at[a][b];  // line 21
            dQ_i.store(dQ, Offset(top) * d, d, queries);  // line 21
            multiply_add<B_r>(dK_tilde_j, transposed(dS_ij), Q_i);  // line 22
        }  // line 23
        dK_tilde_j.each([&](float& element, int, int) { element *= p.tau; });  // the factor τ of line 22
        dK_tilde_j.store(dK, Offset(left) * d, d, keys);  // line 24
        dV_tilde_j.store(dV, Offset(left) * d, d, keys);  // line 24
    }  // line 25
}  // line 26

// Summing the parts of dK (or dV) that the query heads of a group wrote: flashsim/algorithms/group_sum.py, in elements
// parts · g read and parts written. `size` = N_k · d elements a head; a thread for each element of the sum.
template <typename T>
__global__ void __launch_bounds__(THREADS)
group_sum(const T* parts_, T* sums_, int group, Offset size, Offset total, Total* totals) {
    Hbm<const T> parts(parts_, totals);
    Hbm<T> sums(sums_, totals + 2);
    for (Offset e = Offset(blockIdx.x) * THREADS + threadIdx.x; e < total; e += Offset(gridDim.x) * THREADS) {
        float sum = 0.0f;
        for (int h = 0; h < group; ++h) sum += parts.load((e / size * group + h) * size + e % size);
        sums.store(e, sum);
    }
}
