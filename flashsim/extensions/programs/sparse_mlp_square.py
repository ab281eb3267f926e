"""A sparse MLP in two passes of square tiles, Y = relu(X W1) W2: nearly all of M holds one tile of
H or of Y.

    Require: X (N×d), weights W1 (d×f), W2 (f×o) in HBM, block masks M1 (T_d×T_f), M2 (T_f×T_o),
             on-chip SRAM of size M.
    1  Set block sizes B_r = B_d = B_f = B_o = ⌊√(M + 1)⌋ − 1.
    2  Divide X, W1 into their d columns and rows, of B_r and B_f; H in HBM, W2 into their f columns
       and rows, of B_r and B_o; H into tiles of B_r × B_f, too, Y into tiles of B_r × B_o.
    3  for 1 ≤ i ≤ T_r do
    4    for 1 ≤ j ≤ T_f do
    5      Initialize H_ij = (0)_{B_r×B_f} on SRAM.
    6      for 1 ≤ c ≤ d in a block of M1 that is live in column j do
    7        Load the column X_ic and the row W1_cj from HBM to on-chip SRAM.
    8        H_ij ← H_ij + X_ic W1_cj.
    9      end for
    10     Write H_ij ← relu(H_ij) to HBM.
    11   end for
    12   for 1 ≤ k ≤ T_o do
    13     Initialize Y_ik = (0)_{B_r×B_o} on SRAM.
    14     for 1 ≤ c ≤ f in a block of M2 that is live in column k do
    15       Load the column H_ic and the row W2_ck from HBM to on-chip SRAM.
    16       Y_ik ← Y_ik + H_ic W2_ck.
    17     end for
    18     Write Y_ik to HBM.
    19   end for
    20 end for
    21 Return Y.

The listing is ours; its tiles are `small_cache`'s. An element that is loaded takes part in √M
products, where rows of full width take part in M/d: more, from M = d² on.
"""

from typing import Any

import numpy as np

from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.mlp import SPARSE_MLP, live, relu, square_line_1, square_rows
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def sparse_mlp_square(
    hbm: HBM, sram: SRAM, X: Matrix, W1: Matrix, W2: Matrix, blocks: Sizes, mask1: Any, mask2: Any
) -> Matrix:
    """Run on X (N, d), W1 (d, f), W2 (f, o); return Y (N, o), in HBM."""
    on_chip = sram.on_chip
    (d, f), o = W1.shape, W2.shape[1]  # line 2
    B_r = blocks.B_r  # line 1
    B_d = blocks.B_d  # line 1
    B_f = blocks.B_f  # line 1
    B_o = blocks.B_o  # line 1
    M1 = live("mask1", mask1, W1, B_d, B_f)  # line 2
    M2 = live("mask2", mask2, W2, B_f, B_o)  # line 2
    Y = hbm.empty("Y", (X.shape[0], o), X.dtype, "output").divide(B_r, B_o)  # line 2
    H = hbm.empty("H", (X.shape[0], f), X.dtype).divide(B_r, 1)  # line 2
    H_tiles = H.divide(B_r, B_f)  # line 2
    X = X.divide(B_r, 1)  # line 2
    W1 = W1.divide(1, B_f)  # line 2
    W2 = W2.divide(1, B_o)  # line 2
    in_d = np.repeat(M1, B_d, axis=0)[:d]  # line 2
    in_f = np.repeat(M2, B_f, axis=0)[:f]  # line 2
    down = [M1[:, j].tobytes() for j in range(len(M2))]  # line 4
    across = [M2[:, k].tobytes() for k in range(M2.shape[1])]  # line 12
    for i in sram.loop(Y.blocks[0]):  # line 3
        for j in sram.loop(len(M2), alike=down):  # line 4
            H_ij = sram.full(H_tiles[i, j].shape, 0.0)  # line 5
            for c in sram.loop(d, where=in_d[:, j]):  # line 6
                X_ic, W1_cj = sram.load(X[i, c], W1[c, j])  # line 7
                H_ij = on_chip(H_ij + X_ic @ W1_cj, over=H_ij)  # line 8
            # line 9: end for
            H_ij = on_chip(relu(H_ij), over=H_ij)  # line 10
            sram.store(H_tiles[i, j], H_ij)  # line 10
        # line 11: end for
        for k in sram.loop(M2.shape[1], alike=across):  # line 12
            Y_ik = sram.full(Y[i, k].shape, 0.0)  # line 13
            for c in sram.loop(f, where=in_f[:, k]):  # line 14
                H_ic, W2_ck = sram.load(H[i, c], W2[c, k])  # line 15
                Y_ik = on_chip(Y_ik + H_ic @ W2_ck, over=Y_ik)  # line 16
            # line 17: end for
            sram.store(Y[i, k], Y_ik)  # line 18
        # line 19: end for
    # line 20: end for
    return Y  # line 21


PROGRAM = MatrixProgram(
    **SPARSE_MLP,
    title="Sparse MLP, in square tiles",
    run=sparse_mlp_square,
    extras={"H": Kind("N", "f")},
    follows=("H", "Y"),
    line_1=square_line_1,
    rows=square_rows,
    bugs=(
        Bug("no relu", "relu(H_ij)", "H_ij"),
        Bug("the first column's mask for all", "where=in_d[:, j]", "where=in_d[:, 0]"),
        Bug("subtracted", "Y_ik + H_ic", "Y_ik - H_ic"),
    ),
)
