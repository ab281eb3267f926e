"""Packed batches: sequences lie end to end, and words say where each begins; tiles never straddle
two.

    Require: Q, K, V of all sequences end to end, words cu_q, cu_k (b + 1 each) in HBM, on-chip SRAM
             of size M.
    1  for each sequence s, 1 ≤ i ≤ ⌈max N/B_r⌉, all at once, as kernels launch them, do
    2    a, a' ← word(cu_q[s]), word(cu_q[s + 1]).
    3    if block i lies beyond a' − a: next.
    4    c, c' ← word(cu_k[s]), word(cu_k[s + 1]).
    5    Load Q_i, of rows a … a' − 1, from HBM to on-chip SRAM.
    6    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    7    for 1 ≤ j ≤ ⌈e_i/B_c⌉ do
    8      Load K_j, V_j, of rows c … c' − 1, from HBM to on-chip SRAM.
    9      S_ij^masked = MASK(τ Q_i K_jᵀ), positions counted from the sequence's own start.
    10     m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    11     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    12     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij V_j, m_i ← m_i^new.
    13   end for
    14   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    15   Write O_i, L_i to the same rows.
    16 end for
    17 Return O, L.

The listing is ours, after the flash_attn_varlen_func of FlashAttention's kernels (cu_seqlens). A
sequence without keys has its O = 0, L = −∞ written. Query heads that share a KV head have their
rows in turn, so row a of one is row g·a here.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.record import BatchProgram
from flashsim.support.sizes import ceil_div


def varlen(
    hbm: HBM, sram: SRAM, batch: Batch, Q: Matrix, K: Matrix, V: Matrix, cu_q: Matrix, cu_k: Matrix
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, d), K (n, d), V (n, d_v), words cu_q and cu_k (b + 1, 1); return O (R, d_v),
    L (R, 1).
    """
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    g = batch.group
    word = sram.word
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    cu_q = cu_q.divide(1, 1)
    cu_k = cu_k.divide(1, 1)
    for s in sram.loop(len(batch), alike=batch.alike):  # line 1
        for i in sram.loop(ceil_div(batch.longest, B_r), alike=batch.launched(s)):  # line 1
            a = word(cu_q[s, 0])  # line 2
            a_next = word(cu_q[s + 1, 0])  # line 2
            if i * B_r >= g * (a_next - a):  # line 3
                continue  # line 3
            c = word(cu_k[s, 0])  # line 4
            c_next = word(cu_k[s + 1, 0])  # line 4
            Q_s, O_s, L_s = (X.rows(g * a, g * a_next).divide(B_r) for X in (Q, O, L))
            K_s, V_s = (X.rows(c, c_next).divide(B_c) for X in (K, V))
            Q_i = sram.load(Q_s[i])  # line 5
            O_i = sram.full(O_s[i].shape, 0.0)  # line 6
            l_i = sram.full(L_s[i].shape, 0.0)  # line 6
            m_i = sram.full(L_s[i].shape, float("-inf"))  # line 6
            n = c_next - c
            for j in sram.loop(ceil_div(batch.seen(s, i, n), B_c)):  # line 7
                K_j, V_j = sram.load(K_s[j], V_s[j])  # line 8
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 9
                S_masked_ij = on_chip(batch.mask(S_ij, s, i, j * B_c, n), over=S_ij)  # line 9
                m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 10
                P_tilde_ij = on_chip(  # line 10
                    exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij
                )
                l_i = on_chip(  # line 11
                    exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                )
                O_i = on_chip(  # line 12
                    exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ij, V_j), over=O_i
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 12
            # line 13: end for
            O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 14
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 14
            sram.store(O_s[i], O_i)  # line 15
            sram.store(L_s[i], L_i)  # line 15
        # line 16: end for
    return O, L  # line 17


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    ends = {"cu_q": batch.queries, "cu_k": batch.keys}
    words = {
        name: np.array([[0], *([n] for n in accumulate(of))], np.uint32)
        for name, of in ends.items()
    }
    return {**batch.shapes(), **words}


PROGRAM = BatchProgram(
    name="varlen",
    title="Packed batches",
    run=varlen,
    operands=operands,
    bugs=(
        Bug(
            "positions counted from the first sequence",
            "s, i, j * B_c, n), over",
            "s, i, c + j * B_c, n), over",
        ),
        Bug(
            "keys to the longest's end",
            "n = c_next - c",
            "n = min(max(batch.keys), K.shape[0] - c)",
        ),
        Bug(
            "a sequence without keys is skipped",
            "n = c_next - c\n",
            "n = c_next - c\n            if n == 0: continue\n",
        ),
        Bug(
            "L to the next sequence's rows",
            "sram.store(L_s[i], L_i)",
            "sram.store(L.rows(0, L_i.shape[0]).divide(B_r)[0], L_i)",
        ),
        Bug(
            "a row of head 1 at that of head 0",
            "X.rows(g * a, g * a_next)",
            "X.rows(a, a + g * (a_next - a))",
        ),
        Bug("the end is read of the wrong words", "word(cu_k[s + 1, 0])", "word(cu_q[s + 1, 0])"),
        Bug(
            "causal at the top left",
            "batch.seen(s, i, n)",
            "n * (i + 1) // (i + 1) - n + batch.seen(s, i, batch.queries[s])",
        ),
    ),
)
