"""SMYRF: attention of clusters of queries to clusters of keys, as many rows in each, in h rounds of
hashing.

    Require: Q, K (N×d), V (N×e), each round's queries and keys sorted by hash, order_Q, order_K
             (h×N), in HBM, on-chip SRAM of size M, clusters of C rows, softmax scaling constant τ.
    1  Divide both orders of each round into T = ⌈N/C⌉ clusters of C words.
    2  Divide O into T blocks of C rows. In HBM, O^parts (hN×e) and L^parts (hN×1) have N rows O^a,
       L^a for each round a.
    3  for 1 ≤ a ≤ h do
    4    for 1 ≤ i ≤ T do
    5      Read cluster i's words q_i of round a's order_Q and k_i of its order_K from HBM to
           on-chip SRAM.
    6      Load rows q_i of Q, as Q_i, and rows k_i of K and V, as K_i and V_i,
           from HBM to on-chip SRAM.
    7      S_i = τ Q_i K_iᵀ.
    8      m_i = rowmax(S_i), P̃_i = exp(S_i − m_i), ℓ_i = rowsum(P̃_i).
    9      O_i = diag(ℓ_i)⁻¹ P̃_i V_i, L_i = m_i + log ℓ_i.
    10     Write O_i, L_i to rows q_i of O^a, L^a in HBM.
    11   end for
    12 end for
    13 for 1 ≤ i ≤ T do
    14   Initialize O_i = (0)_{C×e}, ℓ_i = (0)_C, m_i = (−∞)_C on SRAM.
    15   for 1 ≤ a ≤ h do
    16     Load O_i^a, L_i^a from HBM to on-chip SRAM.
    17     m_i^new = max(m_i, L_i^a).
    18     ℓ_i ← e^{m_i − m_i^new} ℓ_i + e^{L_i^a − m_i^new}.
    19     O_i ← diag(e^{m_i − m_i^new}) O_i + diag(e^{L_i^a − m_i^new}) O_i^a.
    20     m_i ← m_i^new.
    21   end for
    22   O_i ← diag(ℓ_i)⁻¹ O_i.
    23   Write O_i to HBM.
    24 end for
    25 Return O.

The listing is ours, after G. Daras et al., "SMYRF: Efficient Attention using Asymmetric
Clustering". Queries and keys have an order each, and cluster i of one attends to cluster i of the
other, whole: nothing is masked. A pair that meets in several rounds counts as often. Not as in
their paper: the last cluster may be smaller, where theirs are equal. Hashing and sorting come
before, and are not counted.
"""

from flashsim.algorithms.notation import exp, finite, log, maximum, rowmax, rowsum
from flashsim.algorithms.program import QKV, MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.clusters import CLUSTERED, example_orders, places
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def smyrf(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    order_Q: Matrix,
    order_K: Matrix,
    blocks: Sizes,
    tau: float,
) -> Matrix:
    """Run on Q, K (N, d), V (N, e), order_Q, order_K (h, N); return O (N, e), in HBM."""
    on_chip = sram.on_chip
    C, (h, N) = blocks.C, order_Q.shape  # line 1
    order_Q = order_Q.divide(1, 1)  # line 1
    order_K = order_K.divide(1, 1)  # line 1
    O = hbm.empty("O", V.shape, V.dtype, "output").divide(C)  # line 2
    O_parts = hbm.empty("O_parts", (h * N, V.shape[1]), V.dtype).divide(C)  # line 2
    L_parts = hbm.empty("L_parts", (h * N, 1), sram.dtype).divide(C)  # line 2
    for a in sram.loop(h):  # line 3
        O_a = O_parts.rows(a * N, (a + 1) * N)  # line 2
        L_a = L_parts.rows(a * N, (a + 1) * N)  # line 2
        for i in sram.loop(len(O)):  # line 4
            q_i = [sram.word(order_Q[a, n]) for n in places(i, C, N)]  # line 5
            k_i = [sram.word(order_K[a, n]) for n in places(i, C, N)]  # line 5
            Q_i, K_i, V_i = sram.load(Q.at(q_i), K.at(k_i), V.at(k_i))  # line 6
            S_i = on_chip(tau * (Q_i @ K_i.T))  # line 7
            m_i = on_chip(rowmax(S_i))  # line 8
            P_tilde_i = on_chip(exp(S_i - m_i), over=S_i)  # line 8
            l_i = on_chip(rowsum(P_tilde_i))  # line 8
            O_i = on_chip(P_tilde_i @ V_i / l_i)  # line 9
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 9
            sram.store(O_a.at(q_i), O_i)  # line 10
            sram.store(L_a.at(q_i), L_i)  # line 10
        # line 11: end for
    # line 12: end for
    for i in sram.loop(len(O)):  # line 13
        O_i = sram.full(O[i].shape, 0.0)  # line 14
        l_i = sram.full((O_i.shape[0], 1), 0.0)  # line 14
        m_i = sram.full((O_i.shape[0], 1), float("-inf"))  # line 14
        for a in sram.loop(h):  # line 15
            O_a = O_parts.rows(a * N, (a + 1) * N)  # line 16
            L_a = L_parts.rows(a * N, (a + 1) * N)  # line 16
            O_ia, L_ia = sram.load(O_a[i], L_a[i])  # line 16
            m_i_new = on_chip(maximum(m_i, L_ia))  # line 17
            l_i = on_chip(  # line 18
                exp(m_i - finite(m_i_new)) * l_i + exp(L_ia - finite(m_i_new)), over=l_i
            )
            O_i = on_chip(  # line 19
                exp(m_i - finite(m_i_new)) * O_i + exp(L_ia - finite(m_i_new)) * O_ia, over=O_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 20
        # line 21: end for
        O_i = on_chip(O_i / l_i, over=O_i)  # line 22
        sram.store(O[i], O_i)  # line 23
    # line 24: end for
    return O  # line 25


PROGRAM = MatrixProgram(
    **CLUSTERED,
    title="SMYRF",
    source="Daras et al. 2020",
    run=smyrf,
    operands={**QKV, "order_Q": Kind("h", "N", "index"), "order_K": Kind("h", "N", "index")},
    example=example_orders,
    bugs=(
        Bug("scores without τ", "tau * (Q_i @ K_i.T)", "Q_i @ K_i.T"),
        Bug("V of the queries' rows", "V.at(k_i)", "V.at(q_i)"),
        Bug("keys in the queries' order", "sram.word(order_K[a, n])", "sram.word(order_Q[a, n])"),
        Bug("keys of the first round", "sram.word(order_K[a, n])", "sram.word(order_K[0, n])"),
        Bug(
            "O left in the round's order", "sram.store(O_a.at(q_i), O_i)", "sram.store(O_a[i], O_i)"
        ),
        Bug("L without m", "m_i + log(l_i)", "log(l_i)"),
        Bug("ℓ is not rescaled", "exp(m_i - finite(m_i_new)) * l_i", "l_i"),
        Bug("rounds are not weighted", "exp(L_ia - finite(m_i_new)) * O_ia", "O_ia"),
    ),
)
