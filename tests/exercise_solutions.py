"""A solution of each exercise, and typical mistakes: (text of the solution, what stands there instead, part of the hint)."""

from __future__ import annotations

SOLUTIONS: dict[str, str] = {
    "load_a_tile": """
def square(hbm, sram, X, Y):
    on_chip = sram.on_chip
    for i in sram.loop(len(X)):
        X_i = sram.load(X[i])
        Y_i = on_chip(X_i * X_i)
        sram.store(Y[i], Y_i)
""",
    "scores": """
def scores(hbm, sram, Q, K, S, T_r, T_c):
    on_chip = sram.on_chip
    for i in sram.loop(T_r):
        Q_i = sram.load(Q[i])
        for j in sram.loop(T_c):
            K_j = sram.load(K[j])
            S_ij = on_chip(Q_i @ K_j.T)
            sram.store(S[i, j], S_ij)
""",
    "softmax": """
import numpy as np
from flashsim.algorithms.notation import exp, rowmax, rowsum
def softmax(S):
    m = rowmax(S)
    P = exp(S - m)
    l = rowsum(P)
    return P / l
""",
    "online_softmax": """
from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum
def step(m, l, s):
    m_new = maximum(m, rowmax(s))
    l_new = exp(m - m_new) * l + rowsum(exp(s - m_new))
    return m_new, l_new
""",
    "inner_loop": """
from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum
def flash(hbm, sram, Q, K, V, O, l, m, blocks):
    on_chip = sram.on_chip
    for j in sram.loop(blocks.T_c):
        K_j, V_j = sram.load(K[j], V[j])
        for i in sram.loop(blocks.T_r):
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])
            S_ij = on_chip(Q_i @ K_j.T)
            m_tilde = on_chip(rowmax(S_ij))
            P_tilde = on_chip(exp(S_ij - m_tilde))
            l_tilde = on_chip(rowsum(P_tilde))
            m_new = on_chip(maximum(m_i, m_tilde))
            l_new = on_chip(exp(m_i - m_new) * l_i + exp(m_tilde - m_new) * l_tilde)
            O_new = on_chip((l_i * exp(m_i - m_new) * O_i + exp(m_tilde - m_new) * (P_tilde @ V_j)) / l_new)
            sram.store(O[i], O_new)
            sram.store(l[i], l_new)
            sram.store(m[i], m_new)
""",
    "divide_once": """
from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum
def attention(hbm, sram, Q, K, V, O, blocks):
    on_chip = sram.on_chip
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        rows = Q_i.shape[0]
        m_i = sram.full((rows, 1), -float("inf"))
        l_i = sram.full((rows, 1), 0.0)
        O_i = sram.full(O[i].shape, 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            S_ij = on_chip(Q_i @ K_j.T)
            m_new = on_chip(maximum(m_i, rowmax(S_ij)))
            P_ij = on_chip(exp(S_ij - m_new), over=S_ij)
            l_i = on_chip(exp(m_i - m_new) * l_i + rowsum(P_ij), over=l_i)
            O_i = on_chip(exp(m_i - m_new) * O_i + P_ij @ V_j, over=O_i)
            m_i = on_chip(m_new, over=m_i)
        O_i = on_chip(O_i / l_i, over=O_i)
        sram.store(O[i], O_i)
""",
    "causal_mask": """
import numpy as np
def causal(S, i, j, B_r, B_c, N_q, N_k):
    q = i * B_r + np.arange(S.shape[0])[:, None]
    k = j * B_c + np.arange(S.shape[1])[None, :]
    return np.where(k <= q + N_k - N_q, S, -np.inf)
""",
    "causal_skip": """
def live(i, j, B_r, B_c, N_q, N_k):
    last_query = (i + 1) * B_r - 1
    first_key = j * B_c
    return first_key <= last_query + N_k - N_q
""",
    "merge": """
from flashsim.algorithms.notation import exp, log, maximum
def merge(O_a, L_a, O_b, L_b):
    m = maximum(L_a, L_b)
    w_a, w_b = exp(L_a - m), exp(L_b - m)
    O = (w_a * O_a + w_b * O_b) / (w_a + w_b)
    L = m + log(w_a + w_b)
    return O, L
""",
    "backward_tile": """
from flashsim.algorithms.notation import exp, rowsum
def tile(Q_i, K_j, V_j, O_i, dO_i, l_i, m_i, tau):
    S = tau * (Q_i @ K_j.T)
    P = exp(S - m_i) / l_i
    dV = P.T @ dO_i
    dP = dO_i @ V_j.T
    D = rowsum(dO_i * O_i)
    dS = P * (dP - D)
    dQ = tau * (dS @ K_j)
    dK = tau * (dS.T @ Q_i)
    return dQ, dK, dV
""",
    "choose_blocks": """
def blocks(M, d):
    def elements(B_c):
        B_r = min(B_c, d)
        return 2 * B_c * d + 2 * B_r * d + B_r * B_c + 6 * B_r
    B_c = 1
    while elements(B_c + 1) <= M:
        B_c += 1
    return min(B_c, d), B_c
""",
    "count_by_hand": """
def accesses(N, d, B_r, B_c):
    T_c = -(-N // B_c)
    reads = 2 * N * d + T_c * (2 * N * d + 2 * N)
    writes = N * d + 2 * N + T_c * (N * d + 2 * N)
    return reads, writes
""",
    "planted_bug": """
from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum
def flash(hbm, sram, Q, K, V, O, l, m, blocks):
    on_chip = sram.on_chip
    for j in sram.loop(blocks.T_c):
        K_j, V_j = sram.load(K[j], V[j])
        for i in sram.loop(blocks.T_r):
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])
            S_ij = on_chip(Q_i @ K_j.T)
            m_tilde_ij = on_chip(rowmax(S_ij))
            P_tilde_ij = on_chip(exp(S_ij - m_tilde_ij), over=S_ij)
            l_tilde_ij = on_chip(rowsum(P_tilde_ij))
            m_i_new = on_chip(maximum(m_i, m_tilde_ij))
            l_i_new = on_chip(exp(m_i - m_i_new) * l_i + exp(m_tilde_ij - m_i_new) * l_tilde_ij)
            O_i_new = on_chip(
                (l_i * exp(m_i - m_i_new) * O_i + exp(m_tilde_ij - m_i_new) * (P_tilde_ij @ V_j)) / l_i_new, over=O_i
            )
            sram.store(O[i], O_i_new)
            sram.store(l[i], l_i_new)
            sram.store(m[i], m_i_new)
""",
}

MISTAKES: dict[str, list[tuple[str, str, str]]] = {
    "load_a_tile": [
        ("        sram.store(Y[i], Y_i)", "", "Y was never stored"),
        ("sram.store(Y[i], Y_i)", "sram.store(Y[0], Y_i)", "one over the other"),
        ("on_chip(X_i * X_i)", "on_chip(X_i * sram.load(X[i]))", "Each block is loaded twice"),
        ("on_chip(X_i * X_i)", "on_chip(X_i + X_i)", "This is 2·X"),
        ("on_chip(X_i * X_i)", "X_i", "the tile that was loaded"),
        ("on_chip(X_i * X_i)", "X_i * X_i", "Register a result with on_chip"),
        ("sram.load(X[i])", "X[i]", "What is in HBM is a handle"),
        ("sram.load(X[i])", "sram.load(X)", "Load a block"),
        ("sram.store(Y[i], Y_i)", "sram.store(Y_i, Y[i])", "The block comes first"),
        ("sram.store(Y[i], Y_i)", "sram.store(Y[i], Y_i); sram.store(Y[i], Y_i)", "stored twice"),
        ("sram.store(Y[i], Y_i)", "Y[i] = Y_i", "written by sram.store"),
        ("sram.loop(len(X))", "range(len(X))", "sram.loop evicts; range does not"),
    ],
    "scores": [
        ("K_j = sram.load(K[j])", "Q_i, K_j = sram.load(Q[i], K[j])", "Q[i] is loaded in the inner loop"),
        ("Q_i @ K_j.T", "Q_i @ K_j", "The shapes of a product must meet"),
        ("Q_i @ K_j.T", "Q_i @ K_j.T / 2", "divided by √d"),
        ("K_j = sram.load(K[j])", "K_j = sram.load(K[j]); K_j = sram.load(K[j])", "K[j] is loaded twice"),
    ],
    "softmax": [
        ("m = rowmax(S)", "m = 0", "exp overflows"),
        ("m = rowmax(S)", "m = S.max()", "each row's own maximum, not the tile's"),
        ("m = rowmax(S)", "m = S.max(axis=1)", "must be columns"),
        ("return P / l", "return P", "not divided by l"),
        ("return P / l", "return P / l / l", "divided by l twice"),
        ("l = rowsum(P)", "l = P.sum()", "the sum of all of P"),
        ("l = rowsum(P)", "l = P.sum(axis=0)", "The columns sum to 1"),
    ],
    "online_softmax": [
        ("exp(m - m_new) * l + ", "l + ", "The old l is not rescaled"),
        ("maximum(m, rowmax(s))", "rowmax(s)", "This is the block's maximum"),
        ("maximum(m, rowmax(s))", "maximum(m, s.max())", "one number for each row"),
        ("exp(m - m_new) * l", "exp(m_new - m) * l", "rescaled by the inverse"),
        ("rowsum(exp(s - m_new))", "rowsum(exp(s - rowmax(s)))", "against its own maximum"),
        ("exp(m - m_new) * l + ", "", "Where is the old l?"),
        (
            "exp(m - m_new) * l + rowsum(exp(s - m_new))",
            "exp(m - m_new) * (l + rowsum(exp(s - m_new)))",
            "multiplies both",
        ),
        ("rowsum(exp(s - m_new))", "rowsum(exp(s - m))", "against the old m"),
    ],
    "inner_loop": [
        ("on_chip(Q_i @ K_j.T)", "on_chip(sram.load(Q[i]) @ K_j.T)", "Q is loaded more often than line 8 says"),
        ("(l_i * exp(m_i - m_new) * O_i", "(l_i * O_i", "The old O_i is not rescaled"),
        ("(l_i * exp(m_i - m_new) * O_i", "(exp(m_i - m_new) * O_i", "Multiply by l_i"),
        ("exp(m_tilde - m_new) * (P_tilde @ V_j)", "(P_tilde @ V_j)", "P~_ij V_j was summed against"),
        ("on_chip(maximum(m_i, m_tilde))", "on_chip(m_tilde + 0)", "This is the block's maximum alone"),
        ("exp(m_i - m_new) * l_i +", "l_i +", "The old l_i is not rescaled"),
        ("exp(m_tilde - m_new) * l_tilde", "l_tilde", "l~_ij was summed against"),
        ("Q_i @ K_j.T)", "Q_i @ K_j.T / Q_i.shape[1] ** 0.5)", "The scores are divided by √d."),
        ("Q_i @ K_j.T)", "Q_i @ K_j.T / Q_i.shape[1])", "√d twice"),
        ("Q_i @ K_j.T)", "Q_i @ K_j.T * Q_i.shape[1] ** 0.5)", "multiplied by √d"),
        ("exp(S_ij - m_tilde)", "exp((S_ij - m_tilde) / Q_i.shape[1] ** 0.5)", "What the exponential is taken of"),
        ("/ l_new)", ")", "O is not divided by l_new"),
        ("/ l_new)", "/ l_new / l_new)", "divided by l_new twice"),
        ("/ l_new)", "/ l_i)", "divided by the old l_i"),
        ("            sram.store(O[i], O_new)\n", "", "Is O_new stored"),
        ("            sram.store(m[i], m_new)\n", "", "Is m_new stored"),
        ("sram.store(m[i], m_new)", "sram.store(m[i], m_new); sram.store(m[i], m_new)", "m is stored twice"),
        (
            "        K_j, V_j = sram.load(K[j], V[j])\n        for i in sram.loop(blocks.T_r):",
            "        for i in sram.loop(blocks.T_r):\n            K_j, V_j = sram.load(K[j], V[j])",
            "K[j] is loaded in the inner loop",
        ),
    ],
    "divide_once": [
        ("exp(m_i - m_new) * O_i +", "O_i +", "The old O_i is not rescaled"),
        ("exp(m_i - m_new) * l_i +", "l_i +", "The old l_i is not rescaled"),
        (
            "on_chip(exp(m_i - m_new) * O_i + P_ij @ V_j,",
            "on_chip((exp(m_i - m_new) * O_i + P_ij @ V_j) / l_i,",
            "each later turn divides again",
        ),
        ("Q_i @ K_j.T)", "Q_i @ K_j.T / Q_i.shape[1] ** 0.5)", "The scores are divided by √d."),
        ("Q_i @ K_j.T)", "Q_i @ K_j.T / Q_i.shape[1])", "√d twice"),
        ("exp(S_ij - m_new)", "exp((S_ij - m_new) / Q_i.shape[1] ** 0.5)", "What the exponential is taken of"),
        ("        O_i = on_chip(O_i / l_i, over=O_i)\n", "", "O is not divided by l_i"),
        ("O_i / l_i", "O_i / l_i / l_i", "divided by l_i twice"),
        (
            "over=m_i)\n        O_i = on_chip(O_i / l_i, over=O_i)\n        sram.store(O[i], O_i)\n",
            "over=m_i)\n            sram.store(O[i], on_chip(O_i / l_i))\n",
            "O is stored in the inner loop",
        ),
        ("        sram.store(O[i], O_i)\n", "", "O was never stored"),
        ("on_chip(m_new, over=m_i)", "on_chip(m_i, over=m_i)", "m_i stays what it was"),
        ("exp(m_i - m_new) * O_i +", "l_i * exp(m_i - m_new) * O_i +", ""),
        ("O_i = sram.full(O[i].shape, 0.0)", "O_i = on_chip(1 * sram.load(O[i]))", "O_i began as O[i]"),
        ("        sram.store(O[i], O_i)\n", "        sram.store(O[i], O_i); sram.load(O[i])\n", "O is loaded"),
    ],
    "causal_mask": [
        ("k <= q + N_k - N_q", "k <= q", "aligned at the top left"),
        ("k <= q + N_k - N_q", "k < q + N_k - N_q", "The diagonal is masked too"),
        ("k <= q + N_k - N_q", "k > q + N_k - N_q", "Past and future are exchanged"),
        ("k <= q + N_k - N_q", "k <= q - N_k + N_q", "The sign"),
        ("S, -np.inf", "S, 0", "Masked scores are 0"),
        ("np.arange(S.shape[0])", "np.arange(B_r)", "the last tiles are smaller"),
        ("    q = i * B_r + np", "    i = j = 0\n    q = np", "within the tile"),
    ],
    "causal_skip": [
        ("first_key <= last_query + N_k - N_q", "True", "No tile is skipped"),
        ("first_key <= last_query + N_k - N_q", "first_key <= last_query", "N_k - N_q is missing"),
        ("first_key <= last_query + N_k - N_q", "j <= i", "compared by their numbers"),
        ("(i + 1) * B_r - 1", "i * B_r", "the block's first query"),
        ("first_key <=", "first_key <", "The diagonal counts"),
        ("(i + 1) * B_r - 1", "(i + 1) * B_r", "the query after the last"),
        ("first_key = j * B_c", "first_key = min((j + 1) * B_c, N_k) - 1", "the block's last key"),
        ("+ N_k - N_q", "+ max(N_k - N_q, 0)", "negative"),
        ("+ N_k - N_q", "- N_k + N_q", "The sign"),
    ],
    "merge": [
        ("(w_a * O_a + w_b * O_b) / (w_a + w_b)", "(O_a + O_b) / 2", "The parts count equally"),
        ("(w_a * O_a + w_b * O_b) / (w_a + w_b)", "w_a * O_a + w_b * O_b", "not divided by the sum of the weights"),
        ("(w_a * O_a + w_b * O_b) / (w_a + w_b)", "(w_b * O_a + w_a * O_b) / (w_a + w_b)", "exchanged"),
        ("m + log(w_a + w_b)", "log(w_a + w_b)", "m is missing"),
        ("m + log(w_a + w_b)", "m", "Both parts count"),
        ("m + log(w_a + w_b)", "L_a + L_b", "not the sum of logarithms"),
        ("m = maximum(L_a, L_b)", "m = 0", "exp(L) overflows"),
        ("exp(L_a - m), exp(L_b - m)", "L_a, L_b", "not exp(L)"),
    ],
    "backward_tile": [
        ("P * (dP - D)", "P * dP", "D_i is missing"),
        ("P * (dP - D)", "dP - D", "P is missing"),
        ("tau * (dS @ K_j)", "dS @ K_j", "tau is missing in dQ"),
        ("tau * (dS.T @ Q_i)", "dS.T @ Q_i", "tau is missing in dK"),
        ("exp(S - m_i) / l_i", "exp(S - m_i)", "not divided by l_i"),
        ("exp(S - m_i) / l_i", "exp(S - m_i) / rowsum(exp(S - m_i))", "this tile's sum"),
        ("exp(S - m_i) / l_i", "exp(S - S.max(1, keepdims=True)) / l_i", "own maximum"),
        ("rowsum(dO_i * O_i)", "rowsum(P * dP)", "this tile's keys alone"),
        ("rowsum(dO_i * O_i)", "(dO_i * O_i).sum()", "the whole tile was summed"),
        ("rowsum(dO_i * O_i)", "(dO_i * O_i).sum(axis=0)", "along each column"),
        ("P.T @ dO_i", "P @ dO_i", "The shapes of a product must meet"),
        ("P.T @ dO_i", "P.T @ O_i", "O_i was used"),
    ],
    "choose_blocks": [
        ("    while elements(B_c + 1) <= M:\n        B_c += 1\n", "    B_c = -(-M // (4 * d))\n", "the paper's line 1"),
        (" + B_r * B_c", "", "S_ij needs room too"),
        (" + 6 * B_r", "", "The columns need room too"),
        (" + 6 * B_r", " + 2 * B_r", "Only l_i and m_i"),
        ("elements(B_c + 1) <= M", "elements(B_c + 1) < M", "M itself may be used"),
        (" + B_r * B_c", " + 2 * B_r * B_c", "it overwrites S_ij"),
        ("elements(B_c + 1) <= M", "elements(B_c) <= M", "One too many"),
        ("return min(B_c, d), B_c", "return B_c / 1, B_c", "// divides"),
    ],
    "count_by_hand": [
        ("T_c = -(-N // B_c)", "T_c = N // B_c", "rounded down"),
        ("(2 * N * d + 2 * N)", "2 * N * d", "l and m are read too"),
        ("2 * N * d + T_c *", "T_c * 2 * N * d + T_c *", "K and V are read once in all"),
        ("writes = N * d + 2 * N + ", "writes = ", "Line 2 writes O, l and m"),
        ("writes = N * d + 2 * N + T_c *", "writes = N * d + 2 * N + 0 * T_c *", "for each block of keys"),
        ("T_c = -(-N // B_c)", "T_c = -(-N // B_r)", "not T_r"),
        ("T_c = -(-N // B_c)", "T_c = N / B_c", "// divides"),
    ],
    "planted_bug": [
        ("(l_i * exp(m_i - m_i_new) * O_i +", "(l_i * exp(m_tilde_ij - m_i_new) * O_i +", "The bug is still there"),
        ("(l_i * exp(m_i - m_i_new) * O_i +", "(l_i * O_i +", "The old O_i is not rescaled"),
        ("            sram.store(m[i], m_i_new)\n", "", "Is m_new stored"),
        ("/ l_i_new, over=O_i", "/ l_i_new * 2, over=O_i", "this change makes another"),
    ],
}
