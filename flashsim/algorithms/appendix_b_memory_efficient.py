"""Appendix B.1: attention in closed form, equations 1 and 2, one query at a time.

    (1)  L_i  = Σ_j e^{q_iᵀ k_j}
    (2)  o_i  = Σ_j P_ij v_j,  P_ij = e^{q_iᵀ k_j} / L_i

Each sum runs over all keys for each query: O(N) extra memory, for L, and O(N²d) HBM
accesses. SRAM only sets how many terms are added at a time. τ stands before every q_iᵀ
k_j. L_i is kept as its logarithm, as e^{q_iᵀ k_j} overflows at scores that attention
has no trouble with. This has a limit that ℓ and m, kept apart, do not have. Where log n
is lost beside the scores (in float32 from |S| ≈ 2²⁴), each of n equal scores is given
all the weight, and O is a sum of V's rows.
"""

from flashsim.algorithms.blocks import by_one_query
from flashsim.algorithms.notation import (
    at_most_0,
    exp,
    finite,
    logaddexp,
    logsumexp,
    product,
)
from flashsim.algorithms.parts import Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


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
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    Q = Q.divide(blocks.B_r)
    O = O.divide(blocks.B_r)
    L = L.divide(blocks.B_r)
    K = K.divide(blocks.B_c)
    V = V.divide(blocks.B_c)

    for i in sram.loop(blocks.T_r):  # equation 1
        q_i = sram.load(Q[i])  # equation 1
        log_L_i = sram.full(L[i].shape, float("-inf"))  # equation 1
        for j in sram.loop(blocks.T_c):  # equation 1
            k_j = sram.load(K[j])  # equation 1
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 1
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # equation 1
            log_L_i = on_chip(  # equation 1
                logaddexp(log_L_i, logsumexp(S_masked_ij)), over=log_L_i
            )
        sram.store(L[i], log_L_i)  # equation 1

    for i in sram.loop(blocks.T_r):  # equation 2
        q_i, log_L_i = sram.load(Q[i], L[i])  # equation 2
        o_i = sram.full(O[i].shape, 0.0)  # equation 2
        for j in sram.loop(blocks.T_c):  # equation 2
            k_j, v_j = sram.load(K[j], V[j])  # equation 2
            S_ij = on_chip(tau * (q_i @ k_j.T))  # equation 2
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # equation 2
            P_ij = on_chip(  # equation 2
                exp(at_most_0(S_masked_ij - finite(log_L_i))), over=S_masked_ij
            )
            P_dropped_ij = on_chip(P_ij * dropout(P_ij, i, j), over=P_ij)  # equation 2
            o_i = on_chip(o_i + product(P_dropped_ij, v_j), over=o_i)  # equation 2
        sram.store(O[i], o_i)  # equation 2

    return O, L


def logs_rounded(T_c: int) -> int:
    """Return 2T_c: each block of keys takes the logarithm of its sum, and adds it to
    that of the sum so far.
    """
    return 2 * T_c


ALGORITHM = Algorithm(
    name="memory_efficient",
    title="Appendix B.1, memory-efficient",
    short="memory-efficient",
    look=("green", "^", "-"),
    run=memory_efficient,
    line_1=by_one_query,
    returns=("O", "L"),
    saves=("R",),
    follows=("L", "O"),
    rounds_logs=logs_rounded,
)
