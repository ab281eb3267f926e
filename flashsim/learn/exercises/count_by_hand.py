"""Exercise 12: Algorithm 1's accesses, predicted."""

from flashsim.learn.exercises.checks import check_results, expect_count
from flashsim.learn.exercises.submission import Submission
from flashsim.simulate.api import count

NUMBER = 12
TITLE = "count by hand"
TEXT = '''
Predict what Algorithm 1 reads from HBM and writes to it, in elements. The
prediction must equal what the simulator counts, for every N, blocks that do
not divide N included.

 2  O = 0 (N x d), l = 0, m = -infinity (N each) are written in HBM
 5  for each block j of keys, of B_c rows:
 6      K_j, V_j are loaded
 7      for each block i of queries, of B_r rows:
 8          Q_i, O_i, l_i, m_i are loaded
12          O_i is stored
13          l_i, m_i are stored

A block at the end may be short. But all blocks of a matrix together have its N
rows: so one pass over a matrix moves N rows, whatever the blocks.
"""


def accesses(N, d, B_r, B_c):
    T_c = ...  # blocks of keys
    reads = ...
    writes = ...
    return reads, writes
'''
HINTS = (
    (
        "How often does each matrix go round? K and V once in all; Q, O, l and m once for each "
        "block of keys."
    ),
    "The number of blocks is N / B_c, rounded up: -(-N // B_c).",
    "reads: 2·N·d for K and V, and T_c times (2·N·d + 2·N) for Q, O, l, m.",
    "writes: N·d + 2·N at line 2, and T_c times as much again.",
)


def grade(submission: Submission) -> str:
    accesses = submission.function("accesses")
    cases = ((12, 4, 2, 3), (13, 4, 5, 3), (64, 8, 8, 16), (100, 16, 16, 30))
    for N, d, B_r, B_c in cases:
        traffic = count("flash_basic", N=N, d=d, M=10**6, blocks=(B_r, B_c)).hbm
        result = accesses(N, d, B_r, B_c)
        reads, writes = check_results("accesses", result, "reads, writes")
        label = f"N = {N}, d = {d}, blocks ({B_r}, {B_c})"
        T_c = -(-N // B_c)
        T_r = -(-N // B_r)
        KV = 2 * N * d  # elements of K and V
        loop = 2 * N * d + 2 * N  # elements of Q, O, l and m
        read_mistakes = {
            "N / B_c is rounded down. A short block at the end is a block: round up.": (
                KV + N // B_c * loop
            ),
            "l and m are read too, N elements each a pass.": KV + T_c * 2 * N * d,
            "l and m are two columns: N elements each.": KV + T_c * (2 * N * d + N),
            "K and V are read once in all: they are loaded in the outer loop.": T_c * (KV + loop),
            "Q, O, l and m go round once for each block of keys, T_c times, not T_r.": (
                KV + T_r * loop
            ),
            "O is read too: line 8 loads what line 12 wrote.": KV + T_c * (N * d + 2 * N),
            "K and V are missing.": T_c * loop,
            "The last block is short: T_c · B_c may be more than N. All blocks of K have N rows.": (
                2 * T_c * B_c * d + T_c * loop
            ),
            "Each matrix is read once here: Q, O, l and m are read again for each block of keys.": (
                KV + loop
            ),
        }
        expect_count(f"{label}: reads", reads, traffic.reads, read_mistakes)
        output = N * d + 2 * N  # elements of O, l and m
        write_mistakes = {
            "Line 2 writes O, l and m as well, before the loops.": T_c * output,
            "l and m are written too.": (T_c + 1) * N * d,
            "Line 2 writes l and m too, not O alone.": N * d + T_c * output,
            "O, l and m are stored for each block of keys, not once.": output,
            "Lines 12 and 13 write once for each block of keys, T_c times.": 2 * output,
            "O, l and m are stored T_c times, not T_r.": (T_r + 1) * output,
            "N / B_c is rounded down.": (N // B_c + 1) * output,
        }
        expect_count(f"{label}: writes", writes, traffic.writes, write_mistakes)
    return f"reads and writes equal the simulator's, ==, for {len(cases)} sizes"
