"""A sparse MLP in two passes, Y = relu(X W1) W2: the hidden layer H is written to HBM, and read
again.

    Require: X (N×d), weights W1 (d×f), W2 (f×o) in HBM, block masks M1 (T_d×T_f), M2 (T_f×T_o),
             on-chip SRAM of size M.
    1  Set block sizes B_r = ⌊(M − 16²)/(max(d, o) + 16)⌋, B_d = B_f = B_o = min(B_r, 16).
    2  Divide X into T_r × T_d blocks of B_r × B_d, W1 into T_d × T_f of B_d × B_f, W2 into T_f ×
       T_o of B_f × B_o, H in HBM into T_r × T_f.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_{i,1}, …, X_{i,T_d} from HBM to on-chip SRAM.
    5    for 1 ≤ j ≤ T_f do
    6      Initialize H_ij = (0)_{B_r×B_f} on SRAM.
    7      for 1 ≤ c ≤ T_d where M1_cj do
    8        Load W1_cj from HBM to on-chip SRAM.
    9        H_ij ← H_ij + X_ic W1_cj.
    10     end for
    11     Write H_ij ← relu(H_ij) to HBM.
    12   end for
    13 end for
    14 for 1 ≤ i ≤ T_r do
    15   Initialize Y_{i,1}, …, Y_{i,T_o} = (0)_{B_r×B_o} on SRAM.
    16   for 1 ≤ j ≤ T_f do
    17     Load H_ij from HBM to on-chip SRAM.
    18     for 1 ≤ k ≤ T_o where M2_jk do
    19       Load W2_jk from HBM to on-chip SRAM.
    20       Y_ik ← Y_ik + H_ij W2_jk.
    21     end for
    22   end for
    23   Write Y_{i,1}, …, Y_{i,T_o} to HBM.
    24 end for
    25 Return Y.

The listing is ours: `sparse_mlp_fused`, cut in two. Each pass knows its own mask alone, so all of H
goes through HBM. Only X_i or Y_i is on chip at a time, not both: B_r is larger, for d = o twice.
"""

from typing import Any

from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.mlp import SPARSE_MLP, live, relu, row_line_1, unfused_rows
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def sparse_mlp_unfused(
    hbm: HBM, sram: SRAM, X: Matrix, W1: Matrix, W2: Matrix, blocks: Sizes, mask1: Any, mask2: Any
) -> Matrix:
    """Run on X (N, d), W1 (d, f), W2 (f, o); return Y (N, o), in HBM."""
    on_chip = sram.on_chip
    B_r = blocks.B_r  # line 1
    B_d = blocks.B_d  # line 1
    B_f = blocks.B_f  # line 1
    B_o = blocks.B_o  # line 1
    M1 = live("mask1", mask1, W1, B_d, B_f)  # line 2
    M2 = live("mask2", mask2, W2, B_f, B_o)  # line 2
    Y = hbm.empty("Y", (X.shape[0], W2.shape[1]), X.dtype, "output").divide(B_r, B_o)  # line 2
    H = hbm.empty("H", (X.shape[0], W1.shape[1]), X.dtype).divide(B_r, B_f)  # line 2
    X = X.divide(B_r, B_d)  # line 2
    W1 = W1.divide(B_d, B_f)  # line 2
    W2 = W2.divide(B_f, B_o)  # line 2
    columns = [M1[:, j].tobytes() for j in range(len(M2))]  # line 5
    rows = [M2[j].tobytes() for j in range(len(M2))]  # line 16
    for i in sram.loop(len(X)):  # line 3
        X_i = [sram.load(X[i, c]) for c in range(len(M1))]  # line 4
        for j in sram.loop(len(M2), alike=columns):  # line 5
            H_ij = sram.full(H[i, j].shape, 0.0)  # line 6
            for c in sram.loop(len(M1), where=M1[:, j]):  # line 7
                W1_cj = sram.load(W1[c, j])  # line 8
                H_ij = on_chip(H_ij + X_i[c] @ W1_cj, over=H_ij)  # line 9
            # line 10: end for
            H_ij = on_chip(relu(H_ij), over=H_ij)  # line 11
            sram.store(H[i, j], H_ij)  # line 11
        # line 12: end for
    # line 13: end for
    for i in sram.loop(len(X)):  # line 14
        Y_i = [sram.full(Y[i, k].shape, 0.0) for k in range(M2.shape[1])]  # line 15
        for j in sram.loop(len(M2), alike=rows):  # line 16
            H_ij = sram.load(H[i, j])  # line 17
            for k in sram.loop(M2.shape[1], where=M2[j]):  # line 18
                W2_jk = sram.load(W2[j, k])  # line 19
                Y_i[k] = on_chip(Y_i[k] + H_ij @ W2_jk, over=Y_i[k])  # line 20
            # line 21: end for
        # line 22: end for
        for k, Y_ik in enumerate(Y_i):  # line 23
            sram.store(Y[i, k], Y_ik)  # line 23
    # line 24: end for
    return Y  # line 25


PROGRAM = MatrixProgram(
    **SPARSE_MLP,
    title="Sparse MLP, unfused",
    run=sparse_mlp_unfused,
    extras={"H": Kind("N", "f")},
    follows=("H", "Y"),
    line_1=row_line_1,
    rows=unfused_rows,
    bugs=(
        Bug("no relu", "relu(H_ij)", "H_ij"),
        Bug("H of the last block alone", "H_ij + X_i[c]", "X_i[c]"),
        Bug("dead blocks of W2 loaded", "where=M2[j]", "where=M2[j] | True"),
    ),
)
