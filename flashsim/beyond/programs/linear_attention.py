"""Causal linear attention in chunks: O_i = Σ_{j ≤ i} (q_i · k_j) v_j, its state Σ k_jᵀ v_j on chip from chunk to chunk.

    Require: Q, K (N×d), V (N×e) in HBM, on-chip SRAM of size M.
    1  Set the chunk's rows C as large as d·e + 2C(d + e) + C² ≤ M allows.
    2  Divide Q, K, V, O into T = ⌈N/C⌉ chunks of C rows.
    3  Initialize S = (0)_{d×e} on SRAM.
    4  for 1 ≤ i ≤ T do
    5    Load Q_i, K_i, V_i from HBM to on-chip SRAM.
    6    A_i = tril(Q_i K_iᵀ).
    7    O_i = Q_i S + A_i V_i.
    8    Write O_i to HBM.
    9    S ← S + K_iᵀ V_i.
    10 end for
    11 Return O.

The listing is ours; the chunks are those of Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training".
Without a softmax (QKᵀ)V = Q(KᵀV): all of the past is d × e numbers. So each operand is read once, at any N and at any M that
holds a state and a chunk: the traffic is the compulsory one. Queries and keys have been through their feature map.
"""

from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.linear_chunks import CHUNKED, chunk_rows, tril
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.shapes import Sizes


def linear_attention(hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Sizes) -> Matrix:
    """Run on Q, K (N, d), V (N, e); return O (N, e), in HBM."""
    on_chip = sram.on_chip
    C = blocks.C  # line 1
    O = hbm.empty("O", V.shape, V.dtype, "output")  # line 2
    Q, K, V, O = Q.divide(C), K.divide(C), V.divide(C), O.divide(C)  # line 2
    S = sram.full((Q[0].shape[1], V[0].shape[1]), 0.0)  # line 3
    for i in sram.loop(len(Q)):  # line 4
        Q_i, K_i, V_i = sram.load(Q[i], K[i], V[i])  # line 5
        A_i = on_chip(tril(Q_i @ K_i.T))  # line 6
        O_i = on_chip(Q_i @ S + A_i @ V_i)  # line 7
        sram.store(O[i], O_i)  # line 8
        S = on_chip(S + K_i.T @ V_i, over=S)  # line 9
    # line 10: end for
    return O  # line 11


PROGRAM = Program(
    **CHUNKED, title="Linear attention, its state on chip", run=linear_attention,
    rows=chunk_rows,
    bugs=(
        Bug("keys ahead attended to", "tril(Q_i @ K_i.T)", "Q_i @ K_i.T"),
        Bug("the state transposed", "K_i.T @ V_i", "V_i.T @ K_i"),
        Bug("A transposed", "A_i @ V_i", "A_i.T @ V_i"),
        Bug("the state twice", "Q_i @ S", "2 * Q_i @ S"),
    ),
)
