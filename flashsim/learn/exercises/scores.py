"""Exercise 2: what stands outside the loop is loaded once."""

import numpy as np

from flashsim.learn.exercises.checks import ExerciseMemory, expect, expect_count
from flashsim.learn.exercises.submission import Submission

NUMBER = 2
TITLE = "a tile of scores"
TEXT = '''
Write the scores S = Q K^T, tile by tile: S[i, j] is the tile of the queries of
block i and the keys of block j.

A block that is loaded outside the inner loop stays on chip for all its turns;
one that is loaded inside comes from HBM again in each. Load Q[i] once for each
i. K[j] does not stay, so each i reads all of K.

    Q is N_q x d, in T_r blocks; K is N_k x d, in T_c blocks
    reads:  N_q d + T_r N_k d        writes:  N_q N_k
"""


def scores(hbm, sram, Q, K, S, T_r, T_c):
    on_chip = sram.on_chip
    for i in sram.loop(T_r):
        ...  # what stays for all j
        for j in sram.loop(T_c):
            ...  # what comes anew
            S_ij = ...  # the tile, on chip
            sram.store(S[i, j], S_ij)
'''
HINTS = (
    "Which of Q_i and K_j changes with j? That one is loaded in the inner loop.",
    "The product of matrices is @, the transpose of K_j is K_j.T.",
    "Q_i = sram.load(Q[i]) outside;  K_j = sram.load(K[j]) and S_ij = on_chip(Q_i @ K_j.T) inside",
)


def grade(submission: Submission) -> str:
    scores = submission.function("scores")
    when = {
        "matmul": (
            "The shapes of a product must meet: (B_r, d) @ (d, B_c). Which of the two is to be "
            "transposed?"
        )
    }
    for N_q, N_k, d, B_r, B_c in ((6, 8, 4, 2, 3), (5, 7, 3, 2, 3)):
        rng = np.random.default_rng(N_q)
        Q = rng.normal(size=(N_q, d))
        K = rng.normal(size=(N_k, d))
        memory = ExerciseMemory({"Q": Q, "K": K})
        T_r = -(-N_q // B_r)
        T_c = -(-N_k // B_c)
        S = memory.hbm.empty("S", (N_q, N_k), np.float64, "output").divide(B_r, B_c)
        Q_blocks = memory.in_blocks("Q", B_r)
        K_blocks = memory.in_blocks("K", B_c)
        scores(memory.hbm, memory.sram, Q_blocks, K_blocks, S, T_r, T_c, when=when)
        right = Q @ K.T
        mistakes = {
            "These are the scores divided by √d. The scale is not part of this exercise.": (
                right / np.sqrt(d)
            ),
            "This is exp(S). The exponential comes later.": np.exp(right),
        }
        expect("S", memory.hbm.peek("S"), right, mistakes)
        inside = (
            "Q[i] is loaded in the inner loop, once for each j. It does not change there: load it "
            "before."
        )
        both = "Q[i] is loaded in the inner loop as well as before it. Before it is enough."
        reads, _ = memory.accesses("Q")
        Q_mistakes = {inside: T_c * N_q * d, both: (T_c + 1) * N_q * d}
        expect_count("Elements of Q read", reads, N_q * d, Q_mistakes)
        every = "All of K is read in each turn of the inner loop. Load K[j] alone."
        only = (
            "K is read once in all, so it stays on chip: that takes N_k·d of SRAM. Load K[j] in "
            "the inner loop."
        )
        twice = "K[j] is loaded twice in a turn of the inner loop. Load it once, and use the tile."
        reads, _ = memory.accesses("K")
        pass_of_K = N_k * d
        K_mistakes = {every: T_r * T_c * pass_of_K, only: pass_of_K, twice: 2 * T_r * pass_of_K}
        expect_count("Elements of K read", reads, T_r * pass_of_K, K_mistakes)
    return (
        "S is Q Kᵀ; Q was read once, K once for each block of queries: counts ==, also with ragged "
        "blocks"
    )
