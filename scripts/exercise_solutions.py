"""A solution of each exercise, for teachers: written as the files that `flashsim exercise check`
takes.

python scripts/exercise_solutions.py FOLDER
"""

import sys
from pathlib import Path

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
    "ring_step": """
import numpy as np
from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum
def step(rank, P, s, Q, K, V, O, l, m):
    n = len(Q)
    right, left = (rank + 1) % P, (rank - 1) % P
    src = (rank - s) % P
    rows = rank * n + np.arange(n)[:, None]
    cols = src * n + np.arange(n)
    S = np.where(cols <= rows, Q @ K.T, -np.inf)
    m_new = maximum(m, rowmax(S))
    P_tilde = exp(S - m_new)
    l_new = exp(m - m_new) * l + rowsum(P_tilde)
    O_new = exp(m - m_new) * O + P_tilde @ V
    return right, left, src, O_new, l_new, m_new
""",
}


def main(folder: Path) -> None:
    """Write a file for each exercise into a folder that is there."""
    from flashsim.learn.exercises import exercises
    from flashsim.support.files import write_whole

    for name, result in exercises().items():
        explanation, _ = result.explanation_and_code()
        path = folder / result.file
        write_whole(path, f'"""{result.heading}.\n\n{explanation}\n"""\n{SOLUTIONS[name]}')
        print(f"Wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
