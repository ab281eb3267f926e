"""FlashDecoding with a sink: a logit s, whose e^s is in the sum ℓ, but brings no value.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop, the splits, each a run of blocks
             of keys, which of their tiles are live, and the sink's logit s in HBM.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Set block sizes B_r = ⌈M/4d⌉, B_c = min(⌈M/4d⌉, d).
    3  Divide Q into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows,
       these into splits.
    4  for each split s, all at once, do
    5    for 1 ≤ i ≤ T_r do
    6      Load Q_i from HBM to on-chip SRAM.
    7      Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    8      for each live tile j of split s do
    9        Load K_j, V_j from HBM to on-chip SRAM.
    10       S_ij = τ Q_i K_jᵀ.
    11       S_ij^masked = MASK(S_ij), unless tile (i, j) is full.
    12       m_i^new = max(m_i, rowmax(S_ij^masked)).
    13       P̃_ij = exp(S_ij^masked − m_i^new).
    14       ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    15       P̃_ij^dropped = dropout(P̃_ij, p_drop).
    16       O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij^dropped V_j.
    17       m_i ← m_i^new.
    18     end for
    19     Write (O_i, ℓ_i, m_i) as part s to HBM.
    20   end for
    21 end for
    22 Load s from HBM. Merge (O, ℓ, m) = (0, 1, s) and the parts of each row block, one
       after another, divide by ℓ, and write O to HBM.
    23 Return O, R.

Only line 22 differs from `split_kv`: (0, 1, s) is the part that a key of score s and
value 0 leaves, ℓ = e^{s − s} = 1 and m = s. It is merged once, however many splits
there are. A tree has no running ℓ and m that could begin so: `merge` is "sequence".
"""

from dataclasses import replace

from flashsim.algorithms import split_kv
from flashsim.algorithms.notation import (
    exp,
    finite,
    maximum,
    product,
    rowmax,
    rowsum,
)
from flashsim.algorithms.parts import Dropout, MaskFunction, Sink, Splits
from flashsim.algorithms.with_sink.split_kv_merge import merge_in_sequence_with_sink
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def split_kv_with_sink(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
    splits: Splits,
    sink: Sink,
) -> tuple[Matrix]:
    """Run on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v), in HBM."""
    on_chip = sram.on_chip
    N = Q.shape[0]
    d_v = V.shape[1]
    t = splits.number
    dropout.save()  # line 1
    B_r = blocks.B_r  # line 2
    B_c = blocks.B_c  # line 2
    O = hbm.empty("O", (N, d_v), V.dtype, "output").divide(B_r)  # line 3
    O_parts = hbm.empty("O_parts", (N, t * d_v), sram.dtype).divide(B_r, d_v)  # line 3
    l_parts = hbm.empty("l_parts", (N, t), sram.dtype).divide(B_r, 1)  # line 3
    m_parts = hbm.empty("m_parts", (N, t), sram.dtype).divide(B_r, 1)  # line 3
    Q = Q.divide(B_r)  # line 3
    K = K.divide(B_c)  # line 3
    V = V.divide(B_c)  # line 3
    for s in sram.loop(t, alike=splits.alike):  # line 4
        for i in sram.loop(blocks.T_r, alike=splits.rows_alike(s)):  # line 5
            Q_i = sram.load(Q[i])  # line 6
            O_i = sram.full(O[i].shape, 0.0)  # line 7
            l_i = sram.full(l_parts[i, s].shape, 0.0)  # line 7
            m_i = sram.full(m_parts[i, s].shape, float("-inf"))  # line 7
            for j in sram.loop(blocks.T_c, where=splits.row(s, i)):  # line 8
                K_j, V_j = sram.load(K[j], V[j])  # line 9
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 10
                S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 11
                m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 12
                P_tilde_ij = on_chip(  # line 13
                    exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij
                )
                l_i = on_chip(  # line 14
                    exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                )
                P_dropped_ij = on_chip(  # line 15
                    P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij
                )
                O_i = on_chip(  # line 16
                    exp(m_i - finite(m_i_new)) * O_i + product(P_dropped_ij, V_j),
                    over=O_i,
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 17
            # line 18: end for
            sram.store(O_parts[i, s], O_i)  # line 19
            sram.store(l_parts[i, s], l_i)  # line 19
            sram.store(m_parts[i, s], m_i)  # line 19
        # line 20: end for
    # line 21: end for
    merge_in_sequence_with_sink(sram, O_parts, l_parts, m_parts, O, sink)  # line 22
    return (O,)  # line 23


ALGORITHM = replace(
    split_kv.ALGORITHM,
    title=f"{split_kv.ALGORITHM.title}, with a sink",
    run=split_kv_with_sink,
    parts=("tau", "MASK", "dropout", "splits", "sink"),
)
