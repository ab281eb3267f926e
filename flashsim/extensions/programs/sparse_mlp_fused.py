"""A sparse MLP in one pass, Y = relu(X W1) W2: the hidden layer never leaves the chip, and blocks
of zeros are never loaded.

    Require: X (N×d), weights W1 (d×f), W2 (f×o) in HBM, block masks M1 (T_d×T_f), M2 (T_f×T_o),
             on-chip SRAM of size M.
    1  Set block sizes B_r = ⌊(M − 16²)/(d + o + 16)⌋, B_d = B_f = B_o = min(B_r, 16).
    2  Divide X into T_r × T_d blocks of B_r × B_d, W1 into T_d × T_f of B_d × B_f,
       W2 into T_f × T_o of B_f × B_o.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_{i,1}, …, X_{i,T_d} from HBM to on-chip SRAM.
    5    Initialize Y_{i,1}, …, Y_{i,T_o} = (0)_{B_r×B_o} on SRAM.
    6    for 1 ≤ j ≤ T_f where column j of M1 and row j of M2 have a live block do
    7      Initialize H_ij = (0)_{B_r×B_f} on SRAM.
    8      for 1 ≤ c ≤ T_d where M1_cj do
    9        Load W1_cj from HBM to on-chip SRAM.
    10       H_ij ← H_ij + X_ic W1_cj.
    11     end for
    12     H_ij ← relu(H_ij).
    13     for 1 ≤ k ≤ T_o where M2_jk do
    14       Load W2_jk from HBM to on-chip SRAM.
    15       Y_ik ← Y_ik + H_ij W2_jk.
    16     end for
    17   end for
    18   Write Y_{i,1}, …, Y_{i,T_o} to HBM.
    19 end for
    20 Return Y.

The listing is ours, after the paper's Appendix D.2, which names sparse MLPs as what IO-awareness
extends to. Of a column j of blocks without a live one H is relu(0) = 0, which adds nothing: line 6
passes it by. With a bias it could not.
"""

from typing import Any

import numpy as np

from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.mlp import SPARSE_MLP, fused_rows, live, relu, row_line_1
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def sparse_mlp_fused(
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
    X = X.divide(B_r, B_d)  # line 2
    W1 = W1.divide(B_d, B_f)  # line 2
    W2 = W2.divide(B_f, B_o)  # line 2
    alike = [(M1[:, j].tobytes(), M2[j].tobytes()) for j in range(len(M2))]  # line 6
    hidden = np.logical_and(M1.any(0), M2.any(1))  # line 6
    for i in sram.loop(len(X)):  # line 3
        X_i = [sram.load(X[i, c]) for c in range(len(M1))]  # line 4
        Y_i = [sram.full(Y[i, k].shape, 0.0) for k in range(M2.shape[1])]  # line 5
        for j in sram.loop(len(M2), where=hidden, alike=alike):  # line 6
            H_ij = sram.full((Y_i[0].shape[0], W1[0, j].shape[1]), 0.0)  # line 7
            for c in sram.loop(len(M1), where=M1[:, j]):  # line 8
                W1_cj = sram.load(W1[c, j])  # line 9
                H_ij = on_chip(H_ij + X_i[c] @ W1_cj, over=H_ij)  # line 10
            # line 11: end for
            H_ij = on_chip(relu(H_ij), over=H_ij)  # line 12
            for k in sram.loop(M2.shape[1], where=M2[j]):  # line 13
                W2_jk = sram.load(W2[j, k])  # line 14
                Y_i[k] = on_chip(Y_i[k] + H_ij @ W2_jk, over=Y_i[k])  # line 15
            # line 16: end for
        # line 17: end for
        for k, Y_ik in enumerate(Y_i):  # line 18
            sram.store(Y[i, k], Y_ik)  # line 18
    # line 19: end for
    return Y  # line 20


PROGRAM = MatrixProgram(
    **SPARSE_MLP,
    title="Sparse MLP, fused",
    run=sparse_mlp_fused,
    line_1=row_line_1,
    rows=fused_rows,
    bugs=(
        Bug("no relu", "relu(H_ij)", "H_ij"),
        Bug("the first block of X for all", "X_i[c] @", "X_i[0] @"),
        Bug("Y of the last block alone", "Y_i[k] + H_ij", "H_ij"),
        Bug("the other weight's mask", "where=M1[:, j]", "where=M2[j]"),
        Bug(
            "tiles with a dead block left out",
            "np.logical_and(M1.any(0), M2.any(1))",
            "np.logical_and(M1.all(0), M2.any(1))",
        ),
        Bug("dead rows of W2 visited", "where=hidden", "where=M1.any(0)"),
        Bug("dead blocks of W1 loaded", "where=M1[:, j]", "where=M1[:, j] | True"),
    ),
)
