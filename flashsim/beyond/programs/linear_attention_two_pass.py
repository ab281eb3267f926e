"""Causal linear attention in two passes: the state before each chunk goes through HBM, and then chunks need not wait.

    Require: Q, K (N×d), V (N×e) in HBM, on-chip SRAM of size M.
    1  Set the chunk's rows C as large as 2d·e + 2C(d + e) + C² ≤ M allows.
    2  Divide Q, K, V, O into T = ⌈N/C⌉ chunks of C rows; S (T·d×e) in HBM into T blocks of d rows.
    3  Initialize S^new = (0)_{d×e} on SRAM.
    4  for 1 ≤ i ≤ T do
    5    Write S_i ← S^new to HBM.
    6    Load K_i, V_i from HBM to on-chip SRAM.
    7    S^new ← S^new + K_iᵀ V_i.
    8  end for
    9  for 1 ≤ i ≤ T do
    10   Load S_i, Q_i, K_i, V_i from HBM to on-chip SRAM.
    11   A_i = tril(Q_i K_iᵀ).
    12   O_i = Q_i S_i + A_i V_i.
    13   Write O_i to HBM.
    14 end for
    15 Return O.

The listing is ours. Lines 10 to 13 need nothing of other chunks, so chunks can run side by side, as on a GPU's SMs. That costs
K and V once more, and the states there and back: 2T·d·e, which for C ≥ d is at most the size of K and V. The last S^new stays on
chip, as nothing evicts it; it is part of line 1's sum.
"""

from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.linear_chunks import CHUNKED, chunk_rows, tril
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def linear_attention_two_pass(hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Sizes) -> Matrix:
    """Run on Q, K (N, d), V (N, e); return O (N, e), in HBM."""
    on_chip = sram.on_chip
    C, d, e = blocks.C, Q.shape[1], V.shape[1]  # line 1
    O = hbm.empty("O", V.shape, V.dtype, "output")  # line 2
    Q, K, V, O = Q.divide(C), K.divide(C), V.divide(C), O.divide(C)  # line 2
    S = hbm.empty("S", (len(Q) * d, e), sram.dtype).divide(d)  # line 2
    S_new = sram.full((d, e), 0.0)  # line 3
    for i in sram.loop(len(K)):  # line 4
        sram.store(S[i], S_new)  # line 5
        K_i, V_i = sram.load(K[i], V[i])  # line 6
        S_new = on_chip(S_new + K_i.T @ V_i, over=S_new)  # line 7
    # line 8: end for
    for i in sram.loop(len(Q)):  # line 9
        S_i, Q_i, K_i, V_i = sram.load(S[i], Q[i], K[i], V[i])  # line 10
        A_i = on_chip(tril(Q_i @ K_i.T))  # line 11
        O_i = on_chip(Q_i @ S_i + A_i @ V_i)  # line 12
        sram.store(O[i], O_i)  # line 13
    # line 14: end for
    return O  # line 15


PROGRAM = Program(
    **CHUNKED, title="Linear attention, its states through HBM", run=linear_attention_two_pass,
    extras={"S": Kind("T·d", "e", "chip")},
    rows=lambda M, sizes: chunk_rows(M - sizes.d * sizes.e, sizes),
    bugs=(
        Bug("keys ahead attended to", "tril(Q_i @ K_i.T)", "Q_i @ K_i.T"),
        Bug("the state transposed", "K_i.T @ V_i", "V_i.T @ K_i"),
        Bug("A transposed", "A_i @ V_i", "A_i.T @ V_i"),
        Bug("the state twice", "Q_i @ S", "2 * Q_i @ S"),
        Bug("the state is not written", "sram.store(S[i], S_new)  # line 5", "pass  # line 5"),
    ),
)
