"""Appendix B.1 and B.2: attention in closed form, equations 1 to 6, one query (or key) at a time.

    (1)  L_i  = Σ_j e^{q_iᵀ k_j}
    (2)  o_i  = Σ_j P_ij v_j,  P_ij = e^{q_iᵀ k_j} / L_i
    (3)  dv_j = Σ_i P_ij do_i
    (4)  D_i  = P_i:ᵀ dP_i: = do_iᵀ o_i
    (5)  dq_i = Σ_j dS_ij k_j,  dS_ij = P_ij (do_iᵀ v_j − D_i)
    (6)  dk_j = Σ_i dS_ij q_i

Each sum runs over all keys (or queries) for each row: O(N) extra memory, for L and D, and O(N²d) HBM accesses. SRAM only
sets how many terms are added at a time. τ stands before every q_iᵀ k_j, and so before dq and dk. L_i is kept as its
logarithm, as e^{q_iᵀ k_j} overflows at scores that attention has no trouble with.
"""

from __future__ import annotations

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, logaddexp, logsumexp, product, rowsum
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.memory import HBM, SRAM, Matrix
from flashsim.records import Blocks


def block_sizes(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): one query at a time, and `rows` terms of its sum."""
    return 1, rows


def memory_efficient(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
) -> tuple[Matrix, Matrix]:
    """Run equations 1 and 2; return O (N_q, d_v) and log L (N_q, 1), in HBM."""
    on_chip = sram.on_chip
    dropout.save()
    O, L = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output"), hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    Q, O, L = Q.divide(blocks.B_r), O.divide(blocks.B_r), L.divide(blocks.B_r)
    K, V = K.divide(blocks.B_c), V.divide(blocks.B_c)

    for i in sram.loop(blocks.T_r):  # equation 1
        q_i = sram.load(Q[i])  # equation 1
        log_L_i = sram.full(L[i].shape, float("-inf"))  # equation 1
        for j in sram.loop(blocks.T_c):  # equation 1
            k_j = sram.load(K[j])  # equation 1
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 1
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # equation 1
            log_L_i = on_chip(logaddexp(log_L_i, logsumexp(S_masked_ij)), over=log_L_i)  # equation 1
        sram.store(L[i], log_L_i)  # equation 1

    for i in sram.loop(blocks.T_r):  # equation 2
        q_i, log_L_i = sram.load(Q[i], L[i])  # equation 2
        o_i = sram.full(O[i].shape, 0.0)  # equation 2
        for j in sram.loop(blocks.T_c):  # equation 2
            k_j, v_j = sram.load(K[j], V[j])  # equation 2
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 2
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # equation 2
            P_ij = on_chip(exp(at_most_0(S_masked_ij - finite(log_L_i))), over=S_masked_ij)  # equation 2
            P_dropped_ij = on_chip(P_ij * dropout(P_ij, i, j), over=P_ij)  # equation 2
            o_i = on_chip(o_i + product(P_dropped_ij, v_j), over=o_i)  # equation 2
        sram.store(O[i], o_i)  # equation 2

    return O, L


def memory_efficient_backward(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    O: Matrix,
    dO: Matrix,
    L: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run equations 3 to 6 on the forward pass's operands and dO (N_q, d_v); return dQ, dK, dV, in HBM."""
    on_chip = sram.on_chip
    dropout.restore()
    N_q, N_k, terms = Q.shape[0], K.shape[0], blocks.B_c
    D = hbm.empty("D", (N_q, 1), sram.dtype)
    dQ, dK, dV = (hbm.empty(f"d{X.name}", X.shape, X.dtype, "output") for X in (Q, K, V))
    q, do, log_L, D_1, dq = Q.divide(1), dO.divide(1), L.divide(1), D.divide(1), dQ.divide(1)  # a row at a time
    k, v, dk, dv = K.divide(1), V.divide(1), dK.divide(1), dV.divide(1)
    Q, O, dO, L, D = (
        Q.divide(terms),
        O.divide(terms),
        dO.divide(terms),
        L.divide(terms),
        D.divide(terms),
    )  # terms of a sum
    K, V = K.divide(terms), V.divide(terms)
    by_key = Blocks(min(terms, N_q), 1, len(Q), N_k)
    MASK_by_key, dropout_by_key = MASK.divided(by_key), dropout.divided(by_key)
    by_query = Blocks(1, min(terms, N_k), N_q, len(K))
    MASK_by_query, dropout_by_query = MASK.divided(by_query), dropout.divided(by_query)

    for j in sram.loop(N_k):  # equation 3
        k_j = sram.load(k[j])  # equation 3
        dv_j = sram.full(dv[j].shape, 0.0)  # equation 3
        for i in sram.loop(len(Q)):  # equation 3
            q_i, do_i, log_L_i = sram.load(Q[i], dO[i], L[i])  # equation 3
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 3
            S_masked_ij = on_chip(MASK_by_key(S_ij, i, j), over=S_ij)  # equation 3
            P_ij = on_chip(exp(at_most_0(S_masked_ij - finite(log_L_i))), over=S_masked_ij)  # equation 3
            P_dropped_ij = on_chip(P_ij * dropout_by_key(P_ij, i, j), over=P_ij)  # equation 3
            dv_j = on_chip(dv_j + product(P_dropped_ij.T, do_i), over=dv_j)  # equation 3
        sram.store(dv[j], dv_j)  # equation 3

    for i in sram.loop(len(D)):  # equation 4
        o_i, do_i = sram.load(O[i], dO[i])  # equation 4
        D_i = on_chip(rowsum(do_i * o_i))  # equation 4
        sram.store(D[i], D_i)  # equation 4

    for i in sram.loop(N_q):  # equation 5
        q_i, do_i, log_L_i, D_i = sram.load(q[i], do[i], log_L[i], D_1[i])  # equation 5
        dq_i = sram.full(dq[i].shape, 0.0)  # equation 5
        for j in sram.loop(len(K)):  # equation 5
            k_j, v_j = sram.load(K[j], V[j])  # equation 5
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 5
            S_masked_ij = on_chip(MASK_by_query(S_ij, i, j), over=S_ij)  # equation 5
            P_ij = on_chip(exp(at_most_0(S_masked_ij - finite(log_L_i))), over=S_masked_ij)  # equation 5
            dP_dropped_ij = on_chip(do_i @ v_j.T)  # equation 5
            dP_ij = on_chip(dP_dropped_ij * dropout_by_query(P_ij, i, j), over=dP_dropped_ij)  # equation 5
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # equation 5
            dq_i = on_chip(dq_i + tau * product(dS_ij, k_j), over=dq_i)  # equation 5
        sram.store(dq[i], dq_i)  # equation 5

    for j in sram.loop(N_k):  # equation 6
        k_j, v_j = sram.load(k[j], v[j])  # equation 6
        dk_j = sram.full(dk[j].shape, 0.0)  # equation 6
        for i in sram.loop(len(Q)):  # equation 6
            q_i, do_i, log_L_i, D_i = sram.load(Q[i], dO[i], L[i], D[i])  # equation 6
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 6
            S_masked_ij = on_chip(MASK_by_key(S_ij, i, j), over=S_ij)  # equation 6
            P_ij = on_chip(exp(at_most_0(S_masked_ij - finite(log_L_i))), over=S_masked_ij)  # equation 6
            dP_dropped_ij = on_chip(do_i @ v_j.T)  # equation 6
            dP_ij = on_chip(dP_dropped_ij * dropout_by_key(P_ij, i, j), over=dP_dropped_ij)  # equation 6
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # equation 6
            dk_j = on_chip(dk_j + tau * product(dS_ij.T, q_i), over=dk_j)  # equation 6
        sram.store(dk[j], dk_j)  # equation 6

    return dQ, dK, dV
