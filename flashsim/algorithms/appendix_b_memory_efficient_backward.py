"""Appendix B.2: the gradients of attention in closed form, equations 3 to 6, one key or
query at a time.

    (3)  dv_j = Σ_i P_ij do_i
    (4)  D_i  = P_i:ᵀ dP_i: = do_iᵀ o_i
    (5)  dq_i = Σ_j dS_ij k_j,  dS_ij = P_ij (do_iᵀ v_j − D_i)
    (6)  dk_j = Σ_i dS_ij q_i

Each sum runs over all keys, or all queries, for each row: O(N) extra memory, for D
besides L, and O(N²d) HBM accesses. τ stands before every q_iᵀ k_j, and so before dq and
dk.
"""

from flashsim.algorithms.appendix_b_memory_efficient import logs_rounded
from flashsim.algorithms.blocks import by_one_query
from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


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
    """Run equations 3 to 6 on the forward pass's operands and dO (N_q, d_v); return dQ,
    dK, dV, in HBM.
    """
    on_chip = sram.on_chip
    dropout.restore()
    N_q = Q.shape[0]
    N_k = K.shape[0]
    terms = int(blocks.B_c)  # of queries, too
    D = hbm.empty("D", (N_q, 1), sram.dtype)
    dQ, dK, dV = (
        hbm.empty(f"d{X.name}", X.shape, X.dtype, "output") for X in (Q, K, V)
    )
    q, do, log_L, D_1, dq = (X.divide(1) for X in (Q, dO, L, D, dQ))  # a row at a time
    k, v, dk, dv = (X.divide(1) for X in (K, V, dK, dV))
    # terms of a sum
    Q, O, dO, L, D, K, V = (X.divide(terms) for X in (Q, O, dO, L, D, K, V))
    by_key = Blocks(terms, 1, N_q=N_q, N_k=N_k)
    MASK_by_key = MASK.divided(by_key)
    dropout_by_key = dropout.divided(by_key)
    by_query = Blocks(1, terms, N_q=N_q, N_k=N_k)
    MASK_by_query = MASK.divided(by_query)
    dropout_by_query = dropout.divided(by_query)

    for j in sram.loop(N_k):  # equation 3
        k_j = sram.load(k[j])  # equation 3
        dv_j = sram.full(dv[j].shape, 0.0)  # equation 3
        for i in sram.loop(len(Q)):  # equation 3
            q_i, do_i, log_L_i = sram.load(Q[i], dO[i], L[i])  # equation 3
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 3
            S_masked_ij = on_chip(MASK_by_key(S_ij, i, j), over=S_ij)  # equation 3
            P_ij = on_chip(  # equation 3
                exp(at_most_0(S_masked_ij - finite(log_L_i))), over=S_masked_ij
            )
            P_dropped_ij = on_chip(  # equation 3
                P_ij * dropout_by_key(P_ij, i, j), over=P_ij
            )
            dv_j = on_chip(  # equation 3
                dv_j + product(P_dropped_ij.T, do_i), over=dv_j
            )
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
            P_ij = on_chip(  # equation 5
                exp(at_most_0(S_masked_ij - finite(log_L_i))), over=S_masked_ij
            )
            dP_dropped_ij = on_chip(do_i @ v_j.T)  # equation 5
            dP_ij = on_chip(  # equation 5
                dP_dropped_ij * dropout_by_query(P_ij, i, j), over=dP_dropped_ij
            )
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # equation 5
            MASK_by_query.gradient(dS_ij, i, j)  # equation 5
            dS_ij = MASK_by_query.uncapped(dS_ij)  # equation 5
            dq_i = on_chip(dq_i + tau * product(dS_ij, k_j), over=dq_i)  # equation 5
        sram.store(dq[i], dq_i)  # equation 5

    for j in sram.loop(N_k):  # equation 6
        k_j, v_j = sram.load(k[j], v[j])  # equation 6
        dk_j = sram.full(dk[j].shape, 0.0)  # equation 6
        for i in sram.loop(len(Q)):  # equation 6
            q_i, do_i, log_L_i, D_i = sram.load(Q[i], dO[i], L[i], D[i])  # equation 6
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 6
            S_masked_ij = on_chip(MASK_by_key(S_ij, i, j), over=S_ij)  # equation 6
            P_ij = on_chip(  # equation 6
                exp(at_most_0(S_masked_ij - finite(log_L_i))), over=S_masked_ij
            )
            dP_dropped_ij = on_chip(do_i @ v_j.T)  # equation 6
            dP_ij = on_chip(  # equation 6
                dP_dropped_ij * dropout_by_key(P_ij, i, j), over=dP_dropped_ij
            )
            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # equation 6
            dS_ij = MASK_by_key.uncapped(dS_ij)  # equation 6
            dk_j = on_chip(dk_j + tau * product(dS_ij.T, q_i), over=dk_j)  # equation 6
        sram.store(dk[j], dk_j)  # equation 6

    return dQ, dK, dV


ALGORITHM = Algorithm(
    name="memory_efficient",
    direction="backward",
    title="Appendix B.2, memory-efficient, backward",
    run=memory_efficient_backward,
    line_1=by_one_query,
    rounds_logs=logs_rounded,
    gives_dS=True,
)
