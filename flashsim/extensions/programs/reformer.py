"""Reformer: attention within clusters of rows that hash alike, and the cluster before, in h rounds
of hashing.

    Require: Q, K (N×d), V (N×e), each round's rows sorted by bucket, order (h×N), and each row's
             home in each round, home (N×h), in HBM, on-chip SRAM of size M, clusters of C rows,
             softmax scaling constant τ.
    1  Divide the order of each round into T = ⌈N/C⌉ clusters of C words.
    2  Divide O into T blocks of C rows. In HBM, O^parts (hN×e) and L^parts (hN×1) have N rows O^a,
       L^a for each round a.
    3  for 1 ≤ a ≤ h do
    4    for 1 ≤ i ≤ T do
    5      Read cluster i's words r_i of round a's order from HBM to on-chip SRAM.
    6      Load rows r_i of Q and home, as Q_i and H_i, from HBM to on-chip SRAM.
    7      Initialize O_i = (0)_{C×e}, ℓ_i = (0)_C, m_i = (−∞)_C on SRAM.
    8      for j = i, and then j = i − 1 if i > 1, do
    9        Read cluster j's words r_j, unless they are r_i.
    10       Load rows r_j of K and V, as K_j and V_j, and of home, as H_j, unless they are H_i.
    11       S_ij = τ Q_i K_jᵀ.
    12       S_ij ← S_ij − log(in how many rounds the two meet) where they meet in round a by H_i
             and H_j, −∞ elsewhere.
    13       m_i^new = max(m_i, rowmax(S_ij)).
    14       P̃_ij = exp(S_ij − m_i^new).
    15       ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    16       O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij V_j.
    17       m_i ← m_i^new.
    18     end for
    19     O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    20     Write O_i, L_i to rows r_i of O^a, L^a in HBM.
    21   end for
    22 end for
    23 for 1 ≤ i ≤ T do
    24   Initialize O_i = (0)_{C×e}, ℓ_i = (0)_C, m_i = (−∞)_C on SRAM.
    25   for 1 ≤ a ≤ h do
    26     Load O_i^a, L_i^a from HBM to on-chip SRAM.
    27     m_i^new = max(m_i, L_i^a).
    28     ℓ_i ← e^{m_i − m_i^new} ℓ_i + e^{L_i^a − m_i^new}.
    29     O_i ← diag(e^{m_i − m_i^new}) O_i + diag(e^{L_i^a − m_i^new}) O_i^a.
    30     m_i ← m_i^new.
    31   end for
    32   O_i ← diag(ℓ_i)⁻¹ O_i.
    33   Write O_i to HBM.
    34 end for
    35 Return O.

The listing is ours, after N. Kitaev et al., "Reformer: The Efficient Transformer". Two rows meet in
a round if they are in one bucket, and in one cluster or neighbouring ones: the second may look
back. A row attends once to each that it meets in any round; a pair that meets in three is counted a
third in each. Not as in their paper: Q and K are two operands, where theirs are one, with keys of
length 1; a row is a key to itself like any other; nothing is causal. Their code also lets the first
cluster look back, to the last. Hashing and sorting come before, and are not counted.
"""

from flashsim.algorithms.notation import exp, finite, log, maximum, rowmax, rowsum
from flashsim.algorithms.program import QKV, MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.clusters import CLUSTERED, example_buckets, places, shared_out
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def reformer(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    order: Matrix,
    home: Matrix,
    blocks: Sizes,
    tau: float,
) -> Matrix:
    """Run on Q, K (N, d), V (N, e), order (h, N), home (N, h); return O (N, e), in HBM."""
    on_chip = sram.on_chip
    C, (h, N) = blocks.C, order.shape  # line 1
    order = order.divide(1, 1)  # line 1
    O = hbm.empty("O", V.shape, V.dtype, "output").divide(C)  # line 2
    O_parts = hbm.empty("O_parts", (h * N, V.shape[1]), V.dtype).divide(C)  # line 2
    L_parts = hbm.empty("L_parts", (h * N, 1), sram.dtype).divide(C)  # line 2
    for a in sram.loop(h):  # line 3
        O_a = O_parts.rows(a * N, (a + 1) * N)  # line 2
        L_a = L_parts.rows(a * N, (a + 1) * N)  # line 2
        for i in sram.loop(len(O), alike=[i > 0 for i in range(len(O))]):  # line 4
            r_i = [sram.word(order[a, n]) for n in places(i, C, N)]  # line 5
            Q_i, H_i = sram.load(Q.at(r_i), home.at(r_i))  # line 6
            O_i = sram.full(O[i].shape, 0.0)  # line 7
            l_i = sram.full((len(r_i), 1), 0.0)  # line 7
            m_i = sram.full((len(r_i), 1), float("-inf"))  # line 7
            for back in sram.loop(2 if i > 0 else 1):  # line 8
                r_j = (  # line 9
                    [sram.word(order[a, n]) for n in places(i - 1, C, N)] if back else r_i
                )
                K_j, V_j = sram.load(K.at(r_j), V.at(r_j))  # line 10
                H_j = sram.load(home.at(r_j)) if back else H_i  # line 10
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 11
                S_ij = on_chip(shared_out(S_ij, H_i, H_j, a), over=S_ij)  # line 12
                m_i_new = on_chip(maximum(m_i, rowmax(S_ij)))  # line 13
                P_tilde_ij = on_chip(exp(S_ij - finite(m_i_new)), over=S_ij)  # line 14
                l_i = on_chip(  # line 15
                    exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                )
                O_i = on_chip(  # line 16
                    exp(m_i - finite(m_i_new)) * O_i + P_tilde_ij @ V_j, over=O_i
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 17
            # line 18: end for
            O_i = on_chip(O_i / l_i, over=O_i)  # line 19
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 19
            sram.store(O_a.at(r_i), O_i)  # line 20
            sram.store(L_a.at(r_i), L_i)  # line 20
        # line 21: end for
    # line 22: end for
    for i in sram.loop(len(O)):  # line 23
        O_i = sram.full(O[i].shape, 0.0)  # line 24
        l_i = sram.full((O_i.shape[0], 1), 0.0)  # line 24
        m_i = sram.full((O_i.shape[0], 1), float("-inf"))  # line 24
        for a in sram.loop(h):  # line 25
            O_a = O_parts.rows(a * N, (a + 1) * N)  # line 26
            L_a = L_parts.rows(a * N, (a + 1) * N)  # line 26
            O_ia, L_ia = sram.load(O_a[i], L_a[i])  # line 26
            m_i_new = on_chip(maximum(m_i, L_ia))  # line 27
            l_i = on_chip(  # line 28
                exp(m_i - finite(m_i_new)) * l_i + exp(L_ia - finite(m_i_new)), over=l_i
            )
            O_i = on_chip(  # line 29
                exp(m_i - finite(m_i_new)) * O_i + exp(L_ia - finite(m_i_new)) * O_ia, over=O_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 30
        # line 31: end for
        O_i = on_chip(O_i / l_i, over=O_i)  # line 32
        sram.store(O[i], O_i)  # line 33
    # line 34: end for
    return O  # line 35


PROGRAM = MatrixProgram(
    **CLUSTERED,
    title="Reformer",
    source="Kitaev et al. 2020",
    run=reformer,
    operands={**QKV, "order": Kind("h", "N", "index"), "home": Kind("N", "h", "words")},
    example=example_buckets,
    bugs=(
        Bug("scores without τ", "tau * (Q_i @ K_j.T)", "Q_i @ K_j.T"),
        Bug(
            "pairs counted in every round",
            "shared_out(S_ij, H_i, H_j, a)",
            "shared_out(S_ij, H_i, H_j, 0)",
        ),
        Bug(
            "keys at home where the queries are",
            "shared_out(S_ij, H_i, H_j, a)",
            "shared_out(S_ij, H_i, H_i, a)",
        ),
        Bug("no cluster looks back", "2 if i > 0 else 1", "1"),
        Bug("the own cluster twice", "places(i - 1, C, N)", "places(i, C, N)"),
        Bug("V of the queries' rows", "V.at(r_j)", "V.at(r_i)"),
        Bug("O is not rescaled", "exp(m_i - finite(m_i_new)) * O_i + P_tilde", "O_i + P_tilde"),
        Bug(
            "O left in the round's order", "sram.store(O_a.at(r_i), O_i)", "sram.store(O_a[i], O_i)"
        ),
        Bug("L turned round", "sram.store(L_a.at(r_i), L_i)", "sram.store(L_a.at(r_i[::-1]), L_i)"),
        Bug("L without ℓ", "m_i + log(l_i)", "m_i"),
        Bug("rounds are not weighted", "exp(L_ia - finite(m_i_new)) * O_ia", "O_ia"),
    ),
)
